"""Reading through Ray Data on a real cluster: the same batches as in the worker's own process, and the same errors."""

from __future__ import annotations

import logging
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from diurnal.config import Schema
from diurnal.data.batch import Batch
from diurnal.data.partitions import read_increment
from diurnal.data.reader import INPROCESS_ROWS, BatchReader
from diurnal.data.streams import StreamPlan, plan_increment
from diurnal.errors import DataError
from diurnal.testing import by_value

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

DAY = "2026-01-01"


@pytest.fixture
def plan(world, request: pytest.FixtureRequest) -> StreamPlan:
    """Of a day with as many rows as the test asks for, 600 otherwise."""
    world.write_day(0, getattr(request, "param", 600))
    return plan_day(world)


def plan_day(world, **changes: Any) -> StreamPlan:
    config = world.config()
    increment = read_increment(config.data.path, DAY, config.dataset)
    numbers = {"batch_rows": 60, "num_streams": 6, "seed": 1, "order": "file", "task_rows": 20}
    return plan_increment(increment, **{**numbers, **changes})


def read(plan: StreamPlan, schema: Schema, rank: int = 0, world_size: int = 1, **options: Any) -> list[Batch]:
    with BatchReader(plan, schema, rank=rank, world_size=world_size, **options) as reader:
        return list(reader)


def same(ours: Batch, theirs: Batch) -> None:
    assert (ours.step, ours.num_rows, ours.watermark_us) == (theirs.step, theirs.num_rows, theirs.watermark_us)
    for name in ("dense", "labels", "weights", "row_index"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=0)
    assert ours.sparse.keys() == theirs.sparse.keys()
    assert ours.sparse.values().tolist() == theirs.sparse.values().tolist()
    assert ours.sparse.lengths().tolist() == theirs.sparse.lengths().tolist()
    assert ours.counts.tolist() == theirs.counts.tolist()


@pytest.mark.parametrize("order", ["file", "shuffled"])
def test_batches_equal_those_read_in_process(world, order: str) -> None:
    world.write_day(0, 2400)
    schema, plan = world.config().dataset, plan_day(world, order=order, num_streams=2)
    assert len(plan.read_tasks(0, 2)) > 2
    for rank in range(2):
        through_ray = read(plan, schema, rank, 2, use_ray=True, read_cpus=2.0, start_step=1)
        for ours, theirs in zip(through_ray, read(plan, schema, rank, 2, use_ray=False, start_step=1), strict=True):
            same(ours, theirs)
            ours.dense.add_(1)  # memory of its own, not Ray's


@pytest.mark.parametrize("plan", [11, 1], indirect=True)
def test_evaluation_sees_every_row_once(plan: StreamPlan, world) -> None:
    """ray-project/ray#63285, through Ray Data itself: 11 rows are 11 and 1 is 1, at 1, 2 and 3 workers."""
    for world_size in (1, 2, 3):
        ranks = [read(plan, world.config().dataset, r, world_size, use_ray=True) for r in range(world_size)]
        seen = [row for batches in ranks for batch in batches for row in batch.row_index.tolist() if row >= 0]
        assert sorted(seen) == list(range(plan.num_rows))
        assert {len(batches) for batches in ranks} == {plan.num_steps}


def test_a_persons_fault_comes_as_it_is(world, caplog: pytest.LogCaptureFixture) -> None:
    world.write_day(0, 600, change=lambda columns: columns["label"].__setitem__(550, 3))
    plan = plan_day(world, num_streams=1)
    with caplog.at_level(logging.WARNING), pytest.raises(DataError, match=r"part-1\.parquet: column label") as caught:
        read(plan, world.config().dataset, use_ray=True)
    assert type(caught.value) is DataError
    assert not caplog.records


def test_left_early_it_frees_the_cluster(world) -> None:
    import ray

    world.write_day(0, 6000)
    plan, schema = plan_day(world), world.config().dataset
    with BatchReader(plan, schema, rank=0, world_size=1, use_ray=True) as reader:
        assert next(reader).step == 0
    assert list(reader) == []
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"]
    assert len(read(plan, schema, use_ray=True)) == plan.num_steps


def test_ray_data_reads_what_is_sizeable(world) -> None:
    config = world.config()
    folder = world.root / "days" / f"dt={DAY}"
    folder.mkdir(parents=True)
    rows = INPROCESS_ROWS + 1
    columns = {"label": [1] * rows, "price": [1.0] * rows, "user": [7] * rows, "item": ["a"] * rows}
    more = {"topics": pa.nulls(rows), "ts": pa.nulls(rows), "request": pa.nulls(rows)}
    pq.write_table(pa.table({**columns, **more}), folder / "a.parquet")
    (folder / "_SUCCESS").touch()
    plan = plan_day(world, num_streams=1, batch_rows=4000, task_rows=5000)
    with BatchReader(plan, config.dataset, rank=0, world_size=1) as reader:
        assert reader.uses_ray
        assert sum(batch.num_rows for batch in reader) == rows
    with BatchReader(plan, config.dataset, rank=0, world_size=1, start_step=1) as reader:
        assert not reader.uses_ray


def read_in_worker(job: dict[str, Any]) -> None:
    """One rank of a worker group: reads its share and reports which rows it got."""
    import ray.train

    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    reader = BatchReader(job["plan"], job["schema"], rank=rank, world_size=world_size, read_cpus=0.5, use_ray=True)
    with reader:
        rows = [row for batch in reader for row in batch.row_index.tolist() if row >= 0]
    (job["folder"] / f"{rank}.txt").write_text(" ".join(map(str, rows)))


@pytest.mark.slow
def test_it_reads_inside_train_workers(plan: StreamPlan, world) -> None:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    job = {"plan": plan, "schema": world.config().dataset, "folder": world.root}
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
    run = RunConfig(storage_path=str(world.root / "runs"), name="read")
    TorchTrainer(by_value(read_in_worker), train_loop_config=job, scaling_config=scaling, run_config=run).fit()
    shares = [[int(row) for row in (world.root / f"{rank}.txt").read_text().split()] for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(600))
    assert all(len(share) == 300 for share in shares)
