"""What a profile is made of, counted over pieces of an increment: one pass over Arrow columns, no Python per row."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from diurnal.config import Dense, Schema, Sparse
from diurnal.data.arrow import Ids, column, read_numbers, read_times_us
from diurnal.data.encoded import NO_TIME
from diurnal.data.inputs import hashes_of, missing_indicator, read_feature, read_labels
from diurnal.data.quantiles import by_magnitude
from diurnal.data.sketches import IdCounts, Moments, sampled_rows

SAMPLE_ROWS = 20_000
"""Rows, about, that quantiles and top ids come from: a share has a standard error of at most 0.36 %."""

SAMPLE_BAG_IDS = 32
"""Ids of one row of the sample, at most, that top ids are counted among."""

SKETCH_IDS = 10_000
"""Ids in the sketches of all features together, which keeps a profile below 200 kB."""

MAX_SKETCH_IDS = 1 << 10


@dataclass(frozen=True)
class Frame:
    """What is known of the increment before it is read."""

    rows: int
    start_us: int
    """Its folder's time is [start_us, stop_us), microseconds since 1970 UTC."""
    stop_us: int


@dataclass
class LabelTally:
    positives: int = 0
    negatives: int = 0
    bad: int = 0
    """Neither a positive nor a negative, or null."""

    def add(self, y: np.ndarray, bad: np.ndarray) -> None:
        num_bad = int(np.count_nonzero(bad))
        positives = int(np.count_nonzero(y[~bad] if num_bad else y))
        self.positives += positives
        self.negatives += len(y) - num_bad - positives
        self.bad += num_bad


@dataclass
class NumberTally:
    """A dense feature, or the weights."""

    missing: int = 0
    null: int = 0
    nonfinite: int = 0
    fill: int = 0
    negative: int = 0
    moments: Moments = field(default_factory=Moments)
    sample: list[np.ndarray] = field(default_factory=list)
    """Float64 values of the row sample, finite ones."""

    def add(self, x: np.ndarray, null: np.ndarray | None, fill: float, sampled: np.ndarray) -> None:
        finite = np.isfinite(x)
        picked = x[sampled].astype(np.float64)
        kept = finite[sampled]
        if null is not None:
            self.null += int(np.count_nonzero(null))
            finite |= null
            kept &= ~null[sampled]
        self.nonfinite += len(x) - int(np.count_nonzero(finite))
        if null is not None:
            finite &= ~null
        values = x if finite.all() else x[finite]
        self.fill += int(np.count_nonzero(values == values.dtype.type(fill)))
        self.negative += int(np.count_nonzero(values < 0))
        self.moments.add(values)
        self.sample.append(picked[kept])


@dataclass
class SparseTally:
    counts: IdCounts
    missing: int = 0
    no_id: int = 0
    """Rows without any id."""
    ids: int = 0
    texts: list[pa.Array] = field(default_factory=list)
    """large_binary: the ids of the row sample, spelled out."""


@dataclass
class TimeTally:
    null: int = 0
    outside: int = 0
    lowest_us: int | None = None
    highest_us: int | None = None

    def add(self, times_us: np.ndarray, frame: Frame) -> None:
        there = times_us[times_us != NO_TIME]
        self.null += len(times_us) - len(there)
        if len(there):
            self.outside += int(np.count_nonzero((there < frame.start_us) | (there >= frame.stop_us)))
            self._widen(int(there.min()), int(there.max()))

    def _widen(self, lowest_us: int | None, highest_us: int | None) -> None:
        if lowest_us is not None and highest_us is not None:
            self.lowest_us = lowest_us if self.lowest_us is None else min(self.lowest_us, lowest_us)
            self.highest_us = highest_us if self.highest_us is None else max(self.highest_us, highest_us)

    def merge(self, other: TimeTally) -> None:
        self.null += other.null
        self.outside += other.outside
        self._widen(other.lowest_us, other.highest_us)


class Tally:
    """Counts over some of an increment's rows. `merge` is associative and commutative, exactly."""

    def __init__(self, schema: Schema) -> None:
        size = max(16, min(MAX_SKETCH_IDS, SKETCH_IDS // len(schema.sparse)))
        self.rows = 0
        self.label = LabelTally()
        self.weight = NumberTally()
        self.time = TimeTally()
        self.dense = [NumberTally() for _ in schema.columns_of_numbers]
        self.sparse = [SparseTally(IdCounts(size)) for _ in schema.sparse]

    def add(self, rows: pa.RecordBatch, schema: Schema, first_row: int, frame: Frame) -> None:
        """Adds rows whose first one has the position `first_row` in the increment."""
        n, schema = rows.num_rows, by_magnitude(schema)
        self.rows += n
        sampled = sampled_rows(first_row, n, frame.rows, SAMPLE_ROWS)
        label = column(rows, schema.label.column)
        if label is None:
            self.label.bad += n
        else:
            self.label.add(*read_labels(label, schema.label))
        if schema.weight:
            _add_numbers(self.weight, column(rows, schema.weight), n, 1.0, sampled)
        if schema.event_time:
            chunk = column(rows, schema.event_time)
            self.time.add(np.full(n, NO_TIME) if chunk is None else read_times_us(chunk), frame)
        for feature, tally in zip(schema.columns_of_numbers, self.dense, strict=True):
            _add_dense(tally, feature, rows, sampled)
        for feature, tally in zip(schema.sparse, self.sparse, strict=True):
            _add_sparse(tally, feature, rows, schema, sampled)

    def merge(self, other: Tally) -> None:
        """Adds the rows of another tally of the same increment."""
        self.rows += other.rows
        _add_fields(self.label, other.label)
        _add_fields(self.weight, other.weight)
        self.time.merge(other.time)
        for mine, its in zip(self.dense, other.dense, strict=True):
            _add_fields(mine, its)
        for mine, its in zip(self.sparse, other.sparse, strict=True):
            _add_fields(mine, its)


def _add_fields(mine: Any, its: Any) -> None:
    """Counts and lists are added, the rest is merged."""
    for each in fields(mine):
        value, other = getattr(mine, each.name), getattr(its, each.name)
        if isinstance(value, int | list):
            setattr(mine, each.name, value + other)
        else:
            value.merge(other)


def _add_dense(tally: NumberTally, feature: Dense, rows: pa.RecordBatch, sampled: np.ndarray) -> None:
    chunk = column(rows, feature.source)
    if feature.transform == "missing" and chunk is not None:
        chunk = pa.array(missing_indicator(chunk))
    _add_numbers(tally, chunk, rows.num_rows, feature.fill, sampled)


def _add_numbers(tally: NumberTally, chunk: pa.Array | None, num_rows: int, fill: float, sampled: np.ndarray) -> None:
    if chunk is None:
        tally.missing += num_rows
    else:
        tally.add(*read_numbers(chunk), fill, sampled)


def _add_sparse(tally: SparseTally, feature: Sparse, rows: pa.RecordBatch, schema: Schema, sampled: np.ndarray) -> None:
    n = rows.num_rows
    ids = read_feature(rows, feature, schema)
    if ids.missing:
        tally.missing += n
    if ids.leaf is None or t.is_null(ids.leaf.type):
        tally.no_id += n
        return
    hashes, is_id = hashes_of(ids.leaf, feature, schema)
    tally.no_id += _rows_without(ids, is_id, n)
    if is_id is not None:
        hashes = hashes[is_id]
    tally.ids += len(hashes)
    tally.counts.add(hashes)
    if len(sampled):
        picked = _leaves_of(ids, sampled)
        if is_id is not None:
            picked = picked[is_id[picked]]
        tally.texts.append(_spelled(ids.leaf.take(pa.array(picked)), feature))


def _rows_without(ids: Ids, is_id: np.ndarray | None, num_rows: int) -> int:
    if isinstance(ids.lengths, int):
        return 0 if is_id is None else num_rows - int(np.count_nonzero(is_id))
    if is_id is None:
        return int(np.count_nonzero(ids.lengths == 0))
    row_of_id = np.repeat(np.arange(num_rows), ids.lengths)
    return int(np.count_nonzero(np.bincount(row_of_id[is_id], minlength=num_rows) == 0))


def _leaves_of(ids: Ids, rows: np.ndarray) -> np.ndarray:
    """Positions of the first ids of the rows."""
    if isinstance(ids.lengths, int):
        return rows
    starts = np.cumsum(ids.lengths) - ids.lengths
    sizes = np.minimum(ids.lengths[rows], SAMPLE_BAG_IDS).astype(np.int64)
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts[rows] - before, sizes) + np.arange(sizes.sum())


def _spelled(leaf: pa.Array, feature: Sparse) -> pa.Array:
    if feature.mapping == "bucketize":
        leaf = pa.array(np.searchsorted(np.array(feature.boundaries), read_numbers(leaf)[0], side="right"))
    if t.is_dictionary(leaf.type):
        leaf = leaf.dictionary_decode()
    if t.is_integer(leaf.type):
        leaf = leaf.cast(pa.string())
    return pc.call_function("cast", [leaf], pc.CastOptions.safe(pa.large_binary()))
