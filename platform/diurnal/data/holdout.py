"""Rows of an increment that are held out: which they are, and a copy of them that the next version learns.

A row is held out when mix64(h ^ key) is below the threshold, where h is the hash of its request id, so that the rows of
one request stay together, or its position in the increment where the schema declares no request id or the row has none:
null, NaN or an empty string.
The key depends on the seed and the increment: no request is held out for ever. Whoever reads the same files finds the
same rows, in whatever order and pieces.
"""

from __future__ import annotations

import glob
import hashlib
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, urlsplit
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyarrow import types as t

from diurnal.config import Schema
from diurnal.data.arrow import column, hash_strings, is_null, view_of
from diurnal.data.columns import declared_columns, is_list, is_string
from diurnal.data.footers import open_parquet
from diurnal.data.hashing import hash_int64, mix64
from diurnal.data.objects import ObjectPath
from diurnal.data.partitions import HeldOut, Increment, ParquetFile, open_filesystem
from diurnal.errors import CheckpointError, DataError, Fault

GROUP_ROWS = 65_536
"""Rows of a row group of a slice, and rows that are looked at together."""


def is_held_out(rows: pa.RecordBatch, positions: np.ndarray, rule: HeldOut) -> np.ndarray:
    """(n,) bool; `positions` are the rows' own in the increment, int64 (n,).

    Raises:
        DataError: request ids of a type that has no hash.
    """
    return mix64(row_hashes(rows, positions, rule.column), np.uint64(rule.key)) < np.uint64(rule.threshold)


def row_hashes(rows: pa.RecordBatch, positions: np.ndarray, name: str) -> np.ndarray:
    """(n,) uint64: hash of the request id in the column of this name, or the row's position where it has none.

    Raises:
        DataError: request ids of a type that has no hash.
    """
    hashes = positions.astype(np.uint64)
    chunk = column(rows, name) if name else None
    if chunk is not None and len(chunk) and not t.is_null(chunk.type):
        of_ids, known = hashed_ids(chunk, name)
        np.copyto(hashes, of_ids, where=known)
    return hashes


def rule_of(increment_id: str, schema: Schema, share: float, seed: int) -> HeldOut:
    """Which rows of an increment are held out, `share` of them on average; none is counted yet."""
    key = hashlib.blake2b(f"holdout/{seed}/{increment_id}".encode(), digest_size=8).digest()
    threshold = min(int(share * 2.0**64), 2**64 - 1)
    return HeldOut(int.from_bytes(key, "little"), threshold, schema.request_id, 0, (0, 0, 0), ())


def slices_folder(storage: str, model: str) -> str:
    """URL of the folder that has the held-out rows of a model."""
    folder = f"{storage.rstrip('/')}/{model}/slices"
    return folder if "://" in folder else Path(folder).absolute().as_uri()


def located(files: Iterable[ParquetFile], folder: str) -> tuple[ParquetFile, ...]:
    """The same files, in this folder."""
    return tuple(replace(file, path=f"{folder}/{file.path.rpartition('/')[2]}") for file in files)


def sweep_slices(folder: str, named: Collection[str], increments: Collection[str]) -> int:
    """Deletes what nothing will be read from any more, and says how many files.

    Args:
        named: names of files that a version tells of.
        increments: names of those that are at work, whose files stay too.
    """
    is_local = folder.startswith("file://")
    place = Path(fs.FileSystem.from_uri(folder)[1]) if is_local else ObjectPath.of(folder)
    at_work = tuple(f"{increment}-" for increment in increments)
    gone: list[str] = []
    # What can not be found or deleted now is found again.
    with suppress(OSError):
        found = [entry.name for entry in place.iterdir()] if isinstance(place, Path) else place.files()
        gone += [name for name in found if name not in named and not name.startswith(at_work)]
    for name in gone:
        with suppress(OSError):
            (place / name).unlink()
    return len(gone)


def write_slice(increment: Increment, schema: Schema, share: float, seed: int, path: str) -> HeldOut:
    """Copies the declared columns of the rows that are held out, in the order of the log, and counts them.

    A file appears when it is whole, or not at all. Its name tells its content, so that one that a version has named
    never becomes another; the same increment gives the same rows again.

    Args:
        path: a local path or a URL that ends in `.parquet`; files are named so, with a digest before the ending.

    Raises:
        DataError: a file of the increment cannot be read, or its request ids have a type that has no hash.
    """
    from diurnal.data.audit import RowAudit

    rule, audit = rule_of(increment.id, schema, share, seed), RowAudit()
    url = path if "://" in path else Path(path).absolute().as_uri()
    with ExitStack() as stack:
        copies = _Copies(url, stack)
        for rows, positions in _held_out_rows(increment, schema, rule):
            audit.add(positions)
            copies.add(rows)
        files = copies.finish()
    return replace(rule, num_rows=audit.count, audit=tuple(audit.to_array().tolist()), files=files)


def slice_increment(held_out: HeldOut, increment: Increment) -> Increment:
    """The rows that are held out, as an increment that can be planned and read by itself."""
    digest = hashlib.blake2b(repr(held_out).encode(), digest_size=16).hexdigest()
    return Increment(increment.id, increment.path, held_out.files, digest)


def hashed_ids(chunk: pa.Array, name: str) -> tuple[np.ndarray, np.ndarray]:
    """uint64 hash of each request id, anything where there is none; and bool, where there is one.

    Raises:
        DataError: they are of a type that has no hash.
    """
    kind = chunk.type
    if t.is_integer(kind):
        values = view_of(chunk)
        return hash_int64(values.astype(np.uint64 if values.dtype.kind == "u" else np.int64), 0), ~is_null(chunk)
    if t.is_floating(kind):
        values = view_of(chunk).astype(np.float64)
        return hash_int64(values.view(np.uint64), 0), ~(is_null(chunk) | np.isnan(values))
    try:
        if t.is_fixed_size_binary(kind):
            chunk = chunk.cast(pa.binary())
        elif not is_string(kind.value_type if t.is_dictionary(kind) else kind):
            chunk = chunk.cast(pa.string())
        elif t.is_string_view(kind) or t.is_binary_view(kind):
            chunk = chunk.cast(pa.large_binary())
    except pa.ArrowNotImplementedError:
        must = "a request id is an integer, a string, bytes, or something else that is a single value"
        fix = "write it as a string, or take request_id out of the schema"
        raise DataError([Fault(f"column {name} (request_id)", str(kind), must, fix)]) from None
    hashed = hash_strings(chunk, 0)
    return view_of(hashed), ~is_null(hashed)


def _held_out_rows(increment: Increment, schema: Schema, rule: HeldOut) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """Those of the increment's own rows, in order, with their positions; for each piece of a file, even if none."""
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
                    opened = open_parquet(source, names)
                    for rows, positions in _inside(opened, names, position, increment.num_own_rows):
                        mask = is_held_out(rows, positions, rule)
                        yield without_views(rows).filter(pa.array(mask)), positions[mask]
            except (OSError, pa.ArrowException) as error:
                must, fix = "a file that can be read as it was planned", "write it again, or plan the increment anew"
                raise DataError([Fault(file.path, str(error), must, fix)]) from error
            except DataError as error:
                faults = [Fault(f"{file.path}: {f.where}", f.found, f.rule, f.fix) for f in error.faults]
                raise DataError(faults) from error
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


def without_views(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Arrow cannot filter views of strings."""
    schema = pa.schema([field.with_type(_without_view(field.type)) for field in rows.schema])
    return rows if schema.equals(rows.schema) else rows.cast(schema)


def _without_view(kind: pa.DataType) -> pa.DataType:
    if t.is_string_view(kind):
        return pa.large_string()
    if t.is_binary_view(kind):
        return pa.large_binary()
    if is_list(kind) and _without_view(kind.value_type) != kind.value_type:
        return pa.large_list(_without_view(kind.value_type))
    return kind


@dataclass
class _Copy:
    """One file that is being written, on a disk."""

    path: Path
    writer: pq.ParquetWriter
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
    """A file for each set of column types: casting between them could change an id.

    They are put together on a disk, beside where they are to be or, for an object store, in a temporary folder: their
    names tell their content, which is known at the end, and an object can not be renamed.
    """

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._url = url
        folder, _, self._name = url.rpartition("/")
        self._target = ObjectPath.of(folder)
        if url.startswith("file://"):
            self._target = Path(fs.FileSystem.from_uri(folder)[1])
            self._target.mkdir(parents=True, exist_ok=True)
            for left in self._target.glob(f"{glob.escape(self._name)}.*"):  # by a process that was killed
                left.unlink()
            self._folder = self._target
        else:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="diurnal-slice-")))
        self._unfinished = f"{self._name}.{uuid4().hex}"
        self._copies: list[tuple[pa.Schema, _Copy]] = []
        stack.callback(self._clean_up)

    def add(self, rows: pa.RecordBatch) -> None:
        copy = next((copy for schema, copy in self._copies if schema.equals(rows.schema)), None)
        if copy is None:
            path = self._folder / f"{self._unfinished}.{len(self._copies)}"
            copy = _Copy(path, pq.ParquetWriter(path, rows.schema))
            self._copies.append((rows.schema, copy))
        copy.add(rows)

    def finish(self) -> tuple[ParquetFile, ...]:
        """Gives the files their names."""
        return tuple(self._finished(copy) for _, copy in self._copies)

    def _finished(self, copy: _Copy) -> ParquetFile:
        copy.flush()
        copy.writer.close()
        digest = hashlib.blake2b(digest_size=8)
        with copy.path.open("rb") as source:
            while block := source.read(1 << 20):
                digest.update(block)
        footer, size = pq.read_metadata(copy.path), copy.path.stat().st_size
        groups = tuple(footer.row_group(i).num_rows for i in range(footer.num_row_groups))
        named = f"{self._name.removesuffix('.parquet')}-{digest.hexdigest()}.parquet"
        if isinstance(self._target, ObjectPath):
            _send(copy.path, self._target / named)
        else:
            _sync(copy.path)
            copy.path.rename(self._target / named)
            _sync(self._target)
        parts = urlsplit(self._url)
        url = parts._replace(path=f"{parts.path.rpartition('/')[0]}/{quote(named)}").geturl()
        return ParquetFile(url, size, groups)

    def _clean_up(self) -> None:
        """What an error has left."""
        for _, copy in self._copies:
            with suppress(pa.ArrowException, OSError):
                copy.writer.close()
            copy.path.unlink(missing_ok=True)


def _send(file: Path, target: ObjectPath) -> None:
    """
    Raises:
        CheckpointError: the store did not take it.
    """
    try:
        target.upload(file)
        with target.open() as there:
            if there.size() != file.stat().st_size:
                raise OSError(f"{there.size()} bytes have come to lie there, of {file.stat().st_size}")
    except OSError as error:
        raise CheckpointError([target.fault(error)]) from error


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, would outlive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
