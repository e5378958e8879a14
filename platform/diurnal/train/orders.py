"""What the driver, or Ray Train's controller, orders workers to do at their next step; and what they tell of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from diurnal.train.events import Link
from diurnal.train.pulse import Pulse

HOLD_S = 15.0
"""How long workers stand still for a resize that was announced. If it does not come they go on."""

LAST_SHARE = 0.99
"""Beyond this share of an increment nobody is resized: it is finished sooner than that."""

POLL_S = 0.1


class Orders:
    """The newest orders, on rank 0; told to the mailbox with each sign of life is what is being learned."""

    def __init__(self, link: Link, pulse: Pulse) -> None:
        self._link = link
        self._pulse = pulse
        self._latest: Mapping[str, str] = {}
        self._is_hold_over = False
        self.increment = ""
        self.num_rows = 0
        self.learns = False
        """Between the first and the last step of learning an increment."""
        self.is_stopped = False
        """The run is ended: what was begun is committed as far as it was learned."""

    def exchange(self, beat: dict[str, Any]) -> dict[str, Any]:
        """Leaves a sign of life in the mailbox. Called by the watchdog's thread."""
        told = {"increment": self.increment, "num_rows": self.num_rows, "learning": self.learns}
        answer = self._link.beat({**beat, **told})
        self._latest = answer["orders"]
        if "hold" not in self._latest:
            self._is_hold_over = False
        return answer

    def wants(self, order: Literal["hold", "stop"]) -> bool:
        if order == "hold" and (self._is_hold_over or self._pulse.rows >= LAST_SHARE * self.num_rows):
            return False
        return order in self._latest

    def wait_while_held(self) -> None:
        """Stands still until the order is taken back, or long enough; the same order is not followed again."""
        until_s = time.monotonic() + HOLD_S
        while time.monotonic() < until_s and "hold" in self._latest and "stop" not in self._latest:
            time.sleep(POLL_S)
        self._is_hold_over = True
