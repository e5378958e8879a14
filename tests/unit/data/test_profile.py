"""Profiles of increments: what is counted, that the cut into tasks does not matter, and that JSON keeps everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diurnal.config import Schema
from diurnal.data import tally
from diurnal.data.partitions import Increment, read_increment
from diurnal.data.profile import QUANTILES, MapTasks, Profile, ProfileTask, profile_increment
from diurnal.data.sketches import IdCounts, Moments
from diurnal.data.tally import Tally
from diurnal.errors import DataError

MakeSchema = Callable[..., Schema]


def make_day(rows: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, rows)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.table(
        {
            "label": pa.array(rng.integers(0, 2, rows)),
            "price": pa.array(rng.lognormal(3.0, 1.0, rows), mask=rng.random(rows) < 0.1),
            "user": pa.array(rng.integers(-5, 200, rows)),
            "shop": pa.array([f"shop {i}" if i else "" for i in rng.integers(0, 9, rows)]),
            "tags": pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 50, int(lengths.sum())))),
            "at": pa.array(1767312000 * 10**6 + rng.integers(0, 86400 * 10**6, rows), pa.timestamp("us")),
        }
    )


@pytest.fixture(scope="module")
def schema(make_schema: MakeSchema) -> Schema:
    sparse = [{"name": "user"}, {"name": "shop", "type": "string"}, {"name": "tags", "many": True}]
    return make_schema(sparse=sparse, event_time="at")


@pytest.fixture(scope="module")
def increment(tmp_path_factory: pytest.TempPathFactory, schema: Schema) -> Increment:
    root = tmp_path_factory.mktemp("days")
    folder = root / "dt=2026-01-02"
    folder.mkdir()
    for name, rows, group in (("a", 2500, 300), ("b", 700, 700), ("c", 1300, 110)):
        pq.write_table(make_day(rows, seed=rows), folder / f"{name}.parquet", row_group_size=group)
    return read_increment(str(root), "2026-01-02", schema)


def test_counts_are_exact(days: Any, make_schema: MakeSchema) -> None:
    schema = make_schema(
        dense=[{"name": "price"}, {"name": "late", "required": False}],
        sparse=[
            {"name": "user"},
            {"name": "row", "mapping": "identity"},
            {"name": "shop", "type": "string"},
            {"name": "tags", "many": True},
            {"name": "age", "type": "float", "mapping": "bucketize", "boundaries": [10.0, 20.0]},
        ],
        weight="w",
    )
    rows = {
        "label": [1, 0, 0, 1, 0],
        "w": [1.0, 2.0, 0.5, 1.0, -1.0],
        "price": [0.0, None, float("nan"), 4.0, 2.0],
        "user": pa.array([7, 7, None, -1, 8], pa.int64()),
        "row": [0, 1, 999, 1000, 1],
        "shop": ["x", "", None, "x", "y"],
        "tags": pa.array([[1, 1, -3], [], None, [None], [2]], pa.list_(pa.int64())),
        "age": [5.0, float("nan"), None, 15.0, 17.0],
    }
    days.write({"a.parquet": rows, "b.parquet": {**rows, "late": [1.0, 1.0, 1.0, 1.0, 1.0]}})
    profile = profile_increment(days.increment(schema), schema)

    assert (profile.rows, profile.positives, profile.negatives, profile.bad_labels) == (10, 4, 6, 0)
    assert profile.weight is not None
    assert profile.weight.negative == 2
    price, late = profile.dense["price"], profile.dense["late"]
    assert (price.null, price.nonfinite, price.fill, price.min, price.max) == (2, 2, 2, 0.0, 4.0)
    assert (price.mean, price.std) == (2.0, pytest.approx(np.std([0.0, 4.0, 2.0])))
    assert price.quantiles[QUANTILES.index(0.5)] == 2.0
    assert (late.missing, late.min) == (5, 1.0)
    no_id = {name: (one.no_id, one.ids, one.distinct) for name, one in profile.sparse.items()}
    assert no_id == {"user": (4, 6, 2), "row": (2, 8, 3), "shop": (4, 6, 2), "tags": (6, 6, 2), "age": (4, 6, 2)}
    assert profile.sparse["user"].top == (("7", 4 / 6), ("8", 2 / 6))
    assert profile.sparse["shop"].top == (("x", 4 / 6), ("y", 2 / 6))
    assert profile.sparse["tags"].top == (("1", 4 / 6), ("2", 2 / 6))
    assert profile.sparse["age"].top == (("1", 4 / 6), ("0", 2 / 6))


def test_labels_that_encoding_refuses_are_counted(days: Any, make_schema: MakeSchema) -> None:
    schema = make_schema()
    columns = {"price": [1.0] * 4, "user": [1] * 4}
    days.write({"a.parquet": {"label": [1.0, None, 2.0, float("nan")], **columns}})
    profile = profile_increment(days.increment(schema), schema)
    assert (profile.positives, profile.negatives, profile.bad_labels, profile.label_rate) == (1, 0, 3, 1.0)


def in_this_order(order: Callable[[list[ProfileTask]], list[ProfileTask]]) -> MapTasks:
    def map_tasks(run: Callable[[ProfileTask], Tally], tasks: Sequence[ProfileTask]) -> Iterable[Tally]:
        return [run(task) for task in order(list(tasks))]

    return map_tasks


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(task_rows=st.integers(1, 5000), seed=st.integers(0, 99), part=st.integers(0, 3), sample=st.integers(50, 9000))
def test_any_cut_into_tasks_in_any_order_gives_the_same_profile(
    increment: Increment, schema: Schema, task_rows: int, seed: int, part: int, sample: int
) -> None:
    whole = [increment, *increment.cut(3)][part]

    def shuffled(tasks: list[ProfileTask]) -> list[ProfileTask]:
        return [tasks[i] for i in np.random.default_rng(seed).permutation(len(tasks))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tally, "SAMPLE_ROWS", sample)
        patch.setattr(tally, "MAX_SKETCH_IDS", 64)
        once = profile_increment(whole, schema, threads=1)
        cut = profile_increment(whole, schema, map_tasks=in_this_order(shuffled), task_rows=task_rows)
    assert once.rows == whole.num_rows
    assert json.dumps(once.to_json()) == json.dumps(cut.to_json())


def test_parts_have_their_own_rows_and_the_time_of_the_folder(increment: Increment, schema: Schema) -> None:
    whole = profile_increment(increment, schema)
    parts = [profile_increment(part, schema) for part in increment.cut(4)]
    assert whole.time is not None
    assert whole.time.outside == 0
    assert [part.time and part.time.outside for part in parts] == [0] * 4
    for count in ("rows", "positives", "negatives"):
        assert sum(getattr(part, count) for part in parts) == getattr(whole, count)
    assert sum(part.sparse["tags"].ids for part in parts) == whole.sparse["tags"].ids


def test_progress_ends_with_all_rows(increment: Increment, schema: Schema) -> None:
    seen: list[tuple[int, int]] = []
    profile_increment(increment, schema, task_rows=500, on_progress=lambda done, rows: seen.append((done, rows)))
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1] == (4500, 4500)


def test_json_keeps_everything_and_stays_small(days: Any, make_schema: MakeSchema) -> None:
    names = [f"f{i:02}" for i in range(40)]
    schema = make_schema(sparse=[{"name": name, "type": "string"} for name in names])
    ids = [f"a rather long identifier of some page or other, number {i:09}" for i in range(3000)]
    days.write(
        {"a.parquet": {"label": [0, 1] * 1500, "price": [0.1] * 3000, **dict.fromkeys(names, ids)}},
        row_group_size=5000,
    )
    profile = profile_increment(days.increment(schema), schema)
    text = json.dumps(profile.to_json(), allow_nan=False)
    assert Profile.from_json(json.loads(text)) == profile
    assert len(text) < 200_000
    assert profile.sparse["f00"].distinct == pytest.approx(3000, rel=0.2)
    with pytest.raises(ValueError, match="format 0"):
        Profile.from_json({**profile.to_json(), "format": 0})


def test_an_empty_increment_has_a_profile(days: Any, make_schema: MakeSchema) -> None:
    schema = make_schema(event_time="at")
    columns = {"label": pa.array([], pa.int8()), "price": pa.array([], pa.float32()), "user": pa.array([], pa.int64())}
    days.write({"a.parquet": {**columns, "at": pa.array([], pa.timestamp("us"))}})
    profile = profile_increment(days.increment(schema), schema)
    assert (profile.rows, profile.label_rate, profile.dense["price"].mean) == (0, None, None)
    assert Profile.from_json(json.loads(json.dumps(profile.to_json()))) == profile


def test_a_file_that_was_written_anew_is_named(days: Any, make_schema: MakeSchema) -> None:
    schema = make_schema()
    days.write({"a.parquet": {"label": [0, 1], "price": [1.0, 2.0], "user": [1, 2]}})
    planned = days.increment(schema)
    days.write({"a.parquet": {"label": [0] * 99, "price": [1.0] * 99, "user": list(range(99))}})
    with pytest.raises(DataError, match=r"(?s)a\.parquet.*when it was planned"):
        profile_increment(planned, schema)


def test_quantiles_and_top_ids_of_a_sample_are_close(
    days: Any, make_schema: MakeSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "SAMPLE_ROWS", 4000)
    schema = make_schema()
    n = 40_000
    price = np.random.default_rng(1).permutation(n).astype(np.float64)
    user = np.where(np.arange(n) % 4 == 0, 1, np.arange(n) + 10)
    days.write({"a.parquet": {"label": np.arange(n) % 2, "price": price, "user": user}}, row_group_size=10_000)
    profile = profile_increment(days.increment(schema), schema)
    assert profile.dense["price"].quantiles == pytest.approx([q * n for q in QUANTILES], abs=0.04 * n)
    assert profile.sparse["user"].top[0] == ("1", pytest.approx(0.25, abs=0.03))
    assert profile.sparse["user"].distinct == pytest.approx(30_001, rel=0.15)


def test_naive_times_are_utc_wherever_the_machine_is(days: Any, make_schema: MakeSchema) -> None:
    times = [datetime(2026, 1, 2, 0, 0), datetime(2026, 1, 2, 23, 59), datetime(2026, 1, 3, 0, 0), None]
    columns = {"label": [0, 1, 0, 1], "price": [1.0] * 4, "user": [1] * 4}
    days.write({"a.parquet": {**columns, "at": pa.array(times, pa.timestamp("us"))}})
    schema = make_schema(event_time="at")
    code = (
        "import json, sys; from diurnal.config import Schema; from diurnal.data.partitions import read_increment; "
        "from diurnal.data.profile import profile_increment; schema = Schema.model_validate_json(sys.argv[2]); "
        "print(json.dumps(profile_increment(read_increment(sys.argv[1], '2026-01-02', schema), schema).to_json()))"
    )
    first = int(datetime(2026, 1, 2, tzinfo=UTC).timestamp()) * 10**6
    for zone in ("Pacific/Auckland", "America/Los_Angeles"):
        command = [sys.executable, "-c", code, days.path, schema.model_dump_json()]
        done = subprocess.run(command, env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True)
        time = Profile.from_json(json.loads(done.stdout)).time
        assert time is not None
        assert (time.null, time.outside, time.min_us, time.max_us) == (1, 1, first, first + 86400 * 10**6)


def test_moments_of_large_numbers_do_not_cancel() -> None:
    values = 1e9 + np.arange(1000.0) % 7
    pieces = [Moments() for _ in range(3)]
    for piece, part in zip(pieces, np.split(values, [10, 600]), strict=True):
        piece.add(part)
    total = Moments()
    for piece in reversed(pieces):
        total.merge(piece)
    assert total.mean_and_std() == pytest.approx((values.mean(), np.std(np.arange(1000.0) % 7)), rel=1e-12)


def test_new_ids_are_estimated_from_sketches() -> None:
    rng = np.random.default_rng(3)
    hashes = rng.integers(0, 2**64, 50_000, np.uint64)

    def sketch(ids: np.ndarray) -> Any:
        counts = IdCounts(1024)
        for block in np.array_split(np.repeat(ids, 2), 7):
            counts.add(block)
        return counts.finish()

    today, before = sketch(hashes[20_000:50_000]), [sketch(hashes[:20_000]), sketch(hashes[10_000:38_000])]
    assert today.distinct == pytest.approx(30_000, rel=0.1)
    assert today.new_share(before, 30) == pytest.approx(12 / 30, abs=0.06)
    assert sketch(hashes[:100]).new_share([sketch(hashes[50:200])], 30) == 0.5
    assert sketch(hashes[:4000]).new_share([sketch(hashes[:0]), sketch(hashes)], 200) is None


def test_profiling_loads_neither_torch_nor_ray() -> None:
    code = "import diurnal.data.plausible, sys; print({'torch', 'ray', 'pandas', 'mlflow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert done.stdout.strip() == "set()"
