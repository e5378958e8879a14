"""Criteo's layout: what becomes of a line, days, what is refused and by which line; all on generated rows."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import load_config, load_schema
from diurnal.data.encode import count_names, encode
from diurnal.data.partitions import list_increments
from diurnal.data.selection import select_increments

NUM_ROWS = 300


@pytest.fixture(scope="module")
def lines(criteo, tmp_path_factory) -> list[str]:
    """Generated lines, without line breaks."""
    out = tmp_path_factory.mktemp("criteo")
    assert criteo.generate.main(["--out", str(out), "--days", "1", "--rows-per-day", str(NUM_ROWS)]) == 0
    return (out / "day_0").read_text().splitlines()


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def convert(criteo, out: Path, *arguments: object) -> int:
    return criteo.convert.main(["--out", str(out), *map(str, arguments)])


def read_days(out: Path) -> list[pa.Table]:
    folders = sorted(out.glob("dt=*"))
    return [pa.concat_tables(pq.ParquetFile(f).read() for f in sorted(day.glob("*.parquet"))) for day in folders]


def by_hand(line: str) -> list[int | None]:
    fields = line.split("\t")
    return [int(field, 16 if index > 13 else 10) if field else None for index, field in enumerate(fields)]


def rows_of(table: pa.Table) -> list[list[int | None]]:
    return [list(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def test_lines_become_seven_equal_days_in_file_order(criteo, lines, tmp_path):
    assert convert(criteo, tmp_path / "out", write(tmp_path / "train.txt", lines)) == 0
    days = read_days(tmp_path / "out")
    assert [day.num_rows for day in days] == [43] * 6 + [42]
    assert rows_of(pa.concat_tables(days)) == [by_hand(line) for line in lines]
    assert list_increments(str(tmp_path / "out"), load_schema(criteo.folder / "schema.toml"))[0] == "2014-01-01"


def test_blocks_of_any_size_give_the_same_rows(criteo, lines, tmp_path):
    log = criteo.layout.log_of(write(tmp_path / "train.txt", lines))
    batches = list(criteo.layout.read_rows(log, block_bytes=3000))
    assert len(batches) > 10
    assert rows_of(pa.Table.from_batches(batches)) == [by_hand(line) for line in lines]


def test_packed_files_and_comma_separated_ones_with_a_header_are_the_same_rows(criteo, lines, tmp_path):
    packed = tmp_path / "day_0.gz"
    packed.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    header = ",".join(criteo.layout.COLUMNS)
    as_floats = [
        ",".join(f"{field}.0" if 0 < index < 14 and field else field for index, field in enumerate(line.split("\t")))
        for line in lines
    ]
    assert convert(criteo, tmp_path / "packed", packed) == 0
    assert convert(criteo, tmp_path / "commas", write(tmp_path / "sample.csv", [header, *as_floats]), "--days", 1) == 0
    for out in ("packed", "commas"):
        (day,) = read_days(tmp_path / out)
        assert rows_of(day) == [by_hand(line) for line in lines]


def test_files_of_the_1_tb_log_are_a_day_each(criteo, lines, tmp_path):
    files = [write(tmp_path / f"day_{number}", lines[: 10 * number + 1]) for number in (0, 2, 10)]
    assert convert(criteo, tmp_path / "out", *files, "--first-day", "2026-02-20") == 0
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == [
        "dt=2026-02-20",
        "dt=2026-02-22",
        "dt=2026-03-02",
    ]
    assert [day.num_rows for day in read_days(tmp_path / "out")] == [1, 21, 101]


def test_null_and_negative_mean_what_the_schema_says(criteo, lines, tmp_path):
    number_of = {name: index for index, name in enumerate(criteo.layout.COLUMNS)}
    rows = [line.split("\t") for line in lines[:3]]
    for row, value in zip(rows, ("-2", "", "0"), strict=True):
        row[number_of["I2"]] = row[number_of["I1"]] = value
        row[number_of["C1"]] = "" if value == "" else "ffffffff"
    convert(criteo, tmp_path / "out", write(tmp_path / "day_0", ["\t".join(row) for row in rows]))
    schema = load_schema(criteo.folder / "schema.toml")
    (increment,) = select_increments(str(tmp_path / "out"), schema, "2014-01-01", None)
    encoded = encode(pq.ParquetFile(increment.files[0].path).read(), schema)
    dense = {feature.name: encoded.dense[:, index] for index, feature in enumerate(schema.dense)}
    assert len(set(dense["I2"].tolist())) == 1
    assert dense["I1_missing"].tolist() == [0.0, 1.0, 0.0]
    assert encoded.lengths[0].tolist() == [1, 0, 1]
    counts = dict(zip(count_names(schema), encoded.counts.tolist(), strict=True))
    assert counts["sparse/C1/null"] == 1
    assert counts["sparse/C1/negative"] == 0


def test_generated_days_are_encoded_without_a_fault(criteo, lines, tmp_path):
    convert(criteo, tmp_path / "out", write(tmp_path / "train.txt", lines))
    schema = load_schema(criteo.folder / "schema.toml")
    increments = select_increments(str(tmp_path / "out"), schema, "2014-01-01", "2014-01-07")
    encoded = [encode(pq.ParquetFile(i.files[0].path).read(), schema) for i in increments]
    assert sum(part.num_rows for part in encoded) == NUM_ROWS
    assert all(np.isfinite(part.dense).all() for part in encoded)
    labels = [int(line[0]) for line in lines]
    assert np.concatenate([part.labels for part in encoded]).tolist() == labels
    assert 0.1 < np.mean(labels) < 0.5


def test_what_is_there_is_left_alone_and_what_is_lost_is_written_again(criteo, lines, tmp_path, capsys):
    file = write(tmp_path / "train.txt", lines)
    convert(criteo, tmp_path / "out", file)
    days = [out / "part-0000.parquet" for out in sorted((tmp_path / "out").iterdir())]
    before = [path.stat().st_mtime_ns for path in days]
    (days[3].parent / "_SUCCESS").unlink()
    (tmp_path / "out" / ".writing-dt=2014-01-05").mkdir()
    assert convert(criteo, tmp_path / "out", file) == 0
    after = [path.stat().st_mtime_ns for path in days]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True] * 3 + [False] + [True] * 3
    assert rows_of(pa.concat_tables(read_days(tmp_path / "out"))) == [by_hand(line) for line in lines]
    capsys.readouterr()
    convert(criteo, tmp_path / "out", write(file, lines[:-1]))
    assert "7 written now" in capsys.readouterr().out
    assert sum(day.num_rows for day in read_days(tmp_path / "out")) == NUM_ROWS - 1


def cut(line: str, column: int, value: str | None) -> str:
    fields = line.split("\t")
    fields[column : column + 1] = [] if value is None else [value]
    return "\t".join(fields)


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        (5, None, "39 fields"),
        (5, "1\t2", "41 fields"),
        (0, "2", "label is '2'"),
        (0, "", "label is ''"),
        (3, "7.5", "I3 is '7.5'"),
        (2, "1e3", "I2 is '1e3'"),
        (14, "12345", "C1 is '12345'"),
        (39, "0000000g", "C26 is '0000000g'"),
    ],
)
def test_a_bad_line_is_named_and_nothing_of_its_day_is_written(criteo, lines, tmp_path, capsys, column, value, says):
    bad = [*lines[:16], cut(lines[16], column, value), *lines[17:]]
    files = [write(tmp_path / "day_0", lines), write(tmp_path / "day_1", bad)]
    assert convert(criteo, tmp_path / "out", *files) == 2
    message = capsys.readouterr().err
    assert "day_1: line 17" in message
    assert says in message
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["dt=2014-01-01"]


def test_an_empty_line_is_refused(criteo, lines, tmp_path, capsys):
    assert convert(criteo, tmp_path / "out", write(tmp_path / "day_0", [*lines[:5], "", *lines[5:]])) == 2
    assert "day_0: line 6\n  found: 1 field" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["day_0", "train.txt", "day_0.gz", "train.txt.gz"])
@pytest.mark.parametrize("lost", ["a field", "digits", "a line break", "the stream's end"])
def test_a_file_that_is_cut_off_is_refused_by_its_last_line(criteo, lines, tmp_path, capsys, name, lost):
    content = "".join(f"{line}\n" for line in lines[:99]).encode()
    last = cut(lines[99], 39, "0badcafe").encode()
    content += {"a field": last[: last.rindex(b"\t")], "digits": last[:-3]}.get(lost, last)
    content = gzip.compress(content) if name.endswith(".gz") else content
    if lost == "the stream's end":
        incompressible = "".join(f"{random.Random(i).getrandbits(80):020x}\n" for i in range(99))
        content = gzip.compress(incompressible.encode())[:900] if name.endswith(".gz") else content
    (tmp_path / name).write_bytes(content)
    assert convert(criteo, tmp_path / "out", tmp_path / name) == 2
    message = capsys.readouterr().err
    assert f"{name}: line " in message
    if lost != "the stream's end" or not name.endswith(".gz"):
        assert "line 100\n" in message
    assert not list(tmp_path.glob("out/*"))


def test_files_that_do_not_belong_together_or_are_missing_are_refused(criteo, lines, tmp_path, capsys):
    files = [write(tmp_path / name, lines) for name in ("day_0", "train.txt")]
    assert convert(criteo, tmp_path / "out", *files) == 2
    assert "day_0, train.txt" in capsys.readouterr().err
    assert convert(criteo, tmp_path / "out", tmp_path / "day_7") == 2
    assert "no such file" in capsys.readouterr().err
    header = ",".join(reversed(criteo.layout.COLUMNS[1:]))
    assert convert(criteo, tmp_path / "out", write(tmp_path / "a.csv", [f"label,{header}"])) == 2
    assert "in this order" in capsys.readouterr().err
    assert convert(criteo, tmp_path / "out", write(tmp_path / "b.txt", lines[:3])) == 2
    assert "3 rows" in capsys.readouterr().err


def test_bags_have_mlperfs_lengths_and_follow_from_the_id(criteo, lines, tmp_path):
    convert(criteo, tmp_path / "one", write(tmp_path / "day_0", lines))
    arguments = ["--source", str(tmp_path / "one"), "--out", str(tmp_path / "many")]
    assert criteo.multihot.main(arguments) == 0
    (one,), (many,) = read_days(tmp_path / "one"), read_days(tmp_path / "many")
    for name, length in zip(criteo.layout.IDS, criteo.multihot.LENGTHS, strict=True):
        bag_of: dict[int, list[int]] = {}
        for first, bag in zip(one[name].to_pylist(), many[name].to_pylist(), strict=True):
            assert bag == [] if first is None else (len(bag), bag[0]) == (length, first)
            assert first is None or bag_of.setdefault(first, bag) == bag
        others = {tuple(bag[1:]) for bag in bag_of.values()}
        assert length == 1 or len(others) == len(bag_of)
    schema = load_schema(criteo.folder / "schema-multihot.toml")
    assert tuple(feature.max_length for feature in schema.sparse) == criteo.multihot.LENGTHS
    (increment,) = select_increments(str(tmp_path / "many"), schema, "2014-01-01", None)
    encoded = encode(pq.ParquetFile(increment.files[0].path).read(), schema)
    assert encoded.lengths.max(axis=1).tolist() == list(criteo.multihot.LENGTHS)
    written = (tmp_path / "many" / "dt=2014-01-01" / "part-0000.parquet").stat().st_mtime_ns
    assert criteo.multihot.main(arguments) == 0
    assert (tmp_path / "many" / "dt=2014-01-01" / "part-0000.parquet").stat().st_mtime_ns == written
    assert criteo.multihot.main(["--source", str(tmp_path / "none"), "--out", str(tmp_path / "x")]) == 2


def test_the_generator_repeats_itself_and_its_oracle_is_right(criteo, tmp_path):
    world = criteo.generate.World(0)
    rows = world.rows(3, 0, 20_000)
    assert rows.table.equals(criteo.generate.World(0).rows(3, 0, 20_000).table)
    assert not rows.table.equals(criteo.generate.World(1).rows(3, 0, 20_000).table)
    probability = 1 / (1 + np.exp(-rows.logit))
    clicks = rows.table["label"].to_numpy()
    error = np.sqrt((probability * (1 - probability)).sum())
    assert abs(clicks.sum() - probability.sum()) < 4 * error
    facts = criteo.generate.facts(rows.logit, clicks)
    assert 0.7 < facts["ne"] < 0.9
    assert (rows.table["I2"].to_numpy() < 0).any()
    assert criteo.generate.main(["--out", str(tmp_path), "--days", "2", "--rows-per-day", "50"]) == 0
    assert list(json.loads((tmp_path / "oracle.json").read_text())) == ["day_0", "day_1"]


@pytest.mark.parametrize("layers", [["criteo-mlperf"], ["criteo-mlperf", "criteo-mlperf-onehot"]])
def test_mlperfs_shapes_are_what_its_reference_says(criteo, monkeypatch, layers):
    monkeypatch.chdir(criteo.root)
    config = load_config([f"jobs/configs/{layer}.toml" for layer in layers])
    rows = [table.rows for table in config.dataset.tables]
    assert (len(rows), max(rows), sum(rows)) == (26, 40_000_000, 204_184_588)
    assert {table.dim for table in config.dataset.tables} == {128}
    assert (config.model.bottom, config.model.over) == ((512, 256), (1024, 1024, 512, 256))
    assert [feature.many for feature in config.dataset.sparse] == [len(layers) == 1] * 26
