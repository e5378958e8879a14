from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import Dense, Schema, Sparse, Table
from diurnal.config.schema import Readiness
from diurnal.data.partitions import Increment
from diurnal.data.selection import cut_faults, select_increments, wait_for_increments
from diurnal.errors import DataError

SCHEMA = Schema(
    dense=(Dense(name="price"),), sparse=(Sparse(name="user"),), tables=(Table(name="user", rows=10, dim=4),)
)


def write(root: Path, folder: str, is_complete: bool = True, **columns: list) -> None:
    path = root / folder
    path.mkdir(parents=True)
    pq.write_table(pa.table({"label": [0, 1], "price": [1.0, 2.0], "user": [1, 2]} | columns), path / "a.parquet")
    if is_complete:
        (path / "_SUCCESS").touch()


@pytest.fixture
def days(tmp_path: Path) -> Path:
    for day in ("2026-01-01", "2026-01-02", "2026-01-04"):
        write(tmp_path, f"dt={day}")
    for hour in ("00", "13"):
        write(tmp_path, f"dt=2026-01-05/hr={hour}")
    return tmp_path


@pytest.mark.parametrize(
    ("first", "last", "ids"),
    [
        (None, None, ["2026-01-01", "2026-01-02", "2026-01-04", "2026-01-05T00", "2026-01-05T13"]),
        ("2026-01-02", None, ["2026-01-02"]),
        ("2026-01-02", "2026-01-04", ["2026-01-02", "2026-01-04"]),
        ("2026-01-05", None, ["2026-01-05T00", "2026-01-05T13"]),
        ("2026-01-04", "2026-01-05T00", ["2026-01-04", "2026-01-05T00"]),
        ("2026-01-05T13", None, ["2026-01-05T13"]),
    ],
)
def test_a_range_takes_days_and_hours_in_order(days: Path, first: str, last: str, ids: list[str]) -> None:
    assert [i.id for i in select_increments(str(days), SCHEMA, first, last)] == ids


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        ("2026-01-03", None, "2026-01-01 to 2026-01-05T13"),
        ("2026-01-04", "2026-01-02", "no increment for 2026-01-04 to 2026-01-02"),
        ("January", None, "YYYY-MM-DD"),
        ("2026-01-01", "tomorrow", "YYYY-MM-DD"),
        ("2026-02-30", None, "YYYY-MM-DD"),
        ("2026-01-01P01of02", None, "data.parts = 1"),
    ],
)
def test_a_range_without_increments_says_what_there_is(days: Path, first: str, last: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        select_increments(str(days), SCHEMA, first, last)


def test_the_faults_of_all_increments_come_at_once(days: Path) -> None:
    """apache/arrow#35569: a later day lacks a column."""
    write(days, "dt=2026-01-06", is_complete=False)
    write(days, "dt=2026-01-07", user=["a", "b"])
    with pytest.raises(DataError) as caught:
        select_increments(str(days), SCHEMA)
    incomplete, conflict = caught.value.faults
    assert ("2026-01-06" in incomplete.where, "_SUCCESS" in incomplete.found) == (True, True)
    assert ("2026-01-07" in conflict.where, conflict.where.endswith("column user")) == (True, True)


# --- folders cut into parts


@pytest.mark.parametrize(
    ("first", "last", "ids"),
    [
        ("2026-01-02", None, ["2026-01-02P01of02", "2026-01-02P02of02"]),
        ("2026-01-02P02of02", None, ["2026-01-02P02of02"]),
        ("2026-01-01P02of02", "2026-01-02P01of02", ["2026-01-01P02of02", "2026-01-02P01of02"]),
        ("2026-01-04P02of02", "2026-01-05T00", ["2026-01-04P02of02", "2026-01-05T00P01of02", "2026-01-05T00P02of02"]),
        ("2026-01-05T00P02of02", "2026-01-05T13P01of02", ["2026-01-05T00P02of02", "2026-01-05T13P01of02"]),
        ("2026-01-05T13", "2026-01-05", ["2026-01-05T13P01of02", "2026-01-05T13P02of02"]),
    ],
)
def test_a_range_takes_parts_of_days_and_hours(days: Path, first: str, last: str, ids: list[str]) -> None:
    chosen = select_increments(str(days), SCHEMA, first, last, parts=2)
    assert [i.id for i in chosen] == ids
    assert all((i.num_rows, i.first_row) == (1, int(i.id.endswith("P02of02"))) for i in chosen)


def test_all_parts_of_all_folders(days: Path) -> None:
    chosen = select_increments(str(days), SCHEMA, parts=3)
    assert [i.id for i in chosen] == sorted(i.id for i in chosen)
    assert [i.num_rows for i in chosen] == [1, 1, 0] * 5


def test_a_bound_of_another_cut_is_refused(days: Path) -> None:
    with pytest.raises(DataError, match=r"data\.parts = 24"):
        select_increments(str(days), SCHEMA, "2026-01-02P03of24", parts=4)


def cut(*ids: str, files: str = "a") -> list[Increment]:
    """Increments whose fingerprints say which files their folders have."""
    return [Increment(i, "", (), files * 16 + f"{hash(i) % 2**64:016x}") for i in ids]


def trained(*ids: str) -> dict[str, str]:
    return {i.id: i.fingerprint for i in cut(*ids)}


@pytest.mark.parametrize(
    ("before", "wanted", "words"),
    [
        ("2026-01-02", "2026-01-02P01of02", "trained as 2026-01-02"),
        ("2026-01-02P01of02", "2026-01-02", "data.parts = 2"),
        ("2026-01-02P01of02", "2026-01-02P02of03", "data.parts = 2"),
        ("2026-01-02T05P01of02", "2026-01-02T05", "data.parts = 2"),
        ("2026-01-02", "2026-01-02T05", "by its hours"),
        ("2026-01-02T05", "2026-01-02P02of02", "by its hours"),
    ],
)
def test_another_cut_of_what_was_trained_is_refused(before: str, wanted: str, words: str) -> None:
    [fault] = cut_faults(trained("2026-01-01", before), cut("2026-01-01", wanted, "2026-01-09"))
    assert wanted in fault.where
    assert words in str(fault)


def test_the_same_cut_goes_on() -> None:
    before = trained("2026-01-01", "2026-01-02P01of02", "2026-01-03T05", "2026-01-03T06P01of04")
    ids = ["2026-01-02P01of02", "2026-01-02P02of02", "2026-01-03T06P02of04", "2026-01-03T07P01of09", "2026-01-04"]
    assert cut_faults(before, cut(*ids)) == []


def test_files_that_change_between_two_parts_are_one_fault() -> None:
    """Its cut would be another one: rows of the first part would come again in the second, or never."""
    ids = ["2026-01-02P02of03", "2026-01-02P03of03"]
    [fault] = cut_faults(trained("2026-01-02P01of03"), cut(*ids, files="b"))
    assert "files that differ" in fault.found


# --- what becomes complete while a driver waits


def ready_ids(days: Path, first: str | None, last: str | None, parts: int, known: set[str]) -> list[str]:
    return [i.id for i in wait_for_increments(str(days), SCHEMA, first, last, parts, known)]


def test_what_is_complete_and_unknown_comes_in_order(days: Path) -> None:
    known = {"2026-01-01", "2026-01-02"}
    assert ready_ids(days, "2026-01-01", "2026-01-05T00", 1, known) == ["2026-01-04", "2026-01-05T00"]
    assert ready_ids(days, "2026-01-02", None, 1, known) == []
    assert ready_ids(days, None, None, 1, set()) == [i.id for i in select_increments(str(days), SCHEMA)]
    assert ready_ids(days, "2026-01-02", None, 2, {"2026-01-02P01of02"}) == ["2026-01-02P02of02"]


def test_nothing_overtakes_a_folder_that_is_not_complete(days: Path) -> None:
    write(days, "dt=2026-01-06", is_complete=False)
    write(days, "dt=2026-01-07")
    known = {"2026-01-05T00"}
    assert ready_ids(days, "2026-01-05", "2026-01-09", 1, known) == ["2026-01-05T13"]
    (days / "dt=2026-01-06" / "_SUCCESS").touch()
    known.add("2026-01-05T13")
    assert ready_ids(days, "2026-01-05", "2026-01-09", 1, known) == ["2026-01-06", "2026-01-07"]


def test_a_folder_that_does_not_exist_is_awaited_and_no_gap(days: Path) -> None:
    assert ready_ids(days, "2026-01-08", "2026-01-09", 1, set()) == []
    write(days, "dt=2026-01-09")
    assert ready_ids(days, "2026-01-08", "2026-01-09", 1, set()) == ["2026-01-09"]


def test_a_folder_of_the_next_hours_is_awaited_before_it_has_any(days: Path) -> None:
    """A writer makes the day's folder first: it is no complete day, and then it is hours."""
    (days / "dt=2026-01-06").mkdir()
    assert ready_ids(days, "2026-01-06", "2026-01-07", 1, set()) == []
    write(days, "dt=2026-01-06/hr=00")
    write(days, "dt=2026-01-06/hr=01", is_complete=False)
    assert ready_ids(days, "2026-01-06", "2026-01-07", 1, set()) == ["2026-01-06T00"]


def test_age_makes_it_complete(days: Path) -> None:
    schema = SCHEMA.model_copy(update={"readiness": Readiness(rule="age", age_s=60.0)})
    newest = (days / "dt=2026-01-04" / "a.parquet").stat().st_mtime
    for age_s, ids in ((59.0, []), (61.0, ["2026-01-04"])):
        found = wait_for_increments(str(days), schema, "2026-01-04", None, 1, set(), now=newest + age_s)
        assert [i.id for i in found] == ids


def test_a_broken_folder_is_said_when_it_is_next(days: Path) -> None:
    write(days, "dt=2026-01-06", user=["a", "b"])
    assert ready_ids(days, "2026-01-05T13", "2026-01-06", 1, set()) == ["2026-01-05T13"]
    with pytest.raises(DataError, match="column user"):
        ready_ids(days, "2026-01-05T13", "2026-01-06", 1, {"2026-01-05T13"})
