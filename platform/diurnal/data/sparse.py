"""Ids of a record batch become table rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from diurnal.config import Schema, Sparse
from diurnal.data import hashing
from diurnal.data.arrow import Ids, hash_strings, is_null, read_numbers, view_of
from diurnal.data.bag_weights import mean_weights, read_weights
from diurnal.data.inputs import read_feature
from diurnal.data.past import NOTHING, Past
from diurnal.errors import DataError, Fault

Found = dict[str, np.ndarray]
"""Name of a count to how often it happened in each row, (n,) bool or integer."""


def encode_sparse(
    rows: pa.RecordBatch, schema: Schema, past: Past = NOTHING
) -> tuple[tuple[np.ndarray, ...], np.ndarray, tuple[np.ndarray, ...], list[Found]]:
    """Table rows of each sparse feature, (N,) int32; ids per row, (F, n) uint8, or int32 if a row has more than 255;
    weights of the ids of each feature, if some have them, by which a bag's vectors are added up, (N,) float32; and what
    was found on the way.

    Raises:
        DataError: of what the schema refuses.
    """
    columns = [read_feature(rows, feature, schema, past) for feature in schema.sparse]
    lengths: list[np.ndarray | int] = []
    weights: list[np.ndarray] = []
    found: list[Found] = [{} for _ in columns]
    mapper = _Mapper([0 if ids.leaf is None else len(ids.leaf) for ids in columns], schema)
    for index, (feature, ids) in enumerate(zip(schema.sparse, columns, strict=True)):
        if ids.missing:
            found[index]["missing_column_rows"] = np.ones(rows.num_rows, bool)
        room = mapper.room(0 if ids.leaf is None else len(ids.leaf))
        of_ids = read_weights(rows, feature, ids, schema)
        size, row_lengths, of_ids = _lay(ids, of_ids, rows.num_rows, feature, schema, room, found[index], past)
        mapper.add(feature, size)
        lengths.append(row_lengths)
        if schema.has_bag_weights:
            of_ids = np.ones(size, np.float32) if of_ids is None else of_ids
            is_mean = schema.table(feature.table_name).pooling == "mean"
            weights.append(mean_weights(of_ids, row_lengths) if is_mean else of_ids)
    longest = max(map(_longest, lengths))
    joined = np.empty((len(lengths), rows.num_rows), np.uint8 if longest <= 255 else np.int32)
    for index, row_lengths in enumerate(lengths):
        joined[index] = row_lengths
    return mapper.finish(), joined, tuple(weights), found


class _Mapper:
    """Brings the ids of one feature after the other onto the rows of their tables.

    Integers are hashed in runs over several features: long enough to forget what a NumPy call costs, and laid into a
    buffer that is short enough to stay in cache.
    """

    def __init__(self, sizes: list[int], schema: Schema) -> None:
        """`sizes` are the ids of each feature, at most."""
        self._bits = np.empty(max(min(sum(sizes), 2 * hashing.BLOCK_IDS), *sizes, 0), np.uint64)
        self._rows = np.empty(sum(sizes), np.int32)
        self._seed = schema.hash_seed
        self._table_rows = {table.name: table.rows for table in schema.tables}
        self._bounds = [0]
        self._run: list[tuple[np.ndarray, int, np.ndarray]] = []
        self._run_size = 0

    def room(self, size: int) -> np.ndarray:
        """A place for the next feature's ids, uint64."""
        if self._run_size + size > len(self._bits):
            self._hash_run()
        return self._bits[self._run_size : self._run_size + size]

    def add(self, feature: Sparse, size: int) -> None:
        """Takes the first `size` ids from the place that was given for them."""
        bits = self._bits[self._run_size : self._run_size + size]
        out = self._rows[self._bounds[-1] : self._bounds[-1] + size]
        self._bounds.append(self._bounds[-1] + size)
        if feature.mapping != "hash":
            np.copyto(out, bits, casting="unsafe")
        elif feature.type == "string":
            hashing.reduce_into(bits, self._table_rows[feature.table_name], out)
        else:
            self._run.append((bits, self._table_rows[feature.table_name], out))
            self._run_size += size
            if self._run_size >= hashing.BLOCK_IDS:
                self._hash_run()

    def finish(self) -> tuple[np.ndarray, ...]:
        """(N,) int32 of each feature."""
        self._hash_run()
        return tuple(self._rows[start:stop] for start, stop in pairwise(self._bounds))

    def _hash_run(self) -> None:
        hashing.hash_in_place(self._bits[: self._run_size], self._seed)
        for bits, table_rows, out in self._run:
            hashing.reduce_into(bits, table_rows, out)
        self._run, self._run_size = [], 0


def _lay(
    ids: Ids,
    weights: np.ndarray | None,
    num_rows: int,
    feature: Sparse,
    schema: Schema,
    bits: np.ndarray,
    found: Found,
    past: Past,
) -> tuple[int, np.ndarray | int, np.ndarray | None]:
    """Lays the ids at the front of `bits`, uint64 (N,), without those that are none and those beyond `max_length`.

    Returns:
        How many they are; the ids per row: (num_rows,), or the same number for every row; and their weights.
    """
    lengths = ids.lengths
    if ids.null_lists is not None:
        found["null"] = ids.null_lists
    if ids.leaf is None:
        return 0, 0, weights
    no_id = _write_bits(ids.leaf, feature, schema, bits, past)
    if no_id:
        row_of_id = np.repeat(np.arange(num_rows), lengths) if feature.many else None
        for name, mask in no_id.items():
            per_row = _per_row(mask, row_of_id, num_rows)
            found[name] = found[name] + per_row if name in found else per_row
        kept = ~np.logical_or.reduce(list(no_id.values()))
        lengths = _per_row(kept, row_of_id, num_rows)
        bits = _compress(bits, kept)
        weights = None if weights is None else weights[kept]
    if feature.max_length is not None and _longest(lengths) > feature.max_length:
        position = np.arange(len(bits)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        found["truncated"] = np.maximum(lengths - feature.max_length, 0)
        lengths = np.minimum(lengths, feature.max_length)
        within = position < feature.max_length
        bits = _compress(bits, within)
        weights = None if weights is None else weights[within]
    if feature.mapping == "vocab":
        if feature.type != "string":
            hashing.hash_in_place(bits, schema.hash_seed)
        bits[:] = past.vocabulary_rows(feature.name, bits)
        unknown = bits == 0
        if unknown.any():
            row_of_id = np.repeat(np.arange(num_rows), lengths)
            found["unknown"] = np.bincount(row_of_id[unknown], minlength=num_rows)
    return len(bits), lengths, weights


def _per_row(mask: np.ndarray, row_of_id: np.ndarray | None, num_rows: int) -> np.ndarray:
    """How many ids of the mask each row has; `row_of_id` is None when each row has one id."""
    return mask if row_of_id is None else np.bincount(row_of_id[mask], minlength=num_rows)


def _longest(lengths: np.ndarray | int) -> int:
    return lengths if isinstance(lengths, int) else int(lengths.max(initial=0))


def _compress(bits: np.ndarray, kept: np.ndarray) -> np.ndarray:
    moved = bits[kept]
    bits[: len(moved)] = moved
    return bits[: len(moved)]


def _write_bits(leaf: pa.Array, feature: Sparse, schema: Schema, bits: np.ndarray, past: Past) -> Found:
    """Writes the 64 bits of each id: of an integer its own, of a string its hash, of a number its bucket.

    Returns:
        Masks (N,) of what is no id, by the name of its count; disjoint, and none that is False everywhere.
    """
    if t.is_null(leaf.type):
        bits[:] = 0
        return {"null": np.ones(len(leaf), bool)} if len(leaf) else {}
    if feature.mapping == "bucketize":
        values, null = read_numbers(leaf)
        null = np.isnan(values) if null is None else null | np.isnan(values)
        no_id: Found = {"null": null} if null.any() else {}
        buckets = past.buckets(feature, values)
        bits[:] = 0 if buckets is None else buckets
        if buckets is None and not null.all():
            no_id["unknown"] = ~null
        return no_id
    no_id = {}
    if feature.type == "string":
        leaf = hash_strings(leaf, schema.hash_seed)
    view = view_of(leaf)
    out = bits.view(np.int64) if view.dtype.kind == "i" else bits
    out[:] = view
    if leaf.null_count:
        no_id["null"] = is_null(leaf)
        out[no_id["null"]] = 0
    if np.minimum.reduce(out, initial=0) < 0:
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
