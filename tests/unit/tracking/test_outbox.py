from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from diurnal.tracking.outbox import Outbox, Refused, describe


class Sink:
    """A store that can be away, silent, or of another opinion."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.fault: Callable[[Sequence[Any]], object] = lambda parts: None
        self.is_up = True

    def send(self, parts: Sequence[Any]) -> None:
        if not self.is_up:
            raise ConnectionError("nobody there")
        self.fault(parts)
        self.calls.append(list(parts))

    @property
    def parts(self) -> list[Any]:
        return [part for call in self.calls for part in call]

    def outbox(self, **limits: Any) -> Outbox:
        return Outbox(lambda: self.is_up, first_wait_s=0.01, longest_wait_s=0.02, **limits)


def test_everything_arrives_in_order() -> None:
    sink = Sink()
    outbox = sink.outbox()
    for number in range(100):
        outbox.put(sink.send, [number])
    tally = outbox.close(5)
    assert (tally.sent, tally.dropped, tally.reason) == (100, 0, None)
    assert sink.parts == list(range(100))


def test_an_outage_costs_nothing_and_neighbours_travel_together() -> None:
    sink = Sink()
    sink.is_up = False
    outbox = sink.outbox(parts_per_call=10)
    outbox.put(sink.send, ["open"])
    for number in range(25):
        outbox.put(sink.send, [number], group="curve")
    outbox.put(sink.send, ["close"])
    time.sleep(0.1)
    sink.is_up = True
    assert outbox.close(5).dropped == 0
    assert sink.parts == ["open", *range(25), "close"]
    assert [len(call) for call in sink.calls] == [1, 10, 10, 5, 1]


def test_what_is_refused_is_dropped_once_and_the_rest_goes_on() -> None:
    def refuse(parts: Sequence[Any]) -> None:
        if "bad" in parts:
            raise Refused("no such run")

    sink = Sink()
    sink.fault = refuse
    outbox = sink.outbox()
    for part in ("a", "bad", "b"):
        outbox.put(sink.send, [part])
    tally = outbox.close(5)
    assert (tally.sent, tally.dropped, tally.reason) == (2, 1, "no such run")
    assert sink.parts == ["a", "b"]


def test_an_item_that_fails_while_the_store_is_well_does_not_block_the_others() -> None:
    tries = []

    def poison(parts: Sequence[Any]) -> None:
        if "poison" in parts:
            tries.append(1)
            raise RuntimeError("internal error")

    sink = Sink()
    sink.fault = poison
    outbox = sink.outbox(max_failures=3)
    outbox.put(sink.send, ["poison"])
    outbox.put(sink.send, ["b"])
    tally = outbox.close(5)
    assert (tally.sent, tally.dropped, tally.reason) == (1, 1, "internal error")
    assert len(tries) == 3


def test_a_full_outbox_drops_points_but_still_takes_the_end_of_a_run() -> None:
    sink = Sink()
    sink.is_up = False
    outbox = sink.outbox(limit=10)
    for number in range(25):
        outbox.put(sink.send, [number])
    outbox.put(sink.send, ["close"], vital=True)
    sink.is_up = True
    tally = outbox.close(5)
    assert tally.dropped == 15
    assert sink.parts == [*range(10), "close"]
    assert tally.reason is not None
    assert "more than 10 waited" in tally.reason


def test_closing_is_bounded_when_the_store_never_answers() -> None:
    sink = Sink()
    release = threading.Event()
    sink.fault = lambda parts: release.wait(30)
    outbox = sink.outbox()
    for number in range(5):
        outbox.put(sink.send, [number])
    before = time.monotonic()
    tally = outbox.close(0.2)
    assert time.monotonic() - before < 2
    assert (tally.sent, tally.dropped) == (0, 5)
    assert tally.reason == "not taken within 0.2 s: no answer"
    release.set()


def test_closing_is_bounded_when_the_store_is_away_and_says_why() -> None:
    sink = Sink()
    sink.is_up = False
    outbox = sink.outbox()
    outbox.put(sink.send, ["a", "b"])
    tally = outbox.close(0.2)
    assert (tally.sent, tally.dropped) == (0, 2)
    assert tally.reason == "not taken within 0.2 s: nobody there"


def test_putting_never_waits() -> None:
    sink = Sink()
    sink.is_up = False
    outbox = sink.outbox()
    slowest = 0.0
    for number in range(1000):
        before = time.monotonic()
        outbox.put(sink.send, [number], group="curve")
        slowest = max(slowest, time.monotonic() - before)
    assert slowest < 0.5
    outbox.close(0)


def test_after_closing_everything_is_dropped_and_counted() -> None:
    sink = Sink()
    outbox = sink.outbox()
    outbox.close(1)
    outbox.put(sink.send, ["late"])
    tally = outbox.close(1)
    assert (tally.dropped, tally.reason) == (1, "the tracker is closed")


def test_a_flush_that_is_too_short_counts_what_waits_and_keeps_it() -> None:
    sink = Sink()
    sink.is_up = False
    outbox = sink.outbox()
    outbox.put(sink.send, ["a"])
    assert outbox.flush(0.1).dropped == 1
    sink.is_up = True
    assert outbox.close(5).dropped == 0
    assert sink.parts == ["a"]


def test_an_error_is_told_in_one_line_without_its_password() -> None:
    text = describe(RuntimeError("cannot reach http://u:secret@host/\n[SQL: ...]\n"))
    assert text == "cannot reach http://u:***@host/"
    assert describe(TimeoutError()) == "TimeoutError"
    assert len(describe(RuntimeError("x" * 1000))) == 300
