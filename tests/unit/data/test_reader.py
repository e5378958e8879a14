"""The reader that a worker holds, reading in a thread: order, size, padding, errors, an early end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from diurnal.config import Schema
from diurnal.data import reader as reader_module
from diurnal.data.batch import Batch
from diurnal.data.reader import BatchReader
from diurnal.errors import DataError

MakeSchema = Callable[..., Schema]


@pytest.fixture
def schema(make_schema: MakeSchema) -> Schema:
    return make_schema(sparse=[{"name": "user"}, {"name": "tags", "many": True}], event_time="t")


def write(days: Any, rows: int, **options: Any) -> None:
    import pyarrow as pa

    columns = {
        "label": [row % 2 for row in range(rows)],
        "price": [float(row) for row in range(rows)],
        "user": list(range(rows)),
        "tags": pa.array([[row] * (row % 3) for row in range(rows)], pa.list_(pa.int64())),
        "t": pa.array(range(rows), pa.timestamp("us")),
    }
    days.write({"a.parquet": columns}, **options)


def num_reading() -> int:
    return sum(thread.name.startswith("read ") for thread in threading.enumerate())


def test_batches_are_tensors_of_one_size(days: Any, schema: Schema) -> None:
    write(days, 10)
    with BatchReader(days.plan(schema), schema, rank=0, world_size=1) as reader:
        batches = list(reader)
    assert [(b.step, b.num_rows, b.batch_rows) for b in batches] == [(0, 3, 4), (1, 3, 4), (2, 4, 4)]
    assert [b.watermark_us for b in batches] == [2, 5, 9]
    short = batches[1]
    assert (short.dense.dtype, short.labels.dtype, short.row_index.dtype) == (torch.float32, torch.float32, torch.int64)
    assert short.dense.flatten().tolist() == [3.0, 4.0, 5.0, 0.0]
    assert short.labels.tolist() == [1.0, 0.0, 1.0, 0.0]
    assert short.weights.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert short.row_index.tolist() == [3, 4, 5, -1]
    assert (short.sparse.keys(), short.sparse.stride()) == (["user", "tags"], 4)
    assert (short.sparse.values().dtype, short.sparse.lengths().dtype) == (torch.int64, torch.int32)
    assert short.sparse["user"].lengths().tolist() == [1, 1, 1, 0]
    assert short.sparse["tags"].lengths().tolist() == [0, 1, 2, 0]
    assert num_reading() == 0


def test_tensors_may_be_written_to(days: Any, schema: Schema) -> None:
    write(days, 4)
    [batch] = BatchReader(days.plan(schema), schema, rank=0, world_size=1)
    batch.dense.clamp_(max=1)
    assert batch.dense.max() == 1
    moved = batch.to("cpu")
    assert isinstance(moved, Batch)
    assert (moved.step, moved.num_rows, moved.counts is batch.counts) == (0, 4, True)


@pytest.mark.parametrize("num_rows", [11, 1, 0])
def test_evaluation_sees_every_row_once_at_any_world_size(days: Any, schema: Schema, num_rows: int) -> None:
    """ray-project/ray#63285: 11 rows are 11 and 1 is 1, for 1, 2 and 3 ranks; all ranks do equally many steps."""
    write(days, num_rows, row_group_size=3)
    plan = days.plan(schema, batch_rows=6, num_streams=3)
    for world_size in (1, 2, 3):
        ranks = [list(BatchReader(plan, schema, rank=r, world_size=world_size)) for r in range(world_size)]
        assert {len(batches) for batches in ranks} == {plan.num_steps}
        seen = [row for batches in ranks for batch in batches for row in batch.row_index.tolist() if row >= 0]
        assert sorted(seen) == list(range(num_rows))
        assert sum(float(batch.weights.sum()) for batches in ranks for batch in batches) == num_rows


def test_a_pass_over_uneven_files_ends_alike_on_both_ranks(days: Any, schema: Schema) -> None:
    """meta-pytorch/torchrec#1014: files of 5 and 130 rows, then one file for two ranks."""
    write(days, 135, row_group_size=5)
    plan = days.plan(schema, batch_rows=8, num_streams=2)
    shares = [[batch.num_rows for batch in BatchReader(plan, schema, rank=r, world_size=2)] for r in (0, 1)]
    assert [len(share) for share in shares] == [17, 17]
    assert sum(map(sum, shares)) == 135


def test_steps_may_be_a_part_of_the_increment(days: Any, schema: Schema) -> None:
    write(days, 40)
    plan = days.plan(schema)
    with BatchReader(plan, schema, rank=0, world_size=1, start_step=3, stop_step=5) as reader:
        assert [(batch.step, batch.row_index[0].item()) for batch in reader] == [(3, 12), (4, 16)]
    assert list(BatchReader(plan, schema, rank=0, world_size=1, start_step=10)) == []


def test_reading_starts_before_it_is_asked_for(days: Any, schema: Schema) -> None:
    write(days, 400)
    reader = BatchReader(days.plan(schema), schema, rank=0, world_size=1, prefetch_batches=2)
    deadline = time.monotonic() + 10
    while reader._queue.qsize() < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reader._queue.qsize() == 2
    reader.close()
    assert num_reading() == 0
    assert list(reader) == []


def test_two_readers_share_nothing(days: Any, schema: Schema) -> None:
    """meta-pytorch/torchrec#3751: batches of one pass never come out of another."""
    write(days, 40)
    plan = days.plan(schema)
    first, second = (BatchReader(plan, schema, rank=0, world_size=1) for _ in range(2))
    steps = [next(first).step, next(first).step, next(second).step, next(first).step, next(second).step]
    assert steps == [0, 1, 0, 2, 1]
    first.close()
    assert [batch.step for batch in second] == list(range(2, 10))


def test_a_bad_value_is_raised_when_its_rows_are_due(days: Any, make_schema: MakeSchema) -> None:
    rows = 30_000
    days.write({"a.parquet": {"label": [0] * (rows - 1) + [7], "price": [1.0] * rows, "user": [1] * rows}})
    schema = make_schema()
    reader = BatchReader(days.plan(schema, batch_rows=1000), schema, rank=0, world_size=1)
    assert next(reader).step == 0
    with pytest.raises(DataError, match=r"a\.parquet: column label"):
        list(reader)
    assert list(reader) == []
    assert num_reading() == 0


def test_waiting_for_long_is_said(days: Any, schema: Schema, monkeypatch: Any, caplog: Any) -> None:
    write(days, 4)
    read = reader_module.read_batches

    def slow(*args: Any) -> Any:
        time.sleep(0.3)
        return read(*args)

    monkeypatch.setattr(reader_module, "read_batches", slow)
    monkeypatch.setattr(reader_module, "_WAIT_S", 0.1)
    assert len(list(BatchReader(days.plan(schema), schema, rank=0, world_size=1))) == 1
    assert "2026-01-02, rank 0: still waiting for step 0 from this process" in caplog.text
