"""What is made of columns that nobody has described: which become inputs, as what, and which are left out and why."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config.features import TORCH_MODULE_NAMES
from diurnal.config.schema import Schema
from diurnal.data.guess.proposal import Proposal
from diurnal.data.guess.propose import MAX_TABLE_FLOATS, propose
from diurnal.data.guess.text import run_text, schema_text
from diurnal.errors import DataError


def inputs(proposal: Proposal, section: str) -> dict[str, dict[str, Any]]:
    return {entry.settings["name"]: entry.settings for entry in getattr(proposal, section)}


def left_out(proposal: Proposal) -> dict[str, str]:
    return {out.column: out.reason for out in proposal.left_out}


def as_schema(proposal: Proposal) -> Schema:
    return Schema.model_validate_json(json.dumps(proposal.schema()))


def test_a_plain_log_is_told_apart(invented: Any) -> None:
    def more(day: int, labels: np.ndarray) -> dict[str, Any]:
        rows = len(labels)
        return {
            "at": pa.array(invented.times(day, rows), pa.timestamp("us", "Asia/Tokyo")),
            "request": pa.array([f"{day}/{row}" for row in range(rows)]),
            "user_id": pa.array(np.arange(rows) % 50 + 10**12, pa.uint64()),
            "num_visits": pa.array(np.random.default_rng(day).poisson(4, rows), pa.int32()),
            "device": pa.array(["phone", "tablet", None] * (rows // 3)).dictionary_encode(),
            "price_band": pa.array(np.arange(rows) % 5),
            "tags": pa.array([list(range(row % 4)) for row in range(rows)], pa.list_(pa.int16())),
            "sample_weight": pa.array(1.0 + np.arange(rows) % 2),
        }

    schema = as_schema(propose(invented.days(more)))
    assert (schema.label.column, schema.weight, schema.event_time) == ("clicked", "sample_weight", "at")
    assert (schema.request_id, schema.group_id) == ("request", "user_id")
    assert [dense.name for dense in schema.dense] == ["cost", "num_visits"]
    sparse = {feature.name: feature for feature in schema.sparse}
    assert list(sparse) == ["who", "what", "user_id", "device", "price_band", "tags", "hour"]
    assert (sparse["user_id"].type, sparse["device"].type, sparse["what"].type) == ("uint64", "string", "int64")
    assert (sparse["tags"].many, sparse["tags"].max_length) == (True, 3)
    assert (sparse["hour"].mapping, sparse["hour"].source) == ("hour", "at")
    assert schema.readiness.rule == "marker"


def test_a_number_is_brought_to_mean_0_and_deviation_a_half(invented: Any) -> None:
    rng = np.random.default_rng(5)
    made = {
        "tail": lambda rows: rng.lognormal(4, 2, rows),
        "bell": lambda rows: rng.normal(1e6, 3.0, rows),
        "both": lambda rows: rng.standard_t(1, rows) * 50,
        "share": lambda rows: rng.beta(2, 5, rows),
    }
    path = invented.days(lambda day, labels: {name: make(len(labels)) for name, make in made.items()})
    proposal = propose(path)
    schema = as_schema(proposal)
    transforms = {dense.name: dense.transform for dense in schema.dense}
    assert transforms == {"cost": "log1p", "tail": "log1p", "bell": "none", "both": "symlog", "share": "none"}
    from diurnal.data.encode import encode

    encoded = [encode(piece, schema).dense for piece in proposal.survey.pieces]
    dense = np.concatenate(encoded)
    assert np.abs(dense.mean(axis=0)).max() < 0.01
    assert np.abs(dense.std(axis=0) - 0.5).max() < 0.01


def test_what_is_often_missing_is_filled_with_the_median_and_has_an_indicator(invented: Any) -> None:
    def more(day: int, labels: np.ndarray) -> dict[str, Any]:
        height = pa.array(np.arange(300) / 10, mask=np.arange(300) % 4 == 0)
        return {"height": height, "width": height} | ({"depth": np.arange(300) % 7 + 0.5} if day else {})

    proposal = propose(invented.days(more))
    dense = inputs(proposal, "dense")
    assert list(dense) == ["cost", "height", "height_missing", "width", "depth"]
    assert dense["height"]["fill"] == pytest.approx(15.0, abs=0.2)
    assert (dense["height_missing"]["transform"], dense["height_missing"]["shift"]) == ("missing", 0.25)
    assert dense["depth"]["required"] is False
    assert "in 2 of 3 files" in next(e.why for e in proposal.dense if e.settings["name"] == "depth")


def test_integers_are_amounts_or_names_by_their_name_and_then_by_their_values(invented: Any) -> None:
    rng = np.random.default_rng(1)
    made = {
        "age": rng.integers(18, 90, 300),
        "age_group": rng.integers(0, 40, 300),
        "zip": rng.integers(10_000, 10_200, 300),
        "num_ids": rng.integers(0, 90, 300),
        "kaufzahl": np.minimum(rng.zipf(1.5, 300) - 1, 100_000),  # no English name: its tail is long
        "gruppe": rng.integers(0, 12, 300),
        "temperatur": rng.integers(-20, 30, 300),
        "warenid": rng.integers(0, 2**40, 60)[rng.integers(0, 60, 300)],
        "flag": rng.integers(0, 2, 300),
    }
    proposal = propose(invented.days(lambda day, labels: made))
    assert list(inputs(proposal, "dense")) == ["cost", "age", "num_ids", "kaufzahl", "temperatur"]
    assert list(inputs(proposal, "sparse")) == ["who", "what", "age_group", "zip", "gruppe", "warenid", "flag"]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([{"a": 1}] * 300), "struct"),
        (pa.array([[("k", 1)]] * 300, pa.map_(pa.string(), pa.int64())), "map"),
        (pa.array([[[1]]] * 300), "no bag of ids"),
        (pa.array([[0.5, 1.5]] * 300), "each number as a column"),
        (pa.array([b"0123456789abcdef"] * 300, pa.binary(16)), "fixed size"),
        (pa.nulls(300), "null in every file"),
        (pa.array([None] * 300, pa.float64()), "no value"),
        (pa.array([7.5] * 300), "the value 7.5 in all 900 rows"),
        (pa.array([f"{row}.5" for row in range(300)]), "numbers written as text"),
        (pa.array([f"2026-01-01T00:00:{row % 60:02}" for row in range(300)]), "write them as timestamps"),
        (pa.array([f"{row:x}" for row in range(300)]), ""),
        (pa.array(np.arange(300, dtype=np.int32)), "counts the rows of a file"),
        (pa.array(np.arange(300) * 2.0**40 - 2.0**47).cast(pa.int64()), "negative id is no id"),
        (pa.array(np.arange(300, dtype=np.int32) % 60).cast(pa.date32()), "date"),
    ],
)
def test_what_cannot_be_an_input_is_left_out_with_its_reason(invented: Any, column: pa.Array, words: str) -> None:
    proposal = propose(
        invented.days(lambda day, labels: {"thing_key" if pa.types.is_int64(column.type) else "x": column})
    )
    if not words:
        assert "x" in inputs(proposal, "sparse")
        return
    (reason,) = left_out(proposal).values()
    assert words in reason
    assert words.split()[0] in schema_text(proposal)


def test_a_list_that_is_written_as_text_is_noticed(invented: Any) -> None:
    proposal = propose(invented.days(lambda day, labels: {"tags": [f"a{row % 9},b{row % 5}" for row in range(300)]}))
    assert "what is a list is better written as one" in next(
        e.why for e in proposal.sparse if e.settings["name"] == "tags"
    )


def test_times_that_are_not_timestamps_are_named(invented: Any) -> None:
    def more(day: int, labels: np.ndarray) -> dict[str, Any]:
        times = invented.times(day)
        return {
            "ms": times // 1000,
            "s": (times // 10**6).astype(np.float64),
            "local": pa.array(times + 8 * 3600 * 10**6, pa.timestamp("us")),
            "dt": pa.array([f"day {day}"] * 300),
            "visit": pa.array([f"{day}-{row // 2}" for row in range(300)]),
        }

    proposal = propose(invented.days(more))
    reasons = left_out(proposal)
    assert "milliseconds since 1970" in reasons["ms"]
    assert "seconds since 1970" in reasons["s"]
    assert "another time zone" in reasons["local"]
    assert "says the day" in reasons["dt"]
    assert "hardly one comes again" in reasons["visit"]
    assert "event_time" not in proposal.schema()


def test_columns_of_hostile_names_become_features_that_load(invented: Any) -> None:
    odd = [
        "été",
        "日本",
        "a b",
        "a.b",
        "a_b",
        "7up",
        "type",
        "forward",
        'say "hi"\n',
        "_x",
        "x" * 200,
        "-",
        "#c",
        "\x7f",
        "",
    ]
    ids = pa.array(np.arange(300) % 9)
    tables = []
    for day in range(2):
        base = invented.columns(day)
        tables.append(pa.table([*base.values(), *[ids] * len(odd)], names=[*base, *odd]))
        invented.write(tables[-1], day)
    proposal = propose(invented.path)
    schema = as_schema(proposal)
    assert {feature.source for feature in schema.sparse} == {"who", "what", *odd} - {""}
    assert "without a name" in left_out(proposal)[""]
    assert TORCH_MODULE_NAMES.isdisjoint(table.name for table in schema.tables)
    assert Schema.model_validate_json(json.dumps(_parsed(schema_text(proposal)))) == schema


def test_files_that_differ_are_taken_together(invented: Any) -> None:
    """apache/arrow#35569, ray-project/ray#39548: columns that come and go, and whose type follows the file."""
    for day, (price, code, mixed) in enumerate(
        [
            (pa.nulls(300), pa.array(["a", "b", "c"] * 100), pa.array(np.arange(300))),
            (pa.array(np.arange(300.0)), pa.array(["a", "b", "d"] * 100).dictionary_encode(), pa.array(["1"] * 300)),
            (pa.array(np.arange(300)), pa.array(["a", "b", "e"] * 100, pa.large_string()), pa.array(np.arange(300))),
        ]
    ):
        invented.write(invented.columns(day) | {"price": price, "code": code, "mixed": mixed}, day)
    proposal = propose(invented.path)
    assert "price" in inputs(proposal, "dense")
    assert inputs(proposal, "sparse")["code"]["type"] == "string"
    assert "files do not agree on its type" in left_out(proposal)["mixed"]
    assert "int64 in 2 files, string in 1 file" in left_out(proposal)["mixed"]


def test_without_numbers_and_without_ids_there_is_still_one_of_each(invented: Any, tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 300)
    invented.write({"y": labels, "a": rng.normal(size=300), "b": labels + rng.normal(size=300)})
    only_numbers = as_schema(propose(invented.path))
    (bucket,) = only_numbers.sparse
    assert (bucket.mapping, bucket.source, len(bucket.boundaries)) == ("bucketize", "b", 15)
    texts = type(invented)(tmp_path / "texts")
    texts.write({"y": labels, "a": pa.array([f"t{i % 9}" for i in range(300)])})
    only_texts = as_schema(propose(texts.path))
    assert [(d.name, d.required, d.fill) for d in only_texts.dense] == [("no_number", False, 1.0)]
    names = type(invented)(tmp_path / "names")
    names.write({"y": labels, "a": pa.array([f"t{i % 90}" for i in range(300)])})
    assert [(d.name, d.past) for d in as_schema(propose(names.path)).dense] == [("a_effect", "a")]
    integers = type(invented)(tmp_path / "integers")
    integers.write({"y": labels, "a": rng.integers(0, 9, 300), "b": rng.integers(0, 5, 300)})
    assert [dense.source for dense in as_schema(propose(integers.path)).dense] == ["b"]
    nothing = type(invented)(tmp_path / "nothing")
    nothing.write({"y": labels, "same": np.ones(300)})
    with pytest.raises(DataError, match=r"nothing to learn from \(same: the value 1 in all 300 rows"):
        propose(nothing.path)


def test_what_earlier_days_say_is_an_idea_that_loads_when_it_is_taken(invented: Any) -> None:
    proposal = propose(invented.days())
    assert [(idea.settings["name"], idea.settings["past"]) for idea in proposal.ideas] == [("who_effect", "who")]
    lines = schema_text(proposal).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("# Worth a try"))
    taken = [
        line.removeprefix("# ") if i > first and "what earlier" not in line else line for i, line in enumerate(lines)
    ]
    schema = Schema.model_validate_json(json.dumps(_parsed("\n".join(taken))))
    assert [dense.past for dense in schema.dense] == ["", "who"]


def test_three_hundred_columns(invented: Any) -> None:
    rng = np.random.default_rng(0)
    many = {f"f{i}": rng.integers(0, 10 + i, 300) if i % 2 else rng.normal(size=300) for i in range(300)}
    proposal = propose(invented.days(lambda day, labels: many, days=2))
    schema = as_schema(proposal)
    assert len(schema.dense) + len(schema.sparse) >= 290
    assert sum(table.rows * table.dim for table in schema.tables) <= MAX_TABLE_FLOATS


def test_a_run_has_the_size_of_its_days(invented: Any) -> None:
    for day in (0, 1, 4):
        folder = invented.write({}, day)
        pq.write_table(pa.table(invented.columns(day)).take(np.arange(30_000) % 300), folder / "part-0.parquet")
    proposal = propose(invented.path)
    assert proposal.batch_rows == 128
    assert proposal.days is not None
    assert proposal.days.settings == {"missing": "skip"}
    text = run_text(proposal, "x/schema.toml")
    assert 'missing = "skip"' in text
    assert _parsed(text)["data"] == {"path": invented.path, "schema_file": "x/schema.toml", "batch_rows": 128}


def _parsed(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)
