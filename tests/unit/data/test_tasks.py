"""Labels of other tasks, from a column to a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diurnal.config import Schema
from diurnal.data.batch import Batch
from diurnal.data.encode import count_names, encode
from diurnal.data.encoded import Encoded
from diurnal.data.packed import PackedBatch
from diurnal.errors import DataError

MakeSchema = Callable[..., Schema]
SKIP = {"missing": "skip"}


def rows(**more: Any) -> pa.Table:
    size = len(next(iter(more.values())))
    return pa.table({"label": [0] * size, "price": [0.5] * size, "user": list(range(size)), **more})


def plain(labels: np.ndarray) -> list[list[float | None]]:
    return [[None if math.isnan(value) else value for value in task] for task in labels.tolist()]


def counted(encoded: Encoded, schema: Schema) -> dict[str, int]:
    counts = zip(count_names(schema), encoded.counts.tolist(), strict=True)
    return {name: count for name, count in counts if count and name.startswith("task/")}


@pytest.mark.parametrize(
    ("task", "values", "expected"),
    [
        ({}, pa.array([1, 0, 1, 0]), [1, 0, 1, 0]),
        ({}, pa.array([True, False, True, False]), [1, 0, 1, 0]),
        ({"at_least": 4}, pa.array([4.5, 3.0, 4.0, -1.0]), [1, 0, 1, 0]),
        ({"positive": "yes", "negative": "no"}, pa.array(["yes", "no", "no", "yes"]), [1, 0, 0, 1]),
        (SKIP, pa.array([1, None, 0, None]), [1, None, 0, None]),
        (SKIP, pa.array([1.0, math.nan, 0.0, None]), [1, None, 0, None]),
        (SKIP | {"at_least": 4}, pa.array([4.5, math.nan, None, -1.0]), [1, None, None, 0]),
        (SKIP | {"positive": "yes", "negative": "no"}, pa.array(["yes", None, "no", "no"]), [1, None, 0, 0]),
        (
            SKIP | {"positive": "yes", "negative": "no"},
            pa.array(["yes", None, "no", "no"]).dictionary_encode(),
            [1, None, 0, 0],
        ),
        (SKIP, pa.nulls(4), [None] * 4),
    ],
)
def test_a_task_reads_what_the_label_would(
    make_schema: MakeSchema, task: dict[str, Any], values: pa.Array, expected: list[float | None]
) -> None:
    schema = make_schema(tasks=[{"name": "bought", **task}])
    encoded = encode(rows(bought=values), schema)
    assert encoded.task_labels.dtype == np.float32
    assert plain(encoded.task_labels) == [expected]
    lacks = expected.count(None)
    assert counted(encoded, schema) == ({"task/bought/null": lacks} if lacks else {})
    assert plain(encode(rows(bought=values)[1:], schema).task_labels) == [expected[1:]]


@pytest.mark.parametrize(
    ("task", "values", "found", "fix"),
    [
        ({}, [0, 2, 2], "2 (such are 2 of 3 rows)", "task.positive and task.negative"),
        ({}, [0, None, 1], "null (such are 1 of 3 rows)", 'missing = "skip"'),
        (SKIP, [None, 2.0, 1.0], "2 (such are 1 of 3 rows)", "task.positive and task.negative"),
        (SKIP | {"at_least": 4}, [None, math.inf, 1.0], "inf (such are 1 of 3 rows)", "leave them out"),
        (SKIP | {"positive": "yes", "negative": "no"}, ["yes", None, ""], " (such are 1 of 3 rows)", "leave them out"),
    ],
)
def test_what_is_no_outcome_is_refused(
    make_schema: MakeSchema, task: dict[str, Any], values: list[Any], found: str, fix: str
) -> None:
    schema = make_schema(tasks=[{"name": "sold", "column": "bought", **task}])
    with pytest.raises(DataError) as caught:
        encode(rows(bought=values), schema)
    assert "column bought (task sold)" in str(caught.value)
    assert found in str(caught.value)
    assert fix in str(caught.value)


def test_a_file_without_the_column(make_schema: MakeSchema) -> None:
    schema = make_schema(tasks=[{"name": "bought", "missing": "skip"}])
    encoded = encode(rows(other=[1, 2, 3]), schema)
    assert plain(encoded.task_labels) == [[None] * 3]
    assert counted(encoded, schema) == {"task/bought/missing_column_rows": 3}
    with pytest.raises(DataError, match="column bought\n  found: no such column"):
        encode(rows(other=[1, 2, 3]), make_schema(tasks=[{"name": "bought"}]))


def test_labels_of_tasks_stay_with_their_rows(make_schema: MakeSchema) -> None:
    schema = make_schema(tasks=[{"name": "bought", "missing": "skip"}, {"name": "kept"}])
    encoded = encode(rows(bought=[1, None, 0, 1, None], kept=[0, 1, 1, 0, 0]), schema)
    taken = encoded.take(np.array([4, 0, 2]))
    assert plain(taken.task_labels) == [[None, 1, 0], [0, 0, 1]]
    head, tail = encoded.split(2)
    assert counted(head, schema) == counted(tail, schema) == {"task/bought/null": 1}
    joined = Encoded.concat([tail, head])
    assert plain(joined.task_labels) == [[0, 1, None, 1, None], [1, 0, 0, 0, 1]]
    assert counted(joined, schema) == {"task/bought/null": 2}
    empty = Encoded.empty(schema)
    assert (empty.task_labels.shape, len(empty.counts)) == ((2, 0), len(count_names(schema)))


def test_padding_has_no_label_of_any_task(make_schema: MakeSchema) -> None:
    schema = make_schema(tasks=[{"name": "bought", "missing": "skip"}, {"name": "kept"}])
    encoded = encode(rows(bought=[1, None, 0], kept=[0, 1, 1]), schema)
    parts = [(part, np.arange(part.num_rows)) for part in encoded.split(2)]
    packed = PackedBatch.from_buffer(PackedBatch.pack(parts, 0, 5).buffer)
    batch = Batch.from_packed(packed, ["user"]).to("cpu")
    assert plain(batch.task_labels.numpy()) == [[1, None, 0, None, None], [0, 1, 1, None, None]]
    assert batch.labels.tolist() == [0] * 5
    nothing = Batch.from_packed(PackedBatch.pack([(Encoded.empty(schema), np.empty(0, np.int64))], 0, 2), ["user"])
    assert plain(nothing.task_labels.numpy()) == [[None] * 2] * 2
