"""A sample of the values of an increment's files: what encoding would refuse, what it would count, what looks wrong.

The meaning of a value is that of `encode`, and of the profile's tally: nothing is decided here a second time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from diurnal.config import Label, Schema, Task
from diurnal.data.arrow import column, read_numbers
from diurnal.data.columns import encoded_columns
from diurnal.data.encode import count_names, encode
from diurnal.data.footers import open_parquet
from diurnal.data.ids import IncrementId
from diurnal.data.inputs import read_labels, read_task_labels
from diurnal.data.partitions import Increment, ParquetFile, open_filesystem
from diurnal.data.tally import Frame, Tally
from diurnal.errors import DataError, Fault

_BLOCK_ROWS = 8192
_MAX_SKIP = 8
"""Rows that are decoded to get to a place within a row group: so many times those that are looked at."""
_THREADS = 2


@dataclass(frozen=True)
class Slice:
    """Rows [start, stop) of a row group."""

    row_group: int
    start: int
    stop: int


@dataclass
class _Refused:
    """Rows of a file that encoding refuses for one reason."""

    fault: Fault
    row: int
    """The first one's place in its file."""
    count: int = 0


@dataclass
class FileValues:
    """What was found in a file."""

    path: str
    tally: Tally
    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """By the names of `encode.count_names`."""
    refused: dict[tuple[str, str], _Refused] = field(default_factory=dict)
    error: Fault | None = None

    def faults(self) -> Iterator[Fault]:
        if self.error is not None:
            yield self.error
        for one in self.refused.values():
            such = f"such are {one.count:,} of the {self.rows:,} rows looked at"
            found = f"{one.fault.found} in row {one.row:,}, counted from 0 ({such})"
            yield Fault(f"{self.path}: {one.fault.where}", found, one.fault.rule, one.fault.fix)


def look_at_values(
    increment: Increment,
    schema: Schema,
    rows: int | None,
    *,
    but: Iterable[str] = (),
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[FileValues]:
    """Reads some rows of each file, or all of them.

    Args:
        increment: a whole folder.
        rows: of each file: half of them its first ones, half from a place that its name tells; None reads all.
        but: paths of files that are left out.
        on_progress: told how many more rows have been looked at.
    """
    filesystem, _ = open_filesystem(increment.path)
    files = [file for file in increment.files if file.path not in set(but) and file.num_rows]
    chosen = [slices(file, rows) for file in files]
    sizes = [sum(one.stop - one.start for one in of_file) for of_file in chosen]
    starts = np.cumsum([0, *sizes]).tolist()
    frame = _frame(increment, starts[-1])

    def look(index: int) -> FileValues:
        found = FileValues(files[index].path, Tally(schema))
        _look_at_file(filesystem, files[index], chosen[index], schema, starts[index], frame, found)
        return found

    values = []
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="validate") as pool:
        for size, found in zip(sizes, pool.map(look, range(len(files))), strict=True):
            values.append(found)
            on_progress(size)
    return values


def slices(file: ParquetFile, rows: int | None) -> list[Slice]:
    """Which rows of a file are looked at; the same whenever it is asked."""
    groups = [Slice(index, 0, size) for index, size in enumerate(file.row_group_rows) if size]
    if rows is None or file.num_rows <= rows:
        return groups
    first = groups[0]
    head = Slice(first.row_group, 0, min(first.stop, -(-rows // 2)))
    size = rows - head.stop
    digest = hashlib.blake2b(file.path.rpartition("/")[2].encode(), digest_size=8).digest()
    place = head.stop + int.from_bytes(digest, "little") % (file.num_rows - head.stop)
    bounds = np.cumsum([group.stop for group in groups])
    group = groups[int(np.searchsorted(bounds, place, side="right"))]
    lowest = head.stop if group is first else 0
    start = place - (int(bounds[groups.index(group)]) - group.stop)
    start = max(lowest, min(start, group.stop - size, _MAX_SKIP * rows))
    return [head, Slice(group.row_group, start, min(group.stop, start + size))]


def _frame(increment: Increment, rows: int) -> Frame:
    name = IncrementId.parse(increment.id)
    return Frame(rows, *(int(time.timestamp()) * 10**6 for time in (name.whole.start, name.folder_end)))


def _look_at_file(
    filesystem: fs.FileSystem,
    file: ParquetFile,
    chosen: Sequence[Slice],
    schema: Schema,
    first_row: int,
    frame: Frame,
    found: FileValues,
) -> None:
    try:
        with filesystem.open_input_file(file.path) as source:
            for place, rows in _read(source, chosen, schema):
                found.tally.add(rows, schema, first_row + found.rows, frame)
                found.rows += rows.num_rows
                _refuse_or_count(rows, place, schema, found)
    except (OSError, pa.ArrowException) as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        found.error = Fault(
            file.path, text, "a file whose pages are whole", "write the file again, or take it out of the folder"
        )
    except DataError as error:
        fault = error.faults[0]
        found.error = Fault(f"{file.path}: {fault.where}", fault.found, fault.rule, fault.fix)


def _read(source: pa.NativeFile, chosen: Sequence[Slice], schema: Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows, and the place of the first one in the file."""
    footer = pq.read_metadata(source)
    starts = np.cumsum([0, *(footer.row_group(i).num_rows for i in range(footer.num_row_groups))]).tolist()
    stored = set(footer.schema.to_arrow_schema().names)
    names = [name for name in encoded_columns(schema) if name in stored]
    file = open_parquet(source, names, footer, page_checksum_verification=True)
    for one in chosen:
        at = 0
        for batch in file.iter_batches(_BLOCK_ROWS, [one.row_group], names, use_threads=False):
            first, last = max(at, one.start), min(at + batch.num_rows, one.stop)
            if first < last:
                yield starts[one.row_group] + first, batch.slice(first - at, last - first)
            at += batch.num_rows
            if at >= one.stop:
                break


def _refuse_or_count(rows: pa.RecordBatch, place: int, schema: Schema, found: FileValues) -> None:
    """Encodes the rows with labels, weights and unknown ids that are never refused, then lets each of these be said."""
    sparse = tuple(one.model_copy(update={"unknown": "empty"}) for one in schema.sparse)
    lenient = schema.model_copy(update={"sparse": sparse, "label": Label(column=schema.label.column), "tasks": ()})
    ones = pa.array(np.ones(rows.num_rows, np.int8))
    sound = _with(rows, schema.label.column, ones)
    bad_labels = read_labels(_there(rows, schema.label.column), schema.label)[1]
    bad_weights = _bad_weights(_there(rows, schema.weight)) if schema.weight else np.zeros(0, bool)
    if bad_weights.any():
        sound = _with(sound, schema.weight, ones)
        _refuse(_with(sound, schema.weight, rows.column(schema.weight)), bad_weights, place, lenient, found)
    if bad_labels.any():
        labelled = _with(sound, schema.label.column, rows.column(schema.label.column))
        _refuse(labelled, bad_labels, place, lenient.model_copy(update={"label": schema.label}), found)
    for task in schema.tasks:
        _refuse_or_count_task(_with(sound, task.source, column(rows, task.source)), place, task, lenient, found)
    encoded = encode(sound, lenient)
    names = count_names(lenient)
    for event, per_row in zip(encoded.events, encoded.event_rows, strict=True):
        found.counts[names[event]] += int(per_row.sum())
    for feature in schema.sparse:
        event = np.flatnonzero(encoded.events == names.index(f"sparse/{feature.name}/unknown"))
        if feature.unknown == "refuse" and len(event):
            strict = tuple(feature if one.name == feature.name else one for one in sparse)
            _refuse(
                sound, encoded.event_rows[event[0]] > 0, place, lenient.model_copy(update={"sparse": strict}), found
            )


def _refuse_or_count_task(rows: pa.RecordBatch, place: int, task: Task, lenient: Schema, found: FileValues) -> None:
    values = column(rows, task.source)
    if values is None:
        found.counts[f"task/{task.name}/missing_column_rows"] += rows.num_rows
        return
    labels, bad = read_task_labels(values, task)
    found.counts[f"task/{task.name}/null"] += int(np.count_nonzero(np.isnan(labels) & ~bad))
    if bad.any():
        _refuse(rows, bad, place, lenient.model_copy(update={"tasks": (task,)}), found)


def _refuse(rows: pa.RecordBatch, bad: np.ndarray, place: int, schema: Schema, found: FileValues) -> None:
    """Lets `encode` say what is wrong with the first of the bad rows, and counts them."""
    try:
        row = int(np.argmax(bad))
        encode(rows.slice(row, 1), schema)
    except DataError as error:
        fault = error.faults[0]
        first = replace(fault, found=fault.found.partition(" (such are ")[0])
        found.refused.setdefault((fault.where, fault.rule), _Refused(first, place + row)).count += int(
            np.count_nonzero(bad)
        )


def _bad_weights(weights: pa.Array) -> np.ndarray:
    values, null = read_numbers(weights)
    good = (values >= 0) & (values <= np.finfo(np.float32).max)
    return ~good if null is None else ~good | null


def _there(rows: pa.RecordBatch, name: str) -> pa.Array:
    found = column(rows, name)
    assert found is not None, f"the contract lets no file without {name} come here"
    return found


def _with(rows: pa.RecordBatch, name: str, values: pa.Array | None) -> pa.RecordBatch:
    """The rows with other values of a column; as they are, without any."""
    if values is None:
        return rows
    return rows.set_column(rows.schema.get_field_index(name), pa.field(name, values.type), values)
