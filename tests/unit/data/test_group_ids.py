"""The hash of each row's group, from a column of any type to a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diurnal.config import Schema
from diurnal.data.batch import Batch
from diurnal.data.encode import encode
from diurnal.data.encoded import NO_GROUP
from diurnal.data.group_ids import group_hashes
from diurnal.data.packed import PackedBatch
from diurnal.data.read import read_batches
from diurnal.errors import DataError

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()]


def hashes(column: pa.Array) -> list[int]:
    return group_hashes(column, len(column), "g", 7).tolist()


def test_integers_of_any_width_hash_alike_and_null_and_negative_ones_are_no_group() -> None:
    expected = hashes(pa.array([1, 0, 1, 100], pa.int64()))
    assert expected[0] == expected[2]
    assert len(set(expected)) == 3
    for kind in INTEGERS:
        assert hashes(pa.array([1, 0, 1, 100], kind)) == expected, kind
    assert hashes(pa.array([None, -1, 1])) == [NO_GROUP, NO_GROUP, expected[0]]
    assert hashes(pa.array([2**63 + 5, 5], pa.uint64()))[0] not in (NO_GROUP, expected[0])
    assert hashes(pa.array([2**60, 2**60 + 1]))[0] != hashes(pa.array([2**60, 2**60 + 1]))[1], "no float on the way"


def test_strings_hash_alike_however_they_are_stored_and_the_empty_one_is_no_group() -> None:
    texts = pa.array(["ann", None, "", "ben", "ann"])
    expected = hashes(texts)
    assert [h == NO_GROUP for h in expected] == [False, True, True, False, False]
    assert expected[0] == expected[4] != expected[3]
    for other in (texts.cast(pa.large_string()), texts.cast(pa.binary()), texts.dictionary_encode()):
        assert hashes(other) == expected, other.type


def test_a_column_of_nulls_or_none_at_all_has_no_groups_and_other_types_are_refused() -> None:
    assert hashes(pa.nulls(2)) == [NO_GROUP] * 2
    assert group_hashes(None, 2, "g", 7).tolist() == [NO_GROUP] * 2
    with pytest.raises(DataError, match=r"column g \(group_id\)[\s\S]*double"):
        hashes(pa.array([1.5]))


def test_groups_follow_their_rows_through_cuts_and_joins(make_schema: Callable[..., Schema]) -> None:
    schema = make_schema(group_id="g")
    table = pa.table({"label": [0, 1, 0, 1], "price": [1.0] * 4, "user": [1] * 4, "g": ["a", "b", None, "a"]})
    whole = encode(table, schema)
    assert whole.groups is not None
    expected = hashes_of(["a", "b", None, "a"], schema)
    assert whole.groups.tolist() == expected
    head, tail = whole.split(1)
    joined = type(whole).concat([tail.take(np.array([2, 0])), head, type(whole).empty(schema)])
    assert joined.groups is not None
    assert joined.groups.tolist() == [expected[3], expected[1], expected[0]]
    assert encode(table, make_schema()).groups is None


def hashes_of(texts: list[str | None], schema: Schema) -> list[int]:
    return group_hashes(pa.array(texts), len(texts), "g", schema.hash_seed).tolist()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_batches_carry_the_group_of_each_row(days: Any, make_schema: Callable[..., Schema], world_size: int) -> None:
    """Eleven rows over three streams, one rank of which has none in the last step; padding has no group."""
    schema = make_schema(group_id="g")
    texts = [None if row == 4 else f"g{row % 3}" for row in range(11)]
    days.write({"a.parquet": {"label": [0, 1] * 5 + [0], "price": [1.0] * 11, "user": [1] * 11, "g": texts}})
    plan = days.plan(schema, batch_rows=6, num_streams=3)
    expected, found = hashes_of(texts, schema), {}
    for rank in range(world_size):
        for task in plan.read_tasks(rank, world_size):
            for packed in read_batches(task, schema, days.path):
                batch = Batch.from_packed(PackedBatch.from_buffer(packed.buffer), ["user"])
                assert (batch.groups is None) == (batch.num_rows == 0)
                if batch.groups is not None:
                    assert batch.groups[batch.num_rows :].tolist() == [NO_GROUP] * (len(batch.labels) - batch.num_rows)
                    found |= dict(zip(batch.row_index.tolist(), batch.groups.tolist(), strict=True))
    assert {row: hash for row, hash in found.items() if row >= 0} == dict(enumerate(expected))


def test_a_group_of_another_type_refuses_the_increment(days: Any, make_schema: Callable[..., Schema]) -> None:
    days.write({"a.parquet": {"label": [0], "price": [1.0], "user": [1], "g": [[1]]}})
    with pytest.raises(DataError, match="declared as group_id of type integer or string"):
        days.increment(make_schema(group_id="g"))
