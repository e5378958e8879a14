"""From files to finished batches, in this process: which rows, with which values, and what stops it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diurnal.config import Schema
from diurnal.data.encode import count_names
from diurnal.data.packed import PackedBatch, error_block, read_block
from diurnal.data.partitions import Increment
from diurnal.data.streams import plan_increment
from diurnal.errors import DataError

MakeSchema = Callable[..., Schema]


def tagged(start: int, stop: int) -> pa.Table:
    """Rows whose values tell which rows they are: price is the row, tags are (row mod 4) ids, row by row."""
    rows = range(start, stop)
    return pa.table(
        {
            "label": [row % 2 for row in rows],
            "price": [float(row) for row in rows],
            "user": pa.array([row if row % 5 else None for row in rows], pa.int64()),
            "tags": pa.array([[row] * (row % 4) for row in rows], pa.list_(pa.int64())),
        }
    )


@pytest.fixture(scope="module")
def schema(make_schema: MakeSchema) -> Schema:
    return make_schema(
        sparse=[{"name": "user", "mapping": "identity"}, {"name": "tags", "mapping": "identity", "many": True}]
    )


Row = tuple[float, float, float, list[tuple[int, ...]]]
"""Dense value, label, weight, and the bag of each feature."""


def rows_of(batch: PackedBatch) -> dict[int, Row]:
    """Row index to what the batch says of the row; checks what padding must look like."""
    stops = np.cumsum(batch.lengths, dtype=int).reshape(batch.lengths.shape)
    n = batch.num_rows
    assert (batch.row_index[n:] == -1).all()
    assert not batch.weights[n:].any()
    assert not batch.labels[n:].any()
    assert not batch.dense[n:].any()
    assert not batch.lengths[:, n:].any()
    assert stops[-1, -1] == len(batch.values)
    bags = [
        [tuple(batch.values[stops[f, i] - batch.lengths[f, i] : stops[f, i]].tolist()) for f in range(len(stops))]
        for i in range(n)
    ]
    return {
        int(batch.row_index[i]): (float(batch.dense[i, 0]), float(batch.labels[i]), float(batch.weights[i]), bags[i])
        for i in range(n)
    }


def expected_row(row: int) -> Row:
    return float(row), float(row % 2), 1.0, [(row,) if row % 5 else (), (row,) * (row % 4)]


def merge(batches: list[PackedBatch]) -> dict[int, Row]:
    merged: dict[int, Row] = {}
    for batch in batches:
        rows = rows_of(batch)
        assert not merged.keys() & rows.keys()
        merged |= rows
    return merged


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory, schema: Schema) -> Callable[[list[tuple[int, int]]], Increment]:
    """Writes files of (rows, rows of a row group), numbered through."""
    root = tmp_path_factory.mktemp("layouts")
    number = iter(range(10**6))

    def write(files: list[tuple[int, int]]) -> Increment:
        from diurnal.data.partitions import read_increment

        folder = root / str(next(number))
        (folder / "dt=2026-01-02").mkdir(parents=True)
        start = 0
        for index, (rows, group) in enumerate(files):
            path = folder / "dt=2026-01-02" / f"{index}.parquet"
            pq.write_table(tagged(start, start + rows), path, row_group_size=group)
            start += rows
        return read_increment(str(folder), "2026-01-02", schema)

    return write


@given(
    files=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=3),
    num_streams=st.integers(1, 4),
    step_rows=st.integers(1, 9),
    order=st.sampled_from(["file", "shuffled"]),
    task_rows=st.integers(1, 40),
    data=st.data(),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_real_rows_are_the_same_at_every_world_size(
    layouts: Any,
    schema: Schema,
    read_rank: Any,
    files: Any,
    num_streams: int,
    step_rows: int,
    order: Any,
    task_rows: int,
    data: Any,
) -> None:
    plan = plan_increment(
        layouts(files),
        batch_rows=num_streams * step_rows,
        num_streams=num_streams,
        seed=1,
        order=order,
        task_rows=task_rows,
    )
    alone = list(read_rank(plan, schema))
    assert merge(alone) == {row: expected_row(row) for row in range(sum(rows for rows, _ in files))}
    world_size = data.draw(st.integers(2, 5))
    start = data.draw(st.integers(0, plan.num_steps))
    ranks = [list(read_rank(plan, schema, rank, world_size, start)) for rank in range(world_size)]
    assert {len(batches) for batches in ranks} == {plan.num_steps - start}
    assert {len(b.labels) for batches in ranks for b in batches} <= {plan.local_batch_rows(world_size)}
    for whole, *parts in zip(alone[start:], *ranks, strict=True):
        assert {part.step for part in parts} == {whole.step}
        assert merge(parts) == rows_of(whole)
        np.testing.assert_array_equal(np.sum([part.counts for part in parts], axis=0), whole.counts)


def test_a_stepwise_count_is_exact(days: Any, schema: Schema) -> None:
    days.write({"a.parquet": tagged(0, 10)}, row_group_size=7)
    batches = days.batches(schema, batch_rows=5)
    null = count_names(schema).index("sparse/user/null")
    assert [batch.counts[null] for batch in batches] == [1, 1]
    assert [batch.num_rows for batch in batches] == [5, 5]


def test_one_huge_row_group_among_small_streams(layouts: Any, schema: Schema, read_rank: Any) -> None:
    plan = plan_increment(
        layouts([(20_000, 20_000)]), batch_rows=900, num_streams=3, seed=0, order="file", task_rows=100
    )
    starts = [next(iter(read_rank(plan, schema, v, 3, 4))).row_index[0] for v in range(3)]
    assert starts[1] - starts[0] == starts[2] - starts[1]
    assert len(merge([b for v in range(3) for b in read_rank(plan, schema, v, 3)])) == 20_000


def test_every_bag_of_every_feature_may_be_empty(days: Any, schema: Schema) -> None:
    """pytorch/FBGEMM#3750: an ordinary batch, with no ids."""
    days.write({"a.parquet": {"label": [1, 0], "price": [1.0, 2.0], "user": pa.nulls(2), "tags": [[], None]}})
    [batch] = days.batches(schema)
    assert (batch.num_rows, batch.values.tolist(), batch.lengths.tolist()) == (2, [], [[0] * 4] * 2)


# --- types that differ between files

PRICES = [pa.array([None, None], pa.null()), pa.array([1.5, 2.5], pa.float64()), pa.array([3, 4], pa.int32())]
TEXTS = [pa.array(["x", "y"]), pa.array(["y", "x"]).dictionary_encode(), pa.array([b"x", None], pa.binary())]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_types_are_those_declared_whichever_file_comes_first(days: Any, make_schema: MakeSchema, order: Any) -> None:
    """ray-project/ray#39548: null-typed, int and double; string and dictionary: the same ids, in every order."""
    schema = make_schema(sparse=[{"name": "item", "type": "string"}])
    files = {
        f"{position}.parquet": {"label": [0, 1], "price": PRICES[index], "item": TEXTS[index]}
        for position, index in enumerate(order)
    }
    days.write(files)
    [batch] = days.batches(schema, batch_rows=6)
    prices = [price or 0.0 for index in order for price in PRICES[index].to_pylist()]
    assert batch.dense[:, 0].tolist() == prices
    texts = [text for index in order for text in TEXTS[index].cast(pa.binary()).to_pylist()]
    assert batch.lengths.tolist() == [[int(text is not None) for text in texts]]
    x_and_y = dict(zip([text for text in texts if text is not None], batch.values.tolist(), strict=True))
    assert batch.values.tolist() == [x_and_y[text] for text in texts if text is not None]
    assert len(set(x_and_y.values())) == 2


def test_an_optional_column_may_be_missing_in_some_files(days: Any, make_schema: MakeSchema) -> None:
    schema = make_schema(
        dense=[{"name": "price", "required": False, "fill": 9.0}], sparse=[{"name": "user", "required": False}]
    )
    days.write(
        {
            "a.parquet": {"label": [0], "price": [1.0]},
            "b.parquet": {"label": [1], "user": [5]},
            "c.parquet": {"label": [1]},
        }
    )
    [batch] = days.batches(schema)
    assert batch.dense[:3, 0].tolist() == [1.0, 9.0, 9.0]
    assert batch.lengths.tolist() == [[0, 1, 0, 0]]
    counts = dict(zip(count_names(schema), batch.counts.tolist(), strict=True))
    assert counts["dense/price/missing_column_rows"] == counts["sparse/user/missing_column_rows"] == 2


@pytest.mark.parametrize("many", [False, True])
def test_a_string_column_may_be_missing_or_null_throughout(days: Any, make_schema: MakeSchema, many: bool) -> None:
    schema = make_schema(sparse=[{"name": "item", "type": "string", "many": many, "required": False}])
    texts = [["x"]] if many else ["x"]
    one = {"label": [0], "price": [1.0]}
    days.write({"a.parquet": one, "b.parquet": {**one, "item": pa.nulls(1)}, "c.parquet": {**one, "item": texts}})
    [batch] = days.batches(schema)
    assert batch.lengths.tolist() == [[0, 0, 1, 0]]


def test_string_dictionaries_of_a_large_row_group(days: Any, make_schema: MakeSchema) -> None:
    schema = make_schema(sparse=[{"name": "item", "type": "string"}, {"name": "tags", "type": "string", "many": True}])
    texts = [f"item {i % 700}" for i in range(20_000)]
    columns = {"label": [0] * 20_000, "price": [0.0] * 20_000, "item": texts, "tags": [[t] for t in texts]}
    days.write({"a.parquet": columns}, row_group_size=20_000)
    ids: dict[str, set[int]] = {}
    for batch in days.batches(schema, batch_rows=1000):
        item, tags = batch.values.reshape(2, -1)
        assert (item == tags).all()
        for row, value in zip(batch.row_index.tolist(), item.tolist(), strict=True):
            ids.setdefault(texts[row], set()).add(value)
    assert len(ids) == 700
    assert all(len(values) == 1 for values in ids.values())


def test_lists_of_strings_are_read_over_the_borders_of_row_groups(days: Any, make_schema: MakeSchema) -> None:
    """Where Arrow itself gives up: "Nested data conversions not implemented for chunked array outputs"."""
    schema = make_schema(sparse=[{"name": "tags", "type": "string", "many": True}])
    bags = [["all", f"t{row}"][: row % 3] for row in range(100)]
    columns = {"label": [0] * 100, "price": [0.0] * 100, "tags": bags}
    values = []
    for group_rows in (7, 100):
        days.write({"a.parquet": columns}, row_group_size=group_rows)
        [batch] = days.batches(schema, batch_rows=100)
        assert batch.lengths.tolist() == [[row % 3 for row in range(100)]]
        values.append(batch.values.tolist())
    assert values[0] == values[1]


# --- what stops it


def bad_label(days: Any) -> None:
    rows = tagged(0, 8).set_column(0, "label", pa.array([0, 1, 0, 1, 0, 2, 1, 0]))
    days.write({"a.parquet": tagged(0, 8), "b.parquet": rows})


def test_a_bad_value_is_refused_with_its_file(days: Any, schema: Schema) -> None:
    bad_label(days)
    with pytest.raises(DataError, match=r"b\.parquet: column label \(label\)\n  found: 2 "):
        days.batches(schema)


def test_pages_cut_out_of_a_file_are_refused_with_its_name(days: Any, schema: Schema) -> None:
    """The footer is whole, the pages are not: seen only when the rows are read."""
    days.write({"a.parquet": tagged(0, 5000)}, row_group_size=5000)
    path = Path(days.path, "dt=2026-01-02", "a.parquet")
    content = bytearray(path.read_bytes())
    content[8 : len(content) // 2] = b"\xff" * (len(content) // 2 - 8)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet\n"):
        days.batches(schema)


@pytest.mark.parametrize("rows", [0, 5, 19, 21])
def test_a_file_that_changed_after_it_was_planned_is_refused(
    days: Any, schema: Schema, read_rank: Any, rows: int
) -> None:
    days.write({"a.parquet": tagged(0, 20)})
    plan = days.plan(schema)
    days.write({"a.parquet": tagged(0, rows)})
    with pytest.raises(DataError, match=r"a\.parquet\n  found: .*planned"):
        list(read_rank(plan, schema))


def test_a_file_that_vanished_is_refused(days: Any, schema: Schema, read_rank: Any) -> None:
    days.write({"a.parquet": tagged(0, 20)})
    plan = days.plan(schema)
    Path(days.path, "dt=2026-01-02", "a.parquet").unlink()
    with pytest.raises(DataError, match=r"a\.parquet"):
        list(read_rank(plan, schema))


# --- how batches cross processes


def test_a_batch_survives_its_block(days: Any, make_schema: MakeSchema) -> None:
    schema = make_schema(sparse=[{"name": "tags", "many": True}], event_time="t")
    times = pa.array([5, 7, 6], pa.timestamp("us"))
    for sizes in ([1, 0, 3], [300, 1, 2]):
        days.write(
            {"a.parquet": {"label": [0, 1, 1], "price": [1.0] * 3, "tags": [[1] * n for n in sizes], "t": times}}
        )
        [batch] = days.batches(schema)
        [back, again] = read_block(pa.concat_tables([batch.to_block()] * 2))
        assert (back.step, back.num_rows, back.watermark_us) == (0, 3, 7)
        for name in ("dense", "values", "lengths", "labels", "weights", "row_index", "counts"):
            np.testing.assert_array_equal(getattr(back, name), getattr(batch, name))
            np.testing.assert_array_equal(getattr(again, name), getattr(batch, name))
        assert back.lengths.tolist() == [[*sizes, 0]]


def test_an_error_crosses_in_the_place_of_a_batch() -> None:
    with pytest.raises(DataError, match="who"):
        list(read_block(error_block(DataError("who"))))


def test_what_reads_and_encodes_is_light() -> None:
    """Ray's read tasks start in a process each: they must not wait for torch, nor for Ray's own libraries."""
    code = "import sys, diurnal.data.read; print([m for m in ('torch', 'ray', 'pandas', 'mlflow') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"
