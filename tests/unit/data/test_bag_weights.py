"""Weights of the ids of a bag, from columns to a batch: whatever an id loses, its weight goes with it."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diurnal.config import Schema
from diurnal.data.batch import Batch
from diurnal.data.columns import encoded_columns
from diurnal.data.contract import column_faults
from diurnal.data.encode import encode
from diurnal.data.encoded import Encoded
from diurnal.data.footers import Footer
from diurnal.data.packed import PackedBatch
from diurnal.data.past_counts import only_ids
from diurnal.errors import DataError

MakeSchema = Callable[..., Schema]
Bag = list[tuple[int, float]]
IDS = pa.list_(pa.int64())


def schema_of(make_schema: MakeSchema, pooling: str = "sum", rows: int = 1000, **feature: Any) -> Schema:
    tags = {"name": "tags", "many": True, "mapping": "identity", "weights": "scores", **feature}
    tables = [{"name": "user", "rows": 1000, "dim": 4}, {"name": "tags", "rows": rows, "dim": 4, "pooling": pooling}]
    return make_schema(sparse=[{"name": "user"}, tags], tables=tables)


def rows_of(tags: Any, scores: Any) -> pa.Table:
    tags = tags if isinstance(tags, pa.Array) else pa.array(tags, IDS)
    scores = scores if isinstance(scores, pa.Array) else pa.array(scores, pa.list_(pa.float64()))
    size = len(tags)
    return pa.table(
        {"label": [0] * size, "price": [0.5] * size, "user": list(range(size)), "tags": tags, "scores": scores}
    )


def bags(encoded: Encoded, feature: int = 1) -> list[Bag]:
    weights, found = encoded.id_weights[feature], []
    assert weights.dtype == np.float32
    assert len(weights) == len(encoded.ids[feature])
    stop = 0
    for length in encoded.lengths[feature].tolist():
        start, stop = stop, stop + length
        found.append(list(zip(encoded.ids[feature][start:stop].tolist(), weights[start:stop].tolist(), strict=True)))
    return found


def refusal(schema: Schema, tags: Any, scores: Any) -> str:
    with pytest.raises(DataError) as caught:
        encode(rows_of(tags, scores), schema)
    return str(caught.value)


def test_an_id_that_is_none_loses_its_weight(make_schema: MakeSchema) -> None:
    """Null, negative and unknown ids, and those beyond max_length, which is counted after them."""
    schema = schema_of(make_schema, rows=10, max_length=2)
    encoded = encode(
        rows_of(
            [[1, None, 2, 3], [-4, 99, 5], [], None, [6], [None]],
            [[0.5, 9.0, 0.25, 9.0], [9.0, 9.0, 2.0], [], None, [-1.5], [9.0]],
        ),
        schema,
    )
    assert bags(encoded) == [[(1, 0.5), (2, 0.25)], [(5, 2.0)], [], [], [(6, -1.5)], []]
    assert bags(encoded, 0) == [[(row, 1.0)] for row in encoded.ids[0].tolist()]


def slow_bags(tags: list[Any], scores: list[Any], rows: int, longest: int, is_mean: bool) -> list[Bag]:
    found = []
    for ids, weights in zip(tags, scores, strict=True):
        kept = [(i, w) for i, w in zip(ids, weights, strict=True) if i is not None and 0 <= i < rows][:longest]
        total = sum(w for _, w in kept)
        if is_mean:
            kept = [(i, w / total if total else 0.0) for i, w in kept]
        found.append(kept)
    return found


IDS_WITH_WEIGHTS = st.lists(st.tuples(st.one_of(st.none(), st.integers(-3, 15)), st.integers(0, 8)), max_size=5)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(IDS_WITH_WEIGHTS, min_size=1, max_size=8), pooling=st.sampled_from(["sum", "mean"]))
def test_every_bag_is_that_of_the_slow_twin(make_schema: MakeSchema, rows: list[Any], pooling: str) -> None:
    schema = schema_of(make_schema, pooling, rows=10, max_length=3)
    tags, scores = [[i for i, _ in row] for row in rows], [[w / 4 for _, w in row] for row in rows]
    found = bags(encode(rows_of(tags, scores), schema))
    expected = slow_bags(tags, scores, 10, 3, pooling == "mean")
    assert [[i for i, _ in bag] for bag in found] == [[i for i, _ in bag] for bag in expected]
    for bag, other in zip(found, expected, strict=True):
        assert [w for _, w in bag] == pytest.approx([w for _, w in other], rel=1e-6)


@pytest.mark.parametrize(
    "kind", [pa.float32(), pa.float64(), pa.int32(), pa.uint8(), pa.int8(), pa.decimal128(5, 2), pa.float16()]
)
def test_weights_are_stored_as_any_number(make_schema: MakeSchema, kind: pa.DataType) -> None:
    values: list[Any] = [[1, 0], [1]]
    if pa.types.is_decimal(kind):
        values = [[Decimal("1.00"), Decimal("0.00")], [Decimal("1.00")]]
    if kind == pa.float16():
        values = [[np.float16(1), np.float16(0)], [np.float16(1)]]
    for lists in (pa.list_(kind), pa.large_list(kind)):
        encoded = encode(rows_of([[1, 2], [3]], pa.array(values, lists)), schema_of(make_schema))
        assert bags(encoded) == [[(1, 1.0), (2, 0.0)], [(3, 1.0)]]


@pytest.mark.parametrize("mapping", ["hash", "vocab"])
def test_ids_of_every_mapping_keep_their_weights(make_schema: MakeSchema, mapping: str) -> None:
    for type_, tags in (("int64", [[7, 8], [], [7]]), ("string", [["a", "b"], [], ["a"]])):
        schema = schema_of(make_schema, mapping=mapping, type=type_)
        encoded = encode(rows_of(pa.array(tags), [[0.5, 2.0], [], [0.25]]), schema)
        assert [[w for _, w in bag] for bag in bags(encoded)] == [[0.5, 2.0], [], [0.25]]


def test_a_cross_of_a_weighted_feature_has_no_weights(make_schema: MakeSchema) -> None:
    cross = {"name": "pair", "cross": ["user", "tags"]}
    schema = make_schema(sparse=[{"name": "user"}, {"name": "tags", "many": True, "weights": "scores"}, cross])
    encoded = encode(rows_of([[1, 2], [3]], [[0.5, 2.0], [0.25]]), schema)
    assert [weights.tolist() for weights in encoded.id_weights] == [[1.0] * 2, [0.5, 2.0, 0.25], [1.0] * 3]


@pytest.mark.parametrize(
    ("tags", "scores", "found"),
    [
        ([[1, 2], [3], [4]], [[1.0], [1.0], []], "1 weights beside 2 ids (such are 2 of 3 rows)"),
        ([[1, 2], None], [[1.0, 2.0], [1.0]], "1 weights beside 0 ids (such are 1 of 2 rows)"),
        ([[1, 2]], [None], "0 weights beside 2 ids (such are 1 of 1 rows)"),
        ([[1, 2]], pa.nulls(1), "0 weights beside 2 ids (such are 1 of 1 rows)"),
        ([[1, 2], [3, 4], [5]], [[1.0, None], [None, None], [1.0]], "null (such are 2 of 3 rows)"),
        ([[1, 2], [3]], [[1.0, 2.0], [math.nan]], "nan (such are 1 of 2 rows)"),
        ([[1, 2], [3]], [[-math.inf, 2.0], [1.0]], "-inf (such are 1 of 2 rows)"),
        ([[1]], [[1e39]], "1e+39 (such are 1 of 1 rows)"),
    ],
)
def test_weights_that_are_none_are_refused(make_schema: MakeSchema, tags: Any, scores: Any, found: str) -> None:
    text = refusal(schema_of(make_schema), tags, scores)
    assert f"column scores (weights of tags)\n  found: {found}" in text


def test_a_mean_has_no_negative_weights(make_schema: MakeSchema) -> None:
    text = refusal(schema_of(make_schema, "mean"), [[1, 2], [3]], [[1.0, -2.0], [1.0]])
    assert "-2 (such are 1 of 2 rows)" in text
    assert "for mean pooling, not negative" in text


def test_a_mean_of_weights_that_sum_to_nothing_is_an_empty_bag(make_schema: MakeSchema) -> None:
    encoded = encode(rows_of([[1, 2], [3]], [[0.0, 0.0], [7.0]]), schema_of(make_schema, "mean"))
    assert bags(encoded) == [[(1, 0.0), (2, 0.0)], [(3, 1.0)]]


def test_beside_weights_a_mean_without_them_is_a_sum_of_shares(make_schema: MakeSchema) -> None:
    schema = make_schema(
        sparse=[
            {"name": "user"},
            {"name": "tags", "many": True, "mapping": "identity", "table": "user"},
            {"name": "scored", "column": "tags", "many": True, "weights": "scores"},
        ],
        tables=[
            {"name": "user", "rows": 1000, "dim": 4, "pooling": "mean"},
            {"name": "scored", "rows": 1000, "dim": 4},
        ],
    )
    encoded = encode(rows_of([[1, 2, 3, 4], [], [5]], [[1.0] * 4, [], [0.5]]), schema)
    assert bags(encoded, 1) == [[(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.25)], [], [(5, 1.0)]]
    assert encoded.id_weights[0].tolist() == [1.0] * 3


def test_a_file_without_the_columns(make_schema: MakeSchema) -> None:
    optional = schema_of(make_schema, required=False)
    rows = rows_of([[1, 2], [3]], [[0.5, 2.0], [0.25]])
    assert bags(encode(rows.drop_columns(["scores"]), optional)) == [[(1, 1.0), (2, 1.0)], [(3, 1.0)]]
    assert bags(encode(rows.drop_columns(["tags"]), optional)) == [[], []]
    with pytest.raises(DataError, match="take weights out of tags"):
        encode(rows.drop_columns(["scores"]), schema_of(make_schema))


def test_null_columns_have_no_ids_and_no_weights(make_schema: MakeSchema) -> None:
    for tags, scores in ((pa.nulls(2), pa.nulls(2)), (pa.nulls(2), [[], None]), ([[], None], pa.nulls(2))):
        assert bags(encode(rows_of(tags, scores), schema_of(make_schema))) == [[], []]


def test_weights_stay_with_their_rows_down_to_the_batch(make_schema: MakeSchema) -> None:
    schema = schema_of(make_schema)
    encoded = encode(rows_of([[1, 2], [], [3], [4, 5, 6]], [[0.5, 2.0], [], [0.25], [4.0, 5.0, 6.0]]), schema)
    assert bags(encoded.take(np.array([3, 0]))) == [[(4, 4.0), (5, 5.0), (6, 6.0)], [(1, 0.5), (2, 2.0)]]
    head, tail = encoded.split(1)
    assert bags(Encoded.concat([tail, head])) == [[], [(3, 0.25)], [(4, 4.0), (5, 5.0), (6, 6.0)], [(1, 0.5), (2, 2.0)]]
    parts = [(part, np.arange(part.num_rows)) for part in (head, tail)]
    batch = Batch.from_packed(PackedBatch.from_buffer(PackedBatch.pack(parts, 0, 6).buffer), ["user", "tags"])
    assert batch.sparse["tags"].weights().tolist() == [0.5, 2.0, 0.25, 4.0, 5.0, 6.0]
    assert batch.sparse["user"].weights().tolist() == [1.0] * 4
    nothing = PackedBatch.pack([(Encoded.empty(schema), np.empty(0, np.int64))], 0, 2)
    empty = Batch.from_packed(nothing, ["user", "tags"]).to("cpu").sparse.weights_or_none()
    assert empty is not None
    assert empty.shape == (0,)


def test_without_weights_a_batch_has_none(make_schema: MakeSchema) -> None:
    schema = make_schema()
    encoded = encode(rows_of([[1]], [[1.0]]), schema)
    packed = PackedBatch.pack([(encoded, np.zeros(1, np.int64))], 0, 1)
    assert (packed.id_weights.shape, encoded.id_weights) == ((0, 1), ())
    assert Batch.from_packed(packed, ["user"]).sparse.weights_or_none() is None


@pytest.mark.parametrize(
    ("scores", "found", "fix"),
    [
        (pa.array([1.0]), "double", "write a number for each id"),
        (pa.array([["a"]]), "list<", "write a number for each id"),
        (pa.array([[[1.0]]]), "list<", "flat list"),
        (None, "no such column", "take weights out of tags"),
    ],
)
def test_a_column_of_another_type_is_one_fault(
    make_schema: MakeSchema, scores: pa.Array | None, found: str, fix: str
) -> None:
    rows = rows_of([[1]], [[1.0]]).drop_columns(["scores"])
    rows = rows if scores is None else rows.append_column("scores", scores)
    (fault,) = column_faults("file", footer_of(rows), schema_of(make_schema))
    assert fault.where == "file: column scores"
    assert found in fault.found
    assert fix in fault.fix


def footer_of(rows: pa.Table) -> Footer:
    file = io.BytesIO()
    pq.write_table(rows, file)
    return Footer(pq.read_metadata(file), rows.schema)


@pytest.mark.parametrize(
    ("feature", "must"),
    [
        ({"many": False}, "weights are those of the ids of a list"),
        ({"weights": "label"}, "the label is not an input"),
        ({"many": False, "mapping": "hash", "cross": ["user", "shop"]}, "a cross takes weights from"),
    ],
)
def test_what_cannot_be_weights(make_schema: MakeSchema, feature: dict[str, Any], must: str) -> None:
    with pytest.raises(ValueError, match=must):
        schema_of(make_schema, **feature)


def test_the_past_reads_neither_weights_nor_other_outcomes(make_schema: MakeSchema) -> None:
    """What they say changes no count, so that a past is the same one with and without them."""
    tags, past = {"name": "tags", "many": True}, {"name": "seen", "past": "tags"}
    plain = make_schema(dense=[past], sparse=[tags])
    more = make_schema(dense=[past], sparse=[{**tags, "weights": "scores"}], tasks=[{"name": "bought"}])
    assert only_ids(more) == only_ids(plain)
    assert encoded_columns(only_ids(more)) == ["label", "tags"]
