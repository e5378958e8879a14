from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import Dense, Schema, Sparse, Table
from diurnal.data.selection import select_increments
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
