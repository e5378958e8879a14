"""What the driver tells the tracking store: put down now, sent later by one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from diurnal.errors import DiurnalError
from diurnal.tracking import names
from diurnal.tracking.outbox import Outbox, Tally
from diurnal.tracking.store import Point, Store


class TrackingError(DiurnalError):
    """The tracking store did not take what it was given; raised in strict mode only."""

    title = "tracking"
    exit_code = 1


@dataclass(frozen=True)
class TrackingReport:
    """What became of everything that was logged: points, parameters, tags, artifacts, beginnings and ends of runs."""

    sent: int
    dropped: int
    repeated: int
    """Points whose key and step the run had already, from an earlier attempt."""
    reason: str | None
    """Why the first thing was dropped; None when nothing was."""

    def __str__(self) -> str:
        text = f"tracking: {self.sent} sent, {self.dropped} dropped"
        return f"{text} ({self.reason})" if self.dropped else text


class Mail:
    """Calls on the store that are put down now and made later; without a store they are forgotten."""

    def __init__(self, store: Store | None, clock: Callable[[], float]) -> None:
        self.store = store
        self._clock = clock
        self._outbox = Outbox(store.is_alive) if store else None

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    def send(self, call: Callable[[Store], object], *, weight: int = 1, vital: bool = False) -> None:
        if self.store and self._outbox:
            store = self.store

            def carry(_: object) -> None:
                call(store)

            self._outbox.put(carry, [None], weight=weight, vital=vital)

    def send_points(
        self, key: str, metrics: Mapping[str, float | None], step: int, time_ms: int, *, vital: bool = False
    ) -> None:
        points = [Point(name, value, time_ms, int(step)) for name, value in names.defined(metrics)]
        if self.store and self._outbox and points:
            store = self.store
            self._outbox.put(lambda parts: store.log_points(key, parts), points, group=key, vital=vital)

    def flush(self, timeout_s: float) -> TrackingReport:
        return self._report(self._outbox.flush(timeout_s) if self._outbox else None)

    def close(self, timeout_s: float) -> TrackingReport:
        return self._report(self._outbox.close(timeout_s) if self._outbox else None)

    def _report(self, tally: Tally | None) -> TrackingReport:
        if self.store is None or tally is None:
            return TrackingReport(0, 0, 0, None)
        return TrackingReport(tally.sent - self.store.repeated, tally.dropped, self.store.repeated, tally.reason)
