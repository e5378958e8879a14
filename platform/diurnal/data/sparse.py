"""Ids of a record batch become table rows."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from diurnal.config import Schema, Sparse
from diurnal.data import hashing
from diurnal.data.arrow import Ids, column, hash_strings, is_null, read_ids, read_numbers, view_of
from diurnal.errors import DataError, Fault

Found = dict[str, np.ndarray]
"""Name of a count to how often it happened in each row, (n,) bool or integer."""


def encode_sparse(rows: pa.RecordBatch, schema: Schema) -> tuple[tuple[np.ndarray, ...], np.ndarray, list[Found]]:
    """Table rows of each sparse feature, (N,) int64; ids per row, (F, n) int32; and what was found on the way.

    All ids are first laid into one buffer and then hashed in long runs: many short NumPy calls would cost more than
    the hash.
    """
    columns = [_read(rows, feature) for feature in schema.sparse]
    lengths = np.empty((len(columns), rows.num_rows), np.int32)
    found: list[Found] = [{} for _ in columns]
    table_rows = {table.name: table.rows for table in schema.tables}
    bits = np.empty(sum(len(ids.leaf) for ids in columns if ids.leaf is not None), np.uint64)
    spans: list[tuple[Sparse, int, int]] = []
    start = 0
    for index, (feature, ids) in enumerate(zip(schema.sparse, columns, strict=True)):
        if ids.missing:
            found[index]["missing_column_rows"] = np.ones(rows.num_rows, bool)
        size = _lay(ids, feature, schema, bits[start:], lengths[index], found[index])
        spans.append((feature, start, start + size))
        start += size
    for hashed, run in groupby(spans, lambda span: span[0].mapping == "hash" and span[0].type != "string"):
        run = list(run)
        if hashed:
            hashing.hash_in_place(bits[run[0][1] : run[-1][2]], schema.hash_seed)
    for feature, start, stop in spans:
        if feature.mapping == "hash":
            hashing.reduce_in_place(bits[start:stop], table_rows[feature.table_name])
    values = bits.view(np.int64)
    return tuple(values[start:stop] for _, start, stop in spans), lengths, found


def _read(rows: pa.RecordBatch, feature: Sparse) -> Ids:
    chunk = column(rows, feature.source)
    return Ids(None, 0, missing=True) if chunk is None else read_ids(chunk, feature.many)


def _lay(
    ids: Ids, feature: Sparse, schema: Schema, buffer: np.ndarray, lengths: np.ndarray, found: Found
) -> int:
    """Lays the ids at the front of `buffer`, and the ids per row into `lengths`.

    Returns:
        The number of ids, without those that are none and those beyond `max_length`.
    """
    lengths[:] = ids.lengths
    if ids.null_lists is not None:
        found["null"] = ids.null_lists
    if ids.leaf is None:
        return 0
    bits = buffer[: len(ids.leaf)]
    no_id = _write_bits(ids.leaf, feature, schema, bits)
    if no_id:
        row_of_id = np.repeat(np.arange(len(lengths)), lengths)
        for name, mask in no_id.items():
            per_row = np.bincount(row_of_id[mask], minlength=len(lengths))
            found[name] = found[name] + per_row if name in found else per_row
        kept = ~np.logical_or.reduce(list(no_id.values()))
        lengths[:] = np.bincount(row_of_id[kept], minlength=len(lengths))
        bits = _compress(bits, kept)
    if feature.max_length is not None and lengths.max(initial=0) > feature.max_length:
        position = np.arange(len(bits)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        found["truncated"] = np.maximum(lengths - feature.max_length, 0)
        np.minimum(lengths, feature.max_length, out=lengths)
        bits = _compress(bits, position < feature.max_length)
    return len(bits)


def _compress(bits: np.ndarray, kept: np.ndarray) -> np.ndarray:
    moved = bits[kept]
    bits[: len(moved)] = moved
    return bits[: len(moved)]


def _write_bits(leaf: pa.Array, feature: Sparse, schema: Schema, bits: np.ndarray) -> Found:
    """Writes the 64 bits of each id: of an integer its own, of a string its hash, of a number its bucket.

    Returns:
        Masks (N,) of what is no id, by the name of its count; disjoint, and none that is False everywhere.
    """
    if t.is_null(leaf.type):
        bits[:] = 0
        return {"null": np.ones(len(leaf), bool)} if len(leaf) else {}
    if feature.mapping == "bucketize":
        values, null = read_numbers(leaf)
        bits[:] = np.searchsorted(np.array(feature.boundaries), values, side="right")
        null = np.isnan(values) if null is None else null | np.isnan(values)
        return {"null": null} if null.any() else {}
    no_id: Found = {}
    if feature.type == "string":
        leaf = hash_strings(leaf, schema.hash_seed)
    view = view_of(leaf)
    out = bits.view(np.int64) if view.dtype.kind == "i" else bits
    out[:] = view
    if leaf.null_count:
        no_id["null"] = is_null(leaf)
        out[no_id["null"]] = 0
    if out.min(initial=0) < 0:
        no_id["negative"] = out < 0
    if feature.mapping == "identity":
        _find_unknown(bits, feature, schema, no_id)
    return no_id


def _find_unknown(bits: np.ndarray, feature: Sparse, schema: Schema, no_id: Found) -> None:
    table = schema.table(feature.table_name)
    unknown = bits >= np.uint64(table.rows)
    if "negative" in no_id:
        unknown &= ~no_id["negative"]
    if not unknown.any():
        return
    if feature.unknown == "refuse":
        found = f"{bits[unknown][0]} (such are {np.count_nonzero(unknown)} of {len(bits)} ids)"
        must = f"an identity id is below the {table.rows} rows of table {table.name}"
        fix = 'give the table more rows, or set unknown = "empty"'
        raise DataError([Fault(f"column {feature.source}", found, must, fix)])
    no_id["unknown"] = unknown
