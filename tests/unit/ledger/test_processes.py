"""Claims by real processes that are killed, frozen, or race."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict

import pytest

from diurnal.errors import LeaseHeld
from diurnal.ledger.claims import Ledger


def test_a_living_holder_is_named_and_a_killed_one_is_replaced_at_once(url, spawn):
    first = spawn()
    assert first.call("claim", model="clicks", lease_s=300.0, beat=True) == {"value": 1}
    assert first.call("begin", increment="2026-01-02") == {"value": 1}
    told = spawn().call("claim", model="clicks", lease_s=300.0, beat=False)
    assert told["error"] == "LeaseHeld"
    assert f"is being trained by process {first.pid} on " in told["text"]
    assert "(what: 2026-01-02)" in told["text"]
    os.kill(first.pid, signal.SIGKILL)  # and nobody has waited for it yet
    with Ledger(url) as ledger:
        until_s = time.monotonic() + 10
        while True:
            try:
                second = ledger.claim("clicks", "2026-01-02", 30.0)
                break
            except LeaseHeld:
                assert time.monotonic() < until_s, "a killed process takes a moment to end, not this long"
                time.sleep(0.01)
        assert second.token == 2
        assert ledger.events("clicks")[-1].reason.endswith("(what: 2026-01-02) has ended")
        assert [(a.outcome, a.attempt) for a in ledger.attempts("clicks")] == [("killed", 1)]
        assert second.begin_attempt("2026-01-02", 1, 2) == 2


@pytest.mark.parametrize("beat", [False, True], ids=["silent", "with_heartbeat"])
def test_a_frozen_holder_that_wakes_up_late_publishes_nothing(url, spawn, commit, beat):
    """HazyResearch/metal#128: frozen past its lease, replaced, woken: what is committed is the other one's, whole."""
    first = spawn()
    assert first.call("claim", model="clicks", lease_s=1.5, beat=beat) == {"value": 1}
    os.kill(first.pid, signal.SIGSTOP)
    with Ledger(url) as ledger:
        with pytest.raises(LeaseHeld, match=f"process {first.pid} on"):
            ledger.claim("clicks", "2026-01-02", 30.0)
        time.sleep(1.7)
        second = ledger.claim("clicks", "2026-01-02", 30.0)
        assert "gave no sign of life" in ledger.events("clicks")[-1].reason
        second.publish(commit(2))
        os.kill(first.pid, signal.SIGCONT)
        told = first.call("publish", **asdict(commit(1, steps=40)))
        assert told["error"] == "LeaseLost"
        assert f"was taken over by process {os.getpid()} on" in told["text"]
        assert f"taken over by process {os.getpid()}" in first.call("lost", timeout_s=10)["value"]
        assert ledger.commits("clicks") == [commit(2)]


def test_a_frozen_holder_that_nobody_replaced_goes_on(url, spawn, commit):
    first = spawn()
    assert first.call("claim", model="clicks", lease_s=3.0, beat=True) == {"value": 1}
    os.kill(first.pid, signal.SIGSTOP)
    time.sleep(4.0)
    os.kill(first.pid, signal.SIGCONT)
    assert first.call("lost", timeout_s=0.5) == {"value": None}
    assert first.call("publish", **asdict(commit(1))) == {"value": None}
    with Ledger(url) as ledger:
        assert ledger.commits("clicks") == [commit(1)]


def test_of_two_that_race_exactly_one_wins(url, spawn):
    """Models that nobody ever claimed, that were released, and whose holder is dead."""
    children = [spawn(), spawn()]
    dead = spawn()
    with Ledger(url) as ledger:
        for number in range(20):
            if number % 3 == 1:
                ledger.claim(f"model-{number}", "", 30.0).release()
            if number % 3 == 2:
                assert "value" in dead.call("claim", model=f"model-{number}", lease_s=300.0, beat=False)
        dead.process.kill()
        dead.process.wait()
        for number in range(20):
            for child in children:
                child.ask("claim", model=f"model-{number}", lease_s=300.0, beat=False)
            answers = [child.answer() for child in children]
            won = [child for child, answer in zip(children, answers, strict=True) if "value" in answer]
            assert [answer.get("error") for answer in answers].count("LeaseHeld") == 1, answers
            assert len(won) == 1
            held = ledger.held(f"model-{number}")
            assert held is not None
            assert held.startswith(f"process {won[0].pid} on")
