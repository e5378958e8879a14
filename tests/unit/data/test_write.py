"""A day is there as a whole or not at all, in row groups of one size."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.data import write
from diurnal.data.write import DayWriter, is_written, made_of

SCHEMA = pa.schema([("x", pa.int64())])


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "GROUP_ROWS", 10)
    monkeypatch.setattr(write, "FILE_ROWS", 30)


@pytest.mark.parametrize("pieces", [[], [0], [3], [10, 10, 10], [7, 28, 1, 40], [95]])
def test_rows_keep_their_order_in_full_row_groups(tmp_path, pieces):
    number = 0
    with DayWriter(tmp_path, "2026-01-01", SCHEMA, "a") as writer:
        for piece in pieces:
            writer.write(pa.table({"x": pa.array(range(number, number + piece), pa.int64())}))
            number += piece
    files = [pq.ParquetFile(path) for path in sorted((tmp_path / "dt=2026-01-01").glob("*.parquet"))]
    assert [x for file in files for x in file.read()["x"].to_pylist()] == list(range(number))
    groups = [[file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)] for file in files]
    assert writer.num_rows == number
    assert all(rows == 10 for of_file in groups for rows in of_file[:-1])
    assert all(sum(of_file) == 30 for of_file in groups[:-1])
    assert len(files) == max(1, -(-number // 30))


def fill(writer: DayWriter, pieces: list[list[float]]) -> None:
    with writer:
        for piece in pieces:
            writer.write(pa.table({"x": piece}))


def test_a_day_that_raises_leaves_the_one_before(tmp_path):
    fill(DayWriter(tmp_path, "2026-01-01", SCHEMA, "first"), [[1.0]])
    second = DayWriter(tmp_path, "2026-01-01", SCHEMA, "second")
    with pytest.raises(pa.ArrowInvalid):
        fill(second, [[1.0] * 12, [2.0] * 12, [2.5]])
    assert [path.name for path in tmp_path.iterdir()] == ["dt=2026-01-01"]
    assert is_written(tmp_path, "2026-01-01", "first")
    assert pq.ParquetFile(tmp_path / "dt=2026-01-01" / "part-0000.parquet").read()["x"].to_pylist() == [1]


def test_a_day_is_made_of_scripts_inputs_and_settings(tmp_path):
    script, given = tmp_path / "convert.py", tmp_path / "train.txt"
    script.write_text("1")
    given.write_text("1")
    before = made_of([script], [given], 7)
    assert made_of([script], [given], 7) == before
    others = {made_of([script], [given], 8)}
    given.write_text("12")
    others.add(made_of([script], [given], 7))
    script.write_text("2")
    others.add(made_of([script], [given], 7))
    assert len(others | {before}) == 4
    assert not is_written(tmp_path, "2026-01-01", before)
