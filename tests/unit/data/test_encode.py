"""Encoding against a slow twin that goes row by row, and every meaning that a value can have."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diurnal.config import Schema
from diurnal.data.arrow import hash_strings
from diurnal.data.encode import count_names, encode
from diurnal.data.encoded import Encoded
from diurnal.data.hashing import hash_int64, rows_from_hash
from diurnal.errors import DataError

MakeSchema = Callable[..., Schema]


def one_feature(make_schema: MakeSchema, rows: int = 1000, **feature: Any) -> Schema:
    return make_schema(sparse=[{"name": "user", **feature}], tables=[{"name": "user", "rows": rows, "dim": 4}])


def one_dense(make_schema: MakeSchema, **feature: Any) -> Schema:
    return make_schema(dense=[{"name": "price", **feature}])


def table(user: Any = None, price: Any = None, **more: Any) -> pa.Table:
    size = len(user if user is not None else price)
    columns = {"label": [0] * size, "price": [0.0] * size if price is None else price}
    return pa.table({**columns, "user": pa.nulls(size) if user is None else user, **more})


def bags(encoded: Encoded, feature: int = 0) -> list[list[int]]:
    stops = np.cumsum(encoded.lengths[feature], dtype=int).tolist()
    return [encoded.ids[feature][start:stop].tolist() for start, stop in zip([0, *stops], stops, strict=False)]


def counted(encoded: Encoded, schema: Schema, of: str = "sparse/user/") -> dict[str, int]:
    counts = zip(count_names(schema), encoded.counts.tolist(), strict=True)
    return {name.removeprefix(of): count for name, count in counts if count and name.startswith(of)}


# --- ids


def test_ids_keep_their_64_bits(make_schema: MakeSchema) -> None:
    """reczoo/RecZoo#37: one null must not turn ids into floats, nor must a wide id be narrowed."""
    schema = one_feature(make_schema, type="uint64")
    expected = rows_from_hash(hash_int64(np.array([2**60 + 1, 7, 2**63 + 5], np.uint64), 0), 1000).tolist()
    signed = encode(table(pa.array([2**60 + 1, None, 7], pa.int64())), schema)
    assert bags(signed) == [[expected[0]], [], [expected[1]]]
    unsigned = encode(table(pa.array([2**63 + 5], pa.uint64())), schema)
    assert bags(unsigned) == [[expected[2]]]


def test_lists_lose_null_elements_only(make_schema: MakeSchema) -> None:
    schema = one_feature(make_schema, many=True)
    lists = pa.array([[1, 2], None, [], [3, None]], pa.list_(pa.int64()))
    for stored in (lists, lists.cast(pa.large_list(pa.int64())), lists.cast(pa.list_(pa.int32()))):
        encoded = encode(table(stored), schema)
        assert encoded.lengths.tolist() == [[2, 0, 0, 1]]
        assert counted(encoded, schema) == {"null": 2, "ids": 3}
        assert bags(encode(table(stored[1:]), schema)) == bags(encoded)[1:]


def test_null_and_negative_ids_are_no_id(make_schema: MakeSchema) -> None:
    """pytorch/pytorch#88563: one meaning for every sentinel, before any lookup."""
    for mapping in ("hash", "identity"):
        schema = one_feature(make_schema, mapping=mapping)
        encoded = encode(table(pa.array([-1, -2, -(2**63), 0, 1, None], pa.int64())), schema)
        assert encoded.lengths.tolist() == [[0, 0, 0, 1, 1, 0]]
        assert counted(encoded, schema) == {"null": 1, "negative": 3, "ids": 2}


def test_ids_beyond_the_table_are_unknown(make_schema: MakeSchema) -> None:
    """meta-pytorch/torchrec#575: never another id's row, and counted by feature."""
    ids = pa.array([3, 10, 11, 2**40], pa.int64())
    schema = one_feature(make_schema, rows=10, mapping="identity")
    encoded = encode(table(ids), schema)
    assert bags(encoded) == [[3], [], [], []]
    assert counted(encoded, schema) == {"unknown": 3, "ids": 1}
    strict = one_feature(make_schema, rows=10, mapping="identity", unknown="refuse")
    with pytest.raises(DataError, match=r"column user\n  found: 10 \(such are 3 of 4 ids\)"):
        encode(table(ids), strict)
    assert bags(encode(table(pa.array([None, -5, 9])), strict)) == [[], [], [9]]


def test_uint64_identity_does_not_wrap(make_schema: MakeSchema) -> None:
    schema = one_feature(make_schema, type="uint64", mapping="identity")
    encoded = encode(table(pa.array([2**64 - 1, 2**63, 999], pa.uint64())), schema)
    assert counted(encoded, schema) == {"unknown": 2, "ids": 1}


def test_the_largest_table_keeps_its_last_row(make_schema: MakeSchema) -> None:
    schema = one_feature(make_schema, rows=2**31, mapping="identity")
    assert bags(encode(table(pa.array([2**31 - 1, 2**31])), schema)) == [[2**31 - 1], []]


def test_strings_hash_alike_however_they_are_stored(make_schema: MakeSchema) -> None:
    schema = one_feature(make_schema, type="string")
    texts = pa.array(["a", "", None, "longer than eight bytes", "a"])
    hashes = hash_strings(texts, 0)
    a, long = (rows_from_hash(np.array([hashes[i].as_py()], np.uint64), 1000).tolist() for i in (0, 3))
    for stored in (texts, texts.dictionary_encode(), texts.cast(pa.large_string()), texts.cast(pa.binary())):
        encoded = encode(table(stored), schema)
        assert bags(encoded) == [a, [], [], long, a]
        assert counted(encoded, schema) == {"null": 2, "ids": 3}
    assert bags(encode(table(texts.dictionary_encode()[3:]), schema)) == [long, a]


def test_lists_of_strings(make_schema: MakeSchema) -> None:
    schema = one_feature(make_schema, type="string", many=True)
    lists = pa.array([["a", None, ""], None, [], ["b", "a"]], pa.list_(pa.string()))
    encoded = encode(table(lists), schema)
    assert encoded.lengths.tolist() == [[1, 0, 0, 2]]
    assert bags(encoded)[0] == bags(encoded)[3][1:]
    inner = pa.ListArray.from_arrays(lists.offsets, lists.values.dictionary_encode(), mask=lists.is_null())
    assert bags(encode(table(inner), schema)) == bags(encoded)


def test_a_null_list_hides_what_lies_under_it(make_schema: MakeSchema) -> None:
    schema = one_feature(make_schema, many=True, mapping="identity")
    offsets, values = pa.array([0, 2, 3], pa.int32()), pa.array([1, 2, 3])
    hidden = pa.ListArray.from_arrays(offsets, values, mask=pa.array([True, False]))
    assert bags(encode(table(hidden), schema)) == [[], [3]]
    fixed = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4]), 2, mask=pa.array([True, False]))
    assert bags(encode(table(fixed), schema)) == [[], [3, 4]]


def test_lists_are_cut_after_what_is_no_id(make_schema: MakeSchema) -> None:
    schema = one_feature(make_schema, many=True, mapping="identity", max_length=2)
    encoded = encode(table([[1, None, 2, 3], [-1, 5000, 4], [], [6, 7, 8, 9]]), schema)
    assert bags(encoded) == [[1, 2], [4], [], [6, 7]]
    assert counted(encoded, schema) == {"null": 1, "negative": 1, "unknown": 1, "truncated": 3, "ids": 5}


def test_a_bag_of_more_than_255_ids(make_schema: MakeSchema) -> None:
    schema = one_feature(make_schema, many=True, mapping="identity")
    encoded = encode(table([list(range(300)), [1], list(range(256))]), schema)
    assert encoded.lengths.tolist() == [[300, 1, 256]]
    assert bags(encoded)[0] == list(range(300))


def test_bucketize_counts_boundaries_that_are_not_greater(make_schema: MakeSchema) -> None:
    feature = {"type": "float", "mapping": "bucketize", "boundaries": [0.0, 10.0]}
    schema = one_feature(make_schema, **feature)
    values = [-5.0, 0.0, 9.9, 10.0, math.inf, -math.inf, math.nan, None]
    encoded = encode(table(pa.array(values, pa.float64())), schema)
    assert bags(encoded) == [[0], [1], [1], [2], [2], [0], [], []]
    assert counted(encoded, schema) == {"null": 2, "ids": 6}
    assert bags(encode(table(pa.array([-1, 10], pa.int64())), schema)) == [[0], [2]]


@pytest.mark.parametrize("many", [False, True])
def test_a_column_of_nulls_and_a_missing_column_are_empty_bags(make_schema: MakeSchema, many: bool) -> None:
    for kind in ("int64", "string"):
        schema = one_feature(make_schema, type=kind, many=many, required=False)
        nulls = encode(table(pa.nulls(3)), schema)
        assert counted(nulls, schema) == {"null": 3}
        missing = encode(table(pa.nulls(3)).drop_columns(["user"]), schema)
        assert counted(missing, schema) == {"missing_column_rows": 3}
        for encoded in (nulls, missing):
            assert (encoded.values.tolist(), encoded.lengths.tolist()) == ([], [[0, 0, 0]])


def test_features_may_share_a_table_and_a_column(make_schema: MakeSchema) -> None:
    shared = make_schema(
        sparse=[{"name": "a", "column": "user", "table": "t"}, {"name": "b", "column": "user", "table": "t"}]
    )
    encoded = encode(table([5, 6]), shared)
    assert encoded.ids[0].tolist() == encoded.ids[1].tolist()


# --- dense


@pytest.mark.parametrize("stored", [pa.float32(), pa.float64(), pa.int64(), pa.int8(), pa.decimal128(20, 3)])
@pytest.mark.parametrize("transform", ["none", "log1p", "sqrt"])
def test_dense_values_are_filled_clipped_transformed_and_scaled(
    make_schema: MakeSchema, stored: pa.DataType, transform: str
) -> None:
    feature = {"fill": 7.0, "clip": [1.0, 50.0], "transform": transform, "shift": 2.0, "scale": 0.5}
    schema = one_dense(make_schema, **feature)
    values = [3, None, 0, 100, 49]
    encoded = encode(table(price=pa.array(values, pa.float64()).cast(stored)), schema)
    function = {"none": lambda x: x, "log1p": math.log1p, "sqrt": math.sqrt}[transform]
    expected = [(function(x) - 2) * 0.5 for x in (3, 7, 1, 50, 49)]
    np.testing.assert_allclose(encoded.dense[:, 0], expected, rtol=1e-6)
    assert encoded.dense.dtype == np.float32
    assert counted(encoded, schema, "dense/price/") == {"null": 1}


def test_what_is_not_finite_is_filled_and_counted(make_schema: MakeSchema) -> None:
    values = [math.nan, math.inf, -math.inf, -1.0, -2.0, 1.0]
    schema = one_dense(make_schema, fill=3.0, transform="log1p")
    encoded = encode(table(price=values), schema)
    np.testing.assert_allclose(encoded.dense[:, 0], np.log1p([3, 3, 3, 3, 3, 1]), rtol=1e-6)
    assert counted(encoded, schema, "dense/price/") == {"nonfinite": 5}
    schema = one_dense(make_schema, nonfinite="keep")
    kept = encode(table(price=values), schema)
    np.testing.assert_array_equal(kept.dense[:, 0], np.array(values, np.float32))
    assert counted(kept, schema, "dense/price/") == {"nonfinite": 3}


def test_clip_reaches_infinities_first(make_schema: MakeSchema) -> None:
    encoded = encode(table(price=[math.inf, -math.inf]), one_dense(make_schema, clip=[-1.0, 1.0]))
    assert encoded.dense.tolist() == [[1.0], [-1.0]]


def test_a_finite_value_that_overflows_float32_is_not_finite(make_schema: MakeSchema) -> None:
    schema = one_dense(make_schema, fill=1.0)
    encoded = encode(table(price=[1e300, 3e38, 3e38, 3e38]), schema)
    np.testing.assert_allclose(encoded.dense[:, 0], np.array([1.0, 3e38, 3e38, 3e38], np.float32))
    assert counted(encoded, schema, "dense/price/") == {"nonfinite": 1}


def test_large_numbers_are_shifted_before_they_are_narrowed(make_schema: MakeSchema) -> None:
    schema = one_dense(make_schema, shift=1.7e9)
    encoded = encode(table(price=pa.array([1_700_000_001, 1_700_000_003], pa.int64())), schema)
    assert encoded.dense.tolist() == [[1.0], [3.0]]


def test_a_missing_dense_column_is_filled_and_counted(make_schema: MakeSchema) -> None:
    schema = one_dense(make_schema, required=False, fill=3.0, transform="log1p")
    for columns in (["price"], []):
        encoded = encode(table(price=pa.nulls(2)).drop_columns(columns), schema)
        np.testing.assert_allclose(encoded.dense[:, 0], np.log1p([3, 3]), rtol=1e-6)
        assert counted(encoded, schema, "dense/price/") == {"missing_column_rows" if columns else "null": 2}


# --- labels, weights, times


@pytest.mark.parametrize("stored", [pa.int8(), pa.int64(), pa.uint8(), pa.float32(), pa.float64(), pa.bool_()])
def test_labels_of_any_type(make_schema: MakeSchema, stored: pa.DataType) -> None:
    rows = pa.table({"label": pa.array([0, 1, 1]).cast(stored), "price": [0.0] * 3, "user": [1] * 3})
    encoded = encode(rows, make_schema())
    assert (encoded.labels.tolist(), encoded.weights.tolist()) == ([0.0, 1.0, 1.0], [1.0] * 3)


@pytest.mark.parametrize(("bad", "shown"), [(None, "null"), (2, "2"), (-1, "-1"), (0.5, "0.5"), (math.nan, "nan")])
def test_bad_labels_are_refused(make_schema: MakeSchema, bad: Any, shown: str) -> None:
    rows = pa.table({"label": pa.array([0, bad, bad], pa.float64()), "price": [0.0] * 3, "user": [1] * 3})
    with pytest.raises(DataError, match=rf"column label \(label\)\n  found: {shown} \(such are 2 of 3 rows\)"):
        encode(rows, make_schema())


@pytest.mark.parametrize("bad", [None, -0.5, math.nan, math.inf, 1e39])
def test_bad_weights_are_refused(make_schema: MakeSchema, bad: Any) -> None:
    schema = make_schema(weight="w")
    good = encode(table([1, 2], w=[0.0, 2.5]), schema)
    assert good.weights.tolist() == [0.0, 2.5]
    with pytest.raises(DataError, match=r"column w \(weight\)"):
        encode(table([1, 2], w=pa.array([1.0, bad], pa.float64())), schema)


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("s"),
        pa.timestamp("ms", "UTC"),
        pa.timestamp("us"),
        pa.timestamp("ns", "Asia/Tokyo"),
        pa.date32(),
        pa.date64(),
    ],
)
def test_the_watermark_is_the_newest_event_time(make_schema: MakeSchema, kind: pa.DataType) -> None:
    schema = make_schema(event_time="t")
    times = [datetime.datetime(2026, 1, 2), datetime.datetime(2026, 1, 3), None, datetime.datetime(1969, 1, 1)]
    stored = pa.array(times, pa.timestamp("us")).cast(pa.timestamp("us", "UTC")).cast(kind)
    midnight = 1767398400_000_000
    encoded = encode(table([1] * 4, t=stored), schema)
    assert encoded.watermark_us == midnight
    assert encode(table([1, 2], t=stored[2:]), schema).watermark_us == -31536000_000_000
    assert encode(table([1], t=stored[2:3]), schema).watermark_us is None
    assert encode(table([1], t=pa.nulls(1)), schema).watermark_us is None
    assert encode(table([1]), make_schema()).watermark_us is None


def test_undeclared_columns_do_not_matter(make_schema: MakeSchema) -> None:
    encode(table([1], junk=pa.array([{"a": [1]}])), make_schema())


def test_no_rows(make_schema: MakeSchema) -> None:
    schema = make_schema(sparse=[{"name": "user"}, {"name": "tags", "many": True}, {"name": "s", "type": "string"}])
    rows = table([1], tags=[[1]], s=["a"]).slice(0, 0)
    for empty in (encode(rows, schema), encode(rows.combine_chunks(), schema), Encoded.empty(schema)):
        assert empty.num_rows == 0
        assert (empty.dense.shape, empty.lengths.shape, empty.values.tolist()) == ((0, 1), (3, 0), [])
        assert not empty.counts.any()
        assert len(empty.counts) == len(count_names(schema))


# --- against a slow twin, row by row

INTEGERS = st.none() | st.integers(-3, 12) | st.sampled_from([2**60 + 1, -(2**63), 2**63 - 1])
ROWS = st.fixed_dictionaries(
    {
        "label": st.integers(0, 1),
        "price": st.none() | st.floats(-5, 5, width=32) | st.just(math.nan),
        "user": INTEGERS,
        "slot": INTEGERS,
        "item": st.none() | st.text(max_size=12),
        "tags": st.none() | st.lists(INTEGERS, max_size=5),
    }
)
TYPES = {
    "label": pa.int64(),
    "price": pa.float32(),
    "user": pa.int64(),
    "slot": pa.int64(),
    "item": pa.string(),
    "tags": pa.list_(pa.int64()),
}


def twin_schema(make_schema: MakeSchema) -> Schema:
    return make_schema(
        hash_seed=11,
        dense=[{"name": "price", "fill": 1.0, "transform": "log1p"}],
        sparse=[
            {"name": "user"},
            {"name": "slot", "mapping": "identity"},
            {"name": "item", "type": "string"},
            {"name": "tags", "many": True, "max_length": 3},
        ],
        tables=[{"name": name, "rows": 10, "dim": 4} for name in ("user", "slot", "item", "tags")],
    )


def slow_row(row: dict[str, Any]) -> tuple[float, list[list[int]]]:
    def hashed(value: int) -> int:
        return rows_from_hash(hash_int64(np.array([value]), 11), 10).tolist()[0]

    price = 1.0 if row["price"] is None or math.isnan(row["price"]) or row["price"] <= -1 else row["price"]
    text = (
        [rows_from_hash(np.array([hash_strings(pa.array([row["item"]]), 11)[0].as_py()], np.uint64), 10).tolist()[0]]
        if row["item"]
        else []
    )
    tags = [hashed(tag) for tag in row["tags"] or [] if tag is not None and tag >= 0]
    return math.log1p(price), [
        [hashed(row["user"])] if row["user"] is not None and row["user"] >= 0 else [],
        [row["slot"]] if row["slot"] is not None and 0 <= row["slot"] < 10 else [],
        text,
        tags[:3],
    ]


def as_table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()})


@given(st.lists(ROWS, max_size=20))
def test_encoding_equals_the_slow_twin(make_schema: MakeSchema, rows: list[dict[str, Any]]) -> None:
    encoded = encode(as_table(rows), twin_schema(make_schema))
    expected = [slow_row(row) for row in rows]
    np.testing.assert_allclose(encoded.dense[:, 0], np.array([dense for dense, _ in expected]), rtol=1e-6, atol=1e-7)
    assert [bags(encoded, f) for f in range(4)] == [[ids[f] for _, ids in expected] for f in range(4)]
    assert encoded.labels.tolist() == [row["label"] for row in rows]


@given(st.lists(ROWS, max_size=20), st.data())
def test_cutting_reordering_and_joining_lose_nothing(
    make_schema: MakeSchema, rows: list[dict[str, Any]], data: Any
) -> None:
    """Encoding a part is the same as a part of the encoding, the counts of every row included."""
    schema = twin_schema(make_schema)
    whole = encode(as_table(rows), schema)
    cut = data.draw(st.integers(0, len(rows)))
    head, tail = whole.split(cut)
    same(head, encode(as_table(rows[:cut]), schema))
    same(tail, encode(as_table(rows[cut:]), schema))
    same(Encoded.concat([head, tail]), whole)
    same(Encoded.concat([encode(as_table(rows[:cut]), schema), encode(as_table(rows[cut:]), schema)]), whole)
    order = np.array(data.draw(st.permutations(range(len(rows)))), int)[: len(rows) - cut]
    same(whole.take(order), encode(as_table([rows[i] for i in order]), schema))


def same(a: Encoded, b: Encoded) -> None:
    for name in ("dense", "values", "lengths", "labels", "weights", "counts"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert a.watermark_us == b.watermark_us
