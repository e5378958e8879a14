"""Columns of a record batch as NumPy arrays: one number per row, or 64-bit ids with the length of each row's bag."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from diurnal.data import hashing
from diurnal.data.columns import is_string
from diurnal.data.encoded import NO_TIME

_PRIMITIVES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
_DTYPES = {getattr(pa, name)().id: np.dtype(name) for name in _PRIMITIVES.split()}
_EXACT_IN_FLOAT32 = {kind for kind, dtype in _DTYPES.items() if dtype.itemsize <= 2} | {pa.float32().id}
_UNITS_PER_S = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass
class Ids:
    """A sparse column of n rows as it is stored, with lists taken apart."""

    leaf: pa.Array | None
    """The N ids, or their uint64 hashes; None when there is none."""
    lengths: np.ndarray | int
    """(n,) ids per row, or the same number for every row."""
    null_lists: np.ndarray | None = None
    """(n,) bool; None when no list is null."""
    missing: bool = False
    """Whether the file has no such column."""


def column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """A column without extension types, and without dictionary but for strings; None if there is none."""
    index = batch.schema.get_field_index(name)
    return None if index < 0 else _plain(batch.column(index))


def read_numbers(chunk: pa.Array, out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Numbers or bools, and which are null (None: none is).

    The values are float32 where the column's type fits into it exactly, and then written into `out` if that is
    given; float64 otherwise. They are anything where null.
    """
    null = is_null(chunk) if chunk.null_count else None
    if t.is_null(chunk.type):
        return np.zeros(len(chunk), np.float32), null
    view = view_of(chunk)
    if chunk.type.id not in _EXACT_IN_FLOAT32:
        return view.astype(np.float64), null
    if out is None:
        return view.astype(np.float32), null
    out[:] = view
    return out, null


def read_ids(chunk: pa.Array, many: bool) -> Ids:
    """Takes lists apart; copies no id."""
    if t.is_null(chunk.type):
        return Ids(None, 0, np.ones(len(chunk), bool) if len(chunk) else None)
    if not many:
        return Ids(chunk, 1)
    lengths = pc.call_function("list_value_length", [chunk])
    if not chunk.null_count:
        return Ids(_plain(chunk.flatten()), lengths.to_numpy())
    return Ids(_plain(chunk.flatten()), lengths.fill_null(0).to_numpy(), is_null(chunk))


def read_times_us(chunk: pa.Array) -> np.ndarray:
    """(n,) int64 microseconds since 1970 UTC of timestamps or dates, rounded down; `NO_TIME` where null.

    A time without zone is UTC.
    """
    if t.is_null(chunk.type):
        return np.full(len(chunk), NO_TIME)
    if t.is_date(chunk.type):
        chunk = chunk.cast(pa.timestamp("ms"))
    units = _UNITS_PER_S[chunk.type.unit]
    times = view_of(chunk.cast(pa.int64()))
    times = times * (10**6 // units) if units <= 10**6 else times // (units // 10**6)
    if chunk.null_count:
        times[is_null(chunk)] = NO_TIME
    return times


def hash_strings(values: pa.Array, seed: int) -> pa.Array:
    """uint64 hashes of strings or bytes, plain or dictionary-encoded; null for null and for the empty string.

    Each distinct value is hashed once.
    """
    if not t.is_dictionary(values.type):
        values = values.dictionary_encode()
    distinct, codes = values.dictionary, values.indices
    if len(distinct) <= len(codes):
        return _hash_distinct(distinct, seed).take(codes)
    used = np.zeros(len(distinct), bool)  # a slice of a large row group has the row group's whole dictionary
    used[codes.drop_null().to_numpy()] = True
    position = pa.array(np.cumsum(used) - 1)
    return _hash_distinct(distinct.filter(pa.array(used)), seed).take(position.take(codes))


def _hash_distinct(texts: pa.Array, seed: int) -> pa.Array:
    texts = texts.cast(pa.large_binary())
    _, offsets, data = texts.buffers()
    bounds = np.zeros(1, np.int64)
    if len(texts):
        bounds = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8)
    hashes = hashing.hash_bytes(np.frombuffer(data or b"", np.uint8), bounds, seed)
    no_id = np.diff(bounds) == 0
    if texts.null_count:
        no_id |= is_null(texts)
    return pa.array(hashes, mask=no_id)


def is_null(chunk: pa.Array) -> np.ndarray:
    """(n,) bool."""
    validity = chunk.buffers()[0]
    if validity is None:
        return np.full(len(chunk), t.is_null(chunk.type))
    start, shift = divmod(chunk.offset, 8)
    bits = np.unpackbits(np.frombuffer(validity, np.uint8)[start:], count=shift + len(chunk), bitorder="little")
    return np.logical_not(bits[shift:])


def view_of(chunk: pa.Array) -> np.ndarray:
    """The values of a primitive array; anything where null."""
    dtype = _DTYPES[chunk.type.id]
    if not len(chunk):
        return np.empty(0, dtype)
    return np.frombuffer(chunk.buffers()[1], dtype, len(chunk), chunk.offset * dtype.itemsize)


def _plain(chunk: pa.Array) -> pa.Array:
    if chunk.type.id in _DTYPES:
        return chunk
    if isinstance(chunk, pa.ExtensionArray):
        return _plain(chunk.storage)
    if isinstance(chunk, pa.DictionaryArray) and not is_string(chunk.type.value_type):
        return _plain(chunk.dictionary_decode())
    if t.is_boolean(chunk.type):
        return chunk.cast(pa.uint8())
    if t.is_decimal(chunk.type):
        return chunk.cast(pa.float64())
    return chunk
