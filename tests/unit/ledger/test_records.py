from __future__ import annotations

import pytest

from diurnal.ledger.records import Attempt


@pytest.fixture
def lease(ledger):
    return ledger.claim("clicks", "2026-01-01", 30.0)


def test_commits_come_in_the_order_in_which_they_were_learned(ledger, lease, commit):
    wanted = [commit(1), commit(1, steps=40), commit(1, number=2), commit(1, number=10)]
    for each in reversed(wanted):
        lease.publish(each)
    assert ledger.commits("clicks") == wanted
    assert [c.is_final for c in wanted] == [False, True, False, False]
    assert ledger.commits("others") == []
    assert [e.kind for e in ledger.events("clicks")] == ["claim", "commit", "commit", "version", "commit"]


def test_the_same_commit_twice_is_one(ledger, lease, commit):
    lease.publish(commit(1))
    lease.publish(commit(1))
    assert ledger.commits("clicks") == [commit(1)]
    assert len(ledger.events("clicks")) == 2
    with pytest.raises(ValueError, match="as another commit"):
        lease.publish(commit(1, rows=7))
    assert ledger.commits("clicks") == [commit(1)]


def test_what_is_withdrawn_never_comes_back(ledger, lease, commit):
    for steps in (10, 20, 40):
        lease.publish(commit(1, steps=steps))
    lease.withdraw(["1/1-10", "1/1-20", "no such"])
    lease.withdraw(["1/1-10"])
    assert [c.path for c in ledger.commits("clicks")] == ["1/1-40"]
    assert ledger.events("clicks")[-1].data == {"paths": ["1/1-10", "1/1-20"]}
    with pytest.raises(ValueError, match="was withdrawn"):
        lease.publish(commit(1, steps=10))


def test_a_version_is_withdrawn_only_when_asked(ledger, lease, commit):
    for steps in (20, 40):
        lease.publish(commit(1, steps=steps))
    with pytest.raises(ValueError, match="1/1-40: a version"):
        lease.withdraw(["1/1-20", "1/1-40"])
    assert len(ledger.commits("clicks")) == 2
    lease.withdraw(["1/1-40"], final=True)
    assert [c.path for c in ledger.commits("clicks")] == ["1/1-20"]


def test_attempts_are_counted_by_increment_and_end_once(ledger, lease, clock):
    assert [lease.begin_attempt(day, 1, 2, 60, 40) for day in ("d1", "d1", "d2")] == [1, 2, 1]
    clock.now_s += 5
    lease.has_learned("d1", 1, 80)
    lease.end_attempt("d1", 1, "resized", "a node came")
    lease.end_attempt("d1", 1, "failed", "too late")
    first, second = ledger.attempts("clicks", "d1")
    times = {"started_at": "2026-01-02T00:00:00.000+00:00", "ended_at": "2026-01-02T00:00:05.000+00:00"}
    known = {"model": "clicks", "increment": "d1", "attempt": 1, "number": 1, "world_size": 2, "token": 1}
    ended = {"outcome": "resized", "reason": "a node came", "rows": 80, "replayed_rows": 40}
    assert first == Attempt(**known, **times, **ended, actor=lease.holder)
    assert (second.ended_at, second.outcome) == (None, "")
    assert [a.increment for a in ledger.attempts("clicks")] == ["d1", "d1", "d2"]


def test_the_next_claim_ends_what_a_dead_holder_left_open(ledger, lease, clock):
    lease.begin_attempt("d1", 1, 2)
    lease.end_attempt("d1", 1, "failed", "boom")
    lease.begin_attempt("d1", 1, 2)
    clock.now_s += 31
    second = ledger.claim("clicks", "d1", 30.0)
    assert [a.outcome for a in ledger.attempts("clicks")] == ["failed", "killed"]
    assert "gave no sign of life" in ledger.attempts("clicks")[1].reason
    assert ledger.events("clicks")[-1].data["killed_attempts"] == 1
    assert second.begin_attempt("d1", 1, 1) == 3


def test_events_are_kept_in_order_and_say_what_was_given(ledger, lease, clock):
    clock.now_s += 1.5
    lease.note("resize", "d1", "a node left", {"from": 2, "to": 1, "cost_s": float("nan"), "odd": {1: (None, "\0x")}})
    ledger.claim("others", "", 30.0)
    claimed, resized, other = ledger.events()
    assert (claimed.kind, other.model) == ("claim", "others")
    assert (resized.at, resized.actor) == ("2026-01-02T00:00:01.500+00:00", lease.holder)
    assert (resized.kind, resized.increment, resized.reason) == ("resize", "d1", "a node left")
    assert resized.data.pop("cost_s") != 0
    assert resized.data == {"from": 2, "to": 1, "odd": {"1": [None, "x"]}}
    assert ledger.events("clicks", limit=1) == [ledger.events()[1]]
    assert ledger.events(limit=2) == ledger.events()[1:]


def test_no_password_gets_into_an_event(ledger, lease):
    url = "postgresql://ann:s3cr/t@db/x?password=s3cr/t"
    lease.note("trouble", reason=f"lost {url}", data={"urls": [url], "more": {"url": url}})
    lease.begin_attempt("d1", 1, 1)
    lease.end_attempt("d1", 1, "failed", f"no answer from {url}")
    lease.release(f"gave up on {url}")
    text = repr((ledger.events(), ledger.attempts("clicks")))
    assert "s3cr" not in text
    assert text.count("ann:***@db/x?password=***") == 6


def test_a_lost_ledger_is_rebuilt_from_the_store(ledger, lease, commit):
    found = [commit(7), commit(9, steps=40, attempt=3)]
    assert lease.rebuild(reversed(found)) == 2
    assert lease.token == 10
    assert ledger.commits("clicks") == found
    lease.renew()
    lease.publish(commit(10, number=2))
    assert lease.begin_attempt("2026-01-01", 1, 1) == 4, "folders of attempts 1 to 3 may be there"
    rebuilt = [e for e in ledger.events("clicks") if e.kind == "rebuild"]
    assert [e.data for e in rebuilt] == [{"commits": 2, "token": 10}]
    lease.release()
    assert ledger.claim("clicks", "", 30.0).token == 11


def test_a_ledger_that_knows_the_model_is_not_rebuilt(ledger, lease, commit):
    assert lease.rebuild([]) == 0
    lease.publish(commit(1))
    lease.withdraw(["1/1-20"])
    assert lease.rebuild([commit(1, steps=40)]) == 0
    assert (ledger.commits("clicks"), lease.token) == ([], 1)
