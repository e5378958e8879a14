from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from diurnal.train.pulse import Beat, Phase, Pulse, beat_of, birth
from diurnal.train.stall import Stall, Watchdog, diagnose, kill_frozen, stacks

LIMIT_S = 30.0


def beat(rank: int, phase: str = "vote", step: int = 12, **changes: Any) -> Beat:
    values: dict[str, Any] = {
        "rank": rank,
        "pid": 100 + rank,
        "host": "here",
        "birth": "",
        "group": "1",
        "step": step,
        "num_steps": step + 1,
        "phase": phase,
        "since_s": 31.0,
        "step_s": 32.0,
        "limit_s": LIMIT_S,
        "rows": 0,
        "at": f"work (file.py:{rank})",
        "is_waiting": phase not in ("start", "data", "commit", "between"),
    }
    return Beat(**values | changes)


SITUATIONS: dict[str, tuple[list[Beat], int, tuple[int, ...], str]] = {
    "frozen": (
        [beat(0, "exchange"), beat(1, "data", age_s=30.0, since_s=1.0), beat(2, "exchange")],
        3,
        (1,),
        "rank 1 stalls: frozen or gone, no sign of life for 30 s; last seen in step 12, phase data; "
        "ranks 0, 2 wait in exchange",
    ),
    "frozen although as far as the others": (
        [beat(0, "backward"), beat(1, "backward", age_s=16.0, since_s=15.0)],
        2,
        (1,),
        "rank 1 stalls: frozen or gone, no sign of life for 16 s; last seen in step 12, phase backward; "
        "rank 0 waits in backward",
    ),
    "slow data on one rank": (
        [beat(0, "exchange"), beat(1, "data"), beat(2, "vote")],
        3,
        (1,),
        "rank 1 stalls: step 12, phase data, for 31 s, in work (file.py:1); rank 0 waits in exchange; "
        "rank 2 waits in vote",
    ),
    "slow data on two ranks": (
        [beat(0, "exchange"), beat(1, "data"), beat(2, "data", at="work (file.py:1)")],
        3,
        (1, 2),
        "ranks 1, 2 stall: step 12, phase data, for 31 s, in work (file.py:1); rank 0 waits in exchange",
    ),
    "one rank in a commit, the others in the next step": (
        [beat(0, "commit"), beat(1, "exchange", step=13), beat(2, "exchange", step=13)],
        3,
        (0,),
        "rank 0 stalls: step 12, phase commit, for 31 s, in work (file.py:0); ranks 1, 2 wait in exchange",
    ),
    "step numbers start again, progress does not": (
        [beat(0, "dense", step=99, num_steps=100), beat(1, "exchange", step=0, num_steps=101)],
        2,
        (0,),
        "rank 0 stalls: step 99, phase dense, for 31 s, in work (file.py:0); rank 1 waits in exchange",
    ),
    "all in one collective": (
        [beat(0), beat(1), beat(2)],
        3,
        (0, 1, 2),
        "all 3 ranks wait for each other in vote: step 12, for 31 s, in work (file.py:0)",
    ),
    "one in the phase of a collective, but not in it": (
        [beat(0, "backward"), beat(1, "backward", is_waiting=False)],
        2,
        (1,),
        "rank 1 stalls: step 12, phase backward, for 31 s, in work (file.py:1); rank 0 waits in backward",
    ),
    "never heard of": (
        [beat(0, "exchange", step=0)],
        2,
        (1,),
        "rank 1 stalls: no sign of life since the start; rank 0 waits in exchange",
    ),
    "one has failed and ended before its part of a collective": (
        [beat(0, "vote"), beat(1, "data", has_ended=True, age_s=40.0)],
        2,
        (1,),
        "rank 1 stalls: its work has ended; last seen in step 12, phase data; rank 0 waits in vote",
    ),
    "all others have ended and one waits for them": (
        [beat(0, "vote"), beat(1, "between", has_ended=True, age_s=40.0)],
        2,
        (1,),
        "rank 1 stalls: its work has ended; last seen in step 12, phase between; rank 0 waits in vote",
    ),
    "all others have ended and one writes still": (
        [beat(0, "commit"), beat(1, "between", has_ended=True, age_s=40.0)],
        2,
        (0,),
        "rank 0 stalls: step 12, phase commit, for 31 s, in work (file.py:0)",
    ),
    "alone": ([beat(0, "commit")], 1, (0,), "rank 0 stalls: step 12, phase commit, for 31 s, in work (file.py:0)"),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_who_stalls_and_where_is_said(name: str) -> None:
    beats, world_size, ranks, text = SITUATIONS[name]
    stall = diagnose({beat.rank: beat for beat in beats}, LIMIT_S, world_size)
    assert (stall.ranks, stall.text) == (ranks, text)
    assert stall.is_over
    if ranks[0] < len(beats):
        assert (stall.phase, stall.step) == (beats[ranks[0]].phase, beats[ranks[0]].step)


def test_only_a_rank_without_a_sign_of_life_may_be_killed() -> None:
    slow, frozen, ended = beat(1, "data"), beat(2, "data", age_s=20.0), beat(3, "data", age_s=20.0, has_ended=True)
    assert diagnose({0: beat(0), 1: slow}, LIMIT_S, 2).frozen == ()
    assert diagnose({0: beat(0), 1: slow, 2: frozen, 3: ended}, LIMIT_S, 4).frozen == (frozen,)


@pytest.mark.parametrize(
    "other",
    [
        beat(1, "start", step=0, limit_s=300.0),
        beat(1, "data", step=11, limit_s=None),
        beat(1, "vote", limit_s=None),
        beat(1, "data", step_s=20.0),
    ],
    ids=["starting", "pausing", "pausing where I am", "not too late itself"],
)
def test_who_waits_for_a_rank_that_may_still_take_its_time_is_not_stalled(other: Beat) -> None:
    assert not diagnose({0: beat(0), 1: other}, LIMIT_S, 2).is_over


def test_marks_keep_the_clock_of_the_step_and_count_steps() -> None:
    pulse = Pulse()
    seen = []
    marks = [(Phase.START, 0), (Phase.DATA, 0), (Phase.VOTE, 0), (Phase.DATA, 1), (Phase.COMMIT, 1), (Phase.DATA, 1)]
    for phase, step in marks:
        pulse.mark(phase, step)
        seen.append(pulse.moment)
    assert [m.num_steps - seen[0].num_steps for m in seen] == [0, 1, 1, 2, 2, 3], "the last is a step of a new pass"
    assert [m.is_first for m in seen] == [True, True, True, False, False, False]
    assert seen[2].step_began_s == seen[1].step_began_s < seen[2].phase_began_s
    assert seen[3].step_began_s == seen[3].phase_began_s
    assert seen[1].step_began_s > seen[0].step_began_s


def test_a_pause_is_not_watched_and_the_clock_starts_again_after_it() -> None:
    pulse = Pulse()
    pulse.mark(Phase.COMMIT, 4)
    before = pulse.moment
    with pulse.paused():
        assert not pulse.moment.is_watched
        assert beat_of(pulse, 0, "", 1.0, 300.0).limit_s is None
    after = pulse.moment
    assert after.is_watched
    assert after[:3] == before[:3]
    assert after.step_began_s > before.step_began_s
    pulse.mark(Phase.BETWEEN, 4)
    assert not pulse.moment.is_watched


def test_a_beat_says_where_the_thread_is_and_comes_through_the_wire() -> None:
    pulse = Pulse()
    pulse.rows = 70
    sent = beat_of(pulse, 3, "attempt 2", 30.0, 300.0)
    assert (sent.rank, sent.pid, sent.rows, sent.limit_s) == (3, os.getpid(), 70, 300.0)
    assert sent.at.startswith("_whereabouts (pulse.py:"), "this thread trains and watches at once"
    assert Beat.from_wire({**sent.to_wire(), "age_s": 1.5, "more": 1}).age_s == 1.5


def test_a_mark_costs_little() -> None:
    pulse, num_rounds, num_tries = Pulse(), 500, 100

    def mark(phase: Phase, step: int) -> None:
        return None

    def seconds(call: Callable[[Phase, int], None]) -> float:
        data, vote = Phase.DATA, Phase.VOTE
        start_s = time.perf_counter()
        for step in range(num_rounds):
            call(data, step)
            call(vote, step)
        return time.perf_counter() - start_s

    empty_s = min(seconds(mark) for _ in range(num_tries))
    marked_s = min(seconds(pulse.mark) for _ in range(num_tries))
    assert marked_s < 50 * empty_s


class Mailbox:
    """What a rank of a test hears from the others."""

    def __init__(self, others: list[Beat], orders: dict[str, Any] | None = None) -> None:
        self.others = others
        self.orders = orders or {}
        self.received: list[Beat] = []

    def exchange(self, values: dict[str, Any]) -> dict[str, Any]:
        self.received.append(Beat.from_wire(values))
        beats = [*self.others, self.received[-1]]
        return {"beats": {beat.rank: beat.to_wire() for beat in beats}, "orders": self.orders}


def watch_late(exchange: Callable[[dict[str, Any]], dict[str, Any]], world_size: int = 2) -> Stall | None:
    """What rank 0 says, whose second step takes longer than the limit of 0.6 s, within 2 s."""
    verdicts: list[Stall] = []
    said = threading.Event()

    def on_stall(stall: Stall) -> None:
        verdicts.append(stall)
        said.set()

    pulse = Pulse()
    with Watchdog(pulse, 0, world_size, 0.6, exchange, on_stall, every_s=0.2, group="1"):
        pulse.mark(Phase.DATA, 0)
        pulse.mark(Phase.DATA, 1)
        pulse.mark(Phase.EXCHANGE, 1)
        said.wait(2.0)
    return verdicts[0] if verdicts else None


def test_the_rank_that_lags_behind_is_named_from_what_the_mailbox_says() -> None:
    stall = watch_late(Mailbox([beat(1, "data", step=1, num_steps=2, limit_s=0.6)]).exchange)
    assert stall is not None
    assert (stall.ranks, stall.phase, stall.step, stall.seen_by) == ((1,), "data", 1, 0)


def test_a_rank_of_an_earlier_group_or_of_a_larger_world_is_not_listened_to() -> None:
    stall = watch_late(Mailbox([beat(1, "data", group="0"), beat(2, "data", step=0, num_steps=1)]).exchange)
    assert stall is not None
    assert stall.ranks == (1,)
    assert "no sign of life since the start" in stall.text


def test_nobody_gives_up_while_another_rank_starts() -> None:
    starting = beat(1, "start", step=0, num_steps=1, limit_s=300.0)
    assert watch_late(Mailbox([starting]).exchange) is None


@pytest.mark.parametrize("is_slow", [False, True], ids=["fails", "never answers"])
def test_without_a_mailbox_a_rank_decides_alone_and_blames_nobody(is_slow: bool) -> None:
    over = threading.Event()

    def exchange(_: dict[str, Any]) -> dict[str, Any]:
        if is_slow:
            over.wait(10.0)
        raise ConnectionError("no actor")

    stall = watch_late(exchange)
    over.set()
    assert stall is not None
    assert stall.ranks == ()
    assert stall.text.startswith("rank 0: step 1, phase exchange, for 1 s; the other ranks are unknown")


def test_orders_are_there_to_read_and_the_end_is_announced() -> None:
    mailbox = Mailbox([], {"hold": "a node leaves"})
    with Watchdog(Pulse(), 0, 1, 30.0, mailbox.exchange, every_s=0.02) as watchdog:
        deadline_s = time.monotonic() + 5
        while not watchdog.orders and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert watchdog.orders == {"hold": "a node leaves"}
    assert not mailbox.received[0].has_ended
    assert mailbox.received[-1].has_ended


def test_a_pid_that_belongs_to_another_process_by_now_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            kill_frozen([beat(1, pid=sleeper.pid, birth=birth(os.getpid())), beat(1, pid=sleeper.pid, birth="")])
            assert sleeper.poll() is None
            assert birth(sleeper.pid) not in ("", birth(os.getpid()))
            kill_frozen([beat(1, pid=sleeper.pid, birth=birth(sleeper.pid))])
            assert sleeper.wait(5) == -9
        finally:
            sleeper.kill()


def test_the_stacks_name_all_threads_and_what_they_do() -> None:
    release = threading.Event()

    def wait_for_release() -> None:
        release.wait(10.0)

    thread = threading.Thread(target=wait_for_release, name="one-that-waits")
    thread.start()
    try:
        text = stacks()
    finally:
        release.set()
        thread.join()
    assert text.startswith("thread MainThread")
    assert text.index("test_the_stacks_name") < text.index("one-that-waits") < text.index("wait_for_release")
