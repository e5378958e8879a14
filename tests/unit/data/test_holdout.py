"""Rows that are held out: kept from learning, copied, and learned by whoever comes next, each once."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import Schema
from diurnal.data import holdout, read
from diurnal.data.audit import RowAudit
from diurnal.data.holdout import slice_increment, write_slice
from diurnal.data.partitions import Increment, ParquetFile
from diurnal.data.read import read_batches
from diurnal.data.streams import Order, StreamPlan, plan_increment
from diurnal.errors import DataError

SPARSE = [{"name": "tag", "mapping": "identity"}]
TABLES = [{"name": "tag", "rows": 100_000, "dim": 4}]


def schema_of(make_schema: Any, **more: Any) -> Schema:
    return make_schema(dense=[{"name": "price"}], sparse=SPARSE, tables=TABLES, **more)


def files(days: Any, index: int, num_rows: int, requests: Any = None) -> str:
    tags = np.arange(num_rows) + 1000 * index
    columns = {"tag": tags, "price": tags / 7, "label": tags % 2, "extra": tags}
    table = pa.table(columns if requests is None else {**columns, "request": requests})
    half = num_rows // 2
    parts = {"a.parquet": table.slice(0, half), "b.parquet": table.slice(half)}
    return days.write(parts, f"2026-01-{index + 1:02}", 90)


def plan_of(increment: Increment, order: Order = "file") -> StreamPlan:
    return plan_increment(increment, batch_rows=24, num_streams=4, seed=3, order=order, task_rows=100)


def learned(plan: StreamPlan, schema: Schema, world_size: int, start: int = 0) -> tuple[list[list[int]], RowAudit]:
    """Tags of each global batch, sorted, and the audit of all ranks."""
    steps: list[list[int]] = [[] for _ in range(plan.num_steps)]
    audit = RowAudit()
    for rank in range(world_size):
        for task in plan.read_tasks(rank, world_size, start):
            for batch in read_batches(task, schema, plan.increment.path):
                assert len(batch.values) == batch.num_rows == np.count_nonzero(batch.row_index >= 0)
                assert not batch.weights[batch.num_rows :].any()
                steps[batch.step] += batch.values.tolist()
                audit.add(batch.row_index)
    return [sorted(step) for step in steps], audit


def expected(increment: Increment, world_size: int) -> RowAudit:
    audit = RowAudit()
    for rank in range(world_size):
        audit.merge(RowAudit.expected_of(increment, rank, world_size))
    return audit


def path_of(file: ParquetFile) -> str:
    return unquote(urlsplit(file.path).path)


def tags_of(increment: Increment, schema: Schema) -> list[int]:
    steps, _ = learned(plan_of(increment), schema, 1)
    return [tag for step in steps for tag in step]


@pytest.mark.parametrize("order", ["file", "shuffled"])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_chain_of_increments_learns_every_row_once(
    days: Any, make_schema: Any, tmp_path: Path, order: Order, parts: int
) -> None:
    """Each learns what the one before it has held out, at any world size; the last slice is left over."""
    schema = schema_of(make_schema)
    counts: Counter[int] = Counter()
    joined: tuple[Any, ...] = ()
    for day, num_rows in ((0, 500), (1, 333), (2, 1)):
        whole = days.increment(schema, files(days, day, num_rows))
        for part in whole.cut(parts):
            path = str(tmp_path / "slices" / f"{part.id}.parquet")
            held_out = write_slice(part, schema, 0.2, 7, path)
            increment = replace(part, joined=joined, held_out=held_out)
            plan = plan_of(increment, order)
            steps, audit = learned(plan, schema, 1)
            for world_size in (2, 3, 4):
                assert learned(plan, schema, world_size)[0] == steps, "the same global batches"
                assert audit.verdict(expected(increment, world_size)) is None
            at = plan.num_steps // 2
            assert learned(plan, schema, 2, at)[0][at:] == steps[at:], "the rest of it"
            counts.update(tag for step in steps for tag in step)
            joined = held_out.files
            again = Increment.from_json(json.loads(json.dumps(increment.to_json())))
            assert again == increment
    left = Counter(tags_of(slice_increment(held_out, part), schema))
    every = [tag for day, num_rows in ((0, 500), (1, 333), (2, 1)) for tag in range(1000 * day, 1000 * day + num_rows)]
    assert counts + left == Counter(every)


def test_about_the_share_is_held_out_and_others_on_another_day(days: Any, make_schema: Any, tmp_path: Path) -> None:
    schema = schema_of(make_schema)
    chosen = []
    for day in (0, 1):
        increment = days.increment(schema, files(days, day, 900))
        held_out = write_slice(increment, schema, 0.1, 7, str(tmp_path / f"{day}.parquet"))
        assert 60 <= held_out.num_rows <= 120, "0.1 of 900, five standard deviations"
        tags = tags_of(slice_increment(held_out, increment), schema)
        assert len(tags) == held_out.num_rows
        chosen.append({tag % 1000 for tag in tags})
        again = write_slice(increment, schema, 0.1, 7, str(tmp_path / f"{day}.parquet"))
        assert again == held_out
    assert chosen[0] != chosen[1]
    assert sorted(path.name[:2] for path in tmp_path.glob("*.parquet")) == ["0-", "1-"], "nothing beside the files"


@pytest.mark.parametrize(
    "spell",
    [
        lambda ids: pa.array(ids, pa.int64()),
        lambda ids: pa.array([i + 2**63 for i in ids], pa.uint64()),
        lambda ids: pa.array([f"r{i}" for i in ids]),
        lambda ids: pa.array([f"r{i}" for i in ids]).dictionary_encode(),
        lambda ids: pa.array([f"r{i}".encode() for i in ids], pa.binary()),
    ],
)
def test_the_rows_of_a_request_stay_together(days: Any, make_schema: Any, tmp_path: Path, spell: Any) -> None:
    schema = schema_of(make_schema, request_id="request")
    requests = [int(i) for i in np.random.default_rng(0).integers(0, 60, 600)]
    increment = days.increment(schema, files(days, 0, 600, spell(requests)))
    held_out = write_slice(increment, schema, 0.3, 7, str(tmp_path / "s.parquet"))
    kept = tags_of(replace(increment, held_out=held_out), schema)
    out = tags_of(slice_increment(held_out, increment), schema)
    assert sorted(kept + out) == list(range(600))
    assert {requests[tag] for tag in kept}.isdisjoint(requests[tag] for tag in out)
    assert 5 <= len({requests[tag] for tag in out}) <= 35


REQUESTS = np.random.default_rng(5).integers(1, 700, 6000).tolist()
UUIDS = [uuid.uuid5(uuid.NAMESPACE_OID, str(i)).bytes for i in REQUESTS]


def some(values: list[Any], nothing: Any = None) -> list[Any]:
    """Every fifth row has no request."""
    return [nothing if row % 5 == 2 else value for row, value in enumerate(values)]


@pytest.mark.parametrize(
    "spelled",
    [
        lambda: pa.array([None, *map(str, REQUESTS[1:])]),
        lambda: pa.array(some(list(map(str, REQUESTS)))),
        lambda: pa.array(some(list(map(str, REQUESTS)), "")),
        lambda: pa.array(some(list(map(str, REQUESTS)))).dictionary_encode(),
        lambda: pa.array(some(list(map(str, REQUESTS))), pa.string_view()),
        lambda: pa.array(some(UUIDS), pa.binary()),
        lambda: pa.array(some(UUIDS), pa.uuid()),
        lambda: pa.array(some(REQUESTS), pa.int32()),
        lambda: pa.array(some([2**64 - i for i in REQUESTS]), pa.uint64()),
        lambda: pa.array(some(list(map(float, REQUESTS)), float("nan"))),
        lambda: pa.array(some(REQUESTS), pa.timestamp("ns")),
    ],
    ids=["null", "nulls", "empty", "dictionary", "view", "bytes", "uuid", "int32", "uint64", "nan", "time"],
)
def test_rows_are_chosen_alike_in_whatever_pieces_they_are_read(
    days: Any, make_schema: Any, tmp_path: Path, monkeypatch: Any, spelled: Callable[[], pa.Array]
) -> None:
    """A piece with a row that has no request, and one without, must agree on all others."""
    schema = schema_of(make_schema, request_id="request")
    increment = days.increment(schema, files(days, 0, 6000, spelled()))
    held_out = write_slice(increment, schema, 0.3, 7, str(tmp_path / "s.parquet"))
    out = tags_of(slice_increment(held_out, increment), schema)
    for piece_rows in (8192, 7):
        monkeypatch.setattr(read, "_PIECE_ROWS", piece_rows)
        assert sorted(tags_of(replace(increment, held_out=held_out), schema) + out) == list(range(6000))
    chosen, without = set(out), set(range(2, 6000, 5))
    third = spelled().to_pylist()[2]
    if not third or third != third:
        assert 240 <= len(without & chosen) <= 480, "by position: 0.3 of 1200, more than seven deviations"
    for request in set(REQUESTS):
        rows = [row for row, each in enumerate(REQUESTS) if each == request and row % 5 != 2 and row]
        assert len(chosen.intersection(rows)) in (0, len(rows)), "the rows of a request stay together"


def test_a_request_id_that_is_no_single_value_is_refused(days: Any, make_schema: Any, tmp_path: Path) -> None:
    schema = schema_of(make_schema, request_id="request")
    day = files(days, 0, 40, pa.array([[1]] * 40))
    with pytest.raises(DataError, match=r"a\.parquet: column request\n"):
        days.increment(schema, day)
    increment = days.increment(schema_of(make_schema), day)
    with pytest.raises(DataError, match=r"a\.parquet: column request \(request_id\)"):
        write_slice(increment, schema, 0.3, 7, str(tmp_path / "s.parquet"))
    assert not list(tmp_path.glob("s*"))


def test_a_slice_that_was_named_stays_as_it_is(days: Any, make_schema: Any, tmp_path: Path) -> None:
    """A resume point names its slice, and the configuration may say something else when it is taken up."""
    schema = schema_of(make_schema)
    increment = days.increment(schema, files(days, 0, 900))
    before = write_slice(increment, schema, 0.1, 7, str(tmp_path / "s.parquet"))
    tags = tags_of(slice_increment(before, increment), schema)
    after = write_slice(increment, schema, 0.4, 7, str(tmp_path / "s.parquet"))
    assert after.num_rows > before.num_rows
    assert tags_of(slice_increment(before, increment), schema) == tags


def test_a_killed_writer_leaves_nothing_that_stays(days: Any, make_schema: Any, tmp_path: Path) -> None:
    schema = schema_of(make_schema)
    increment = days.increment(schema, files(days, 0, 500))
    folder = tmp_path / "slices"
    process = multiprocessing.get_context("fork").Process(target=_write_and_die, args=(increment, schema, folder))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not list(folder.glob("*.parquet")), "nothing that looks whole"
    held_out = write_slice(increment, schema, 0.3, 7, str(folder / "s.parquet"))
    assert [str(path) for path in folder.iterdir()] == [path_of(file) for file in held_out.files]


def _write_and_die(increment: Increment, schema: Schema, folder: Path) -> None:
    holdout._sync = lambda path: os.kill(os.getpid(), signal.SIGKILL)
    write_slice(increment, schema, 0.3, 7, str(folder / "s.parquet"))


def test_strings_are_chosen_alike_however_they_are_stored(days: Any, make_schema: Any, tmp_path: Path) -> None:
    schema = schema_of(make_schema, request_id="request")
    texts = pa.array([f"r{i % 50}" for i in range(300)])
    chosen = []
    for spelled in (texts, texts.dictionary_encode(), texts.cast(pa.large_string())):
        increment = days.increment(schema, files(days, 0, 300, spelled))
        held_out = write_slice(increment, schema, 0.3, 7, str(tmp_path / "s.parquet"))
        chosen.append(tags_of(slice_increment(held_out, increment), schema))
    assert chosen[0] == chosen[1] == chosen[2]


def test_a_row_without_a_request_is_chosen_by_its_position(days: Any, make_schema: Any, tmp_path: Path) -> None:
    schema = schema_of(make_schema, request_id="request")
    increment = days.increment(schema, files(days, 0, 800, pa.nulls(800, pa.int64())))
    held_out = write_slice(increment, schema, 0.25, 7, str(tmp_path / "s.parquet"))
    assert 140 <= held_out.num_rows <= 260, "not all or none of them"


def test_files_of_other_types_are_copied_apart_and_nothing_is_cast(days: Any, make_schema: Any, tmp_path: Path) -> None:
    schema = make_schema(
        dense=[{"name": "price", "required": False}], sparse=[{"name": "tag", "type": "uint64"}], tables=TABLES
    )
    wide = pa.table({"tag": pa.array(range(2**63, 2**63 + 50), pa.uint64()), "label": [0, 1] * 25, "price": [0.5] * 50})
    small = pa.table({"tag": pa.array(range(50), pa.int32()), "label": [0, 1] * 25})
    increment = days.increment(schema, days.write({"a.parquet": wide, "b.parquet": small}))
    held_out = write_slice(increment, schema, 0.5, 7, str(tmp_path / "s p.parquet"))
    assert len(held_out.files) == 2
    sliced = slice_increment(held_out, increment)
    assert sliced.num_rows == held_out.num_rows > 20
    assert len(tags_of(sliced, schema)) == held_out.num_rows, "read by their URLs"
    first = pq.read_table(path_of(held_out.files[0]))
    assert first["tag"].type == pa.uint64()
    assert min(first["tag"].to_pylist()) >= 2**63


def test_nothing_is_left_when_a_file_cannot_be_read(days: Any, make_schema: Any, tmp_path: Path, monkeypatch) -> None:
    schema = schema_of(make_schema)
    increment = days.increment(schema, files(days, 0, 500))
    broken = Path(increment.files[1].path)
    broken.write_bytes(broken.read_bytes()[:-200])
    monkeypatch.setattr(holdout, "GROUP_ROWS", 50)
    folder = tmp_path / "slices"
    with pytest.raises(DataError, match=r"b\.parquet"):
        write_slice(increment, schema, 0.5, 7, str(folder / "s.parquet"))
    assert list(folder.iterdir()) == []


def test_an_increment_without_rows_has_an_empty_slice(days: Any, make_schema: Any, tmp_path: Path) -> None:
    schema = schema_of(make_schema)
    increment = days.increment(schema, files(days, 0, 0))
    held_out = write_slice(increment, schema, 0.5, 7, str(tmp_path / "s.parquet"))
    assert (held_out.num_rows, slice_increment(held_out, increment).num_rows) == (0, 0)
    assert plan_of(replace(increment, held_out=held_out)).num_steps == 0
