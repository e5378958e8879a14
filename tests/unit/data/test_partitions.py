"""Folders and footers: what counts as data, what is refused, and what the message says."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import Schema
from diurnal.data.partitions import Increment, is_ready, list_increments
from diurnal.errors import DataError

DAY = "2026-01-02"
EIGHT = {"label": [0, 1] * 4, "price": [1.0] * 8, "user": list(range(8))}


@pytest.fixture
def schema(make_schema: Callable[..., Schema]) -> Schema:
    return make_schema()


def faults_of(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(DataError) as caught:
        call()
    return [str(fault) for fault in caught.value.faults]


# --- which increments there are


def test_days_and_hours_in_order_of_time(days: Any, schema: Schema) -> None:
    for name in ("dt=2026-01-10", "dt=2026-01-02/hr=05", "dt=2026-01-02/hr=23", "dt=2025-12-31", "_delta_log", "other"):
        days.folder(name)
    assert list_increments(days.path, schema) == ["2025-12-31", "2026-01-02T05", "2026-01-02T23", "2026-01-10"]


@pytest.mark.parametrize(
    "name", ["dt=20260102", "dt=2026-02-30", "dt=2026-1-2", "dt=", "dt=2026-01-02/hr=5", "dt=2026-01-02/hr=24"]
)
def test_a_folder_that_is_no_date_or_hour_is_refused(days: Any, schema: Schema, name: str) -> None:
    days.folder("dt=2026-01-01")
    days.folder(name)
    [fault] = faults_of(lambda: list_increments(days.path, schema))
    assert name in fault


def test_files_beside_hours_are_refused(days: Any, schema: Schema) -> None:
    days.write({"a.parquet": EIGHT})
    days.folder(f"dt={DAY}/hr=01")
    assert "beside hr=HH folders" in faults_of(lambda: list_increments(days.path, schema))[0]


def test_a_dataset_that_does_not_exist(days: Any, schema: Schema) -> None:
    assert "no folder" in faults_of(lambda: list_increments(days.path + "/nowhere", schema))[0]
    assert list_increments(days.path, schema) == []


# --- whether one is complete


def test_ready_by_marker(days: Any, schema: Schema) -> None:
    assert is_ready(days.path, DAY, schema) == (False, f"there is no folder {days.path}/dt={DAY}")
    folder = days.folder(f"dt={DAY}")
    assert is_ready(days.path, DAY, schema) == (False, "_SUCCESS is not there yet")
    (folder / "_SUCCESS").touch()
    assert is_ready(days.path, DAY, schema) == (True, "_SUCCESS is there")


def test_ready_by_age(days: Any, make_schema: Callable[..., Schema]) -> None:
    schema = make_schema(readiness={"rule": "age", "age_s": 60.0})
    days.folder(f"dt={DAY}")
    assert not is_ready(days.path, DAY, schema, now=1e9)[0]
    days.write({"a.parquet": EIGHT, "b.parquet": EIGHT})
    for name, time_s in (("a.parquet", 1000), ("b.parquet", 1030)):
        os.utime(f"{days.path}/dt={DAY}/{name}", (time_s, time_s))
    assert is_ready(days.path, DAY, schema, now=1089.0) == (False, "the newest file is 59 s old, 60 s are asked for")
    assert is_ready(days.path, DAY, schema, now=1090.0)[0]
    assert is_ready(days.path, DAY, schema)[0]


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (None, "_manifest.json is not there yet"),
        ("{", "_manifest.json is not readable yet"),
        ("[]", "_manifest.json is not a map of file names to row counts"),
        ({"a.parquet": 8, "b.parquet": 8}, "b.parquet of _manifest.json is not there yet"),
        ({}, "a.parquet is not in _manifest.json"),
        ({"a.parquet": 9}, "a.parquet has 8 rows, _manifest.json says 9"),
        ({"a.parquet": 8}, "all 1 files have the rows of _manifest.json"),
    ],
)
def test_ready_by_manifest(days: Any, make_schema: Callable[..., Schema], manifest: Any, reason: str) -> None:
    schema = make_schema(readiness={"rule": "manifest"})
    days.write({"a.parquet": EIGHT})
    if manifest is not None:
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        (days.folder(f"dt={DAY}") / "_manifest.json").write_text(text)
    ready, why = is_ready(days.path, DAY, schema)
    assert ready == reason.startswith("all")
    assert why.startswith(reason)


# --- what is in it


def test_an_increment_survives_json_and_knows_its_rows(days: Any, schema: Schema) -> None:
    days.write({"b.parquet": EIGHT, "a.parquet": EIGHT, "empty.parquet": pa.table(EIGHT).slice(0, 0)}, row_group_size=3)
    increment = days.increment(schema)
    assert [f.path.rpartition("/")[2] for f in increment.files] == ["a.parquet", "b.parquet", "empty.parquet"]
    assert increment.files[0].row_group_rows == (3, 3, 2)
    assert increment.num_rows == 16
    assert Increment.from_json(json.loads(json.dumps(increment.to_json()))) == increment


def test_an_hour_is_an_increment(days: Any, schema: Schema) -> None:
    pq.write_table(pa.table(EIGHT), days.folder(f"dt={DAY}/hr=05") / "a.parquet")
    assert days.increment(schema, f"{DAY}T05").num_rows == 8
    assert "a folder" in faults_of(lambda: days.increment(schema))[0]


@pytest.mark.parametrize("day", ["2026-01-03", "yesterday", "2026-01-02T24", "2026-02-30"])
def test_a_day_that_is_none(days: Any, schema: Schema, day: str) -> None:
    days.write({"a.parquet": EIGHT})
    assert len(faults_of(lambda: days.increment(schema, day))) == 1


def test_the_fingerprint_follows_names_sizes_and_rows(days: Any, schema: Schema) -> None:
    """What was trained is known again; five late rows, a renamed file or another file make it another increment."""
    days.write({"a.parquet": EIGHT})
    first = days.increment(schema).fingerprint
    assert len(first) == 32
    days.write({"a.parquet": EIGHT})
    assert days.increment(schema).fingerprint == first
    days.write({"a.parquet": pa.table(EIGHT).slice(0, 3)})
    fewer = days.increment(schema).fingerprint
    days.write({"b.parquet": EIGHT})
    more = days.increment(schema).fingerprint
    os.rename(f"{days.path}/dt={DAY}/b.parquet", f"{days.path}/dt={DAY}/c.parquet")
    assert len({first, fewer, more, days.increment(schema).fingerprint}) == 4


def test_a_required_column_that_is_missing_is_refused(days: Any, make_schema: Callable[..., Schema]) -> None:
    """Day 2 lacks a column (apache/arrow#35569): file, column and day are named; an optional one is noted."""
    days.write({"a.parquet": {"label": [0], "user": [1]}})
    [fault] = faults_of(lambda: days.increment(make_schema()))
    assert f"dt={DAY}/a.parquet: column price" in fault
    assert "no such column" in fault
    assert "required, declared as dense of type number" in fault
    optional = make_schema(dense=[{"name": "price", "required": False}])
    assert days.increment(optional).missing_optional == ("price",)


def test_all_faults_of_all_files_at_once(days: Any, make_schema: Callable[..., Schema]) -> None:
    schema = make_schema(weight="w", event_time="t", group_id="g")
    days.write(
        {
            "a.parquet": {"label": ["yes"], "price": ["1"], "user": [1.5], "w": ["1"], "t": [1], "g": [1]},
            "b.parquet": {"label": [1]},
        }
    )
    faults = faults_of(lambda: days.increment(schema))
    named = [fault.split("column ")[1].split("\n")[0] for fault in faults]
    assert named == ["label", "w", "t", "price", "user", "w", "t", "g", "price", "user"]
    assert all(f"/{name}.parquet" in fault for fault, name in zip(faults, "aaaaabbbbb", strict=True))


def typed(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


HARMLESS = [
    ("int64", typed([1], pa.int32())),
    ("int64", typed([1], pa.uint32())),
    ("int64", typed([True], pa.bool_())),
    ("int64", typed([1], pa.int64()).dictionary_encode()),
    ("int64", pa.nulls(1)),
    ("uint64", typed([1], pa.int64())),
    ("uint64", typed([1], pa.uint64())),
    ("string", typed(["a"], pa.large_string())),
    ("string", typed(["a"], pa.string()).dictionary_encode()),
    ("string", typed([b"a"], pa.binary())),
    ("string", pa.nulls(1)),
]
CONFLICTS = [
    ("int64", typed([1.0], pa.float64()), "double"),
    ("int64", typed(["1"], pa.string()), "string"),
    ("int64", typed([1], pa.uint64()), "uint64"),
    ("int64", typed([[1]], pa.list_(pa.int64())), "list<"),
    ("int64", typed([datetime.date(2026, 1, 1)], pa.date32()), "date32"),
    ("string", typed([1], pa.int64()), "int64"),
    ("uint64", typed(["1"], pa.string()), "string"),
]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("declared", "stored"), HARMLESS)
def test_harmless_encodings_are_accepted(
    days: Any, make_schema: Callable[..., Schema], declared: str, stored: pa.Array, many: bool
) -> None:
    if many and not pa.types.is_null(stored.type):
        stored = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), stored)
    days.write({"a.parquet": {"label": [1], "price": [1.0], "user": stored}})
    schema = make_schema(sparse=[{"name": "user", "type": declared, "many": many}])
    assert days.increment(schema).num_rows == 1


@pytest.mark.parametrize(("declared", "stored", "found"), CONFLICTS)
def test_conflicts_are_refused_with_both_types(
    days: Any, make_schema: Callable[..., Schema], declared: str, stored: pa.Array, found: str
) -> None:
    days.write({"a.parquet": {"label": [1], "price": [1.0], "user": stored}})
    schema = make_schema(sparse=[{"name": "user", "type": declared}])
    [fault] = faults_of(lambda: days.increment(schema))
    assert f"found: {found}" in fault
    assert f"declared as sparse of type {declared}\n" in fault


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int64(), pa.float16(), pa.float32(), pa.decimal128(9, 2), pa.bool_(), pa.null()]
)
def test_dense_columns_take_any_number(days: Any, schema: Schema, kind: pa.DataType) -> None:
    days.write({"a.parquet": {"label": [1], "price": pa.array([None], kind), "user": [1]}})
    assert days.increment(schema).num_rows == 1


def test_a_list_is_declared_as_one(days: Any, make_schema: Callable[..., Schema]) -> None:
    days.write({"a.parquet": {"label": [1], "price": [1.0], "user": [1]}})
    schema = make_schema(sparse=[{"name": "user", "many": True}])
    assert "list of int64" in faults_of(lambda: days.increment(schema))[0]


def test_a_label_that_is_null_throughout_is_refused_unless_there_are_no_rows(days: Any, schema: Schema) -> None:
    columns = {"label": pa.nulls(1), "price": [1.0], "user": [1]}
    days.write({"a.parquet": pa.table(columns).slice(0, 0)})
    assert days.increment(schema).num_rows == 0
    days.write({"b.parquet": columns})
    assert "column label" in faults_of(lambda: days.increment(schema))[0]


def test_a_column_that_is_there_twice_is_refused(days: Any, schema: Schema) -> None:
    table = pa.Table.from_arrays([pa.array([1])] * 4, names=["label", "price", "user", "user"])
    days.write({"a.parquet": table})
    assert "2 columns of this name" in faults_of(lambda: days.increment(schema))[0]


# --- what is not data


def spoil(days: Any) -> None:
    """A folder as a dead upstream job leaves it."""
    ten = {"label": [0, 1] * 5, "price": [1.0] * 10, "user": list(range(10))}
    days.write({"a.parquet": ten, "c.parquet": ten})
    folder = days.folder(f"dt={DAY}")
    content = (folder / "c.parquet").read_bytes()
    (folder / "c.parquet").write_bytes(content[: len(content) // 2])
    for name in (".a.parquet.crc", "_d.parquet", "e.parquet.tmp", "notes.txt"):
        (folder / name).write_text("no parquet")
    (days.folder(f"dt={DAY}/_temporary/0") / "b.parquet").write_text("half")


def test_markers_and_temporaries_are_never_opened_and_a_cut_file_is_named(days: Any, schema: Schema) -> None:
    """ray-project/ray#57704: exactly one bad file, no marker; by choice it is left out and counted."""
    spoil(days)
    [fault] = faults_of(lambda: days.increment(schema))
    assert fault.startswith(f"{days.path}/dt={DAY}/c.parquet")
    increment = days.increment(schema, on_bad_file="quarantine")
    assert increment.num_rows == 10
    assert [path.rpartition("/")[2] for path in increment.quarantined_files] == ["c.parquet"]


def test_quarantine_is_part_of_the_fingerprint(days: Any, schema: Schema) -> None:
    spoil(days)
    with_bad_file = days.increment(schema, on_bad_file="quarantine").fingerprint
    (days.folder(f"dt={DAY}") / "c.parquet").unlink()
    assert days.increment(schema).fingerprint != with_bad_file


def test_quarantine_is_for_unreadable_files_only(days: Any, schema: Schema) -> None:
    days.write({"a.parquet": {"label": [1], "price": [1.0], "user": ["x"]}})
    assert len(faults_of(lambda: days.increment(schema, on_bad_file="quarantine"))) == 1


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 3, b"\0" * 100])
def test_what_is_no_parquet_is_a_bad_file(days: Any, schema: Schema, content: bytes) -> None:
    days.write({"a.parquet": EIGHT})
    (days.folder(f"dt={DAY}") / "z.parquet").write_bytes(content)
    assert "z.parquet" in faults_of(lambda: days.increment(schema))[0]
    assert days.increment(schema, on_bad_file="quarantine").num_rows == 8


def test_rows_in_a_folder_below_are_not_lost_in_silence(days: Any, schema: Schema) -> None:
    days.write({"a.parquet": EIGHT})
    days.folder(f"dt={DAY}/country=de")
    assert "country=de" in faults_of(lambda: days.increment(schema))[0]


def test_a_day_without_files_has_no_rows(days: Any, schema: Schema) -> None:
    days.write({})
    increment = days.increment(schema)
    assert (increment.num_rows, increment.files) == (0, ())


def test_a_dataset_may_be_a_url(days: Any, schema: Schema) -> None:
    days.write({"a.parquet": EIGHT})
    days.path = f"file://{days.path}"
    assert list_increments(days.path, schema) == [DAY]
    assert is_ready(days.path, DAY, schema)[0]
    assert days.increment(schema).num_rows == 8
    assert sum(batch.num_rows for batch in days.batches(schema)) == 8
