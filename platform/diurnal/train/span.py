"""The increments that a command is about: those that are complete, and those that may come while workers are held."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from diurnal.config import Config
from diurnal.data.ids import IncrementId
from diurnal.data.partitions import Increment
from diurnal.data.selection import select_increments, wait_for_increments
from diurnal.tracking.mlflow import Dataset
from diurnal.train.summary import dataset_of

LOOK_EVERY_S = 1.0


class Span:
    """The increments from `first` to `last`."""

    def __init__(self, config: Config, first: str, last: str | None) -> None:
        self._config = config
        self._first = first
        self._last = last
        self._known: dict[str, Increment] = {}
        self._idle_since_s: float | None = None

    def complete(self) -> list[Increment]:
        """Those that are complete now, with `workers.keep_alive` after waiting for the first.

        Raises:
            DataError: without `workers.keep_alive`, also when one is not complete or there is none.
        """
        config = self._config
        keep_alive = config.workers.keep_alive
        until_s = time.monotonic() + keep_alive
        while keep_alive > 0 and time.monotonic() < until_s:
            if found := self._look():
                return found
            time.sleep(min(LOOK_EVERY_S, keep_alive))
        data = config.data
        found = select_increments(
            data.path, config.dataset, self._first, self._last, data.parts, on_bad_file=data.on_bad_file
        )
        self._known |= {increment.id: increment for increment in found}
        return found

    def wait_for_more(self, say: Callable[[str], None]) -> Sequence[Increment]:
        """Waits without workers for what `more` gives; empty when nothing came."""
        while (found := self.more()) is None:
            time.sleep(LOOK_EVERY_S)
        if not found and self._idle_since_s is not None:
            say(f"waited {self._config.workers.keep_alive:g} s for more: nothing came")
        return found

    def more(self) -> Sequence[Increment] | None:
        """Those that have become complete since the last look; None when there is none yet, () when none is waited for
        any more: `workers.keep_alive` is over, or the range is used up."""
        if self._config.workers.keep_alive == 0 or self._is_used_up():
            return ()
        if found := self._look():
            self._idle_since_s = None
            return found
        now_s = time.monotonic()
        self._idle_since_s = self._idle_since_s or now_s
        is_over = now_s - self._idle_since_s >= self._config.workers.keep_alive
        return () if is_over else None

    def dataset(self, increment_id: str) -> Dataset | None:
        """What tracking is told of an increment's rows."""
        increment = self._known[increment_id]
        return dataset_of(self._config, increment_id, increment.fingerprint, increment.num_rows)

    def _look(self) -> list[Increment]:
        data, schema, known = self._config.data, self._config.dataset, self._known.keys()
        found = wait_for_increments(
            data.path, schema, self._first, self._last, data.parts, known, on_bad_file=data.on_bad_file
        )
        self._known |= {increment.id: increment for increment in found}
        return found

    def _is_used_up(self) -> bool:
        """The last increment that the range can have is known."""
        last = self._last or self._first
        known = {str(IncrementId.parse(name).whole) for name in self._known} | self._known.keys()
        return last in known
