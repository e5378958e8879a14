"""Labels that are spelled, times as ids, pairs of ids, indicators and transforms: each against plain Python."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diurnal.config import Schema
from diurnal.data import hashing
from diurnal.data.encode import count_names, encode
from diurnal.data.profile import profile_increment
from diurnal.errors import DataError

DENSE = ({"name": "x"},)
USER = {"name": "user", "table": "ids"}
TABLES = ({"name": "ids", "rows": 1000, "dim": 4},)


def schema(sparse: Any = (USER,), dense: Any = DENSE, label: Any = None, tables: Any = TABLES, seed: int = 3) -> Schema:
    content = {"label": label or {}, "sparse": tuple(sparse), "dense": tuple(dense), "tables": tuple(tables)}
    return Schema.model_validate({**content, "hash_seed": seed}, strict=False)


def rows(**columns: Any) -> pa.RecordBatch:
    n = len(next(iter(columns.values())))
    plain = {"label": [i % 2 for i in range(n)], "x": [1.0] * n, "user": list(range(n)), **columns}
    return pa.RecordBatch.from_pydict(plain)


def counted(batch: pa.RecordBatch, of: Schema) -> dict[str, int]:
    return {name: n for name, n in zip(count_names(of), encode(batch, of).counts.tolist(), strict=True) if n}


@pytest.mark.parametrize(
    ("label", "column", "expected"),
    [
        ({"positive": "yes", "negative": "no"}, pa.array(["no", "yes", "yes"]), [0, 1, 1]),
        ({"positive": "yes", "negative": "no"}, pa.array(["no", "yes", "yes"]).dictionary_encode(), [0, 1, 1]),
        ({"positive": "yes", "negative": "no"}, pa.array([b"no", b"yes", b"no"], pa.large_binary()), [0, 1, 0]),
        ({"positive": "1", "negative": "-1"}, pa.array([-1, 1, -1], pa.int8()), [0, 1, 0]),
        ({"positive": "false", "negative": "true"}, pa.array([True, False, True]), [0, 1, 0]),
        ({"at_least": 4.0}, pa.array([3.5, 4.0, 5.0]), [0, 1, 1]),
        ({"at_least": 4.0}, pa.array([3, 4, 5], pa.int64()), [0, 1, 1]),
        ({}, pa.array([False, True, True]), [0, 1, 1]),
    ],
)
def test_labels_are_read_as_they_are_declared(label: Any, column: pa.Array, expected: list[int]) -> None:
    of = schema(label={"column": "y", **label})
    assert encode(rows(user=[1, 2, 3], y=column), of).labels.tolist() == expected


@pytest.mark.parametrize(
    ("label", "column", "says"),
    [
        ({"positive": "yes", "negative": "no"}, ["no", "Yes", None], "Yes (such are 2 of 3 rows)"),
        ({"positive": "yes", "negative": "no"}, [0, 1, 1], "every label is yes or no"),
        ({"positive": "1", "negative": "-1"}, [1, 0, -1], "0 (such are 1 of 3 rows)"),
        ({"at_least": 4.0}, [4.0, None, math.nan], "null (such are 2 of 3 rows)"),
        ({}, [1, 2, 0], "2 (such are 1 of 3 rows)"),
    ],
)
def test_what_is_no_label_is_refused(label: Any, column: list[Any], says: str) -> None:
    with pytest.raises(DataError) as refused:
        encode(rows(user=[1, 2, 3], y=column), schema(label={"column": "y", **label}))
    assert says in str(refused.value)


TIMES = [datetime(2026, 1, 1, 0, 0, 0), datetime(2026, 1, 4, 23, 59, 59), None, datetime(1969, 12, 31, 5)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
def test_hour_and_weekday_are_those_of_utc(unit: str, zone: str | None) -> None:
    clock = [{"name": m, "column": "time", "type": "timestamp", "mapping": m, "table": m} for m in ("hour", "weekday")]
    tables = [{"name": "hour", "rows": 24, "dim": 4}, {"name": "weekday", "rows": 7, "dim": 4}]
    of = schema(sparse=clock, tables=tables)
    aware = [time and time.replace(tzinfo=UTC) for time in TIMES]
    column = pa.array(aware if zone else TIMES, pa.timestamp(unit, zone))
    encoded = encode(rows(user=[0] * 4, time=column), of)
    assert encoded.ids[0].tolist() == [0, 23, 5]
    assert encoded.ids[1].tolist() == [time.weekday() for time in TIMES if time]
    assert encoded.lengths.tolist() == [[1, 1, 0, 1]] * 2
    assert counted(rows(user=[0] * 4, time=column), of)["sparse/hour/null"] == 1


def plain_pairs(left: list[Any], right: list[Any], of: Schema) -> list[int]:
    """Rows of the pairs of two bags of ids, one after the other."""

    def mixed(value: int) -> int:
        return int(hashing.mix64(np.array([value], np.uint64))[0])

    def hashed(value: Any) -> int:
        if isinstance(value, str):
            data = np.frombuffer(value.encode(), np.uint8)
            return int(hashing.hash_bytes(data, np.array([0, len(data)]), of.hash_seed)[0])
        return int(hashing.hash_int64(np.array([value]), of.hash_seed)[0])

    pairs = [mixed(hashed(a) ^ mixed(hashed(b))) for a in left for b in right]
    hashes = hashing.hash_int64(np.array(pairs, np.uint64), of.hash_seed)
    return hashing.rows_from_hash(hashes, 1000).tolist()


def test_a_cross_has_an_id_for_each_pair_of_ids() -> None:
    tags = {"name": "tags", "type": "string", "many": True, "max_length": 2, "table": "ids"}
    cross = {"name": "user_tag", "cross": ("user", "tags"), "table": "ids"}
    of = schema(sparse=(USER, tags, cross))
    users = [7, None, -2, 2**40, 7]
    bags = [["a", "b", "c"], ["a"], ["a"], ["b"], None]
    encoded = encode(rows(user=pa.array(users, pa.int64()), tags=bags), of)
    assert encoded.lengths[2].tolist() == [2, 0, 0, 1, 0]
    assert encoded.ids[2].tolist() == plain_pairs([7], ["a", "b"], of) + plain_pairs([2**40], ["b"], of)


def test_a_cross_of_single_ids_is_that_of_bags_and_its_order_matters() -> None:
    item = {"name": "item", "table": "ids"}
    crosses = [{"name": f"{a}_{b}", "cross": (a, b), "table": "ids"} for a, b in (("user", "item"), ("item", "user"))]
    of = schema(sparse=(USER, item, *crosses))
    users, items = [5, 5, 9, 2**63 - 1], [6, 5, 1, 0]
    encoded = encode(rows(user=users, item=items), of)
    expected = [plain_pairs([a], [b], of)[0] for a, b in zip(users, items, strict=True)]
    assert encoded.ids[2].tolist() == expected
    assert encoded.ids[3].tolist() != expected
    bags = [USER | {"many": True}, item | {"many": True}, crosses[0]]
    many = encode(rows(user=[[u] for u in users], item=[[i] for i in items]), schema(sparse=bags))
    assert many.ids[2].tolist() == expected
    both = encode(rows(user=[[1, 2]], item=[[3, 4, 5]]), schema(sparse=bags))
    assert both.ids[2].tolist() == plain_pairs([1, 2], [3, 4, 5], of)


def test_buckets_and_hours_can_be_crossed() -> None:
    tables = (*TABLES, {"name": "age", "rows": 3, "dim": 4}, {"name": "hour", "rows": 24, "dim": 4})
    age = {"name": "age", "type": "float", "mapping": "bucketize", "boundaries": (18.0, 65.0)}
    hour = {"name": "hour", "column": "time", "type": "timestamp", "mapping": "hour"}
    cross = {"name": "age_hour", "cross": ("age", "hour"), "table": "ids"}
    of = schema(sparse=(age, hour, cross), tables=tables)
    batch = rows(user=[0] * 4, age=[17.0, 18.0, math.nan, 99.0], time=pa.array(TIMES, pa.timestamp("us")))
    encoded = encode(batch, of)
    assert encoded.lengths[2].tolist() == [1, 1, 0, 1]
    assert encoded.ids[2].tolist() == [plain_pairs([a], [h], of)[0] for a, h in ((0, 0), (1, 23), (2, 5))]


def test_transforms_of_numbers() -> None:
    x = [-4.0, 0.0, 2.25, None, math.inf]
    dense = [
        {"name": "raw", "column": "v"},
        {"name": "is_missing", "column": "v", "transform": "missing", "shift": 0.5, "scale": 2.0},
        {"name": "symlog", "column": "v", "transform": "symlog"},
        {"name": "power", "column": "v", "transform": "power", "exponent": 0.5},
        {"name": "absent", "column": "gone", "required": False, "transform": "missing"},
    ]
    of = schema(dense=dense)
    encoded = encode(rows(user=[0] * 5, v=x), of).dense.T
    assert encoded[0].tolist() == [-4.0, 0.0, 2.25, 0.0, 0.0]
    assert encoded[1].tolist() == [-1.0, -1.0, -1.0, 1.0, 1.0]
    assert encoded[2] == pytest.approx([-math.log(5), 0.0, math.log(3.25), 0.0, 0.0])
    assert encoded[3].tolist() == [0.0, 0.0, 1.5, 0.0, 0.0]
    assert encoded[4].tolist() == [1.0] * 5
    counts = counted(rows(user=[0] * 5, v=x), of)
    assert counts["dense/power/nonfinite"] == 2
    assert counts["dense/absent/missing_column_rows"] == 5
    assert "dense/is_missing/null" not in counts


def test_a_profile_counts_what_is_derived(world: Any) -> None:
    """The same ids and indicators as encoding has."""
    tables = (*TABLES, {"name": "hour", "rows": 24, "dim": 4})
    hour = {"name": "hour", "column": "time", "type": "timestamp", "mapping": "hour"}
    cross = {"name": "user_hour", "cross": ("user", "hour"), "table": "ids"}
    dense = (*DENSE, {"name": "x_missing", "column": "x", "transform": "missing"})
    of = schema(sparse=(USER, hour, cross), dense=dense, label={"positive": "1", "negative": "0"}, tables=tables)
    batch = rows(user=[3, 3, 4, None], x=[1.0, None, 2.0, None], time=pa.array(TIMES, pa.timestamp("us")))
    profile = profile_increment(world(batch, of), of)
    assert (profile.positives, profile.negatives, profile.bad_labels) == (2, 2, 0)
    assert profile.dense["x_missing"].mean == 0.5
    assert (profile.sparse["hour"].ids, profile.sparse["hour"].no_id) == (3, 1)
    assert sorted(text for text, _ in profile.sparse["hour"].top) == ["0", "23", "5"]
    assert (profile.sparse["user_hour"].ids, profile.sparse["user_hour"].distinct) == (2, 2)


@pytest.fixture
def world(tmp_path: Any) -> Any:
    """Writes rows as one day, and plans it."""
    import pyarrow.parquet as pq

    from diurnal.data.partitions import read_increment

    def written(batch: pa.RecordBatch, of: Schema) -> Any:
        day = tmp_path / "dt=2026-01-01"
        day.mkdir()
        pq.write_table(pa.Table.from_batches([batch]), day / "a.parquet")
        return read_increment(str(tmp_path), "2026-01-01", of)

    return written
