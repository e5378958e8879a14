from __future__ import annotations

import pytest

PROFILE = {"rows": 7, "columns": {"age": [0.5, None]}}


@pytest.fixture
def lease(ledger):
    return ledger.claim("clicks", "2026-01-01", 30.0)


def test_an_increment_goes_through_its_states(ledger, lease, clock, commit):
    lease.mark("2026-01-01", "seen")
    clock.now_s += 5
    lease.mark("2026-01-01", "claimed", fingerprint="f00d", rows=4200)
    lease.mark("2026-01-01", "profiled", profile=PROFILE)
    lease.publish(commit(1, steps=40))
    (found,) = ledger.increments("clicks")
    assert (found.state, found.version, found.rows) == ("trained", 1, 4200)
    assert ledger.profile("clicks", "2026-01-01") == PROFILE
    assert (ledger.increment("clicks", "2026-01-01"), ledger.increment("others", "2026-01-01")) == (found, None)
    assert (found.fingerprint, found.scored, found.actor) == ("f00d", None, lease.holder)
    assert found.first_seen_us == 1_767_312_000_000_000
    assert found.first_seen_at == "2026-01-02T00:00:00.000+00:00"
    assert found.updated_at == "2026-01-02T00:00:05.000+00:00"
    states = [(e.increment, e.data) for e in ledger.events("clicks", kind="state")]
    assert states == [
        ("2026-01-01", {"state": "seen"}),
        ("2026-01-01", {"state": "claimed", "fingerprint": "f00d"}),
        ("2026-01-01", {"state": "profiled"}),
    ]
    assert ledger.increments("others") == []


def test_saying_the_same_again_writes_nothing(ledger, lease, clock):
    for _ in range(2):
        lease.mark("d1", "held", fingerprint="f1", rows=3, reason="half the rows", profile=PROFILE)
        clock.now_s += 1
    lease.mark("d1", "held", reason="half the rows")
    before = ledger.increments("clicks"), ledger.events("clicks")
    assert len(before[1]) == 2
    lease.mark("d1", "held", fingerprint="f1", rows=3, reason="half the rows", profile=PROFILE)
    assert before == (ledger.increments("clicks"), ledger.events("clicks"))
    assert before[0][0].updated_at == "2026-01-02T00:00:00.000+00:00"


def test_what_is_measured_later_is_kept_without_an_event(ledger, lease):
    lease.mark("d1", "profiled")
    lease.mark("d1", "profiled", scored={"ne": 0.9})
    (found,) = ledger.increments("clicks")
    assert found.scored == {"ne": 0.9}
    assert len(ledger.events("clicks", kind="state")) == 1


def test_other_files_make_what_was_measured_void(ledger, lease):
    lease.mark("d1", "trained", fingerprint="f1", rows=3, profile=PROFILE, scored={"ne": 0.9}, version=4)
    lease.mark("d1", "ready", fingerprint="f2", rows=5)
    (found,) = ledger.increments("clicks")
    assert (found.fingerprint, found.rows, found.scored, found.version) == ("f2", 5, None, 4)
    assert ledger.profile("clicks", "d1") is None
    lease.mark("d1", "ready", fingerprint="f3")
    assert ledger.increments("clicks")[0].rows is None
    assert len(ledger.events("clicks", kind="state")) == 3


def test_a_version_alone_makes_its_increment_known(ledger, lease, commit):
    """As `diurnal train` does, which profiles nothing."""
    lease.publish(commit(1, steps=20))
    assert ledger.increments("clicks") == []
    for _ in range(2):
        lease.publish(commit(1, steps=40, parent=None))
    (found,) = ledger.increments("clicks")
    assert (found.state, found.version, found.rows, found.fingerprint) == ("trained", 1, 4000, "f00d")
    lease.mark("2026-01-01", "judged")
    lease.publish(commit(1, steps=40))
    assert ledger.increments("clicks")[0].state == "judged", "published before"


def test_increments_come_by_name(ledger, lease):
    for name in ("b", "B", "2026-01-10", "2026-01-02", "_", "é"):
        lease.mark(name, "seen")
    assert [i.increment for i in ledger.increments("clicks")] == ["2026-01-02", "2026-01-10", "B", "_", "b", "é"]


def test_a_rebuilt_ledger_knows_increments_and_parents(ledger, lease, commit):
    found = [commit(7, steps=40), commit(8, number=2, steps=40, parent=1), commit(8, number=3, parent=2)]
    assert lease.rebuild(found) == 3
    assert [(v.number, v.parent) for v in ledger.versions("clicks")] == [(1, None), (2, 1)]
    known = [(i.increment, i.state, i.version, i.fingerprint) for i in ledger.increments("clicks")]
    assert known == [("2026-01-01", "trained", 1, "f00d"), ("2026-01-02", "trained", 2, "f00d")]


def test_events_are_asked_for_by_kind_and_increment(ledger, lease):
    for day in ("d1", "d2", "d1"):
        lease.note("late", day, "an hour")
    lease.mark("d1", "ready")
    assert [(e.kind, e.increment) for e in ledger.events("clicks", increment="d1")] == [
        ("late", "d1"),
        ("late", "d1"),
        ("state", "d1"),
    ]
    assert len(ledger.events(kind="late")) == 3
    assert len(ledger.events("clicks", 1, "late", "d1")) == 1
    assert ledger.events("others", kind="late") == []


def test_a_reason_may_say_anything_but_a_password(ledger, lease):
    lease.mark("d1", "failed", reason="no answer from postgresql://ann:s3cret@db/x\0", profile={"a\0": "\0"})
    (found,) = ledger.increments("clicks")
    assert found.reason == "no answer from postgresql://ann:***@db/x"
    assert ledger.profile("clicks", "d1") == {"a\0": "\0"}
    lease.mark("d1", "failed", reason="no answer from postgresql://ann:s3cret@db/x\0")
    assert len(ledger.events("clicks", kind="state")) == 1
