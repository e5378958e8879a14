"""Display ads in iPinYou's layout: what becomes of a line, UTC days, clicks, and what is refused; on generated rows."""

from __future__ import annotations

import bz2
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import load_schema
from diurnal.data.encode import count_names, encode
from diurnal.data.selection import select_increments

NUM_ROWS = 400


@pytest.fixture(scope="module")
def log(ads, tmp_path_factory) -> Path:
    """Two generated days."""
    out = tmp_path_factory.mktemp("ads")
    assert ads.generate.main(["--out", str(out), "--days", "2", "--rows-per-day", str(NUM_ROWS)]) == 0
    return out


def convert(ads, out: Path, *arguments: object) -> int:
    return ads.convert.main(["--out", str(out), *map(str, arguments)])


def read_day(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.ParquetFile(file).read() for file in sorted(folder.glob("*.parquet")))


def write(path: Path, rows: list[list[str]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def fields(ads, **values: str) -> list[str]:
    """A line by hand."""
    usual = dict.fromkeys(ads.layout.FIELDS, "x") | dict.fromkeys(ads.layout.NUMBERS.values(), "7")
    usual |= {"timestamp": "20130606120000000", "usertag": "10006,10110", "payprice": "51"}
    return list((usual | values).values())


def test_generated_days_are_encoded_without_a_fault(ads, log, tmp_path):
    assert convert(ads, tmp_path / "out", *sorted(log.glob("*.txt"))) == 0
    schema = load_schema(ads.folder / "schema.toml")
    increments = select_increments(str(tmp_path / "out"), schema, "2013-06-06", "2013-06-07")
    oracle = json.loads((log / "oracle.json").read_text())
    for increment in increments:
        day = pq.ParquetFile(increment.files[0].path).read()
        encoded = encode(day, schema)
        assert (encoded.num_rows, int(encoded.labels.sum())) == (NUM_ROWS, oracle[increment.id]["positives"])
        assert np.isfinite(encoded.dense).all()
        lengths = dict(zip((feature.name for feature in schema.sparse), encoded.lengths, strict=True))
        tags = day["user_tags"].to_pylist()
        assert lengths["user_tags"].tolist() == [len(bag or ()) for bag in tags]
        assert None in tags
        assert lengths["hour"].min() == 1
        counts = dict(zip(count_names(schema), encoded.counts.tolist(), strict=True))
        assert counts["sparse/user_tags/null"] == tags.count(None)


def test_what_is_known_after_the_auction_is_not_written(ads, log, tmp_path):
    convert(ads, tmp_path / "out", *sorted(log.glob("*.txt")))
    names = pq.read_schema(tmp_path / "out" / "dt=2013-06-06" / "part-0000.parquet").names
    assert not [name for name in names if "pay" in name or "key" in name or "log" in name]


def test_a_line_by_hand(ads, tmp_path):
    late = fields(ads, bidid="b1", timestamp="20130607075959123", slotwidth="336", slotheight="280", slotprice="5")
    other = fields(ads, bidid="b2", timestamp="20130607080000000", usertag="null", url="null", slotvisibility="Na")
    files = [write(tmp_path / "imp.20130607.txt", [late, other]), write(tmp_path / "clk.20130607.txt", [late])]
    assert convert(ads, tmp_path / "out", *files) == 0
    before, after = (read_day(tmp_path / "out" / f"dt=2013-06-0{day}") for day in (6, 7))
    row = {name: before[name][0].as_py() for name in before.column_names}
    assert row["event_time"].isoformat() == "2013-06-06T23:59:59.123000+00:00"
    assert (row["bid_id"], row["user_tags"], row["slot_size"], row["click"]) == ("b1", [10006, 10110], "336x280", 1)
    assert (row["slot_width"], row["floor_price"], row["user"]) == (336.0, 5.0, "x")
    assert [after[name][0].as_py() for name in ("user_tags", "url", "slot_visibility", "click")] == [
        None,
        None,
        "Na",
        0,
    ]
    assert convert(ads, tmp_path / "local", *files, "--zone-hours", 0) == 0
    assert [path.name for path in sorted((tmp_path / "local").glob("dt=*"))] == ["dt=2013-06-07"]


def test_a_click_belongs_to_bid_and_creative(ads, tmp_path):
    rows = [fields(ads, bidid=bid, creative=creative) for bid, creative in (("a", "1"), ("a", "2"), ("b", "1"))]
    files = [write(tmp_path / "imp.txt", rows), write(tmp_path / "clk.txt", [rows[1]])]
    convert(ads, tmp_path / "out", *files)
    assert read_day(tmp_path / "out" / "dt=2013-06-06")["click"].to_pylist() == [0, 1, 0]


def test_packed_files_are_taken_and_a_second_call_writes_nothing(ads, log, tmp_path, capsys):
    packed = tmp_path / "imp.20130606.txt.bz2"
    packed.write_bytes(bz2.compress((log / "imp.20130606.txt").read_bytes()))
    assert convert(ads, tmp_path / "out", packed) == 0
    file = tmp_path / "out" / "dt=2013-06-06" / "part-0000.parquet"
    written_at = file.stat().st_mtime_ns
    assert read_day(file.parent)["bid_id"].to_pylist()[0] == (log / "imp.20130606.txt").read_text().split("\t")[0]
    capsys.readouterr()
    assert convert(ads, tmp_path / "out", packed) == 0
    assert "already there" in capsys.readouterr().out
    assert file.stat().st_mtime_ns == written_at
    (file.parent / "_SUCCESS").unlink()
    assert convert(ads, tmp_path / "out", packed) == 0
    assert (file.parent / "_SUCCESS").is_file()


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"timestamp": "20131306000000000"}, "timestamp is '20131306000000000'"),
        ({"timestamp": "2013-06-06"}, "timestamp is '2013-06-06'"),
        ({"slotwidth": "wide"}, "slotwidth is 'wide'"),
        ({"usertag": "10006;10110"}, "usertag is '10006;10110'"),
        ({"bidid": ""}, "bidid is ''"),
        ({"advertiser": "1458\t1"}, "25 fields"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_written(ads, tmp_path, capsys, bad, says):
    file = write(tmp_path / "imp.txt", [*[fields(ads)] * 6, fields(ads, **bad)])
    assert convert(ads, tmp_path / "out", file) == 2
    message = capsys.readouterr().err
    assert "imp.txt: line 7" in message
    assert says in message
    assert not list(tmp_path.glob("out/*"))


def test_a_line_that_is_not_utf8_is_named(ads, tmp_path, capsys):
    line = ("\t".join(fields(ads)) + "\n").encode()
    (tmp_path / "imp.txt").write_bytes(line * 3 + line.replace(b"x", b"\xff", 1))
    assert convert(ads, tmp_path / "out", tmp_path / "imp.txt") == 2
    assert "imp.txt: line 4\n  found: bytes that are not UTF-8" in capsys.readouterr().err


def test_a_file_that_is_cut_off_is_refused(ads, log, tmp_path, capsys):
    content = (log / "imp.20130606.txt").read_bytes()
    (tmp_path / "imp.txt").write_bytes(content[:-1])
    (tmp_path / "imp.txt.bz2").write_bytes(bz2.compress(content)[:-30])
    for name, line in (("imp.txt", f"line {NUM_ROWS}"), ("imp.txt.bz2", "line ")):
        assert convert(ads, tmp_path / "out", tmp_path / name) == 2
        assert f"{name}: {line}" in capsys.readouterr().err
        assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(
    ("name", "says"), [("bid.20130606.txt", "no click to predict"), ("x.tsv", "imp.*"), ("clk.txt", "no impression")]
)
def test_files_that_have_no_impressions_are_refused(ads, tmp_path, capsys, name, says):
    assert convert(ads, tmp_path / "out", write(tmp_path / name, [fields(ads)])) == 2
    assert says in capsys.readouterr().err


class Frames:
    """Stands for pyreadr: two tables as R's data have them."""

    PyreadrError = RuntimeError

    def __init__(self, ads) -> None:
        columns: dict[str, list] = {name: ["7", "7"] for name in ads.convert.R_NAMES}
        columns |= {"UserTag": ["10006,10110", "null"], "BidID": ["a", "b"], "BiddingPrice": [277.0, 294.0]}
        self._table = pa.table(columns | {"PayingPrice": [5.0, 6.0], "IsClick": [True, False]})

    def read_r(self, _: str) -> dict[str, object]:
        return {name: self._table.to_pandas() for name in ("ipinyou.train", "ipinyou.test")}


def test_r_data_become_two_days_without_times(ads, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyreadr", Frames(ads))
    (tmp_path / "ipinyou.rda").touch()
    assert convert(ads, tmp_path / "out", tmp_path / "ipinyou.rda") == 0
    days = [read_day(tmp_path / "out" / f"dt=2013-10-{day}") for day in (19, 20)]
    assert [day["click"].to_pylist() for day in days] == [[1, 0]] * 2
    assert days[0]["user_tags"].to_pylist() == [[10006, 10110], None]
    assert days[0]["bid_price"].to_pylist() == [277.0, 294.0]
    assert days[0]["event_time"].to_pylist() == [None, None]
    schema = load_schema(ads.folder / "schema-r.toml")
    for increment in select_increments(str(tmp_path / "out"), schema, "2013-10-19", "2013-10-20"):
        encoded = encode(pq.ParquetFile(increment.files[0].path).read(), schema)
        lengths = dict(zip((feature.name for feature in schema.sparse), encoded.lengths.tolist(), strict=True))
        assert lengths.pop("user_tags") == [2, 0]
        assert set(map(tuple, lengths.values())) == {(1, 1)}


def test_r_data_without_pyreadr_are_refused_with_what_to_do(ads, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyreadr", None)
    (tmp_path / "ipinyou.rda").touch()
    assert convert(ads, tmp_path / "out", tmp_path / "ipinyou.rda") == 2
    assert "pip install pyreadr" in capsys.readouterr().err


def test_the_generator_repeats_itself_and_its_oracle_is_right(ads):
    date = ads.generate.dt.date(2026, 1, 2)
    table, logit, click = ads.generate.World(0).day(date, 5000)
    again, *_ = ads.generate.World(0).day(date, 5000)
    assert table.equals(again)
    assert not table.equals(ads.generate.World(1).day(date, 5000)[0])
    probability = 1 / (1 + np.exp(-logit))
    assert abs(click.sum() - probability.sum()) < 4 * np.sqrt((probability * (1 - probability)).sum())
    assert ads.generate.exact_ne(logit, click) < 0.95
    assert len(set(table["bidid"].to_pylist())) == 5000
