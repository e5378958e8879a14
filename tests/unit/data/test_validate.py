"""What `validate` does beside the defects of bad days: samples, many increments, quarantine, duplicates, its output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from diurnal.cli.main import main
from diurnal.config import Config, Schema
from diurnal.data.duplicates import find_duplicates
from diurnal.data.partitions import ParquetFile
from diurnal.data.validate import Validation, validate
from diurnal.data.values import look_at_values, slices
from diurnal.errors import DataError
from diurnal.testing_bad_days import DAY, SCHEMA, truncated, write_day

MakeSchema = Callable[..., Schema]


def config_of(root: Any, schema: Schema | None = None, **data: Any) -> Config:
    raw = {"path": str(root), "schema_file": "nowhere", "batch_rows": 1, **data}
    dataset = dict(SCHEMA) if schema is None else schema.model_dump(mode="json")
    return Config.model_validate_json(json.dumps({"name": "any", "data": raw, "dataset": dataset}))


def columns(rows: int, **others: Any) -> dict[str, Any]:
    return {"label": [0, 1] * (rows // 2), "price": np.arange(rows) / 4, "user": np.arange(rows), **others}


def texts_of(found: Validation) -> tuple[list[str], list[str]]:
    return [str(fault) for fault in found.faults], [str(note) for note in found.notes]


def test_weights_of_a_bag_are_looked_at(make_schema: MakeSchema, days: Any) -> None:
    schema = make_schema(sparse=[{"name": "user"}, {"name": "tags", "many": True, "weights": "scores"}])
    days.write({"a.parquet": columns(10, tags=[[1, 2]] * 10, scores=[[1.0, 2.0]] * 9 + [[1.0]])})
    (fault,) = validate(config_of(days.path, schema)).faults
    assert fault.where.endswith("a.parquet: column scores (weights of tags)")
    assert fault.found == "1 weights beside 2 ids (such are 1 of 10 rows)"


# --- which rows are looked at


@pytest.mark.parametrize("groups", [(100,), (1, 99), (0, 40, 0, 60), (10,) * 10, (7, 0, 93)])
@pytest.mark.parametrize("rows", [2, 9, 50, 99, 100, None])
def test_a_sample_is_of_the_size_that_is_asked_for(groups: tuple[int, ...], rows: int | None) -> None:
    for name in "abcdefgh":
        chosen = slices(ParquetFile(f"x/{name}.parquet", 1, groups), rows)
        seen = {(one.row_group, row) for one in chosen for row in range(one.start, one.stop)}
        total = sum(one.stop - one.start for one in chosen)
        assert len(seen) == total <= (rows or 100)
        assert all(row < groups[group] for group, row in seen)
        assert all(one.start < one.stop for one in chosen)
        assert chosen[0].start == 0
        if rows in (None, 100):
            assert total == 100


def test_samples_of_different_files_are_of_different_places() -> None:
    places = {slices(ParquetFile(f"x/{i}.parquet", 1, (1000,) * 50), 100)[-1].row_group for i in range(40)}
    assert len(places) > 15


def test_counts_are_over_all_blocks_and_name_the_first_value(days: Any, make_schema: MakeSchema) -> None:
    rows = 20_000
    labels = np.zeros(rows, np.int64)
    labels[[5, 9_000, 19_999]] = [3, 4, 5]
    users = np.arange(rows)
    users[[1, 12_000]] = -1
    schema = make_schema(sparse=[{"name": "user", "mapping": "identity", "unknown": "refuse"}])
    days.write({"a.parquet": columns(rows, label=labels, user=users)}, row_group_size=15_000)
    [found] = look_at_values(days.increment(schema), schema, None)
    label, user = found.faults()
    assert label.found == "3 in row 5, counted from 0 (such are 3 of the 20,000 rows looked at)"
    assert user.found == "1000 in row 1,000, counted from 0 (such are 18,999 of the 20,000 rows looked at)"
    assert found.counts["sparse/user/negative"] == 2
    [sample] = look_at_values(days.increment(schema), schema, 4000)
    assert sample.rows == 4000
    assert "of the 4,000 rows looked at" in next(sample.faults()).found


def test_spelled_labels_are_looked_at_as_they_are_encoded(days: Any, make_schema: MakeSchema) -> None:
    schema = make_schema(label={"column": "label", "positive": "yes", "negative": "no"})
    days.write({"a.parquet": columns(4, label=["yes", "no", "maybe", None])})
    [fault] = next(iter(look_at_values(days.increment(schema), schema, None))).faults()
    assert "maybe in row 2, counted from 0 (such are 2 of the 4 rows" in fault.found
    assert fault.rule == "every label is yes or no"


# --- many increments


def test_all_faults_of_all_days_come_at_once(days: Any, make_schema: MakeSchema) -> None:
    schema = make_schema(dense=[{"name": "price"}])
    days.write({"a.parquet": columns(8)}, "2026-01-01")
    days.write({"a.parquet": columns(8, label=[7] * 8), "b.parquet": columns(8, price=["1"] * 8)}, "2026-01-02")
    days.write({"a.parquet": columns(8, user=pa.array(range(8), pa.int32()))}, "2026-01-03")
    days.folder("dt=2026-01-04")
    days.folder("dt=20260105")
    found = validate(config_of(days.path, schema), memory_bytes=1 << 30)
    faults, notes = texts_of(found)
    assert [words in text for words, text in zip(("dt=20260105", "column price", "7 (such"), faults, strict=True)]
    assert [one.id for one in found.increments] == ["2026-01-01", "2026-01-03"]
    assert any("2026-01-04: not complete, so not looked at" in text for text in notes)
    assert any("user: stored in 2 types" in text for text in notes)
    assert found.rows_looked_at == 24


def test_an_increment_that_is_not_complete_is_refused_when_it_is_asked_for_or_overtaken(days: Any) -> None:
    root = Path(days.path)
    write_day(root, lambda rows: rows)
    days.folder("dt=2026-01-01")
    [fault] = validate(config_of(root)).faults
    assert "2026-01-01" in fault.where
    days.folder("dt=2026-01-03")
    [fault] = validate(config_of(root), "2026-01-03").faults
    assert fault.found == "_SUCCESS is not there yet"
    with pytest.raises(DataError, match="no increment for 2026-01-09"):
        validate(config_of(root), "2026-01-09")


def test_a_remark_that_is_true_of_many_increments_is_told_once(days: Any, make_schema: MakeSchema) -> None:
    schema = make_schema(dense=[{"name": "price"}, {"name": "flag"}])
    for day in range(1, 5):
        rows = columns(40, flag=[1.0] * 40, price=[None] * 40 if day > 2 else [float("nan"), *range(39)])
        days.write({"a.parquet": rows}, f"2026-01-0{day}")
    notes = texts_of(validate(config_of(days.path, schema), memory_bytes=1 << 30))[1]
    told = [
        "price: dead, no value in any of 40 rows, as far as looked at; daily holds such a day (in 2 of 4 increments",
        "dense price: NaN, infinite, too large for 32 bits, or outside the transform's domain, so that ",
        "dense flag: the same in all rows looked at (in 4 of 4 increments, first: 2026-01-01)",
        "column price: stored in 2 types",
    ]
    assert all(any(text.startswith(words) for text in notes) for words in told), notes
    assert len(notes) == len(told)


def test_what_is_true_of_many_columns_is_told_once(days: Any, make_schema: MakeSchema) -> None:
    """A dump of a feature store has hundreds of columns, and eighteen of them some infinities."""
    names = [f"x{i}" for i in range(12)]
    schema = make_schema(dense=[{"name": name} for name in names])
    values = np.where(np.arange(40) == 3, np.inf, np.arange(40.0))
    days.write({"a.parquet": columns(40, **dict.fromkeys(names, values))})
    _, notes = texts_of(validate(config_of(days.path, schema)))
    [note] = [note for note in notes if "NaN" in note]
    assert note.startswith("12 columns: NaN, infinite")
    assert "dense x0 (1), dense x1 (1)" in note
    assert "and 4 more, of 40 rows looked at (first: " in note


def test_a_clock_that_stands_still_within_an_hour_is_no_news(days: Any, make_schema: MakeSchema) -> None:
    schema = make_schema(
        sparse=[{"name": "hour", "column": "at", "type": "timestamp", "mapping": "hour"}],
        tables=[{"name": "hour", "rows": 24, "dim": 4}],
    )
    days.write({"a.parquet": columns(40, at=pa.array([10**15] * 40, pa.timestamp("us")))})
    _, notes = texts_of(validate(config_of(days.path, schema)))
    assert not [note for note in notes if "hour" in note]


def test_a_day_of_one_damaged_file_is_not_called_empty(days: Any, make_schema: MakeSchema) -> None:
    days.write({"a.parquet": columns(8)})
    days.write({"a.parquet": columns(8)}, "2026-01-03")
    path = Path(days.path) / "dt=2026-01-03" / "a.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    faults, notes = texts_of(validate(config_of(days.path, make_schema())))
    assert len(faults) == 1
    assert not [note for note in notes if "without a row" in note]


def test_hours_that_are_no_hours_and_parts(days: Any, make_schema: MakeSchema) -> None:
    for name in ("hr=04", "hr=05"):
        days.folder(f"dt=2026-01-02/{name}")
        days.write({"a.parquet": columns(8)}, f"2026-01-02/{name}")
    days.folder("dt=2026-01-02/hour=06")
    found = validate(config_of(days.path, make_schema(), parts=2), "2026-01-02T05")
    assert [(one.id, one.num_rows) for one in found.increments] == [
        ("2026-01-02T05P01of02", 4),
        ("2026-01-02T05P02of02", 4),
    ]
    assert any("as only folders hr=HH are: hour=06" in text for text in texts_of(found)[1])


def test_a_file_that_cannot_be_read_is_left_out_when_that_is_asked_for(tmp_path: Path) -> None:
    """ray-project/ray#57704."""
    write_day(tmp_path, lambda rows: rows, lambda rows: rows)
    truncated(tmp_path)
    assert "on_bad_file" in validate(config_of(tmp_path)).faults[0].fix
    found = validate(config_of(tmp_path, on_bad_file="quarantine"))
    assert found.faults == ()
    assert (found.num_rows, len(found.increments[0].quarantined_files)) == (20, 1)
    assert "b.parquet: left out, since it cannot be read" in texts_of(found)[1][0]


# --- request ids


@pytest.mark.parametrize("max_hashes", [1 << 24, 100, 17])
def test_duplicates_are_counted_exactly_in_any_memory(days: Any, make_schema: MakeSchema, max_hashes: int) -> None:
    schema = make_schema(request_id="r")
    rng = np.random.default_rng(5)
    requests = [[None if r == 0 else int(r) for r in rng.integers(0, 400, 120)] for _ in range(4)]
    for day, (first, second) in (("2026-01-01", requests[:2]), ("2026-01-02", requests[2:])):
        days.write({"a.parquet": columns(120, r=first), "b.parquet": columns(120, r=second)}, day)
    before, increment = (days.increment(schema, day) for day in ("2026-01-01", "2026-01-02"))
    found = find_duplicates(increment, before, "r", max_hashes=max_hashes)
    ids = [r for r in requests[2] + requests[3] if r is not None]
    earlier = {r for r in requests[0] + requests[1] if r is not None}
    assert found.within == len(ids) - len(set(ids)) > 0
    assert found.again == sum(r in earlier for r in ids) > 0
    assert found.example.startswith("'")
    assert find_duplicates(increment, None, "r", max_hashes=max_hashes).again == 0


def test_duplicates_need_a_column_and_look_at_the_day_before(tmp_path: Path, make_schema: MakeSchema) -> None:
    write_day(tmp_path, lambda rows: rows)
    write_day(tmp_path, lambda rows: rows, day="2026-01-01")
    assert validate(config_of(tmp_path), DAY, duplicates=True).faults == ()
    without = Schema.model_validate({**config_of(tmp_path).dataset.model_dump(), "request_id": ""})
    [fault] = validate(config_of(tmp_path, without), DAY, duplicates=True).faults
    assert "request_id" in fault.fix
    days = tmp_path / "again"
    write_day(days, lambda rows: rows, lambda rows: rows)
    (days / f"dt={DAY}").rename(days / "dt=2026-01-01")
    write_day(days, lambda rows: rows)
    [fault] = validate(config_of(days), DAY, duplicates=True).faults
    assert "20 with one of the increment before" in fault.found


# --- the command


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    schema = tmp_path / "schema.toml"
    lines = [f"{key} = {json.dumps(SCHEMA[key])}" for key in ("weight", "event_time", "request_id")]
    for kind in ("dense", "sparse", "tables"):
        for entry in SCHEMA[kind]:
            lines += [f"[[{kind}]]", *(f"{key} = {json.dumps(value)}" for key, value in entry.items())]
    schema.write_text("\n".join(lines))
    config = tmp_path / "run.toml"
    data = f'path = "{tmp_path / "days"}"\nschema_file = "{schema}"'
    config.write_text(f'name = "any"\n[data]\n{data}\nbatch_rows = 4\n')

    def call(*more: str) -> Any:
        return CliRunner().invoke(main, ["validate", "--config", str(config), *more])

    return call


def test_the_command_tells_a_line_an_increment_and_notes(run: Callable[..., Any], tmp_path: Path) -> None:
    write_day(tmp_path / "days", lambda rows: rows, lambda rows: rows.append_column("debug", rows["item"]))
    done = run()
    assert done.exit_code == 0, done.output
    first, note, last = done.stdout.splitlines()
    assert first.split() == [DAY, "40", "rows", "2", "files"]
    assert note.startswith("note: columns: not in the schema, so that nobody reads them: bought (2 of 2 files)")
    assert note.endswith("debug (1 of 2 files)")
    assert last == "1 increments fit config and schema: 40 rows, of which 40 were looked at"
    told = json.loads(run("--json", "--rows", "8").stdout)
    assert told["increments"] == [{"increment": DAY, "rows": 40, "files": 2}]
    assert (told["rows_looked_at"], [note["where"] for note in told["notes"]]) == (16, ["columns"])


def test_the_command_ends_with_2_and_all_faults(run: Callable[..., Any], tmp_path: Path) -> None:
    write_day(tmp_path / "days", lambda rows: rows.drop_columns(["price"]), lambda rows: rows)
    truncated(tmp_path / "days")
    done = run("--json", "--duplicates")
    assert done.exit_code == 2
    told = json.loads(done.stdout)
    assert [fault["where"].rpartition("/")[2] for fault in told["error"]["faults"]] == [
        "a.parquet: column price",
        "b.parquet",
    ]
    assert told["increments"] == []
    assert "data: 2 faults" in done.stderr
    quarantined = run("--set", "data.on_bad_file=quarantine")
    assert quarantined.exit_code == 2
    assert "b.parquet: left out" in quarantined.stdout
