"""Days of Parquet as converters write them: a day is a temporary folder that gets its name when it is whole."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

MARKER = "_SUCCESS"
GROUP_ROWS = 65_536
FILE_ROWS = 16 * GROUP_ROWS


def made_of(scripts: Iterable[Path], inputs: Iterable[Path], *settings: object) -> str:
    """64 hex digits over what a day is made of: the scripts' text, the inputs' names, sizes and times, the settings."""
    digest = hashlib.sha256(repr(settings).encode())
    for script in scripts:
        digest.update(script.read_bytes())
    for path in inputs:
        facts = path.stat()
        digest.update(repr((path.name, facts.st_size, facts.st_mtime_ns)).encode())
    return digest.hexdigest()


def is_written(out: Path, day: str, made_of: str) -> bool:
    """Whether the day is there, whole, and made of the same."""
    try:
        return (out / f"dt={day}" / MARKER).read_text(encoding="utf-8") == made_of
    except OSError:
        return False


class DayWriter:
    """Writes one day, `dt=YYYY-MM-DD/part-0000.parquet` and so on, in row groups of one size.

    A context manager: the folder, which has its marker then, takes the place of one that may be there when the block
    ends well, and is removed when it raises. At most a row group of rows waits in memory.
    """

    def __init__(self, out: Path, day: str, schema: pa.Schema, made_of: str) -> None:
        self.num_rows = 0
        self._folder, self._whole = out / f".writing-dt={day}", out / f"dt={day}"
        self._schema, self._made_of = schema, made_of
        self._waiting: list[pa.Table] = []
        self._num_waiting = 0
        self._file: pq.ParquetWriter | None = None
        self._num_files = self._file_rows = 0

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        self._waiting.append(table.cast(self._schema))
        self._num_waiting += table.num_rows
        self.num_rows += table.num_rows
        if self._num_waiting >= GROUP_ROWS:
            self._write_groups(self._num_waiting - self._num_waiting % GROUP_ROWS)

    def __enter__(self) -> DayWriter:
        shutil.rmtree(self._folder, ignore_errors=True)  # of a run that was cut off
        self._folder.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and (self._num_waiting or not self._num_files):
            self._write_groups(self._num_waiting)
        if self._file is not None:
            self._file.close()
        if kind is not None:
            shutil.rmtree(self._folder)
            return
        (self._folder / MARKER).write_text(self._made_of, encoding="utf-8")
        shutil.rmtree(self._whole, ignore_errors=True)
        self._folder.rename(self._whole)

    def _write_groups(self, num_rows: int) -> None:
        table = pa.concat_tables(self._waiting) if self._waiting else self._schema.empty_table()
        for start in range(0, max(num_rows, 1), GROUP_ROWS):
            if self._file is None or self._file_rows >= FILE_ROWS:
                self._next_file()
            assert self._file is not None
            group = table.slice(start, min(GROUP_ROWS, num_rows - start))
            self._file.write_table(group, row_group_size=GROUP_ROWS)
            self._file_rows += group.num_rows
        self._num_waiting -= num_rows
        self._waiting = [table.slice(num_rows)] if self._num_waiting else []

    def _next_file(self) -> None:
        if self._file is not None:
            self._file.close()
        name = f"part-{self._num_files:04d}.parquet"
        self._file = pq.ParquetWriter(self._folder / name, self._schema, compression="zstd")
        self._num_files, self._file_rows = self._num_files + 1, 0
