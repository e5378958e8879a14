"""Rows of an Arrow record batch become numbers and table rows: NumPy on Arrow buffers, no Python per row.

Ids keep their 64 bits on the way: neither pandas nor a float type comes between a Parquet file and the hash.
Null, negative and unknown ids, and empty strings, are no id; they are counted and add nothing to their row's bag.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from diurnal.config import Dense, Outcome, Schema
from diurnal.data.arrow import column, read_numbers, read_times_us
from diurnal.data.encoded import DENSE_COUNTS, NO_TIME, SPARSE_COUNTS, TASK_COUNTS, Encoded
from diurnal.data.group_ids import group_hashes
from diurnal.data.inputs import missing_indicator, read_labels, read_task_labels
from diurnal.data.past import NOTHING, Past
from diurnal.data.sparse import Found, encode_sparse
from diurnal.errors import DataError, Fault

Bags = dict[str, tuple[np.ndarray, np.ndarray]]
"""By name of a sparse feature: table rows (N,), and their number in each row (n,)."""


def count_names(schema: Schema) -> tuple[str, ...]:
    """What is counted while encoding, in the order of `Encoded.counts`.

    `dense/<name>/`: null; nonfinite (NaN, infinite or outside the transform's domain); missing_column_rows.
    `sparse/<name>/`: null (null ids and lists, empty strings, NaN); negative; unknown (beyond the table; in no
    vocabulary); truncated (beyond `max_length`); ids (that are looked up); missing_column_rows.
    `task/<name>/`: null (rows without this outcome); missing_column_rows.
    """
    dense = [f"dense/{f.name}/{count}" for f in schema.dense for count in DENSE_COUNTS]
    sparse = [f"sparse/{f.name}/{count}" for f in schema.sparse for count in SPARSE_COUNTS]
    return tuple(dense + sparse + [f"task/{task.name}/{count}" for task in schema.tasks for count in TASK_COUNTS])


def encode(rows: pa.Table | pa.RecordBatch, schema: Schema, past: Past = NOTHING) -> Encoded:
    """Encodes the declared columns of `rows`.

    Args:
        past: what the increments before say of ids, for the dense inputs that ask for it.

    Raises:
        DataError: a label, or another outcome, that is not 0 or 1, a weight that is negative or not finite, or an
            unknown id where the schema refuses it; with column, value and number of rows.
    """
    if isinstance(rows, pa.Table):
        batches = rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]
        return Encoded.concat([encode(batch, schema, past) for batch in batches])
    ids, lengths, id_weights, sparse_found = encode_sparse(rows, schema, past)
    bags = {feature.name: (ids[index], lengths[index]) for index, feature in enumerate(schema.sparse)}
    dense, dense_found = _dense(rows, schema, past, bags)
    task_labels, tasks_found = _task_labels(rows, schema)
    first_sparse = len(dense_found) * len(DENSE_COUNTS)
    events = _positions(dense_found, DENSE_COUNTS, 0)
    events |= _positions(sparse_found, SPARSE_COUNTS, first_sparse)
    events |= _positions(tasks_found, TASK_COUNTS, first_sparse + len(sparse_found) * len(SPARSE_COUNTS))
    event_rows = np.empty((len(events), rows.num_rows), np.int32)
    for index, per_row in enumerate(events.values()):
        event_rows[index] = per_row
    return Encoded(
        dense=dense,
        ids=ids,
        lengths=lengths,
        id_weights=id_weights,
        labels=_labels(rows, schema),
        task_labels=task_labels,
        weights=_weights(rows, schema.weight) if schema.weight else np.ones(rows.num_rows, np.float32),
        times_us=_times(rows, schema.event_time) if schema.event_time else None,
        groups=_groups(rows, schema) if schema.group_id else None,
        events=np.array(list(events), np.int64),
        event_rows=event_rows,
    )


def _positions(found: list[Found], names: tuple[str, ...], first: int) -> dict[int, np.ndarray]:
    """Where in `count_names` what was found in each feature belongs."""
    return {
        first + index * len(names) + names.index(name): per_row
        for index, of_feature in enumerate(found)
        for name, per_row in of_feature.items()
    }


def _labels(rows: pa.RecordBatch, schema: Schema) -> np.ndarray:
    chunk = _required(rows, schema.label.column)
    y, bad = read_labels(chunk, schema.label)
    _refuse_outcomes(bad, chunk, schema.label, schema.label.column, "label")
    return y


def _task_labels(rows: pa.RecordBatch, schema: Schema) -> tuple[np.ndarray, list[Found]]:
    """(T, n) float32, NaN where a row lacks the outcome; and what was found of each task."""
    labels = np.full((len(schema.tasks), rows.num_rows), np.nan, np.float32)
    found: list[Found] = [{} for _ in schema.tasks]
    for index, task in enumerate(schema.tasks):
        chunk = _required(rows, task.source) if task.missing == "refuse" else column(rows, task.source)
        if chunk is None:
            found[index]["missing_column_rows"] = np.ones(rows.num_rows, bool)
            continue
        labels[index], bad = read_task_labels(chunk, task)
        _refuse_outcomes(bad, chunk, task, task.source, f"task {task.name}")
        lacks = np.isnan(labels[index])
        if lacks.any():
            found[index]["null"] = lacks
    return labels, found


def _refuse_outcomes(bad: np.ndarray, chunk: pa.Array, outcome: Outcome, name: str, what: str) -> None:
    if not bad.any():
        return
    must = "every label is 0 or 1"
    if outcome.is_spelled:
        must = f"every label is {outcome.positive} or {outcome.negative}"
    elif outcome.at_least is not None:
        must = "every label is a finite number"
    value = chunk[int(np.argmax(bad))].as_py()
    shown = "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)[:40]
    role, fix = what.partition(" ")[0], ""
    if shown in ("null", "nan"):
        fix = "write the outcomes of these rows, or leave them out: what has no outcome cannot be learned"
        if role == "task":
            fix = 'write the outcomes of these rows, or declare missing = "skip"'
    elif not outcome.is_spelled and outcome.at_least is None:
        fix = f"write 0 or 1, or say what is a positive: {role}.positive and {role}.negative, or {role}.at_least"
    _refuse(bad, shown, f"column {name} ({what})", must, fix)


def _weights(rows: pa.RecordBatch, name: str) -> np.ndarray:
    w, null = read_numbers(_required(rows, name))
    bad = ~((w >= 0) & (w <= np.finfo(np.float32).max))
    if null is not None:
        bad |= null
    if bad.any():
        first = int(np.argmax(bad))
        value = "null" if null is not None and null[first] else f"{w[first]:g}"
        _refuse(bad, value, f"column {name} (weight)", "every weight is finite and not negative")
    return w.astype(np.float32, copy=False)


def _times(rows: pa.RecordBatch, name: str) -> np.ndarray:
    chunk = column(rows, name)
    return np.full(rows.num_rows, NO_TIME) if chunk is None else read_times_us(chunk)


def _groups(rows: pa.RecordBatch, schema: Schema) -> np.ndarray:
    return group_hashes(column(rows, schema.group_id), rows.num_rows, schema.group_id, schema.hash_seed)


def _required(rows: pa.RecordBatch, name: str) -> pa.Array:
    chunk = column(rows, name)
    if chunk is None:
        raise DataError([Fault(f"column {name}", "no such column", "required", "write the column")])
    return chunk


def _refuse(bad: np.ndarray, value: str, where: str, must: str, fix: str = "") -> None:
    found = f"{value} (such are {np.count_nonzero(bad)} of {len(bad)} rows)"
    raise DataError([Fault(where, found, must, fix or "write these rows again, or leave them out")])


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def _dense(rows: pa.RecordBatch, schema: Schema, past: Past, bags: Bags) -> tuple[np.ndarray, list[Found]]:
    """(n, D) float32, and what was found in each feature."""
    by_feature = np.empty((len(schema.dense), rows.num_rows), np.float32)
    found: list[Found] = [{} for _ in schema.dense]
    for index, feature in enumerate(schema.dense):
        out = by_feature[index]
        if feature.past:
            x = past.value(feature, *bags[feature.past])
            _transform(x, feature)
            out[:] = x
            continue
        chunk = column(rows, feature.source)
        if chunk is None:
            out[:] = _filled(feature)
            found[index]["missing_column_rows"] = np.ones(rows.num_rows, bool)
            continue
        if feature.transform == "missing":
            out[:] = missing_indicator(chunk)
            _scale(out, feature)
            continue
        x, null = read_numbers(chunk, out)
        if null is not None:
            x[null] = feature.fill
            found[index]["null"] = null
        _transform(x, feature)
        if x is not out:
            out[:] = x
        if not math.isfinite(np.add.reduce(out)):  # a sum may overflow: then it is for the rows to say
            nonfinite = ~np.isfinite(out)
            found[index]["nonfinite"] = nonfinite
            if feature.nonfinite == "fill":
                out[nonfinite] = _filled(feature)
    return by_feature.T, found


def _filled(feature: Dense) -> float:
    x = np.array([1.0 if feature.transform == "missing" else feature.fill])
    _transform(x, feature)
    return x[0]


def _transform(x: np.ndarray, feature: Dense) -> None:
    """Clips, transforms and scales in place."""
    if feature.clip is not None:
        np.clip(x, *feature.clip, out=x)
    if feature.transform == "log1p":
        np.log1p(x, out=x)
    elif feature.transform == "symlog":
        np.copysign(np.log1p(np.abs(x)), x, out=x)
    elif feature.transform == "sqrt":
        np.sqrt(x, out=x)
    elif feature.exponent is not None:
        np.power(x, feature.exponent, out=x)
    _scale(x, feature)


def _scale(x: np.ndarray, feature: Dense) -> None:
    if feature.shift:
        np.subtract(x, feature.shift, out=x)
    if feature.scale != 1:
        np.multiply(x, feature.scale, out=x)
