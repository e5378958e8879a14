"""Carries out a read task: pieces of Parquet files in, finished batches out. This is what runs in Ray Data's tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from diurnal.config import Label, Schema
from diurnal.data.columns import encoded_columns
from diurnal.data.encode import encode
from diurnal.data.encoded import Encoded
from diurnal.data.files import HeldOut, Sampling
from diurnal.data.footers import open_parquet
from diurnal.data.holdout import is_held_out, without_views
from diurnal.data.negatives import split_rows
from diurnal.data.packed import PackedBatch, error_block
from diurnal.data.partitions import JOINED_ROW, open_filesystem
from diurnal.data.past_files import open_past
from diurnal.data.streams import LaneTask, ReadTask, RowRange, Window, permutation
from diurnal.errors import DataError, DiurnalError, Fault

T = TypeVar("T")

_PIECE_ROWS = 8192
"""Rows decoded and encoded at a time: few enough for a core's cache, enough to forget what a call costs."""


_MOST_SPARSE = 8
"""So many times as many rows are decoded at a time where few of them are learned."""


class Piece(NamedTuple):
    """Rows on their way into a batch."""

    rows: Encoded
    row_index: np.ndarray
    """(n,) int64 position in the increment, in file order; -1 where the row is held out."""


def read_batches(task: ReadTask, schema: Schema, dataset: str) -> Iterator[PackedBatch]:
    """The local batches of a task, in the order of steps.

    Args:
        dataset: the dataset's folder or URL, which tells the file system.

    Raises:
        DataError: a file cannot be read, is not what was planned, or holds a value that the schema refuses.
    """
    past = open_past(task.past)
    source = _Source(schema, dataset, task.held_out, task.sampling, lambda rows: encode(rows, schema, past))
    lanes = [_Lane(lane, source) for lane in task.lanes]
    nothing = Piece(Encoded.empty(schema), np.empty(0, np.int64))
    for step in range(task.first_step, task.first_step + task.num_steps):
        pieces = [piece for lane in lanes for piece in lane.next_rows(task.lane_rows(lane.task, step))]
        if task.held_out is not None and task.sampling is None:
            pieces = [_learned(piece) for piece in pieces]
        yield PackedBatch.pack(pieces or [nothing], step, task.batch_rows)


def read_rows(
    task: ReadTask, schema: Schema, dataset: str, see: Callable[[pa.RecordBatch], T]
) -> Iterator[tuple[T, np.ndarray]]:
    """What one sees in the rows of a task, piece by piece, stream after stream; and which of these rows are learned,
    (n,) bool.

    Raises:
        DataError: a file cannot be read, or is not what was planned, or holds a value that `see` refuses.
    """
    source = _Source(schema, dataset, task.held_out, None, see)
    for lane in task.lanes:
        for seen, row_index in _lane_pieces(lane, source):
            yield seen, row_index >= 0  # pyright: ignore[reportReturnType]


def run_read_tasks(tasks: pa.Table, schema: Schema, dataset: str) -> Iterator[pa.Table]:
    """What Ray Data's tasks run on pickled read tasks: one block a batch.

    A person's fault travels as a value, so that Ray neither retries nor wraps it.
    """
    for task in tasks["task"]:
        try:
            for packed in read_batches(pickle.loads(task.as_py()), schema, dataset):
                yield packed.to_block()
        except DiurnalError as error:
            yield error_block(error)


class _Source(NamedTuple):
    """What reading a task's rows needs to know, wherever they are."""

    schema: Schema
    dataset: str
    held_out: HeldOut | None
    sampling: Sampling | None
    encode: Callable[[pa.RecordBatch], Any]
    """What becomes of rows that were read."""


class _Lane:
    """Gives the rows of one stream, a step at a time; holds a piece of a file, or a window when shuffled."""

    def __init__(self, task: LaneTask, source: _Source) -> None:
        self.task = task
        self._pieces = _lane_pieces(task, source)
        self._rest: Piece | None = None

    def next_rows(self, num_rows: int) -> list[Piece]:
        taken = []
        while num_rows:
            piece = next(self._pieces) if self._rest is None else self._rest
            self._rest = None
            if num_rows < len(piece.row_index):
                head, tail = piece.rows.split(num_rows)
                self._rest = Piece(tail, piece.row_index[num_rows:])
                piece = Piece(head, piece.row_index[:num_rows])
            taken.append(piece)
            num_rows -= len(piece.row_index)
        return taken


def _learned(piece: Piece) -> Piece:
    """Without the rows that are held out: their place in the step's batch becomes padding."""
    is_learned = piece.row_index >= 0
    if is_learned.all():
        return piece
    rows = np.flatnonzero(is_learned)
    return Piece(piece.rows.take(rows), piece.row_index[rows])


def _lane_pieces(task: LaneTask, source: _Source) -> Iterator[Piece]:
    for window in task.windows:
        pieces = _window_pieces(window, source)
        yield from pieces if window.shuffle_key is None else [_shuffled(list(pieces), window)]


def _shuffled(pieces: list[Piece], window: Window) -> Piece:
    row_index = np.concatenate([piece.row_index for piece in pieces])
    order = permutation(len(row_index), window.shuffle_key or 0)[window.skip : window.skip + window.num_rows]
    return Piece(Encoded.concat([piece.rows for piece in pieces]).take(order), row_index[order])


def _window_pieces(window: Window, source: _Source) -> Iterator[Piece]:
    filesystem, _ = open_filesystem(source.dataset)
    for path, ranges in groupby(window.ranges, lambda rows: rows.path):
        try:
            # Rows that were held out of other increments may lie elsewhere than the dataset.
            system, place = open_filesystem(path) if "://" in path else (filesystem, path)
            with system.open_input_file(place) as file:
                yield from _file_pieces(file, list(ranges), source)
        except (OSError, pa.ArrowException) as error:
            must, fix = "a file that can be read as it was planned", "write it again, or plan the increment anew"
            raise DataError([Fault(path, str(error), must, fix)]) from error
        except DataError as error:
            raise DataError([Fault(f"{path}: {f.where}", f.found, f.rule, f.fix) for f in error.faults]) from error


def _file_pieces(opened: pa.NativeFile, ranges: Sequence[RowRange], source: _Source) -> Iterator[Piece]:
    """Decodes row groups from their start, since Parquet has no way into the middle of one, and stops early."""
    if opened.size() != ranges[0].file_bytes:
        raise OSError(f"{opened.size()} bytes; there were {ranges[0].file_bytes} when it was planned")
    schema = source.schema
    footer = pq.read_metadata(opened)
    strings = _string_leaves(footer, schema)
    stored = set(footer.schema.to_arrow_schema().names)
    held_out = None if ranges[0].first_row >= JOINED_ROW else source.held_out
    wanted = encoded_columns(schema) + ([held_out.column] if held_out is not None and held_out.column else [])
    names = [name for name in dict.fromkeys(wanted) if name in stored]
    if source.sampling is not None:
        drawn_by = {Label.model_validate_json(source.sampling.label).column, source.sampling.column} & stored
        names = list(dict.fromkeys([*names, *sorted(drawn_by)]))
    # Files without checksums of their pages are read all the same.
    file = open_parquet(opened, names, footer, read_dictionary=strings, page_checksum_verification=True)
    if source.sampling is not None:
        yield from _sampled_pieces(file, ranges, names, source)
        return
    has_lists = any("." in leaf for leaf in strings)
    for run in _runs(ranges, footer, has_lists):
        row_index = np.concatenate([np.arange(rows.first_row, rows.first_row + rows.num_rows) for rows in run])
        skip, taken = run[0].start, 0
        for batch in file.iter_batches(_PIECE_ROWS, [rows.row_group for rows in run], names, use_threads=False):
            start = min(skip, batch.num_rows)
            size = min(batch.num_rows - start, len(row_index) - taken)
            skip -= start
            if size:
                rows, positions = batch.slice(start, size), row_index[taken : taken + size]
                if held_out is not None:
                    positions = np.where(is_held_out(rows, positions, held_out), -1, positions)
                yield Piece(source.encode(rows), positions)
            taken += size
            if taken == len(row_index):
                break


def _sampled_pieces(
    file: pq.ParquetFile, ranges: Sequence[RowRange], names: Sequence[str], source: _Source
) -> Iterator[Piece]:
    """Decodes row groups from their start, drops what is not learned, and takes the ranges from the rest."""
    assert source.sampling is not None
    encoded = set(encoded_columns(source.schema))
    read_rows = round(_PIECE_ROWS * min(_MOST_SPARSE, 1 / source.sampling.rate))
    for wanted in ranges:
        position, seen = wanted.first_row, 0
        for batch in file.iter_batches(read_rows, [wanted.row_group], names, use_threads=False):
            positions = np.arange(position, position + batch.num_rows)
            position += batch.num_rows
            learned = np.flatnonzero(split_rows(batch, positions, source.sampling, source.held_out)[0])
            places = learned[max(0, wanted.start - seen) : wanted.stop - seen]
            seen += len(learned)
            if len(places):
                rows = batch.select([name for name in names if name in encoded])
                yield Piece(source.encode(without_views(rows).take(pa.array(places))), positions[places])
            if seen >= wanted.stop:
                break
        else:
            raise OSError(
                f"{seen} rows of row group {wanted.row_group} are learned; {wanted.stop} or more were counted"
            )


def _string_leaves(footer: pq.FileMetaData, schema: Schema) -> list[str]:
    """Paths of the Parquet columns whose strings are read as dictionaries, since only distinct values are hashed."""
    strings = {f.source for f in schema.sparse if f.type == "string"} | {schema.group_id}
    leaves = [footer.schema.column(i) for i in range(footer.num_columns)]
    return [
        leaf.path
        for leaf in leaves
        if leaf.physical_type == "BYTE_ARRAY"
        and any(leaf.path == name or leaf.path.startswith(f"{name}.") for name in strings)
    ]


def _runs(ranges: Sequence[RowRange], footer: pq.FileMetaData, is_single: bool) -> Iterator[list[RowRange]]:
    """Ranges that can be decoded in one go: all rows between the first one's start and the last one's stop.

    Args:
        is_single: one row group at a time, since Arrow cannot put dictionaries of several into lists.
    """
    run: list[RowRange] = []
    for rows in ranges:
        if run and (is_single or rows.start > 0 or run[-1].stop < footer.row_group(run[-1].row_group).num_rows):
            yield run
            run = []
        run.append(rows)
    yield run
