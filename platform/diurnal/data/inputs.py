"""What the schema declares, as it is found in a record batch: labels, and the ids of a feature, be it a column, the
hour of a timestamp, or a pair of two other features."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from diurnal.config import Outcome, Schema, Sparse, Task
from diurnal.data import hashing
from diurnal.data.arrow import Ids, column, hash_strings, is_null, read_ids, read_numbers, read_times_us, view_of
from diurnal.data.columns import is_string
from diurnal.data.encoded import NO_TIME
from diurnal.data.past import NOTHING, Past

_HOUR_US = 3_600 * 10**6
_DAY_US = 24 * _HOUR_US
_THURSDAY = 3
"""1970-01-01 was one."""


def read_labels(chunk: pa.Array, label: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """Labels 0 and 1, float32, and which rows have none: null, or neither a positive nor a negative."""
    if label.is_spelled and is_string(chunk.type if not t.is_dictionary(chunk.type) else chunk.type.value_type):
        y, good = _spelled_labels(chunk, label)
    else:
        values, null = read_numbers(chunk)
        y, good = _number_labels(values, label)
        if null is not None:
            good &= ~null
    return y, ~good


def read_task_labels(chunk: pa.Array, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """The same of another outcome; NaN, float32, where a row may lack it and does."""
    y, bad = read_labels(chunk, task)
    if task.missing == "refuse":
        return y, bad
    if t.is_dictionary(chunk.type):
        chunk = chunk.dictionary_decode()
    lacks = pc.call_function("is_null", [chunk], pc.NullOptions(nan_is_null=True)).to_numpy(zero_copy_only=False)
    return np.where(lacks, np.float32(np.nan), y), bad & ~lacks


def _spelled_labels(chunk: pa.Array, label: Outcome) -> tuple[np.ndarray, np.ndarray]:
    if t.is_dictionary(chunk.type):
        chunk = chunk.dictionary_decode()
    texts = chunk.cast(pa.large_binary())
    is_class = [
        pc.call_function("equal", [texts, pa.scalar(spelling.encode(), pa.large_binary())]).fill_null(False)
        for spelling in (label.positive, label.negative)
    ]
    positive, negative = (mask.to_numpy(zero_copy_only=False) for mask in is_class)
    return positive.astype(np.float32), positive | negative


def _number_labels(values: np.ndarray, label: Outcome) -> tuple[np.ndarray, np.ndarray]:
    if label.at_least is not None:
        return (values >= label.at_least).astype(np.float32), np.isfinite(values)
    if not label.is_spelled:
        return values.astype(np.float32, copy=False), (values == 0) | (values == 1)
    positive, negative = (values == _number(spelling) for spelling in (label.positive, label.negative))
    return positive.astype(np.float32), positive | negative


def _number(spelling: str) -> float:
    """What no value equals, when the spelling is no number: then no row has this class."""
    try:
        return float({"true": "1", "false": "0"}.get(spelling.lower(), spelling))
    except ValueError:
        return float("nan")


def missing_indicator(chunk: pa.Array) -> np.ndarray:
    """(n,) float32: 1 where a number is null or not finite, else 0."""
    values, null = read_numbers(chunk)
    missing = ~np.isfinite(values)
    if null is not None:
        missing |= null
    return missing.astype(np.float32)


def read_feature(rows: pa.RecordBatch, feature: Sparse, schema: Schema, past: Past = NOTHING) -> Ids:
    """The ids of a feature, as they are stored, or as they follow from what is stored; without the column none."""
    if feature.cross:
        return _pairs(rows, feature, schema, past)
    chunk = column(rows, feature.source)
    if chunk is None:
        return Ids(None, 0, missing=True)
    if feature.mapping in ("hour", "weekday"):
        return Ids(_clock(read_times_us(chunk), feature.mapping), 1)
    return read_ids(chunk, feature.many)


def hashes_of(
    leaf: pa.Array, feature: Sparse, schema: Schema, past: Past = NOTHING
) -> tuple[np.ndarray, np.ndarray | None]:
    """(N,) uint64 hashes of ids, and which are an id (None: all), by the meaning that encoding gives them."""
    if feature.mapping == "bucketize":
        values, null = read_numbers(leaf)
        is_id = ~np.isnan(values) if null is None else ~(null | np.isnan(values))
        buckets = past.buckets(feature, values)
        if buckets is None:
            return np.zeros(len(leaf), np.uint64), np.zeros(len(leaf), bool)
        return hashing.hash_int64(buckets.astype(np.int64, copy=False), schema.hash_seed), _unless_all(is_id)
    if is_string(leaf.type if not t.is_dictionary(leaf.type) else leaf.type.value_type):
        hashed = hash_strings(leaf, schema.hash_seed)
        return view_of(hashed), ~is_null(hashed) if hashed.null_count else None
    if t.is_null(leaf.type):
        return np.zeros(len(leaf), np.uint64), np.zeros(len(leaf), bool)
    values = view_of(leaf)
    bits = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64)
    is_id = bits >= 0
    if leaf.null_count:
        is_id &= ~is_null(leaf)
    if feature.mapping == "identity":
        is_id &= bits < schema.table(feature.table_name).rows
    return hashing.hash_int64(bits, schema.hash_seed), _unless_all(is_id)


def hashes_in(rows: pa.RecordBatch, feature: Sparse, schema: Schema, is_wanted: np.ndarray) -> np.ndarray:
    """(N,) uint64 hashes of the ids of the rows that are wanted, (n,) bool."""
    hashes, lengths = _known(rows, feature, schema, NOTHING)
    return hashes[np.repeat(is_wanted, lengths)]


def _unless_all(mask: np.ndarray) -> np.ndarray | None:
    return None if mask.all() else mask


def _clock(times_us: np.ndarray, mapping: str) -> pa.Array:
    """Hour of the day or day of the week, UTC, int64; null where the time is."""
    value = times_us % _DAY_US // _HOUR_US if mapping == "hour" else (times_us // _DAY_US + _THURSDAY) % 7
    no_time = times_us == NO_TIME
    return pa.array(value, mask=no_time if no_time.any() else None)


def _pairs(rows: pa.RecordBatch, feature: Sparse, schema: Schema, past: Past) -> Ids:
    """Each id of the first feature with each of the second, in that order: a row of a and b ids has a * b pairs."""
    n = rows.num_rows
    features = {one.name: one for one in schema.sparse}
    (left, left_sizes), (right, right_sizes) = (_known(rows, features[name], schema, past) for name in feature.cross)
    if (left_sizes == 1).all() and (right_sizes == 1).all():
        return Ids(pa.array(hashing.hash_pairs(left, right)), 1)
    sizes = left_sizes * right_sizes
    pair_row = np.repeat(np.arange(n), sizes)
    within = np.arange(len(pair_row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    quotient, remainder = np.divmod(within, right_sizes[pair_row])
    left_starts, right_starts = (np.cumsum(each) - each for each in (left_sizes, right_sizes))
    leaf = hashing.hash_pairs(left[left_starts[pair_row] + quotient], right[right_starts[pair_row] + remainder])
    return Ids(pa.array(leaf), sizes)


def _known(rows: pa.RecordBatch, feature: Sparse, schema: Schema, past: Past) -> tuple[np.ndarray, np.ndarray]:
    """uint64 hashes of the ids that are one, without those beyond `max_length`, and their number in each row."""
    n = rows.num_rows
    ids = read_feature(rows, feature, schema, past)
    if ids.leaf is None:
        return np.empty(0, np.uint64), np.zeros(n, np.int64)
    lengths = np.full(n, ids.lengths, np.int64) if isinstance(ids.lengths, int) else ids.lengths.astype(np.int64)
    hashes, is_id = hashes_of(ids.leaf, feature, schema, past)
    if is_id is not None:
        lengths = np.bincount(np.repeat(np.arange(n), lengths)[is_id], minlength=n)
        hashes = hashes[is_id]
    if feature.max_length is not None and lengths.max(initial=0) > feature.max_length:
        within = np.arange(len(hashes)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        hashes = hashes[within < feature.max_length]
        lengths = np.minimum(lengths, feature.max_length)
    return hashes, lengths
