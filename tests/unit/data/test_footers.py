"""How much of a row group is held while its rows are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.data import footers
from diurnal.data.footers import open_parquet

ROWS = 60_000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One row group of 3 MiB in four columns that are read, and one that is not; numbers that do not compress."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(3, ROWS))
    file = tmp_path_factory.mktemp("group") / "a.parquet"
    columns = {
        "a": numbers[0],
        "b": numbers[1],
        "word": pa.array([f"w{i % 500}" for i in range(ROWS)]),
        "ids": pa.ListArray.from_arrays(np.arange(ROWS + 1, dtype=np.int32) * 2, rng.integers(0, 1 << 60, 2 * ROWS)),
        "unread": numbers[2],
    }
    # A dictionary of numbers is held as a whole, which would be most of what is held of so small a file.
    form = {"use_dictionary": ["word"], "data_page_size": 1 << 14, "write_page_checksum": True}
    pq.write_table(pa.table(columns), file, row_group_size=ROWS, **form)
    return file


def read(path: Path, names: list[str]) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as source:
        file = open_parquet(source, names, read_dictionary=["word"], page_checksum_verification=True)
        yield from file.iter_batches(1000, columns=names, use_threads=False)


def most_held(path: Path, names: list[str]) -> int:
    """Bytes that Arrow holds at most while rows are read and forgotten."""
    before = pa.default_memory_pool().bytes_allocated()
    return max(pa.default_memory_pool().bytes_allocated() - before for _ in read(path, names))


def test_a_large_row_group_is_read_some_bytes_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a", "b", "word", "ids"]
    stored = pq.read_metadata(path).row_group(0)
    size = sum(stored.column(i).total_compressed_size for i in range(4))
    whole, held_whole = pa.Table.from_batches(read(path, names)), most_held(path, names)
    monkeypatch.setattr(footers, "HELD_BYTES", size // 2)
    monkeypatch.setattr(footers, "_BUFFER_BYTES", (1 << 12, 1 << 15))
    assert pa.Table.from_batches(read(path, names)).equals(whole)
    assert held_whole > 0.8 * size
    assert most_held(path, names) < 0.4 * size


def test_columns_that_nobody_reads_do_not_count(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of two columns are within the bound, those of all are not."""
    metadata = pq.read_metadata(path)
    one = metadata.row_group(0).column(0).total_compressed_size
    monkeypatch.setattr(footers, "HELD_BYTES", round(2.1 * one))
    assert most_held(path, ["a", "b"]) > 1.5 * one
