"""Rows of an increment that are held out: which they are, and a copy of them that the next version learns.

A row is held out when mix64(h ^ key) is below the threshold, where h is the hash of its request id, so that the rows of
one request stay together, or its position in the increment where the schema declares no request id or the row has none.
The key depends on the seed and the increment: no request is held out for ever. Whoever reads the same files finds the
same rows, in whatever order and pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from diurnal.config import Schema
from diurnal.data.arrow import column, hash_strings, is_null
from diurnal.data.columns import declared_columns
from diurnal.data.hashing import hash_int64, mix64
from diurnal.data.partitions import HeldOut, Increment, ParquetFile, open_filesystem
from diurnal.errors import DataError, Fault

GROUP_ROWS = 65_536
"""Rows of a row group of a slice, and rows that are looked at together."""


def is_held_out(rows: pa.RecordBatch, positions: np.ndarray, rule: HeldOut) -> np.ndarray:
    """(n,) bool; `positions` are the rows' own in the increment, int64 (n,)."""
    hashes = positions.astype(np.uint64)
    chunk = column(rows, rule.column) if rule.column else None
    if chunk is not None and len(chunk):
        known = ~is_null(chunk)
        hashes[known] = _hashed(chunk)[known]
    return mix64(hashes, np.uint64(rule.key)) < np.uint64(rule.threshold)


def rule_of(increment_id: str, schema: Schema, share: float, seed: int) -> HeldOut:
    """Which rows of an increment are held out, `share` of them on average; none is counted yet."""
    key = hashlib.blake2b(f"holdout/{seed}/{increment_id}".encode(), digest_size=8).digest()
    threshold = min(int(share * 2.0**64), 2**64 - 1)
    return HeldOut(int.from_bytes(key, "little"), threshold, schema.request_id, 0, (0, 0, 0), ())


def write_slice(increment: Increment, schema: Schema, share: float, seed: int, path: str) -> HeldOut:
    """Copies the declared columns of the rows that are held out, in the order of the log, and counts them.

    The files appear when they are whole, or not at all; the same increment gives the same rows again.

    Args:
        path: of the copy, a local path or a URL that ends in `.parquet`.

    Raises:
        DataError: a file of the increment cannot be read.
    """
    from diurnal.data.audit import RowAudit

    rule, audit = rule_of(increment.id, schema, share, seed), RowAudit()
    filesystem, place = open_filesystem(path if "://" in path else str(Path(path).absolute()))
    filesystem.create_dir(place.rpartition("/")[0], recursive=True)
    with ExitStack() as stack:
        copies = _Copies(filesystem, place, stack)
        for rows, positions in _own_rows(increment, schema):
            mask = is_held_out(rows, positions, rule)
            audit.add(positions[mask])
            copies.add(rows.filter(pa.array(mask)))
        files = copies.finish(path)
    return replace(rule, num_rows=audit.count, audit=tuple(audit.to_array().tolist()), files=files)


def slice_increment(held_out: HeldOut, increment: Increment) -> Increment:
    """The rows that are held out, as an increment that can be planned and read by itself."""
    digest = hashlib.blake2b(repr(held_out).encode(), digest_size=16).hexdigest()
    return Increment(increment.id, increment.path, held_out.files, digest)


def _hashed(chunk: pa.Array) -> np.ndarray:
    """uint64 hash of each request id; of a null anything."""
    if isinstance(chunk, pa.DictionaryArray):
        chunk = chunk.dictionary_decode()
    if pa.types.is_integer(chunk.type):
        bits = chunk.fill_null(0).cast(pa.uint64() if pa.types.is_uint64(chunk.type) else pa.int64())
        return hash_int64(bits.to_numpy(zero_copy_only=False), 0)
    texts = chunk if pa.types.is_string(chunk.type) else chunk.cast(pa.string())
    return hash_strings(texts.fill_null(""), 0).to_numpy(zero_copy_only=False)


def _own_rows(increment: Increment, schema: Schema) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """The increment's own rows, in order, with their positions."""
    filesystem, _ = open_filesystem(increment.path)
    names = list(dict.fromkeys(c.name for c in declared_columns(schema)))
    position = -increment.first_row
    for file in increment.files:
        stop = position + file.num_rows
        if stop > 0 and position < increment.num_own_rows:
            try:
                with filesystem.open_input_file(file.path) as source:
                    if source.size() != file.size_bytes:
                        raise OSError(f"{source.size()} bytes; there were {file.size_bytes} when it was planned")
                    yield from _inside(pq.ParquetFile(source), names, position, increment.num_own_rows)
            except (OSError, pa.ArrowException) as error:
                must, fix = "a file that can be read as it was planned", "write it again, or plan the increment anew"
                raise DataError([Fault(file.path, str(error), must, fix)]) from error
        position = stop


def _inside(
    file: pq.ParquetFile, names: list[str], position: int, stop: int
) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """Rows of a file whose positions are from 0 to `stop`; the file's first row has the given one."""
    stored = set(file.schema_arrow.names)
    for rows in file.iter_batches(GROUP_ROWS, columns=[name for name in names if name in stored]):
        first, last = max(0, -position), min(rows.num_rows, stop - position)
        if first < last:
            yield rows.slice(first, last - first), np.arange(position + first, position + last)
        position += rows.num_rows


@dataclass
class _Copy:
    """One file that is being written."""

    writer: pq.ParquetWriter
    stream: pa.NativeFile
    waiting: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch) -> None:
        self.waiting.append(rows)
        if sum(part.num_rows for part in self.waiting) >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            self.writer.write_table(pa.Table.from_batches(self.waiting), row_group_size=GROUP_ROWS)
            self.waiting.clear()


class _Copies:
    """A file for each set of column types: casting between them could change an id."""

    def __init__(self, filesystem: fs.FileSystem, place: str, stack: ExitStack) -> None:
        self._filesystem = filesystem
        self._place = place
        self._unfinished = f"{place}.{uuid4().hex}"
        self._copies: list[tuple[pa.Schema, _Copy]] = []
        stack.callback(self._clean_up)

    def add(self, rows: pa.RecordBatch) -> None:
        copy = next((copy for schema, copy in self._copies if schema.equals(rows.schema)), None)
        if copy is None:
            stream = self._filesystem.open_output_stream(f"{self._unfinished}.{len(self._copies)}")
            copy = _Copy(pq.ParquetWriter(stream, rows.schema), stream)
            self._copies.append((rows.schema, copy))
        copy.add(rows)

    def finish(self, path: str) -> tuple[ParquetFile, ...]:
        """Gives the files their names."""
        files = []
        for index, (_, copy) in enumerate(self._copies):
            copy.flush()
            copy.writer.close()
            copy.stream.close()
            named = self._place if index == 0 else self._place.removesuffix(".parquet") + f"-{index}.parquet"
            self._filesystem.move(f"{self._unfinished}.{index}", named)
            with self._filesystem.open_input_file(named) as source:
                footer, size = pq.read_metadata(source), source.size()
            groups = tuple(footer.row_group(i).num_rows for i in range(footer.num_row_groups))
            url = Path(named).as_uri() if "://" not in path else f"{path.rpartition('/')[0]}/{named.rpartition('/')[2]}"
            files.append(ParquetFile(url, size, groups))
        return tuple(files)

    def _clean_up(self) -> None:
        """What an error has left."""
        for index, (_, copy) in enumerate(self._copies):
            with suppress(pa.ArrowException, OSError):
                copy.writer.close()
            copy.stream.close()
            unfinished = f"{self._unfinished}.{index}"
            if self._filesystem.get_file_info(unfinished).type == fs.FileType.File:
                self._filesystem.delete_file(unfinished)
