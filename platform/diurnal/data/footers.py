"""Footers of Parquet files: what a file says about itself before a row of it is read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

HELD_BYTES = 64 << 20
"""Of a row group, as it is stored, that a reader holds at a time, about."""

_TAIL_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 16, 8 << 20
"""Of a column that are read at a time where a row group is larger: fewer would ask a store too often."""


@dataclass(frozen=True)
class Footer:
    metadata: pq.FileMetaData
    schema: pa.Schema

    @property
    def row_group_rows(self) -> tuple[int, ...]:
        return tuple(self.metadata.row_group(i).num_rows for i in range(self.metadata.num_row_groups))

    @property
    def num_rows(self) -> int:
        return self.metadata.num_rows

    def largest_group(self, names: Collection[str]) -> tuple[int, int]:
        """Rows, and stored bytes of the columns of these names, of the row group that has most bytes; (0, 0) without
        row groups."""
        return _largest_group(self.metadata, _leaves(self.metadata, names))


@dataclass(frozen=True)
class NoFooter:
    """Why there is no footer to be read."""

    reason: str
    is_content: bool
    """Whether the file's bytes were read and are no Parquet; otherwise the storage did not give them."""

    def __str__(self) -> str:
        return self.reason


def read_footer(filesystem: fs.FileSystem, info: fs.FileInfo) -> Footer | NoFooter:
    """The footer of a file, or why there is none.

    Errors do not tell a damaged file from a storage that fails: only what cannot be understood twice, while the bytes
    at the file's end can be read, is its content.
    """
    is_content = False
    try:
        with filesystem.open_input_file(info.path) as source:
            try:
                return _parsed(source)
            except (pa.ArrowException, OSError):
                size = source.size()
                source.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
            is_content = True
            return _parsed(source)
    except (pa.ArrowException, OSError) as error:
        return NoFooter(str(error).strip() or type(error).__name__, is_content)


def _parsed(source: pa.NativeFile) -> Footer:
    source.seek(0)
    metadata = pq.read_metadata(source)
    return Footer(metadata, metadata.schema.to_arrow_schema())


def open_parquet(
    source: pa.NativeFile, names: Collection[str], metadata: pq.FileMetaData | None = None, **options: Any
) -> pq.ParquetFile:
    """A file for `iter_batches` of columns of these names, which holds about `HELD_BYTES` of a row group at most.

    Arrow reads all that is asked of a row group before its first row, in few and large requests. That is kept for row
    groups that are small enough; of larger ones every column is read some MiB at a time, as its rows are wanted.

    Args:
        source: the opened file.
        metadata: its footer, where it is known.
        options: of `pq.ParquetFile`.
    """
    metadata = pq.read_metadata(source) if metadata is None else metadata
    leaves = _leaves(metadata, names)
    if _largest_group(metadata, leaves)[1] <= HELD_BYTES:
        return pq.ParquetFile(source, metadata=metadata, **options)
    low, high = _BUFFER_BYTES
    buffer_bytes = min(max(HELD_BYTES // len(leaves), low), high)
    return pq.ParquetFile(source, metadata=metadata, buffer_size=buffer_bytes, pre_buffer=False, **options)


def _leaves(metadata: pq.FileMetaData, names: Collection[str]) -> list[int]:
    return [index for index in range(metadata.num_columns) if _top(metadata.schema.column(index).path, names)]


def _largest_group(metadata: pq.FileMetaData, leaves: Collection[int]) -> tuple[int, int]:
    largest = (0, 0)
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        size = sum(group.column(leaf).total_compressed_size for leaf in leaves)
        largest = max(largest, (size, group.num_rows))
    return largest[1], largest[0]


def _top(path: str, names: Collection[str]) -> bool:
    """Whether a leaf, as `tags.list.element`, belongs to one of the columns."""
    return path in names or any(path.startswith(f"{name}.") for name in names)
