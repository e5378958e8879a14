"""The mailbox as Ray Train's policies see it."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import ray

STALE_S = 5.0
"""An older answer of the mailbox is none."""

_log = logging.getLogger(__name__)


class Post:
    """Never raises, and waits only where a caller says so: an exception in a policy would end the run."""

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox
        self._asked: Any = None
        self._answer: dict[str, Any] | None = None
        self._answered_s = -math.inf

    def status(self, wait_s: float = 0.0) -> dict[str, Any] | None:
        """The newest answer; None when there has been none for STALE_S. Asks again in the background."""
        try:
            if self._asked is None:
                self._asked = self._mailbox.status.remote()
            if ray.wait([self._asked], timeout=wait_s)[0]:
                asked, self._asked = self._asked, None
                answer: Any = ray.get(asked)
                self._answer, self._answered_s = answer, time.monotonic()
        except Exception as error:
            _log.warning("the mailbox did not answer: %s", error)
            self._asked = None
        return self._answer if time.monotonic() - self._answered_s < STALE_S else None

    def forget(self) -> None:
        """What was asked before now is no answer any more."""
        self._asked, self._answer, self._answered_s = None, None, -math.inf

    def order_hold(self, on: bool, reason: str = "") -> None:
        self._tell("order", "hold", on, reason)

    def note(self, kind: str, *, before: int, after: int, reason: str, seconds: float) -> None:
        self._tell("note", kind, {"from": before, "to": after, "reason": reason, "seconds": seconds})

    def _tell(self, method: str, *args: Any) -> None:
        try:
            getattr(self._mailbox, method).remote(*args)
        except Exception as error:
            _log.warning("the mailbox cannot be told: %s", error)
