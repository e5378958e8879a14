"""Which increment is next: a table of cases, and any history of arrivals, changes and kills against a toy ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from diurnal.config.daily import Days
from diurnal.daily.agenda import Agenda, make_agenda
from diurnal.daily.book import Asked, Known, Sighting, Trained
from diurnal.data.ids import IncrementId
from diurnal.errors import DataError

HOUR_US = 3_600_000_000
WAIT = Days()
SKIP = Days(missing="skip", empty="skip", one_class="skip")
RETRAIN = Days(late="retrain", changed="retrain")


def day(number: int) -> str:
    return str(date(2026, 1, 1) + timedelta(days=number - 1))


def seen(name: str, fingerprint: str = "a", rows: int = 100) -> Sighting:
    return Sighting(name, True, "_SUCCESS is there", fingerprint, rows)


def not_ready(name: str) -> Sighting:
    return Sighting(name, False, "_SUCCESS is not there yet")


def trained(*numbers: int, state: str = "promoted") -> tuple[list[Known], list[Trained]]:
    """One version a day, in that order."""
    known = [Known(day(n), state, "a", 100, version) for version, n in enumerate(numbers, 1)]
    return known, [Trained(version, day(n), "a") for version, n in enumerate(numbers, 1)]


def look(
    sightings: list[Sighting],
    ledger: tuple[list[Known], list[Trained]] = ([], []),
    days: Days = WAIT,
    now_us: int = 0,
    **asked: object,
) -> Agenda:
    return make_agenda(sightings, *ledger, days, now_us, Asked(**asked))  # pyright: ignore[reportArgumentType]


def told(agenda: Agenda) -> list[tuple[str, str, str]]:
    return [(notice.increment, notice.kind, notice.action) for notice in agenda.notices]


def skipped(agenda: Agenda) -> list[str]:
    return [decision.increment for decision in agenda.decisions if decision.state == "skipped"]


def test_a_fresh_model_takes_every_day_in_order():
    agenda = look([seen(day(3)), seen(day(1)), seen(day(2))])
    assert agenda.todo == (day(1), day(2), day(3))
    assert (agenda.waiting, agenda.notices, agenda.rewind) == (None, (), None)
    assert [(d.increment, d.state, d.rows) for d in agenda.decisions] == [(day(n), "ready", 100) for n in (1, 2, 3)]


@pytest.mark.parametrize("state", ["promoted", "judged", "held", "trained"])
def test_what_has_a_version_is_done(state: str):
    agenda = look([seen(day(1)), seen(day(2))], trained(1, 2, state=state))
    assert (agenda.todo, agenda.notices, agenda.decisions) == ((), (), ())


def test_what_was_trained_stays_trained_when_its_version_was_deleted():
    known, _ = trained(1, 2)
    assert look([seen(day(1)), seen(day(2)), seen(day(3))], (known, [])).todo == (day(3),)


@pytest.mark.parametrize("state", ["seen", "ready", "claimed", "profiled", "failed", "superseded"])
def test_what_a_dead_run_left_behind_is_next_again(state: str):
    known, versions = trained(1)
    assert look([seen(day(1)), seen(day(2))], ([*known, Known(day(2), state, "a")], versions)).todo == (day(2),)


def test_a_version_without_a_verdict_is_judged_and_not_trained_again():
    known, versions = trained(1, 2, state="trained")
    agenda = look(
        [seen(day(1)), seen(day(2)), seen(day(3))], (known, [versions[0], replace(versions[1], is_judged=False)])
    )
    assert (agenda.unjudged, agenda.todo) == ((day(2),), (day(3),))


def test_a_missing_day_is_waited_for_from_when_a_later_one_was_first_seen():
    known, versions = trained(1)
    ledger = [*known, Known(day(3), "ready", "a", first_seen_us=7 * HOUR_US), Known(day(4), "seen", first_seen_us=9)]
    sightings = [seen(day(1)), seen(day(3)), not_ready(day(4))]
    until_us = (7 + 24) * HOUR_US
    agenda = look(sightings, (ledger, versions), now_us=until_us - 1)
    assert agenda.todo == ()
    assert told(agenda) == [(day(2), "missing", "wait"), (day(4), "not_ready", "wait")]
    assert agenda.waiting is not None
    assert agenda.waiting is agenda.notices[0]
    assert agenda.waiting.until_us == until_us
    assert agenda.waiting.text == f"is missing before {day(3)}: there is no folder; until 1970-01-02 07:00:00 UTC"
    agenda = look(sightings, (ledger, versions), now_us=until_us)
    assert (agenda.todo, agenda.waiting, skipped(agenda)) == ((day(3),), None, [day(2)])


def test_a_missing_day_is_left_out_at_once_by_policy():
    agenda = look([seen(day(1)), seen(day(4))], trained(1), SKIP)
    assert (agenda.todo, skipped(agenda)) == ((day(4),), [day(2), day(3)])
    assert [(n.increment, n.kind, n.text) for n in agenda.notices] == [
        (day(2), "missing", f"is missing up to {day(3)} (2 increments) before {day(4)}: there is no folder")
    ]


def test_a_folder_that_is_not_complete_is_missing_with_its_reason():
    agenda = look([seen(day(1)), not_ready(day(2)), seen(day(3))], trained(1))
    assert agenda.waiting is not None
    assert agenda.waiting.text.startswith(f"is missing before {day(3)}: _SUCCESS is not there yet")


def test_the_newest_folder_that_is_not_complete_blocks_nothing():
    agenda = look([seen(day(1)), not_ready(day(2))])
    assert (agenda.todo, told(agenda), agenda.waiting) == ((day(1),), [(day(2), "not_ready", "wait")], None)


def test_nothing_is_missing_before_the_first_day():
    assert look([seen(day(5)), seen(day(6))]).todo == (day(5), day(6))


def test_what_is_behind_a_block_is_told_of_and_not_decided():
    agenda = look([seen(day(1)), seen(day(3), rows=0), seen(day(5))], trained(1), Days(empty="skip"))
    assert told(agenda) == [(day(2), "missing", "wait"), (day(4), "missing", "wait")]
    assert (agenda.todo, skipped(agenda)) == ((), [])


@pytest.mark.parametrize(("kind", "values"), [("empty", {"rows": 0}), ("one_class", {"one_class": True})])
def test_a_day_to_learn_nothing_from(kind: str, values: dict[str, int]):
    known = [Known(day(1), "ready", "a", first_seen_us=HOUR_US)]
    sightings = [replace(seen(day(1)), **values), seen(day(2))]  # pyright: ignore[reportArgumentType]
    agenda = look(sightings, (known, []), now_us=2 * HOUR_US)
    assert (agenda.todo, told(agenda)) == ((), [(day(1), kind, "wait")])
    assert agenda.notices[0].until_us == 25 * HOUR_US
    for late_or_skip in (look(sightings, (known, []), now_us=25 * HOUR_US), look(sightings, (known, []), SKIP)):
        assert (late_or_skip.todo, told(late_or_skip)) == ((day(2),), [(day(1), kind, "skip")])
        decision = late_or_skip.decisions[0]
        assert (decision.increment, decision.state, decision.fingerprint) == (day(1), "skipped", "a")


def test_an_empty_day_that_was_skipped_and_then_filled_is_trained():
    known = [Known(day(1), "skipped", "a", 0)]
    assert look([seen(day(1), rows=0)], (known, [])).todo == ()
    assert look([seen(day(1), "b")], (known, [])).todo == (day(1),)


def test_empty_parts_are_no_reason_to_wait():
    parts = [str(name) for name in IncrementId.parse(day(1)).cut(3)]
    agenda = look([seen(parts[0], rows=1), seen(parts[1], rows=0), seen(parts[2], rows=0), seen(day(2))])
    assert (agenda.todo, skipped(agenda)) == ((parts[0], day(2)), parts[1:])


def test_a_late_day_is_left_out_once():
    sightings, (known, versions) = [seen(day(n)) for n in (1, 2, 3)], trained(1, 3)
    agenda = look(sightings, (known, versions))
    assert (agenda.todo, told(agenda), skipped(agenda)) == ((), [(day(2), "late", "skip")], [day(2)])
    assert agenda.decisions[0].reason == f"became complete after {day(3)} was trained; days.late is skip"
    recorded = [*known, Known(day(2), "skipped", "a", 100)]
    assert look(sightings, (recorded, versions)) == Agenda((), None, (), (), ())
    again = look([seen(day(1)), seen(day(2), "b"), seen(day(3))], (recorded, versions))
    assert (told(again), skipped(again)) == ([(day(2), "late", "skip")], [day(2)])


def test_a_day_that_was_skipped_as_missing_and_comes_before_a_later_one_is_trained_is_not_late():
    known, versions = trained(1)
    agenda = look([seen(day(n)) for n in (1, 2, 3)], ([*known, Known(day(2), "skipped")], versions))
    assert (agenda.todo, agenda.notices) == ((day(2), day(3)), ())


def test_a_late_day_is_gone_back_to():
    agenda = look([seen(day(n)) for n in range(1, 6)], trained(1, 2, 4), RETRAIN)
    assert agenda.rewind is not None
    assert (agenda.rewind.increments, agenda.rewind.numbers) == ((day(4),), (3,))
    assert agenda.rewind.reason == f"{day(3)} became complete after {day(4)} was trained"
    assert (agenda.todo, told(agenda)) == ((day(3), day(4), day(5)), [(day(3), "late", "retrain")])


@pytest.mark.parametrize(
    ("rows", "words"), [(105, "5 more rows"), (99, "1 fewer row"), (100, "with 100 rows as before")]
)
def test_a_day_that_changed_is_reported_with_its_rows(rows: int, words: str):
    agenda = look([seen(day(1)), seen(day(2), "b", rows), seen(day(3))], trained(1, 2, 3))
    assert (agenda.todo, agenda.rewind, skipped(agenda)) == ((), None, [])
    assert told(agenda) == [(day(2), "changed", "skip")]
    assert words in agenda.notices[0].text


def test_a_day_that_changed_is_gone_back_to_within_the_limit():
    sightings = [seen(day(1), "b"), seen(day(2), "b"), seen(day(3)), seen(day(4))]
    agenda = look(sightings, trained(1, 2, 3, 4), RETRAIN)
    assert agenda.rewind is not None
    assert (agenda.rewind.increments, agenda.rewind.numbers) == ((day(2), day(3), day(4)), (2, 3, 4))
    assert told(agenda) == [(day(1), "changed", "skip"), (day(2), "changed", "retrain")]
    assert agenda.notices[0].text.endswith("4 increments would be trained again, and days.max_retrained is 3")
    assert agenda.todo == (day(2), day(3), day(4))


def test_nothing_is_gone_back_to_when_a_later_day_was_deleted_since():
    agenda = look([seen(day(1), "b"), seen(day(3))], trained(1, 2, 3), RETRAIN)
    assert (agenda.rewind, told(agenda)) == (None, [(day(1), "changed", "skip")])
    assert agenda.notices[0].text.endswith(
        f"{day(2)} could not be trained again, as the dataset does not have it complete"
    )


def test_a_day_that_lost_all_its_rows_is_not_gone_back_to():
    agenda = look([seen(day(1), "b", 0)], trained(1), RETRAIN)
    assert (agenda.rewind, told(agenda)) == (None, [(day(1), "changed", "skip")])


def test_to_ask_for_a_day_again_overrides_policy_and_limit():
    sightings = [seen(day(n)) for n in range(1, 6)]
    agenda = look(sightings, trained(1, 2, 3, 4, 5), retrain=frozenset({day(1)}))
    assert agenda.rewind is not None
    assert agenda.rewind.numbers == (1, 2, 3, 4, 5)
    assert agenda.todo == tuple(day(n) for n in range(1, 6))
    late = look(sightings, trained(1, 3), retrain=frozenset({day(2)}))
    assert (late.todo, told(late)) == ((day(2), day(3), day(4), day(5)), [(day(2), "late", "retrain")])


def test_what_was_asked_for_is_done_once():
    agenda = look([seen(day(1))], trained(1), retrain=frozenset({day(1)}), last=day(5))
    assert agenda.asked == Asked(last=day(5))


def test_what_is_trained_again_anyway_is_so_from_its_files_of_today():
    agenda = look([seen(day(1), "b"), seen(day(2), "b")], trained(1, 2), retrain=frozenset({day(1)}))
    assert told(agenda) == [(day(1), "changed", "retrain"), (day(2), "changed", "retrain")]


def test_after_a_rewind_that_was_cut_off_the_rest_is_next_again_and_old_gaps_block_nothing():
    known = [*trained(1)[0], Known(day(4), "superseded", "a"), Known(day(5), "superseded", "a")]
    versions = [*trained(1)[1], Trained(2, day(4), "a", True), Trained(3, day(5), "a", True)]
    agenda = look([seen(day(n)) for n in (1, 4, 5)] + [not_ready(day(3))], (known, versions))
    assert (agenda.todo, agenda.waiting) == ((day(4), day(5)), None)
    assert told(agenda) == [(day(3), "not_ready", "report")]


def test_a_superseded_day_whose_folder_is_gone_is_missing():
    versions = [*trained(1)[1], Trained(2, day(2), "a", True), Trained(3, day(3), "a", True)]
    agenda = look([seen(day(1)), seen(day(3))], (trained(1)[0], versions))
    assert (agenda.todo, told(agenda)) == ((), [(day(2), "missing", "wait")])


@pytest.mark.parametrize(("fingerprint", "retry", "todo"), [("a", (), ()), ("b", (), (2, 3)), ("a", (day(2),), (2, 3))])
def test_a_held_day_is_tried_again_when_it_changed_or_is_asked_for(
    fingerprint: str, retry: tuple[str, ...], todo: tuple[int, ...]
):
    known, versions = trained(1)
    ledger = [*known, Known(day(2), "held", "a", 100), Known(day(3), "skipped", "a", 100)]
    sightings = [seen(day(1)), seen(day(2), fingerprint), seen(day(3), "b" if todo else "a")]
    agenda = look(sightings, (ledger, versions), retry=frozenset(retry))
    assert agenda.todo == tuple(map(day, todo))
    assert agenda.asked == Asked(), "it is tried once more, and not forever"
    assert told(agenda) == ([(day(2), "held_changed", "retrain")] if todo else [])


def test_a_held_day_that_changes_after_a_later_one_was_trained_is_late():
    known, versions = trained(1, 3)
    ledger = [*known, Known(day(2), "held", "a", 100)], versions
    sightings = [seen(day(1)), seen(day(2), "b"), seen(day(3))]
    agenda = look(sightings, ledger)
    assert (told(agenda), skipped(agenda)) == ([(day(2), "held_changed", "skip")], [day(2)])
    assert look(sightings, ledger, RETRAIN).todo == (day(2), day(3))


def test_a_trained_day_that_is_being_written_again_is_reported():
    assert told(look([not_ready(day(1)), seen(day(2))], trained(1, 2))) == [(day(1), "not_ready", "report")]


def test_old_days_that_were_deleted_are_no_news():
    agenda = look([seen(day(4))], trained(1, 2, 3))
    assert (agenda.todo, agenda.notices) == ((day(4),), ())


@pytest.mark.parametrize(
    ("asked", "todo"),
    [
        ({"first": day(2)}, (2, 3, 4)),
        ({"last": day(3)}, (1, 2, 3)),
        ({"first": day(2), "last": day(2)}, (2,)),
        ({"most": 2}, (1, 2)),
        ({"most": 0}, ()),
    ],
)
def test_bounds(asked: dict[str, object], todo: tuple[int, ...]):
    assert look([seen(day(n)) for n in range(1, 5)], **asked).todo == tuple(map(day, todo))  # pyright: ignore[reportArgumentType]


def test_days_before_the_bound_are_not_missing():
    assert look([seen(day(1)), seen(day(8))], trained(1), first=day(8)).todo == (day(8),)
    assert look([seen(day(1)), seen(day(8))], trained(1), first=day(7)).waiting is not None


def test_no_more_is_decided_than_is_trained():
    agenda = look([seen(day(2)), seen(day(4))], days=SKIP, most=1)
    assert (agenda.todo, skipped(agenda), agenda.notices) == ((day(2),), [], ())


def test_a_day_as_a_bound_has_all_its_hours_and_parts():
    names = ["2026-01-01T22", "2026-01-01T23P01of02", "2026-01-01T23P02of02", "2026-01-02T00"]
    assert look([seen(name) for name in names], last="2026-01-01").todo == tuple(names[:3])
    assert look([seen(name) for name in names], last="2026-01-01T23").todo == tuple(names[:3])


def test_a_missing_hour_and_the_parts_of_a_missing_folder():
    hours = look([seen("2026-01-01T22"), seen("2026-01-02T01")], days=SKIP)
    assert skipped(hours) == ["2026-01-01T23", "2026-01-02T00"]
    parts = [seen(str(name)) for n in (1, 3) for name in IncrementId.parse(day(n)).cut(2)]
    assert skipped(look(parts, days=SKIP)) == ["2026-01-02P01of02", "2026-01-02P02of02"]


def test_parts_of_one_folder_have_no_gap_between_them():
    names = [str(name) for name in IncrementId.parse(day(1)).cut(3)]
    ledger = [Known(names[0], "promoted", "a", 100, 1)], [Trained(1, names[0], "a")]
    assert look([seen(name) for name in names], ledger).todo == tuple(names[1:])


def test_rows_that_were_trained_under_another_name_are_not_trained_again():
    halves = [str(name) for name in IncrementId.parse(day(1)).cut(2)]
    assert look([seen(name) for name in [*halves, day(2)]], trained(1)).todo == (day(2),)
    assert look([seen(f"{day(1)}T05"), seen(day(2))], trained(1)).todo == (day(2),)
    as_halves = [Known(h, "promoted", "a", 50, n) for n, h in enumerate(halves, 1)]
    versions = [Trained(n, h, "a") for n, h in enumerate(halves, 1)]
    assert look([seen(day(1)), seen(day(2))], (as_halves, versions)).todo == (day(2),)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"retrain": frozenset({day(9)})}, "the dataset does not have it"),
        ({"retrain": frozenset({day(5)})}, "_SUCCESS is not there yet"),
        ({"retrain": frozenset({day(1)})}, f"not complete: {day(2)}"),
        ({"retry": frozenset({day(4)})}, f"{day(6)} is trained"),
        ({"retry": frozenset({day(3)})}, "it is trained"),
        ({"retry": frozenset({day(7)})}, "it was neither held nor skipped"),
    ],
)
def test_what_cannot_be_asked_for(asked: dict[str, object], words: str):
    known, versions = trained(1, 2, 3, 6)
    sightings = [seen(day(n)) for n in (1, 3, 4, 6, 7)] + [not_ready(day(5))]
    with pytest.raises(DataError, match="1 fault") as error:
        look(sightings, ([*known, Known(day(4), "held", "a")], versions), **asked)  # pyright: ignore[reportArgumentType]
    assert words in error.value.faults[0].found


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles", "Europe/Berlin"])
def test_the_machines_zone_changes_nothing(zone: str, monkeypatch: pytest.MonkeyPatch):
    import time

    arguments = [seen("2026-03-28T23"), seen("2026-03-29T04")]
    now_us = round(datetime(2026, 3, 29, 4, 30, tzinfo=UTC).timestamp() * 1e6)
    here = look(arguments, now_us=now_us)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        there = look(arguments, now_us=now_us)
    time.tzset()
    assert here == there
    assert there.waiting is not None
    assert there.waiting.text.endswith("until 2026-03-30 04:30:00 UTC")


def test_late_rows_and_a_day_that_overtakes_another():
    """drt-hub/drt#759: rows that land behind the mark are seen, and the mark does not move before the work is done."""
    known, versions = trained(1, 2, 3)
    sightings = [seen(day(1)), seen(day(2), "b", 105), seen(day(3)), seen(day(5))]
    agenda = look(sightings, (known, versions))
    assert agenda.todo == ()
    changed, missing = agenda.notices
    assert (changed.increment, changed.kind, changed.action) == (day(2), "changed", "skip")
    assert "5 more rows" in changed.text
    assert (missing.increment, missing.kind, missing.action) == (day(4), "missing", "wait")
    assert missing.text.startswith(f"is missing before {day(5)}")
    sightings.append(seen(day(4)))
    killed = [*known, Known(day(4), "claimed", "a", 100), Known(day(5), "ready", "a", 100)]
    assert look(sightings, (killed, versions)).todo == (day(4), day(5))
    assert told(look(sightings, (killed, versions))) == [(day(2), "changed", "skip")]
