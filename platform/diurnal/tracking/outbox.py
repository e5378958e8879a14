"""One bounded queue and one daemon thread that carries what is in it to a store that may be slow, away or silent.

Whoever puts never waits. What the store refuses for good is dropped and counted; while the store is away everything
is kept, up to the limit, and carried later, in order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from diurnal.tracking.params import without_passwords

_log = logging.getLogger(__name__)

Send = Callable[[Sequence[Any]], None]
"""Takes the parts of one item to the store. Is called again with the same parts after a failure."""


class Refused(Exception):
    """The store has answered, and will never take this."""


@dataclass(frozen=True)
class Tally:
    """What became of the parts that were put."""

    sent: int
    dropped: int
    reason: str | None
    """Why the first part was dropped; None when none was."""


@dataclass
class _Item:
    send: Send
    parts: list[Any]
    weight: int
    group: Hashable | None = None
    failures: int = field(default=0)


class Outbox:
    """Keeps up to `limit` units of weight; `vital` items (a run's beginning and end) may use as much again.

    A failed item is tried again after `first_wait_s`, doubling up to `longest_wait_s`. If the store is alive all the
    same, the item is at fault, and is dropped after `max_failures`.
    """

    def __init__(
        self,
        is_alive: Callable[[], bool],
        *,
        limit: int = 100_000,
        parts_per_call: int = 1000,
        first_wait_s: float = 0.5,
        longest_wait_s: float = 5.0,
        max_failures: int = 3,
    ) -> None:
        self._is_alive = is_alive
        self._limit = limit
        self._parts_per_call = parts_per_call
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._max_failures = max_failures
        self._changed = threading.Condition()
        self._items: deque[_Item] = deque()
        self._in_flight: _Item | None = None
        self._weight = 0
        self._closing = False
        self._abandoned = False
        self._sent = 0
        self._dropped = 0
        self._reason: str | None = None
        self._trouble: str | None = None
        self._away_since: float | None = None
        self._thread: threading.Thread | None = None

    def put(
        self,
        send: Send,
        parts: Sequence[Any],
        *,
        weight: int | None = None,
        group: Hashable | None = None,
        vital: bool = False,
    ) -> None:
        """Queues `parts` and returns at once. Parts of one group that wait next to each other travel in one call."""
        weight = len(parts) if weight is None else weight
        with self._changed:
            if self._closing or self._weight + weight > self._limit * (2 if vital else 1):
                why = "the tracker is closed" if self._closing else f"more than {self._limit} waited"
                self._drop(len(parts), f"{why}; {self._trouble}" if self._trouble else why)
                return
            self._weight += weight
            last = self._items[-1] if self._items else None
            fits = last is not None and len(last.parts) + len(parts) <= self._parts_per_call
            if last is not None and group is not None and last.group == group and fits:
                last.parts += parts
                last.weight += weight
            else:
                self._items.append(_Item(send, list(parts), weight, group))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="diurnal-tracking", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> Tally:
        """Waits until everything was sent or dropped, at most `timeout_s`; what waits then counts as dropped in the
        answer, but stays."""
        with self._changed:
            self._changed.wait_for(self._is_empty, timeout_s)
            left = self._num_waiting()
            reason = self._reason or (self._why_late(timeout_s) if left else None)
            return Tally(self._sent, self._dropped + left, reason)

    def close(self, timeout_s: float) -> Tally:
        """Flushes for at most `timeout_s`, drops what is left, and ends the thread. Later puts are dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            if not self._changed.wait_for(self._is_empty, timeout_s):
                self._drop(self._num_waiting(), self._why_late(timeout_s))
                self._items.clear()
                self._in_flight = None
            self._abandoned = True
            self._changed.notify_all()
            return Tally(self._sent, self._dropped, self._reason)

    def _is_empty(self) -> bool:
        return not self._items and self._in_flight is None

    def _num_waiting(self) -> int:
        return sum(len(item.parts) for item in self._items) + (len(self._in_flight.parts) if self._in_flight else 0)

    def _why_late(self, timeout_s: float) -> str:
        return f"not taken within {timeout_s:g} s: {self._trouble or 'no answer'}"

    def _drop(self, count: int, reason: str) -> None:
        self._dropped += count
        self._reason = self._reason or reason

    def _run(self) -> None:
        while (item := self._next()) is not None:
            self._carry(item)

    def _next(self) -> _Item | None:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closing)
            if self._abandoned or not self._items:
                return None
            self._in_flight = self._items.popleft()
            return self._in_flight

    def _carry(self, item: _Item) -> None:
        wait_s = self._first_wait_s
        while True:
            try:
                item.send(item.parts)
            except Exception as error:  # the mirror must never break what it mirrors
                text = describe(error)
                item.failures += not isinstance(error, Refused) and self._answers()
                if isinstance(error, Refused) or item.failures >= self._max_failures:
                    _log.warning("tracking: dropped: %s", text)
                    self._done(item, dropped_for=text)
                    return
                if not self._wait_in_trouble(text, wait_s):
                    return
                wait_s = min(2 * wait_s, self._longest_wait_s)
            else:
                self._done(item)
                return

    def _answers(self) -> bool:
        try:
            return self._is_alive()
        except Exception:  # whatever it says, it is not well
            return False

    def _wait_in_trouble(self, text: str, wait_s: float) -> bool:
        """Sleeps until the next try, or until closing begins; False if nothing is to be tried any more."""
        if self._away_since is None:
            self._away_since = time.monotonic()
            _log.warning("tracking: %s; training goes on, up to %d points are kept", text, self._limit)
        with self._changed:
            self._trouble = text
            was_closing = self._closing
            self._changed.wait_for(lambda: self._abandoned or self._closing != was_closing, wait_s)
            return not self._abandoned

    def _done(self, item: _Item, dropped_for: str | None = None) -> None:
        if dropped_for is None and self._away_since is not None:
            _log.warning("tracking: the store answers again after %.0f s", time.monotonic() - self._away_since)
            self._away_since = None
        with self._changed:
            if self._abandoned:
                return
            self._in_flight = None
            self._weight -= item.weight
            if dropped_for is None:
                self._sent += len(item.parts)
                self._trouble = None
            else:
                self._drop(len(item.parts), dropped_for)
            self._changed.notify_all()


def describe(error: BaseException) -> str:
    """One line, without passwords."""
    lines = str(error).strip().splitlines()
    text = without_passwords(lines[0] if lines else type(error).__name__)
    return text if len(text) <= 300 else text[:297] + "..."
