"""Weights of the ids of a bag: what a row says that each of its ids counts, beside the list of ids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from diurnal.config import Schema, Sparse
from diurnal.data.arrow import Ids, column, read_ids, read_numbers
from diurnal.errors import DataError, Fault

_LARGEST = np.finfo(np.float32).max


def read_weights(rows: pa.RecordBatch, feature: Sparse, ids: Ids, schema: Schema) -> np.ndarray | None:
    """(N,) float32 beside `ids.leaf`; all 1 where the file may lack the column and does. None of a feature without
    weights.

    Raises:
        DataError: a list is longer or shorter than that of the ids, or a weight is null, not finite, or, where the
            table has mean pooling, negative; with column, value and number of rows.
    """
    if not feature.weights:
        return None
    num_ids = 0 if ids.leaf is None else len(ids.leaf)
    chunk = column(rows, feature.weights)
    if chunk is None and feature.required:
        must, fix = "required", f"write the column, or take weights out of {feature.name}"
        raise DataError([Fault(_where(feature), "no such column", must, fix)])
    if chunk is None or ids.missing:
        return np.ones(num_ids, np.float32)
    found = read_ids(chunk, many=True)
    _refuse_other_lengths(feature, _per_row(ids, rows.num_rows), _per_row(found, rows.num_rows))
    if found.leaf is None:
        return np.empty(0, np.float32)
    values, null = read_numbers(found.leaf)
    good = np.abs(values) <= _LARGEST
    is_mean = schema.table(feature.table_name).pooling == "mean"
    if is_mean:
        good &= values >= 0
    if null is not None:
        good &= ~null
    if not good.all():
        first = int(np.argmin(good))
        value = "null" if null is not None and null[first] else f"{values[first]:g}"
        row_of_id = np.repeat(np.arange(rows.num_rows), _per_row(found, rows.num_rows))
        must = "every weight is finite and, for mean pooling, not negative" if is_mean else "every weight is finite"
        _refuse(feature, value, len(np.unique(row_of_id[~good])), rows.num_rows, must)
    return values.astype(np.float32, copy=False)


def mean_weights(weights: np.ndarray, lengths: np.ndarray | int) -> np.ndarray:
    """Weights by which a sum is the weighted mean, `sum(w * vector) / sum(w)`: each over the sum of its row; (N,)
    float32. All 0 where they sum to 0, so that the pooled vector is zero, as that of an empty bag.

    Args:
        weights: (N,), not negative, row by row.
        lengths: ids of each row, (n,), or the same number for every row.
    """
    if isinstance(lengths, int):
        sums = weights.reshape(-1, max(lengths, 1)).sum(axis=1, dtype=np.float64)
        of_row = np.repeat(sums, lengths)
    else:
        row_of_id = np.repeat(np.arange(len(lengths)), lengths)
        of_row = np.bincount(row_of_id, weights, minlength=len(lengths))[row_of_id]
    return np.divide(weights, of_row, out=np.zeros(len(weights)), where=of_row > 0).astype(np.float32)


def _per_row(ids: Ids, num_rows: int) -> np.ndarray:
    return np.full(num_rows, ids.lengths) if isinstance(ids.lengths, int) else ids.lengths


def _refuse_other_lengths(feature: Sparse, num_ids: np.ndarray, num_weights: np.ndarray) -> None:
    other = num_ids != num_weights
    if other.any():
        first = int(np.argmax(other))
        value = f"{num_weights[first]} weights beside {num_ids[first]} ids"
        must = f"a weight for each id of column {feature.source}"
        _refuse(feature, value, int(np.count_nonzero(other)), len(other), must)


def _refuse(feature: Sparse, value: str, count: int, num_rows: int, must: str) -> None:
    found = f"{value} (such are {count} of {num_rows} rows)"
    raise DataError([Fault(_where(feature), found, must, "write these rows again, or leave them out")])


def _where(feature: Sparse) -> str:
    return f"column {feature.weights} (weights of {feature.name})"
