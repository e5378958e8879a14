"""MovieLens-100k: what is written, and that nothing of a day reaches the inputs of that day."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diurnal.config import load_config, load_schema
from diurnal.data import wheels

NUM_DAYS = 6


def made_up_rows(movielens: SimpleNamespace, seed: int):
    """Rows of NUM_DAYS days in order of time, and labels."""
    rng = np.random.default_rng(seed)
    num = 120
    user, item = rng.integers(0, 12, num), rng.integers(0, 20, num)
    _, first = np.unique(user * 20 + item, return_index=True)
    user, item = user[np.sort(first)], item[np.sort(first)]
    num = len(user)
    genres_of_item = [rng.choice(5, rng.integers(1, 4), replace=False) for _ in range(20)]
    age_of_user = rng.integers(15, 60, 12)
    rows = movielens.past_only.Rows(
        day=np.sort(rng.integers(100, 100 + NUM_DAYS, num)),
        user=user,
        item=item,
        age=age_of_user[user],
        age_bucket=age_of_user[user] // 20,
        gender=user % 2,
        occupation=user % 3,
        genre_row=np.repeat(np.arange(num), [len(genres_of_item[i]) for i in item]),
        genre_code=np.concatenate([genres_of_item[i] for i in item]),
    )
    return rows, rng.integers(0, 2, num).astype(np.float64)


@given(seed=st.integers(0, 50), day=st.integers(100, 100 + NUM_DAYS - 1))
def test_labels_of_a_day_change_no_input_of_that_day_or_before(movielens, seed, day):
    rows, label = made_up_rows(movielens, seed)
    flipped = np.where(rows.day == day, 1.0 - label, label)
    before = movielens.past_only.past_only_inputs(rows, label)
    after = movielens.past_only.past_only_inputs(rows, flipped)
    until = rows.day <= day
    for name, values in before.items():
        np.testing.assert_array_equal(values[until], after[name][until], err_msg=name)
    if (rows.day == day).any() and (rows.day > day).any():
        later = ~until
        assert any((before[name][later] != after[name][later]).any() for name in before)


@given(seed=st.integers(0, 50), keep=st.integers(0, 10**6))
def test_inputs_of_a_row_do_not_depend_on_other_rows_of_its_day(movielens, seed, keep):
    rows, label = made_up_rows(movielens, seed)
    edge = int(np.searchsorted(rows.day, rows.day[-1]))
    past, today = rows.part(0, edge), rows.part(edge, len(rows))
    one = keep % len(today)
    together = movielens.past_only.inputs_of_day(past, label[:edge], today)
    alone = movielens.past_only.inputs_of_day(past, label[:edge], today.part(one, one + 1))
    for name, values in together.items():
        np.testing.assert_allclose(alone[name][0], values[one], rtol=1e-12, atol=1e-12, err_msg=name)


def test_first_day_knows_nothing(movielens):
    rows, label = made_up_rows(movielens, 3)
    inputs = movielens.past_only.past_only_inputs(rows, label)
    first = rows.day == rows.day[0]
    for name in inputs:
        assert (inputs[name][first] == 0.0).all(), name


def test_effects_of_a_small_log_by_hand(movielens):
    one = np.array([0])
    make = movielens.past_only.Rows
    codes = {"age": one, "age_bucket": one, "gender": one, "occupation": one, "genre_row": one, "genre_code": one}
    past = make(day=np.array([1]), user=one, item=one, **codes)
    inputs = movielens.past_only.inputs_of_day(
        past, np.array([1.0]), make(day=np.array([2]), user=one, item=one, **codes)
    )
    left = 1.0 - 6.0 / 11.0
    item = left / 6.0
    user = (left - item) / 6.0
    item = (left - user) / 6.0
    user = (left - item) / 6.0
    assert inputs["item_effect"][0] == pytest.approx(item)
    assert inputs["user_effect"][0] == pytest.approx(user)
    assert inputs["genre_effect"][0] == pytest.approx((left - item - user) / 21.0)
    assert inputs["user_rows"][0] == inputs["item_rows"][0] == 1.0


RATINGS = [(1, 10, 5, "1997-09-20T23:59:59"), (1, 11, 3, "1997-09-21T00:00:00"), (2, 10, 4, "1997-09-23T12:00:00")]


@pytest.fixture
def wheel(movielens, tmp_path, monkeypatch) -> Path:
    """A wheel with three ratings in the format of the real one."""
    seconds = [int(np.datetime64(when).astype("datetime64[s]").astype(int)) for *_, when in RATINGS]
    lines = [f"{u}\t{i}\t{r}\t{s}" for (u, i, r, _), s in zip(RATINGS, seconds, strict=True)]
    files = {
        "inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + "\n".join(reversed(lines)) + "\n",
        "user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
        "1\t24\tM\ttechnician\t05711\n2\t53\tF\tother\tV4043\n",
        "item": "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        "10\tToy Story\t1995\tAnimation Children's Comedy\n11\t\"Quoted\tV\tDrama\n",
    }
    path = tmp_path / "cache" / movielens.convert.WHEEL
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for kind, text in files.items():
            archive.writestr(f"{movielens.convert.FOLDER}.{kind}", text)
    sums = {kind: hashlib.sha256(text.encode()).hexdigest() for kind, text in files.items()}
    monkeypatch.setattr(movielens.convert, "SHA256", sums)
    return path


def test_days_are_written_with_their_marker_and_without_the_rating(movielens, wheel, tmp_path):
    out = tmp_path / "out"
    assert movielens.convert.main(["--out", str(out), "--wheel", str(wheel)]) == 0
    days = sorted(path.name for path in out.glob("dt=*"))
    assert days == ["dt=1997-09-20", "dt=1997-09-21", "dt=1997-09-23"]
    assert all((out / day / "_SUCCESS").is_file() for day in days)
    tables = [pyarrow.parquet.ParquetFile(out / day / "part-0.parquet").read() for day in days]
    assert [table["label"].to_pylist() for table in tables] == [[1], [0], [1]]
    assert all("rating" not in table.column_names for table in tables)
    first = {name: column[0].as_py() for name, column in zip(tables[0].column_names, tables[0].columns, strict=True)}
    assert first["genres"] == ["Animation", "Children's", "Comedy"]
    assert (first["zip_prefix"], first["hour"], first["weekday"], first["year"]) == ("05", 23, 5, 1995)
    assert first["event_time"].isoformat() == "1997-09-20T23:59:59+00:00"
    assert tables[1]["year"].to_pylist() == [None]
    assert tables[2]["item_rows"].to_pylist() == [1.0]


def test_every_declared_column_is_written(movielens, wheel, tmp_path):
    out = tmp_path / "out"
    movielens.convert.main(["--out", str(out), "--wheel", str(wheel)])
    written = pyarrow.parquet.read_schema(out / "dt=1997-09-20" / "part-0.parquet").names
    schema = load_schema(movielens.folder / "schema.toml")
    assert {f.source for f in (*schema.dense, *schema.sparse)} | {schema.label.column, schema.event_time} <= set(
        written
    )


def test_second_call_writes_nothing_and_a_lost_day_is_written_again(movielens, wheel, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--out", str(out), "--wheel", str(wheel)]
    movielens.convert.main(arguments)
    file = out / "dt=1997-09-21" / "part-0.parquet"
    written_at = file.stat().st_mtime_ns
    assert movielens.convert.main(arguments) == 0
    assert file.stat().st_mtime_ns == written_at
    assert "already there" in capsys.readouterr().out
    (file.parent / "_SUCCESS").unlink()
    movielens.convert.main(arguments)
    assert (file.parent / "_SUCCESS").is_file()
    assert [path.name for path in sorted(out.iterdir()) if path.name.startswith(".")] == []


def test_a_downloaded_wheel_is_used_again(movielens, wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(wheels, "_download", lambda *_: pytest.fail("downloaded again"))
    assert movielens.convert.main(["--out", str(tmp_path / "out"), "--cache", str(wheel.parent)]) == 0


@pytest.mark.parametrize("case", ["missing", "not a wheel", "other content", "no download"])
def test_what_cannot_be_had_is_one_line(movielens, wheel, tmp_path, monkeypatch, capsys, case):
    arguments = ["--out", str(tmp_path / "out"), "--wheel", str(wheel)]
    if case == "missing":
        wheel.unlink()
    elif case == "not a wheel":
        wheel.write_bytes(b"no zip file")
    elif case == "other content":
        monkeypatch.setattr(movielens.convert, "SHA256", {"inter": "", "user": "", "item": ""})
    else:
        arguments = ["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "empty")]
        failed = subprocess.CompletedProcess([], 1, "", "Looking\nERROR: no matching distribution")
        monkeypatch.setattr(wheels.subprocess, "run", lambda *a, **k: failed)
    assert movielens.convert.main(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("movielens: ")
    assert message.count("\n") == 1
    assert not list((tmp_path / "out").glob("dt=*"))


def test_runs_as_a_script(movielens):
    script = movielens.folder / "convert.py"
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "--wheel" in done.stdout


def test_the_committed_configuration_loads(movielens, monkeypatch):
    monkeypatch.chdir(movielens.root)
    config = load_config(["jobs/configs/movielens.toml"])
    assert (config.name, config.workers.max) == ("movielens", 2)
    assert json.loads(config.dataset.model_dump_json())["label"]["column"] == "label"
