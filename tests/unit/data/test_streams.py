"""The plan, for any layout of row groups: every row once, equal steps, batches that do not depend on the world size."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diurnal.data.partitions import Increment, ParquetFile
from diurnal.data.streams import Order, ReadTask, StreamPlan, permutation, plan_increment


def increment(*files: list[int]) -> Increment:
    """One with these rows in the row groups of its files."""
    return Increment("2026-01-02", "days", tuple(ParquetFile(f"{i}", 1, tuple(f)) for i, f in enumerate(files)), "")


LAYOUTS = st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=4)


@st.composite
def plans(draw: st.DrawFn) -> StreamPlan:
    num_streams = draw(st.integers(1, 6))
    return plan_increment(
        increment(*draw(LAYOUTS)),
        batch_rows=num_streams * draw(st.integers(1, 8)),
        num_streams=num_streams,
        seed=draw(st.integers(0, 9)),
        order=draw(st.sampled_from(["file", "shuffled"])),
        task_rows=draw(st.integers(1, 30)),
    )


def rows_of_steps(task: ReadTask) -> list[list[int]]:
    """The rows of each step of a task, carried out literally."""
    steps: list[list[int]] = [[] for _ in range(task.num_steps)]
    for lane in task.lanes:
        rows: list[int] = []
        for window in lane.windows:
            inside = [r.first_row + i for r in window.ranges for i in range(r.num_rows)]
            if window.shuffle_key is not None:
                inside = [inside[i] for i in permutation(len(inside), window.shuffle_key)]
            rows += inside[window.skip : window.skip + window.num_rows]
        for step, num_rows in zip(steps, lane.step_rows, strict=True):
            step += rows[:num_rows]
            rows = rows[num_rows:]
        assert not rows
    return steps


def batches(plan: StreamPlan, rank: int, world_size: int, start: int = 0, stop: int | None = None) -> list[list[int]]:
    return [rows for task in plan.read_tasks(rank, world_size, start, stop) for rows in rows_of_steps(task)]


@given(plans())
def test_every_row_is_in_exactly_one_step(plan: StreamPlan) -> None:
    steps = batches(plan, 0, 1)
    assert sorted(row for step in steps for row in step) == list(range(plan.num_rows))
    assert len(steps) == plan.num_steps == -(-plan.num_rows // plan.batch_rows)


@given(plans(), st.integers(2, 8))
def test_global_batches_do_not_depend_on_the_world_size(plan: StreamPlan, world_size: int) -> None:
    """Ranks are equal in steps and in local batch size, whatever the rows (meta-pytorch/torchrec#1014)."""
    ranks = [batches(plan, rank, world_size) for rank in range(world_size)]
    assert {len(steps) for steps in ranks} == {plan.num_steps}
    for step, whole in enumerate(batches(plan, 0, 1)):
        dealt = [row for steps in ranks for row in steps[step]]
        assert sorted(dealt) == sorted(whole)
    local = plan.local_batch_rows(world_size)
    tasks = [task for rank in range(world_size) for task in plan.read_tasks(rank, world_size)]
    assert all(task.batch_rows == local for task in tasks)
    assert all(len(step) <= local for steps in ranks for step in steps)


@given(plans(), st.integers(1, 4), st.data())
def test_a_later_start_gives_exactly_the_rest(plan: StreamPlan, world_size: int, data: Any) -> None:
    """Stopped after any step, and gone on at any world size: no row is lost or seen twice."""
    start = data.draw(st.integers(0, plan.num_steps))
    stop = data.draw(st.integers(start, plan.num_steps))
    rank = data.draw(st.integers(0, world_size - 1))
    again = StreamPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert batches(again, rank, world_size, start, stop) == batches(plan, rank, world_size)[start:stop]


@given(plans(), st.data())
def test_cursors_count_the_rows_given(plan: StreamPlan, data: Any) -> None:
    step = data.draw(st.integers(0, plan.num_steps))
    given_rows = [sum(map(len, batches(plan, v, plan.num_streams, 0, step))) for v in range(plan.num_streams)]
    assert plan.cursors(step) == given_rows
    assert plan.rows_before(step) == sum(given_rows)
    assert plan.rows_before(plan.num_steps) == plan.num_rows


@given(plans(), st.integers(1, 4))
def test_a_task_says_how_many_real_rows_a_step_has(plan: StreamPlan, world_size: int) -> None:
    for rank in range(world_size):
        for task in plan.read_tasks(rank, world_size):
            steps = range(task.first_step, task.first_step + task.num_steps)
            assert [task.real_rows(step) for step in steps] == [len(rows) for rows in rows_of_steps(task)]
            assert pickle.loads(pickle.dumps(task)) == task


@given(plans())
@example(plan_increment(increment([100] * 30), batch_rows=8, num_streams=2, seed=0, order="shuffled", task_rows=16))
def test_memory_is_bounded(plan: StreamPlan) -> None:
    """A shuffled window holds no more rows than task_rows allows, or than one step has."""
    for task in plan.read_tasks(0, 1):
        windows = [window for lane in task.lanes for window in lane.windows if window.shuffle_key is not None]
        assert all(sum(r.num_rows for r in w.ranges) <= plan.window_steps * plan.step_rows for w in windows)


def test_file_order_is_the_log_order_within_a_stream() -> None:
    plan = plan_increment(increment([3, 4], [5]), batch_rows=2, num_streams=1, seed=7, order="file", task_rows=4)
    assert batches(plan, 0, 1) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def test_the_last_block_is_split_evenly() -> None:
    """Ten rows go 3, 3, 2, 2, wherever files and row groups end, and each of these over the two steps."""
    plan = plan_increment(increment([1], [0], [9], []), batch_rows=8, num_streams=4, seed=0, order="file", task_rows=1)
    assert [batches(plan, v, 4) for v in range(4)] == [[[0], [1, 2]], [[3], [4, 5]], [[6], [7]], [[8], [9]]]
    assert plan.cursors(1) == [1, 1, 1, 1]


@given(plans())
@example(plan_increment(increment([9]), batch_rows=8, num_streams=4, seed=0, order="file", task_rows=1))
@example(plan_increment(increment([41]), batch_rows=8, num_streams=1, seed=0, order="file", task_rows=1))
def test_no_batch_is_much_shorter_than_the_others(plan: StreamPlan) -> None:
    """A last batch of two rows would move the model as far as a full one. Each is half full, or has half of what there
    is, but for what rounding takes."""
    sizes = [len(step) for step in batches(plan, 0, 1)]
    assert max(sizes, default=0) <= plan.batch_rows
    assert min(sizes, default=0) >= min(plan.num_rows, plan.batch_rows // 2) - 2


def test_fewer_rows_than_ranks() -> None:
    """ray-project/ray#63285: one row, three ranks: one step for all, and the row is in it."""
    plan = plan_increment(increment([1]), batch_rows=3, num_streams=3, seed=0, order="file", task_rows=100)
    assert [batches(plan, rank, 3) for rank in range(3)] == [[[0]], [[]], [[]]]
    more = plan_increment(increment([11]), batch_rows=4, num_streams=1, seed=0, order="file", task_rows=100)
    assert [len(batches(more, rank, 3)) for rank in range(3)] == [3, 3, 3]
    assert batches(more, 2, 3) == [[], [], []]


def test_no_rows_no_steps() -> None:
    plan = plan_increment(increment([0], []), batch_rows=4, num_streams=2, seed=0, order="shuffled", task_rows=4)
    assert (plan.num_steps, plan.read_tasks(0, 2), plan.cursors(0)) == (0, [], [0, 0])


def test_order_follows_seed_and_increment() -> None:
    def first_rows(seed: int, day: str, order: Order = "shuffled") -> list[int]:
        day_of_rows = Increment(day, "", (ParquetFile("a", 1, (50,) * 40),), "")
        plan = plan_increment(day_of_rows, batch_rows=100, num_streams=1, seed=seed, order=order, task_rows=200)
        return batches(plan, 0, 1)[0]

    orders = [first_rows(0, "2026-01-02"), first_rows(1, "2026-01-02"), first_rows(0, "2026-01-03"), list(range(100))]
    assert len({tuple(order) for order in orders}) == 4
    assert first_rows(0, "2026-01-02") == orders[0]
    assert first_rows(0, "2026-01-02", "file") == orders[3]


def test_lanes_are_stretched_to_large_row_groups() -> None:
    """A row group is decoded from its start, so lanes much smaller than row groups would decode rows many times."""

    def block_rows(rows: int, groups: int) -> int:
        plan = plan_increment(
            increment([rows] * groups), batch_rows=10, num_streams=1, seed=0, order="file", task_rows=1000
        )
        return plan.block_steps * plan.batch_rows

    assert block_rows(10, 1000) == 1000
    assert block_rows(1000, 100) == 4000
    assert block_rows(1_000_000, 10) == 16_000


def test_what_makes_no_plan() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        plan_increment(increment([5]), batch_rows=5, num_streams=2, seed=0, order="file", task_rows=5)
    plan = plan_increment(increment([5]), batch_rows=5, num_streams=1, seed=0, order="file", task_rows=5)
    with pytest.raises(ValueError, match="step 2"):
        plan.read_tasks(0, 1, 2)
    with pytest.raises(ValueError, match="rank 1"):
        plan.read_tasks(1, 1)


def test_a_permutation_never_changes() -> None:
    assert permutation(8, 5).tolist() == [3, 5, 2, 7, 4, 0, 1, 6]
    assert sorted(permutation(1000, 2**64 - 1).tolist()) == list(range(1000))
