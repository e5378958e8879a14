"""The contract of columns: what looks alike, how files differ, and what a person is told to do about a type."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from diurnal.config import Schema
from diurnal.data.contract import Drift, Note, look_alike
from diurnal.data.footers import Footer, NoFooter, read_footer
from diurnal.data.partitions import survey_increment
from diurnal.data.row_groups import RowGroups, available_bytes
from diurnal.errors import Fault

DAY = "2026-01-02"
EIGHT = {"label": [0, 1] * 4, "price": [1.0] * 8, "user": list(range(8))}

MakeSchema = Callable[..., Schema]


@pytest.mark.parametrize(
    ("name", "candidates", "found"),
    [
        ("price", ["Price", "prize"], "Price"),
        ("user_id", ["item", "UserID"], "UserID"),
        ("user", ["item", "user_id"], "user_id"),
        ("label", ["labels"], "labels"),
        ("price", ["price_in_cents"], "price_in_cents"),
        ("price", ["colour", "ts"], None),
        ("click", [], None),
        ("ip", ["ip_address_v6_of_client"], None),
    ],
)
def test_a_renamed_column_is_known_again(name: str, candidates: list[str], found: str | None) -> None:
    assert look_alike(name, candidates) == found


def test_what_looks_alike_has_to_be_of_a_fitting_type(days: Any, make_schema: MakeSchema) -> None:
    columns = {**EIGHT, "Price": ["1"] * 8, "price_eur": [1.0] * 8}
    del columns["price"]
    days.write({"a.parquet": columns})
    [fault] = survey_increment(days.path, DAY, make_schema()).faults
    assert fault.fix.startswith('"price_eur" of this file')


@pytest.mark.parametrize(
    ("feature", "values", "kind", "fix"),
    [
        ({"many": True}, [[[1]]], pa.list_(pa.list_(pa.int64())), "one flat list"),
        ({"many": True}, [[{"id": 1}]], pa.list_(pa.struct([("id", pa.int64())])), "one flat list"),
        ({"many": True}, [[(1, 2.0)]], pa.map_(pa.int64(), pa.float64()), "its keys, or its values"),
        ({"many": True}, [1], pa.int64(), "many = false"),
        ({"many": True}, [["a"]], pa.list_(pa.string()), 'declare type = "string"'),
        ({}, [[1]], pa.list_(pa.int64()), "many = true"),
        ({}, [{"id": 1, "kind": 2}], pa.struct([("id", pa.int64()), ("kind", pa.int64())]), "(id, kind)"),
        ({"type": "string"}, [1.5], pa.float64(), "exact to 2^53"),
    ],
)
def test_a_type_that_cannot_be_read_has_a_fix_of_its_own(
    days: Any, make_schema: MakeSchema, feature: dict[str, Any], values: list[Any], kind: pa.DataType, fix: str
) -> None:
    days.write({"a.parquet": {"label": [1], "price": [1.0], "user": pa.array(values, kind)}})
    survey = survey_increment(days.path, DAY, make_schema(sparse=[{"name": "user", **feature}]))
    [fault] = survey.faults
    assert fix in fault.fix
    assert (len(survey.broken), survey.increment.num_rows) == (1, 1)


def test_what_changes_over_the_files_is_told_once(days: Any, make_schema: MakeSchema) -> None:
    schema = make_schema(dense=[{"name": "price"}, {"name": "bonus", "required": False}])
    days.write(
        {
            "a.parquet": {**EIGHT, "debug": [1] * 8},
            "b.parquet": {**EIGHT, "user": pa.array(range(8), pa.int32()), "bonus": [1.0] * 8},
            "c.parquet": {**EIGHT, "user": pa.array(range(8), pa.int32()), "Bonus": [1.0] * 8},
            "d.parquet": pa.table({**EIGHT, "price": pa.nulls(8)}).slice(0, 0),
        }
    )
    survey = survey_increment(days.path, DAY, schema)
    drift = Drift(schema)
    for name, footer in zip("abcd", survey.footers, strict=True):
        drift.add(name, footer)
    optional, types, extra = map(str, drift.notes())
    assert "column bonus: optional, and missing in 3 of 4 files: 16 rows" in optional
    assert '"Bonus" looks like it' in optional
    assert "column user: stored in 2 types" in types
    assert "int64 in 1 of 4 files, first a; int32 in 2 of 4 files, first b" in types
    assert extra.endswith("nobody reads them: debug (1 of 4 files), Bonus (1 of 4 files)")


def test_faults_that_are_the_same_are_told_once(days: Any, make_schema: MakeSchema) -> None:
    """A column that two inputs are made of."""
    days.write({"a.parquet": {"label": [1], "user": [1]}})
    schema = make_schema(dense=[{"name": "price"}, {"name": "cost", "column": "price", "transform": "sqrt"}])
    assert len(survey_increment(days.path, DAY, schema).faults) == 1


def test_a_file_without_a_label_is_told_so(days: Any, make_schema: MakeSchema) -> None:
    days.write({"a.parquet": {"label": pa.nulls(3), "price": [1.0] * 3, "user": [1, 2, 3]}})
    [fault] = survey_increment(days.path, DAY, make_schema()).faults
    assert fault.found == "no value in any of its 3 rows (the type is null)"
    assert fault.fix == "write the labels, or take the file out"


def test_how_a_writer_stores_the_same_values_is_no_news(days: Any, make_schema: MakeSchema) -> None:
    """Writers choose dictionaries, large types and views; integers of another width are worth a word."""
    words = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
    lists = [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.string_view()), pa.list_(words[3])]
    schema = make_schema(
        sparse=[
            {"name": "word", "type": "string"},
            {"name": "tags", "type": "string", "many": True, "max_length": 3},
            {"name": "user"},
        ],
        tables=[{"name": name, "rows": 8, "dim": 4} for name in ("word", "tags", "user")],
    )
    drift = Drift(schema)
    for i, (word, tags) in enumerate(zip(words, lists, strict=True)):
        kinds = {"label": pa.int8(), "price": pa.float64(), "word": word, "tags": tags}
        kinds["user"] = pa.int32() if i else pa.int64()
        drift.add(f"{i}.parquet", Footer(cast(Any, SimpleNamespace(num_rows=3)), pa.schema(kinds)))
    assert [note.where for note in drift.notes()] == ["column user"]


# --- row groups and memory


def test_a_row_group_is_measured_against_the_memory_of_a_worker(days: Any, make_schema: MakeSchema) -> None:
    columns = {"label": [0, 1] * 500, "price": [i / 7 for i in range(1000)], "user": [i * i for i in range(1000)]}
    days.write({"a.parquet": {**columns, "unread": [str(i) * 50 for i in range(1000)]}}, row_group_size=900)
    schema = make_schema()
    [footer] = survey_increment(days.path, DAY, schema).footers
    rows, size = footer.largest_group({"label", "price", "user"})
    assert (rows, 900 * 8 < size < 900 * 30) == (900, True)

    def measured(memory_bytes: int) -> tuple[list[Fault], list[Note]]:
        groups = RowGroups(schema, memory_bytes, 2)
        for name in ("a.parquet", "b.parquet"):
            groups.add(name, footer)
        return groups.faults, list(groups.notes())

    assert measured(4 * size * 2) == ([], [])
    faults, [note] = measured(2 * size)
    assert faults == []
    assert "write row groups of at most 225 rows (such are in 2 files" in note.text
    [fault, _], notes = measured(2 * size - 2)
    assert notes == []
    assert "900 rows" in fault.found
    assert "workers.max" in fault.fix


def test_this_machine_has_memory_left() -> None:
    left = available_bytes()
    assert left is not None
    assert 1 << 20 < left < 1 << 50


# --- what cannot be read


class Flaky(io.FileIO):
    """A file of a storage that gives no bytes for the first so many times that it is asked."""

    def __init__(self, path: str, failures: int) -> None:
        super().__init__(path)
        self._failures = failures

    def read(self, size: int | None = -1, /) -> bytes:
        self._failures -= 1
        if self._failures >= 0:
            raise OSError("the storage does not answer")
        return super().read(-1 if size is None else size)


@pytest.mark.parametrize(
    ("content", "failures", "outcome"), [("whole", 1, "read"), ("whole", 99, "storage"), ("cut", 0, "content")]
)
def test_a_storage_that_fails_is_not_taken_for_a_bad_file(days: Any, content: str, failures: int, outcome: str) -> None:
    """Only content that is no Parquet may be left out by a quarantine."""
    days.write({"a.parquet": EIGHT})
    path = f"{days.path}/dt={DAY}/a.parquet"
    if content == "cut":
        os.truncate(path, os.path.getsize(path) // 2)
    storage = SimpleNamespace(open_input_file=lambda path: pa.PythonFile(Flaky(path, failures), mode="r"))
    footer = read_footer(storage, SimpleNamespace(path=path))  # pyright: ignore[reportArgumentType]
    if outcome == "read":
        assert isinstance(footer, Footer)
    else:
        assert isinstance(footer, NoFooter)
        assert footer.is_content == (outcome == "content"), footer.reason
