"""Footers of Parquet files: what a file says about itself before a row of it is read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

_TAIL_BYTES = 1 << 16


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
        leaves = [i for i in range(self.metadata.num_columns) if _top(self.metadata.schema.column(i).path, names)]
        largest = (0, 0)
        for index in range(self.metadata.num_row_groups):
            group = self.metadata.row_group(index)
            size = sum(group.column(leaf).total_compressed_size for leaf in leaves)
            largest = max(largest, (size, group.num_rows))
        return largest[1], largest[0]


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


def _top(path: str, names: Collection[str]) -> bool:
    """Whether a leaf, as `tags.list.element`, belongs to one of the columns."""
    return path in names or any(path.startswith(f"{name}.") for name in names)
