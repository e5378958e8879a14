"""Negatives that are dropped: which they are, and that every other row is learned once, in full batches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import Schema
from diurnal.data.audit import RowAudit
from diurnal.data.holdout import write_slice
from diurnal.data.negatives import Negatives
from diurnal.data.partitions import Increment, read_increment
from diurnal.data.past_files import open_past
from diurnal.data.pasts import Pasts
from diurnal.data.read import read_batches
from diurnal.data.streams import Order, StreamPlan, plan_increment
from diurnal.errors import DataError

RATE = 0.3
SPARSE = [{"name": "tag", "mapping": "identity"}, {"name": "words", "type": "string", "many": True}]
TABLES = [{"name": "tag", "rows": 100_000, "dim": 4}, {"name": "words", "rows": 50, "dim": 4}]
Write = Callable[..., Increment]


def schema_of(rate: float = RATE, request_id: str = "request", **label: Any) -> Schema:
    label = {"keep_negatives": rate, **label}
    settings = {"label": label, "request_id": request_id, "dense": [{"name": "price"}]}
    return Schema.model_validate({**settings, "sparse": SPARSE, "tables": TABLES}, strict=False)


SCHEMA = schema_of()


def table_of(day: int, num_rows: int) -> pa.Table:
    """`tag` tells the row and the day; every third row has the request of the one before it."""
    tags = np.arange(num_rows) + 10_000 * day
    columns = {
        "tag": tags,
        "price": tags / 7,
        "label": (np.random.default_rng(day).random(num_rows) < 0.1).astype(np.int8),
        "words": [[f"w{tag % 5}", "v"] if tag % 3 else None for tag in tags.tolist()],
        "request": pa.array([f"r{tag - (tag % 3 == 2)}" for tag in tags.tolist()], pa.string_view()),
    }
    return pa.table(columns)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def day(index: int, num_rows: int = 600, schema: Schema = SCHEMA) -> Increment:
        folder = tmp_path / "days" / f"dt=2026-01-{index + 1:02}"
        folder.mkdir(parents=True, exist_ok=True)
        table = table_of(index, num_rows)
        pq.write_table(table[: num_rows // 3], folder / "a.parquet", row_group_size=70)
        pq.write_table(table[num_rows // 3 :], folder / "b.parquet", row_group_size=110)
        return read_increment(str(tmp_path / "days"), f"2026-01-{index + 1:02}", schema)

    return day


def sampled(increment: Increment, schema: Schema) -> Increment:
    return Negatives(schema, 7, lambda _: None).sample(increment)


def plan_of(increment: Increment, order: Order = "file") -> StreamPlan:
    return plan_increment(increment, batch_rows=24, num_streams=4, seed=3, order=order, task_rows=100)


def learned(plan: StreamPlan, schema: Schema, world_size: int, start: int = 0) -> tuple[list[list[int]], RowAudit]:
    """Tags of each global batch, sorted, and the audit of all ranks; checks that batches are as full as they can be."""
    steps: list[list[int]] = [[] for _ in range(plan.num_steps)]
    audit = RowAudit()
    for rank in range(world_size):
        for task in plan.read_tasks(rank, world_size, start):
            for batch in read_batches(task, schema, plan.increment.path):
                steps[batch.step] += batch.values[: batch.num_rows].tolist()
                audit.add(batch.row_index)
                assert batch.num_rows == np.count_nonzero(batch.row_index >= 0)
    sizes = [len(step) for step in steps[start:]]
    assert sum(sizes) == plan.num_rows - plan.rows_before(start)
    assert max(sizes) <= plan.batch_rows
    assert min(sizes) >= plan.num_rows // plan.num_steps - 2
    return [sorted(step) for step in steps], audit


def rows_learned(increment: Increment, schema: Schema) -> list[int]:
    steps, audit = learned(plan_of(increment), schema, 1)
    assert audit.verdict(RowAudit.expected_of(increment)) is None
    return sorted(tag for step in steps for tag in step)


def all_rows(day: int, num_rows: int = 600) -> dict[str, list[Any]]:
    return table_of(day, num_rows).to_pydict()


def test_all_positives_are_learned_and_of_the_negatives_whole_requests(write: Write) -> None:
    kept, rows = rows_learned(sampled(write(0), schema_of()), schema_of()), all_rows(0)
    positives = {tag for tag, label in zip(rows["tag"], rows["label"], strict=True) if label}
    negatives = set(rows["tag"]) - positives
    assert len(set(kept)) == len(kept)
    assert positives < set(kept)
    assert 0.2 < len(set(kept) & negatives) / len(negatives) < 0.4
    by_request: dict[str, set[bool]] = {}
    for tag, request in zip(rows["tag"], rows["request"], strict=True):
        if tag in negatives:
            by_request.setdefault(request, set()).add(tag in kept)
    assert all(len(fates) == 1 for fates in by_request.values())


def test_rows_without_a_request_are_drawn_by_themselves_and_more_of_them_at_a_higher_rate(write: Write) -> None:
    kept = {}
    for rate in (0.1, 0.5):
        schema = schema_of(rate, request_id="")
        kept[rate] = set(rows_learned(sampled(write(0, schema=schema), schema), schema))
    assert kept[0.1] < kept[0.5]
    assert kept[0.5] & {2, 5, 8, 11, 14, 17, 20} != {2, 5, 8, 11, 14, 17, 20}


def test_another_increment_and_seed_draw_other_rows(write: Write) -> None:
    schema = schema_of()
    one = write(0)
    tags = [tag % 10_000 for tag in rows_learned(sampled(one, schema), schema)]
    renamed = sampled(replace(one, id="2026-01-02"), schema)
    reseeded = Negatives(schema, 8, lambda _: None).sample(one)
    assert len({tuple(rows_learned(i, schema)) for i in (renamed, reseeded)} | {tuple(tags)}) == 3


@pytest.mark.parametrize("order", ["file", "shuffled"])
def test_batches_are_full_the_same_in_every_world_and_after_a_restart(write: Write, order: Order) -> None:
    schema = schema_of()
    plan = plan_of(sampled(write(0, 900), schema), order)
    steps, audit = learned(plan, schema, 1)
    assert audit.verdict(RowAudit.expected_of(plan.increment)) is None
    assert len(steps) == plan.num_steps < 20
    for world_size in (2, 3):
        others, other_audit = learned(plan, schema, world_size)
        assert others == steps
        expected = RowAudit()
        for rank in range(world_size):
            expected.merge(RowAudit.expected_of(plan.increment, rank, world_size))
        assert other_audit.verdict(expected) is None
    for start in (1, 4, plan.num_steps - 1):
        again = StreamPlan.from_json(json.loads(json.dumps(plan.to_json())))
        assert learned(again, schema, 2, start)[0][start:] == steps[start:]
        assert plan.rows_before(start) == sum(map(len, steps[:start]))


def test_rows_that_are_held_out_take_no_place_and_are_drawn_where_they_join(write: Write, tmp_path: Path) -> None:
    schema, first = schema_of(), write(0)
    held_out = write_slice(first, schema, 0.2, 7, str(tmp_path / "slice.parquet"))
    alone = rows_learned(sampled(first, schema), schema)
    without = rows_learned(sampled(replace(first, held_out=held_out), schema), schema)
    assert set(without) < set(alone)
    second = sampled(replace(write(1), joined=held_out.files), schema)
    assert second.sampled is not None
    both, rows = rows_learned(second, schema), all_rows(0)
    joined = {tag for tag in both if tag < 10_000}
    copies = pq.ParquetDataset([file.path.removeprefix("file://") for file in held_out.files]).read()
    held = dict(zip(copies["tag"].to_pylist(), copies["label"].to_pylist(), strict=True))
    assert {tag for tag, label in held.items() if label} <= joined < set(held)
    assert not joined & set(without)
    assert len(both) + second.sampled.num_dropped == 600 + held_out.num_rows
    assert 0.1 < np.mean([tag in joined for tag, label in held.items() if not label]) < 0.5
    positives = {tag for tag, label in zip(rows["tag"], rows["label"], strict=True) if label}
    assert positives <= joined | set(without)


def test_parts_of_a_day_learn_each_positive_once_and_add_up_to_its_rows(write: Write) -> None:
    schema, seen = schema_of(), Counter[int]()
    num_dropped = 0
    for part in write(0).cut(4):
        increment = sampled(part, schema)
        assert increment.sampled is not None
        seen.update(rows_learned(increment, schema))
        num_dropped += increment.sampled.num_dropped
    rows = all_rows(0)
    assert set(seen.values()) == {1}
    assert {tag for tag, label in zip(rows["tag"], rows["label"], strict=True) if label} < set(seen)
    assert len(seen) + num_dropped == 600


def test_at_rate_one_nothing_is_counted_or_changed(write: Write) -> None:
    one = write(0)
    assert sampled(one, schema_of(1.0)) is one
    assert plan_of(one).kept_negatives == 1.0
    assert sampled(one, schema_of()).own() == one


def test_where_the_rule_drops_nothing_batches_are_those_of_all_rows(write: Write) -> None:
    schema = schema_of(1 - 1e-12)
    one = write(0)
    kept = sampled(one, schema)
    assert kept.sampled is not None
    assert (kept.sampled.num_rows, kept.sampled.num_dropped) == (600, 0)
    for order in ("file", "shuffled"):
        both = []
        for increment in (one, kept):
            tasks = plan_of(increment, order).read_tasks(0, 1)
            both.append([batch for task in tasks for batch in read_batches(task, schema, increment.path)])
        assert len(both[0]) == len(both[1]) == 25
        for plain, dense in zip(*both, strict=True):
            for name in ("dense", "values", "lengths", "labels", "weights", "row_index", "counts"):
                assert np.array_equal(getattr(plain, name), getattr(dense, name)), name


def test_it_is_said_once_how_many_are_dropped_and_counted_once(write: Write) -> None:
    said: list[str] = []
    negatives, one = Negatives(schema_of(), 7, said.append), write(0)
    first = negatives.sample(one)
    assert negatives.sample(replace(one, past="elsewhere")).sampled is first.sampled
    assert first.sampled is not None
    (line,) = said
    assert line.startswith(f"2026-01-01: {first.sampled.num_rows} rows are learned, 0.3 of the negatives among them; ")
    assert line.endswith(f"{600 - first.sampled.num_rows} are dropped")


def test_a_label_tells_negatives_as_it_is_declared(write: Write) -> None:
    plain = rows_learned(sampled(write(0), schema_of()), schema_of())
    turned = schema_of(positive="0", negative="1")
    others = rows_learned(sampled(write(0), turned), turned)
    rows = all_rows(0)
    zeros = {tag for tag, label in zip(rows["tag"], rows["label"], strict=True) if not label}
    assert zeros < set(others)
    assert zeros - set(plain)


def test_the_past_counts_what_is_dropped(write: Write, tmp_path: Path) -> None:
    schema = schema_of().model_copy(update={"dense": _with_past()})
    full = schema.model_copy(update={"label": schema.label.model_copy(update={"keep_negatives": 1.0})})
    pasts = Pasts(tmp_path / "past", schema)
    name = pasts.after(sampled(write(0), schema))
    assert name == Pasts(tmp_path / "past", full).after(write(0))
    past = open_past(pasts.path(name))
    assert (past.impressions, past.positives) == (600, sum(all_rows(0)["label"]))


def _with_past() -> Any:
    return Schema.model_validate(
        {"dense": [{"name": "effect", "past": "words"}], "sparse": SPARSE, "tables": TABLES}, strict=False
    ).dense


def test_what_is_no_label_is_refused_and_a_file_that_changed_too(write: Write, tmp_path: Path) -> None:
    schema = schema_of()
    one = sampled(write(0), schema)
    path = tmp_path / "days" / "dt=2026-01-01" / "b.parquet"
    table = pq.read_table(path)
    labels = table["label"].to_numpy().copy()
    labels[200] = 2
    pq.write_table(table.set_column(2, "label", pa.array(labels)), path, row_group_size=110)
    bad = sampled(read_increment(str(tmp_path / "days"), "2026-01-01", schema), schema)
    with pytest.raises(DataError, match="every label is 0 or 1"):
        learned(plan_of(bad), schema, 1)
    with pytest.raises(DataError, match="when it was planned"):
        learned(plan_of(one), schema, 1)
    path.unlink()
    with pytest.raises(DataError, match=r"b\.parquet"):
        Negatives(schema, 7, lambda _: None).sample(replace(one, sampled=None))


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_is_above_0_and_at_most_1(rate: float) -> None:
    with pytest.raises(ValueError, match="keep_negatives"):
        schema_of(rate)
