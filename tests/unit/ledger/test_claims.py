"""Who gets a model, and what a holder may do that has it no more; the clock is turned by hand."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import replace

import pytest

from diurnal.errors import EXIT_LEASED, LeaseHeld, LeaseLost
from diurnal.ledger import holders
from diurnal.ledger.claims import Ledger
from diurnal.ledger.holders import Holder
from diurnal.ledger.lease import Lease
from diurnal.ledger.schema import LEASES


@pytest.fixture
def as_holder(monkeypatch: pytest.MonkeyPatch):
    """`as_holder(pid=7)` -> from now on this process claims as another one."""

    me = Holder.here()

    def change(**values: object) -> Holder:
        holder = replace(me, **values)
        monkeypatch.setattr("diurnal.ledger.claims.Holder.here", staticmethod(lambda: holder))
        return holder

    return change


def judge(lease: Lease, number: int) -> None:
    told = {"evidence": {}, "rejected": False, "state": "promoted", "expected_champion": None, "promote": True}
    lease.judge(number, "promote", "", **told)


def everything(ledger: Ledger) -> list[list[object]]:
    tables = (ledger.commits, ledger.attempts, ledger.events, ledger.increments, ledger.versions, ledger.promotions)
    return [list(of("clicks")) for of in tables]


def test_the_second_is_told_who_trains_and_since_when(ledger):
    """HazyResearch/metal#128: two jobs in one folder load each other's weights."""
    ledger.claim("clicks", "2026-01-02", 30.0)
    with pytest.raises(LeaseHeld) as caught:
        ledger.claim("clicks", "2026-01-03", 30.0)
    me = f"process {os.getpid()} on {socket.gethostname()}"
    says = f"model clicks is being trained by {me} since 2026-01-02T00:00:00.000+00:00 (what: 2026-01-02)"
    assert says in str(caught.value)
    assert caught.value.exit_code == EXIT_LEASED
    assert ledger.held("clicks") == says.partition(" by ")[2]
    assert ledger.claim("others", "2026-01-02", 30.0).token == 1
    assert ledger.held("nobody's") is None


def test_a_released_model_is_free_and_tokens_go_on(ledger):
    tokens = []
    for _ in range(3):
        lease = ledger.claim("clicks", "", 30.0)
        tokens.append(lease.token)
        lease.release("done")
        lease.release("done")
        assert lease.lost.is_set()
        assert ledger.held("clicks") is None
    assert tokens == [1, 2, 3]
    assert [(e.kind, e.reason) for e in ledger.events("clicks")] == [("claim", ""), ("release", "done")] * 3


def test_time_without_a_sign_of_life_frees_a_model(ledger, clock, as_holder):
    as_holder(host="elsewhere", place="another machine", pid=7)
    first = ledger.claim("clicks", "2026-01-02", 30.0)
    clock.now_s += 29
    first.renew()
    clock.now_s += 29.9
    as_holder(host="here")
    with pytest.raises(LeaseHeld, match=r"last sign of life 29\.9 s ago, of 30 s"):
        ledger.claim("clicks", "", 1.0)
    clock.now_s += 0.1
    second = ledger.claim("clicks", "", 1.0)
    assert second.token == first.token + 1
    (event,) = ledger.events("clicks", limit=1)
    assert re.search(r"process 7 on elsewhere since .* gave no sign of life for 30\.0 s", event.reason)
    assert event.data["token"] == second.token


def test_a_holder_that_was_late_but_has_not_been_replaced_goes_on(ledger, clock, commit):
    first = ledger.claim("clicks", "", 30.0)
    clock.now_s += 300
    first.publish(commit(first.token))
    first.renew()
    with pytest.raises(LeaseHeld):
        ledger.claim("clicks", "", 30.0)


@pytest.mark.parametrize(
    "write",
    [
        lambda lease, commit: lease.renew(),
        lambda lease, commit: lease.publish(commit(lease.token, steps=40)),
        lambda lease, commit: lease.withdraw(["1/1-20"]),
        lambda lease, commit: lease.begin_attempt("2026-01-01", 1, 2),
        lambda lease, commit: lease.end_attempt("2026-01-01", 1, "failed"),
        lambda lease, commit: lease.rebuild([commit(9)]),
        lambda lease, commit: lease.mark("2026-01-01", "held", reason="late"),
        lambda lease, commit: judge(lease, 1),
        lambda lease, commit: lease.supersede([1], ["2026-01-01"], "late"),
    ],
    ids=["renew", "publish", "withdraw", "begin", "end", "rebuild", "mark", "judge", "supersede"],
)
def test_a_stale_holder_changes_nothing(ledger, clock, commit, write):
    first = ledger.claim("clicks", "", 30.0)
    first.publish(commit(first.token))
    first.begin_attempt("2026-01-01", 1, 2)
    clock.now_s += 31
    second = ledger.claim("clicks", "2026-01-03", 30.0)
    before = everything(ledger)
    for _ in range(2):
        with pytest.raises(LeaseLost, match=rf"taken over by process {os.getpid()} on .* \(what: 2026-01-03\)"):
            write(first, commit)
        assert first.lost.is_set()
        assert "taken over" in first.lost_reason
    first.release("late")
    assert before == everything(ledger)
    second.renew()


def test_a_late_commit_of_another_lease_does_not_end_this_one(ledger, clock, commit):
    first = ledger.claim("clicks", "", 30.0)
    clock.now_s += 31
    second = ledger.claim("clicks", "", 30.0)
    with pytest.raises(LeaseLost, match=r"1/1-20 was written under token 1 .* under token 2"):
        second.publish(commit(first.token))
    assert not second.lost.is_set()
    second.publish(commit(second.token))
    assert [c.token for c in ledger.commits("clicks")] == [2]


def test_a_ledger_that_was_lost_does_not_let_old_tokens_back_in(ledger, url, clock, commit):
    """Tokens start again from 1 in a fresh file: an old holder's must not pass for a new one's."""
    old = ledger.claim("clicks", "", 30.0)
    with Ledger(url, clock=clock) as same:
        same._database.write(lambda c: c.execute(LEASES.delete()))
    new = ledger.claim("clicks", "", 30.0)
    assert new.token == old.token
    with pytest.raises(LeaseLost):
        old.publish(commit(old.token))
    assert ledger.commits("clicks") == []
    new.renew()


def test_a_pid_that_was_given_to_another_process_is_a_dead_holder(ledger, as_holder):
    real = Holder.here()
    as_holder(started=real.started - 1)
    assert ledger.claim("clicks", "2026-01-02", 30.0).token == 1
    as_holder()
    assert ledger.claim("clicks", "2026-01-02", 30.0).token == 2
    assert ledger.events("clicks")[-1].reason.endswith("has ended")
    with pytest.raises(LeaseHeld):
        ledger.claim("clicks", "2026-01-02", 30.0)


@pytest.mark.parametrize("place", ["another boot", ""], ids=["another", "unknown"])
def test_a_process_that_cannot_be_seen_is_not_taken_for_dead(ledger, as_holder, place):
    """Its pid says nothing: another machine, another container, or a system that does not tell."""
    as_holder(place=place, pid=2**22 + 1)
    ledger.claim("clicks", "2026-01-02", 30.0)
    as_holder()
    with pytest.raises(LeaseHeld):
        ledger.claim("clicks", "2026-01-02", 30.0)


def test_a_process_that_proc_hides_is_not_taken_for_dead(tmp_path, monkeypatch):
    """/proc mounted with `hidepid` shows one's own processes only."""
    here = Holder.here()
    monkeypatch.setattr(holders, "_PROC", tmp_path)
    monkeypatch.setattr(holders, "_place", lambda: here.place)
    assert not here.is_dead()
    assert replace(here, pid=2**22 + 1).is_dead()


def test_a_system_without_proc_judges_by_time_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(holders, "_PROC", tmp_path)
    here = Holder.here()
    assert (here.place, here.started) == ("", 0)
    assert not replace(here, pid=2**22 + 1).is_dead()


def test_a_name_with_parentheses_is_read_over():
    child = os.fork()
    if child == 0:
        with open("/proc/self/comm", "w") as file:
            file.write("a) S (b")
        os.kill(os.getpid(), 9)
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        state, started = holders._state_and_start(child)
        assert state == "Z"
        assert replace(Holder.here(), pid=child, started=started).is_dead(), "a zombie holds nothing"
    finally:
        os.waitpid(child, 0)


def test_a_claim_whose_answer_was_lost_is_no_rival_of_itself(ledger, monkeypatch):
    """The connection ends after the server has committed: the transaction is done again."""
    write = ledger._database.write
    monkeypatch.setattr(ledger._database, "write", lambda work: (write(work), write(work))[1])
    assert ledger.claim("clicks", "", 30.0).token == 1
    assert [event.kind for event in ledger.events("clicks")] == ["claim"]
