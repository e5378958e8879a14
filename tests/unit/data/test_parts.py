"""A folder cut by rows into increments: every row in exactly one of them, whatever stops and goes on."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diurnal.data.audit import RowAudit
from diurnal.data.partitions import Increment, ParquetFile, same_folder
from diurnal.data.streams import Order, ReadTask, StreamPlan, Window, permutation, plan_increment

DAY = "2026-01-02"
LAYOUTS = st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=4)
Place = tuple[str, int, int]
"""File, row group, row in it."""


def folder(layout: list[list[int]]) -> Increment:
    files = tuple(ParquetFile(f"{i}", 1, tuple(rows)) for i, rows in enumerate(layout))
    return Increment(DAY, "days", files, "0" * 32)


def places(layout: list[list[int]]) -> list[Place]:
    """Every row of the folder, in file order."""
    return [(f"{f}", g, row) for f, groups in enumerate(layout) for g, rows in enumerate(groups) for row in range(rows)]


def window_rows(window: Window) -> list[tuple[Place, int]]:
    inside = [((r.path, r.row_group, r.start + i), r.first_row + i) for r in window.ranges for i in range(r.num_rows)]
    if window.shuffle_key is not None:
        inside = [inside[i] for i in permutation(len(inside), window.shuffle_key)]
    return inside[window.skip : window.skip + window.num_rows]


def rows_of(tasks: list[ReadTask]) -> list[tuple[Place, int]]:
    return [row for task in tasks for lane in task.lanes for window in lane.windows for row in window_rows(window)]


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    num_streams = draw(st.integers(1, 6))
    return {
        "batch_rows": num_streams * draw(st.integers(1, 8)),
        "num_streams": num_streams,
        "block_steps": draw(st.integers(1, 7)),
        "window_steps": draw(st.integers(1, 5)),
        "seed": draw(st.integers(0, 9)),
        "order": draw(st.sampled_from(["file", "shuffled"])),
    }


def stretches(plan: StreamPlan, data: Any) -> list[tuple[int, int, int]]:
    """World size, first step and stop step, one after the other, up to the end."""
    cuts, step = [], 0
    while step < plan.num_steps:
        stop = data.draw(st.integers(step + 1, plan.num_steps), label="stop")
        cuts.append((data.draw(st.integers(1, 7), label="world size"), step, stop))
        step = stop
    return cuts


@given(LAYOUTS, st.integers(1, 12), recipes(), st.data())
def test_every_row_of_the_folder_once_over_parts_and_resumes(
    layout: list[list[int]], parts: int, recipe: dict[str, Any], data: Any
) -> None:
    """Stopped at any steps and gone on at any world sizes, in both orders, and through what a resume point saves."""
    read: Counter[Place] = Counter()
    in_order = places(layout)
    for increment in folder(layout).cut(parts):
        saved = json.loads(json.dumps(StreamPlan(increment, **recipe).recipe()))
        audit = RowAudit()
        for world_size, start, stop in stretches(StreamPlan(increment, **recipe), data):
            plan = StreamPlan.from_recipe(Increment.from_json(json.loads(json.dumps(increment.to_json()))), saved)
            for rank in range(world_size):
                tasks = plan.read_tasks(rank, world_size, start, stop)
                rows = rows_of(tasks)
                assert [place for place, _ in rows] == [in_order[increment.first_row + index] for _, index in rows]
                read.update(place for place, _ in rows)
                audit.add(np.array([index for _, index in rows] + [-1], np.int64))
        assert audit.verdict(RowAudit.expected(increment.num_rows)) is None
    assert read == Counter(in_order)


@given(LAYOUTS, st.integers(1, 12), recipes(), st.integers(2, 5))
def test_batches_of_a_part_do_not_depend_on_the_world_size(
    layout: list[list[int]], parts: int, recipe: dict[str, Any], world_size: int
) -> None:
    for increment in folder(layout).cut(parts):
        plan = StreamPlan(increment, **recipe)
        assert plan.num_steps == -(-increment.num_rows // plan.batch_rows)
        for step in range(plan.num_steps):
            dealt = [rows_of(plan.read_tasks(rank, world_size, step, step + 1)) for rank in range(world_size)]
            assert sorted(row for rows in dealt for row in rows) == sorted(
                rows_of(plan.read_tasks(0, 1, step, step + 1))
            )
            assert plan.rows_before(step + 1) - plan.rows_before(step) == sum(map(len, dealt))


@given(LAYOUTS, st.integers(2, 50))
def test_parts_are_equal_and_follow_one_another(layout: list[list[int]], parts: int) -> None:
    cut = folder(layout).cut(parts)
    sizes = [increment.num_rows for increment in cut]
    assert (len(cut), sum(sizes)) == (parts, folder(layout).num_rows)
    assert max(sizes) - min(sizes) <= 1
    assert [i.first_row for i in cut[1:]] == [i.stop_row for i in cut[:-1]]
    assert [i.id for i in cut] == sorted(i.id for i in cut)


def test_more_parts_than_rows_leave_empty_ones_at_the_end() -> None:
    """They have a name and no step, so that names depend on the number of parts and not on the rows."""
    cut = folder([[1], [1]]).cut(4)
    assert [i.id for i in cut] == [f"{DAY}P0{n}of04" for n in (1, 2, 3, 4)]
    assert [i.num_rows for i in cut] == [1, 1, 0, 0]
    plan = plan_increment(cut[3], batch_rows=4, num_streams=2, seed=0, order="shuffled", task_rows=4)
    assert (plan.num_steps, plan.read_tasks(0, 2), plan.cursors(0)) == (0, [], [0, 0])


def test_one_part_is_the_folder_itself() -> None:
    whole = folder([[3]])
    assert whole.cut(1) == [whole]
    with pytest.raises(AssertionError, match="cut already"):
        whole.cut(2)[0].cut(2)


def test_a_whole_folder_is_planned_as_it_was_before_there_were_parts() -> None:
    """The JSON of a plan from then is still read, and its rows come in the order of then."""
    old = folder([[3, 0, 4], [5]]).to_json()
    del old["first_row"], old["stop_row"]
    plan = plan_increment(Increment.from_json(old), batch_rows=4, num_streams=2, seed=3, order="shuffled", task_rows=6)
    assert [index for _, index in rows_of(plan.read_tasks(0, 1))] == [1, 0, 2, 7, 9, 8, 10, 11, 3, 4, 6, 5]


def test_a_recipe_is_all_of_a_plan_but_its_increment() -> None:
    plan = plan_increment(folder([[50]]), batch_rows=4, num_streams=2, seed=3, order="shuffled", task_rows=6)
    recipe = plan.recipe()
    assert StreamPlan.from_recipe(plan.increment, json.loads(json.dumps(recipe))) == plan
    assert recipe.keys() | {"increment"} == plan.to_json().keys()
    for wrong in ({}, recipe | {"extra": 1}, {k: v for k, v in recipe.items() if k != "seed"}):
        with pytest.raises(ValueError, match="a recipe has batch_rows"):
            StreamPlan.from_recipe(plan.increment, wrong)


def test_fingerprints_tell_folder_and_slice_apart(days: Any, make_schema: Any) -> None:
    schema = make_schema()
    rows = {"label": [0, 1] * 4, "price": [1.0] * 8, "user": list(range(8))}
    days.write({"a.parquet": rows})
    whole = days.increment(schema)
    parts = [*whole.cut(2), *whole.cut(3)]
    assert len({whole.fingerprint, *(i.fingerprint for i in parts)}) == 6
    assert all(len(i.fingerprint) == 32 and same_folder(i.fingerprint, whole.fingerprint) for i in parts)
    assert days.increment(schema, f"{DAY}P02of03") == whole.cut(3)[1]
    days.write({"b.parquet": rows})
    changed = days.increment(schema, f"{DAY}P02of03")
    assert not same_folder(changed.fingerprint, whole.fingerprint)
    assert (changed.first_row, changed.num_rows) == (6, 5)


@pytest.mark.parametrize("order", ["file", "shuffled"])
def test_parts_of_real_files_hold_each_row_once(days: Any, make_schema: Any, read_rank: Any, order: Order) -> None:
    """Parts begin and end inside row groups; a row is known by its price."""
    schema = make_schema()
    for name, first, size in (("a", 0, 57), ("b", 57, 0), ("c", 57, 46)):
        rows = range(first, first + size)
        days.write({f"{name}.parquet": _table(rows)}, row_group_size=20)
    seen: list[float] = []
    for increment in days.increment(schema).cut(4):
        plan = plan_increment(increment, batch_rows=6, num_streams=3, seed=1, order=order, task_rows=9)
        prices: dict[int, float] = {}
        for rank in range(2):
            for batch in read_rank(plan, schema, rank, 2):
                real = batch.row_index >= 0
                prices |= dict(zip(batch.row_index[real].tolist(), batch.dense[real, 0].tolist(), strict=True))
        assert [prices[i] for i in range(increment.num_rows)] == [
            float(increment.first_row + i) for i in range(increment.num_rows)
        ]
        seen += prices.values()
    assert sorted(seen) == [float(i) for i in range(103)]


def _table(rows: range) -> Any:
    import pyarrow as pa

    columns = {"label": [i % 2 for i in rows], "price": [float(i) for i in rows], "user": list(rows)}
    types = {"label": pa.int64(), "price": pa.float64(), "user": pa.int64()}
    return pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
