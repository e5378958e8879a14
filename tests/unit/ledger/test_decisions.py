"""Verdicts, promotions and rollbacks; also by processes that decide at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diurnal.errors import EXIT_FAULT
from diurnal.ledger.decisions import PromotionError, champions
from diurnal.ledger.records import Promotion

HOLD = {"verdict": "hold", "rejected": True, "state": "held", "promote": False}
PROMOTE = {"verdict": "promote", "rejected": False, "state": "promoted", "promote": True}


@pytest.fixture
def lease(ledger):
    return ledger.claim("clicks", "2026-01-01", 30.0)


@pytest.fixture
def judge(lease, commit):
    """`judge(3, PROMOTE, expected=2)` -> judges version 3, which is trained first unless it is there."""
    trained: set[int] = set()

    def decide(number: int, decision: dict, expected: int | None, reason: str = "") -> bool:
        if number not in trained:
            lease.publish(commit(1, number=number, steps=40, parent=number - 1 or None))
            trained.add(number)
        return lease.judge(number, reason=reason, evidence={"ne": number}, expected_champion=expected, **decision)

    return decide


def everything(ledger) -> list:
    return [
        of("clicks") for of in (ledger.versions, ledger.increments, ledger.promotions, ledger.events, ledger.commits)
    ]


def stack(ledger) -> list[int]:
    return champions(ledger.promotions("clicks"))


def test_a_verdict_its_increment_and_the_promotion_are_one(ledger, lease, judge, clock):
    assert judge(1, PROMOTE, None, "the first")
    clock.now_s += 60
    assert judge(2, PROMOTE, 1, "NE 0.80 < 0.81")
    version = ledger.versions("clicks")[1]
    assert (version.number, version.parent, version.increment) == (2, 1, "2026-01-02")
    assert (version.verdict, version.rejected, version.reason) == ("promote", False, "NE 0.80 < 0.81")
    assert (ledger.evidence(version), version.judged_at) == ({"ne": 2}, "2026-01-02T00:01:00.000+00:00")
    assert [(i.state, i.reason) for i in ledger.increments("clicks")][1] == ("promoted", "NE 0.80 < 0.81")
    expected = Promotion(2, "clicks", 2, 1, "promote", "NE 0.80 < 0.81", lease.holder, "2026-01-02T00:01:00.000+00:00")
    assert ledger.promotions("clicks")[1] == expected
    assert (ledger.champion("clicks"), ledger.rollback_target("clicks")) == (2, 1)
    told = ledger.events("clicks", limit=3, increment="2026-01-02")
    assert [(e.kind, e.data) for e in told] == [
        ("judge", {"number": 2, "verdict": "promote", "rejected": False, "champion": 1}),
        ("promote", {"number": 2, "previous": 1}),
        ("state", {"state": "promoted", "version": 2}),
    ]


def test_a_hold_leaves_the_champion(ledger, judge):
    judge(1, PROMOTE, None)
    assert judge(2, HOLD, 1, "NE 0.90 > 0.81")
    assert judge(3, {**HOLD, "verdict": "undecided", "rejected": False, "state": "judged"}, 1, "12 rows")
    assert [(v.verdict, v.rejected) for v in ledger.versions("clicks")] == [
        ("promote", False),
        ("hold", True),
        ("undecided", False),
    ]
    assert [i.state for i in ledger.increments("clicks")] == ["promoted", "held", "judged"]
    assert (ledger.champion("clicks"), ledger.rollback_target("clicks")) == (1, None)


@pytest.mark.parametrize("decision", [PROMOTE, HOLD], ids=["promote", "hold"])
def test_a_verdict_against_a_champion_of_yesterday_writes_nothing(ledger, lease, judge, commit, decision):
    judge(1, PROMOTE, None)
    lease.publish(commit(1, number=2, steps=40))
    before = everything(ledger)
    for stale in (None, 2, 7):
        assert not lease.judge(2, reason="", evidence={}, expected_champion=stale, **decision)
    assert everything(ledger) == before
    assert judge(3, decision, 1)


def test_the_first_verdict_stands(ledger, judge):
    judge(1, PROMOTE, None)
    judge(2, HOLD, 1)
    before = everything(ledger)
    assert judge(2, PROMOTE, 1)
    assert judge(1, HOLD, None), "also when the champion is another one by now"
    assert everything(ledger) == before


def test_a_version_that_is_not_there_cannot_be_judged(ledger, lease, judge):
    judge(1, PROMOTE, None)
    with pytest.raises(ValueError, match="no version 9"):
        lease.judge(9, reason="", evidence={}, expected_champion=1, **PROMOTE)
    with pytest.raises(ValueError, match="no version 8, 9"):
        lease.supersede([1, 8, 9], ["2026-01-01"], "")
    assert ledger.versions("clicks")[0].verdict == "promote"


def test_champions_are_a_stack(ledger, judge):
    for number in (1, 2, 3):
        judge(number, PROMOTE, number - 1 or None)
    assert ledger.rollback("clicks", "a bad day") == 2
    assert ledger.rollback("clicks") == 1
    assert [v.rejected for v in ledger.versions("clicks")] == [False, True, True]
    assert [i.state for i in ledger.increments("clicks")] == ["promoted", "held", "held"]
    assert ledger.versions("clicks")[2].reason == "rolled back to version 2: a bad day"
    before = everything(ledger)
    with pytest.raises(PromotionError, match="champion 1, and none before it"):
        ledger.rollback("clicks")
    assert everything(ledger) == before
    assert ledger.promote("clicks", 3, "it was the data")
    assert (stack(ledger), ledger.rollback_target("clicks")) == ([1, 3], 1)
    version = ledger.versions("clicks")[2]
    assert (version.verdict, version.rejected, version.reason) == ("promote", False, "it was the data")
    log = [(p.kind, p.number, p.previous, p.reason) for p in ledger.promotions("clicks")[3:]]
    assert log == [
        ("rollback", 2, 3, "a bad day"),
        ("rollback", 1, 2, ""),
        ("promote", 3, 1, "it was the data"),
    ]
    assert ledger.rollback("clicks") == 1


def test_a_rollback_passes_over_what_cannot_be_champion_again(ledger, lease, judge):
    """Rejected, superseded, gone from the store, and the champion itself."""
    for number in (1, 2, 3, 4, 5):
        judge(number, PROMOTE, number - 1 or None)
    ledger.promote("clicks", 2)
    assert ledger.rollback("clicks") == 5, "which rejects version 2"
    lease.supersede([4], ["2026-01-04"], "its files changed")
    lease.withdraw(["3/1-120"], final=True)
    assert stack(ledger) == [1, 2, 3, 4, 5]
    assert ledger.rollback_target("clicks") == 1
    assert ledger.rollback("clicks") == 1
    assert stack(ledger) == [1]
    ledger.promote("clicks", 2)
    ledger.promote("clicks", 1)
    ledger.promote("clicks", 2)
    assert stack(ledger) == [1, 2, 1, 2]
    assert ledger.rollback("clicks") == 1
    assert ledger.rollback_target("clicks") is None


def test_promoting_the_champion_is_nothing_new(ledger, judge):
    judge(1, PROMOTE, None)
    before = everything(ledger)
    assert not ledger.promote("clicks", 1, "again")
    assert not ledger.promote("clicks", 1, expected=7)
    assert everything(ledger) == before


def test_a_person_s_word_is_a_verdict_where_there_is_none(ledger, lease, judge, commit):
    judge(1, PROMOTE, None)
    for number in (2, 3):
        lease.publish(commit(1, number=number, steps=40, parent=number - 1))
    assert ledger.promote("clicks", 2, "looks good")
    assert ledger.rollback("clicks", "no") == 1
    assert ledger.promote("clicks", 3)
    assert ledger.rollback("clicks") == 1
    before = everything(ledger)
    for number in (2, 3):
        assert lease.judge(number, reason="", evidence={}, expected_champion=1, **PROMOTE)
    assert everything(ledger) == before
    assert [(v.verdict, v.rejected) for v in ledger.versions("clicks")][1:] == [("promote", True)] * 2


def test_a_held_version_may_be_promoted_by_a_person(ledger, judge):
    judge(1, PROMOTE, None)
    judge(2, HOLD, 1, "NE")
    assert ledger.promote("clicks", 2, "the label was late", expected=1)
    version, increment = ledger.versions("clicks")[1], ledger.increments("clicks")[1]
    assert (version.verdict, version.rejected, ledger.evidence(version)) == ("hold", False, {"ne": 2})
    assert (increment.state, increment.reason, increment.version) == ("promoted", "the label was late", 2)


@pytest.mark.parametrize(
    ("number", "expected", "found", "rule"),
    [
        (9, 1, "no such version", "the newest are: 1, 2, 3"),
        (2, 1, "superseded: its files changed", "not trained again"),
        (3, 2, "it would replace champion 1", "it replaces champion 2"),
        (3, None, "it would replace champion 1", "it replaces no champion"),
    ],
)
def test_what_cannot_be_promoted_is_one_fault(ledger, lease, judge, number, expected, found, rule):
    judge(1, PROMOTE, None)
    judge(2, HOLD, 1)
    judge(3, HOLD, 1)
    lease.supersede([2], ["2026-01-02"], "its files changed")
    before = everything(ledger)
    with pytest.raises(PromotionError) as caught:
        ledger.promote("clicks", number, expected=expected)
    (fault,) = caught.value.faults
    assert (fault.where, caught.value.exit_code) == (f"version {number} of model clicks", EXIT_FAULT)
    assert found in fault.found
    assert rule in fault.rule
    assert everything(ledger) == before


def test_a_model_that_nobody_knows_has_no_champion(ledger):
    assert (ledger.champion("clicks"), ledger.rollback_target("clicks"), ledger.versions("clicks")) == (None, None, [])
    with pytest.raises(PromotionError, match="none so far"):
        ledger.promote("clicks", 1)
    with pytest.raises(PromotionError, match="no champion"):
        ledger.rollback("clicks")
    assert ledger.events() == []


def test_what_is_trained_again_is_taken_back(ledger, lease, judge, commit):
    for number in (1, 2, 3):
        judge(number, PROMOTE, number - 1 or None)
    lease.publish(commit(1, number=4, parent=3))
    for _ in range(2):
        lease.supersede([3, 2], ["2026-01-02", "2026-01-03"], "2026-01-02 changed")
    assert [(v.verdict, v.rejected, ledger.evidence(v)) for v in ledger.versions("clicks")] == [
        ("promote", False, {"ne": 1}),
        ("superseded", True, {"ne": 2}),
        ("superseded", True, {"ne": 3}),
    ]
    assert [(i.state, i.version) for i in ledger.increments("clicks")] == [
        ("promoted", 1),
        ("superseded", 2),
        ("superseded", 3),
    ]
    assert [c.path for c in ledger.commits("clicks")] == ["1/1-40", "2/1-80", "3/1-120"]
    (event,) = ledger.events("clicks", kind="supersede")
    assert event.reason == "2026-01-02 changed"
    assert event.data == {"numbers": [2, 3], "increments": ["2026-01-02", "2026-01-03"], "paths": ["4/1-140"]}
    assert (ledger.champion("clicks"), ledger.rollback_target("clicks")) == (3, 1)
    assert ledger.rollback("clicks") == 1
    assert [i.state for i in ledger.increments("clicks")][2] == "superseded"


def test_a_resume_point_below_what_is_taken_back_stays(ledger, lease, judge, commit):
    lease.publish(commit(1, number=1))
    judge(1, PROMOTE, None)
    judge(2, HOLD, 1)
    lease.supersede([2], [], "")
    assert [c.path for c in ledger.commits("clicks")] == ["1/1-20", "1/1-40", "2/1-80"]


def test_no_password_gets_into_a_reason(ledger, judge):
    url = "postgresql://ann:s3cret@db/x"
    judge(1, PROMOTE, None, url)
    judge(2, PROMOTE, 1, url)
    ledger.rollback("clicks", url)
    ledger.promote("clicks", 2, url)
    assert "s3cret" not in repr(everything(ledger))


def test_a_decision_whose_answer_was_lost_counts_once(ledger, lease, judge, commit, monkeypatch):
    """The connection ends after the server has committed: the transaction is done again."""
    for number in (1, 2, 3):
        judge(number, PROMOTE, number - 1 or None)
    write = ledger._database.write
    monkeypatch.setattr(ledger._database, "write", lambda work, **more: (write(work, **more), write(work, **more))[1])
    assert ledger.rollback("clicks") == 2
    assert ledger.rollback("clicks") == 1
    assert stack(ledger) == [1]
    assert judge(4, PROMOTE, 1)
    assert stack(ledger) == [1, 4]
    ledger.promote("clicks", 3, expected=4)
    assert stack(ledger) == [1, 4, 3]
    assert len(ledger.events("clicks", kind="state", increment="2026-01-04")) == 1


@given(st.lists(st.one_of(st.integers(1, 5), st.none()), max_size=30))
def test_a_stack_is_what_its_log_comes_to(moves):
    """Compared with a list that is pushed and popped; None is a rollback, by one or by more."""
    stack: list[int] = []
    log: list[Promotion] = []
    for move in moves:
        previous = stack[-1] if stack else None
        if move is not None and move != previous:
            stack.append(move)
        elif move is None and len(set(stack)) > 1:
            # As far down as the number goes that is next to another one: what lies between is passed over.
            target = next(number for number in stack[-2::-1] if number != previous)
            stack.pop()
            while stack[-1] != target:
                stack.pop()
        else:
            continue
        kind = "promote" if move is not None else "rollback"
        log.append(Promotion(len(log) + 1, "clicks", stack[-1], previous, kind, "", "", ""))
        assert champions(log) == stack


def test_of_two_rollbacks_at_once_each_goes_one_back(ledger, judge, spawn):
    """Neither does both of its steps from the same champion."""
    children = [spawn(), spawn()]
    for number in range(1, 12):
        judge(number, PROMOTE, number - 1 or None)
    for champion in (9, 7, 5, 3, 1):
        for child in children:
            child.ask("rollback")
        assert sorted(child.answer()["value"] for child in children) == [champion, champion + 1]
        assert stack(ledger) == list(range(1, champion + 1))


def test_of_a_verdict_and_a_person_at_once_the_second_sees_the_first(ledger, lease, judge, commit, spawn):
    """The daily judges a challenger against the champion while a person promotes another version or rolls back."""
    judge(1, PROMOTE, None)
    judge(2, PROMOTE, 1)
    lease.publish(commit(1, number=3, steps=40))
    daily, person = spawn(), spawn()
    lease.release()
    assert "value" in daily.call("claim", model="clicks", lease_s=60.0, beat=False)
    outcomes = []
    for number in range(4, 16):
        champion = ledger.champion("clicks")
        assert "value" in daily.call("publish", **vars(commit(1, number=number, steps=40)))
        daily.ask("judge", number=number, state="promoted", expected_champion=champion, promote=True)
        person.ask(*("promote",), number=3, expected=champion)
        judged, promoted = daily.answer(), person.answer()
        if judged["value"]:
            # The person came second and is told so.
            assert promoted.get("error") == "PromotionError"
            assert ledger.champion("clicks") == number
        else:
            assert promoted["value"]
            assert ledger.champion("clicks") == 3
            assert ledger.versions("clicks")[-1].verdict == ""
            assert person.call("rollback") == {"value": champion}
        outcomes.append(judged["value"])
        log = ledger.promotions("clicks")
        assert [p.previous for p in log[1:]] == [p.number for p in log[:-1]], "each knew the one before"
    assert len(outcomes) == 12
