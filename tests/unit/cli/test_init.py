"""`diurnal init`: the two files load, the days fit them, and every row of them encodes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from diurnal.cli.main import main
from diurnal.config import load_config
from diurnal.data.encode import encode
from diurnal.data.selection import select_increments


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Five days of columns as they come, some of them from the future of the row."""
    for day in range(1, 6):
        rng = np.random.default_rng(day)
        rows = 250
        midnight = int(datetime(2026, 3, day, tzinfo=UTC).timestamp()) * 10**6
        bought = rng.random(rows) < 0.2
        columns: dict[str, Any] = {
            "Bestell-Nr.": [f"{day}-{row}" for row in range(rows)],
            "gesehen am": pa.array(midnight + rng.integers(0, 86_400 * 10**6, rows), pa.timestamp("us", "UTC")),
            "customer_id": rng.integers(0, 2**63, 60, dtype=np.uint64)[rng.integers(0, 60, rows)],
            "Preis (€)": pa.array(rng.lognormal(2, 1, rows), mask=rng.random(rows) < 0.2),
            "rabatt": pa.array([None if row % 3 else row % 50 for row in range(rows)], pa.decimal128(9, 2)),
            "type": pa.array(["a", "", None, "b"] * 62 + ["a", "b"]).dictionary_encode(),
            "Körbe": pa.array([None if row % 7 == 0 else [1, None, row % 5] for row in range(rows)]),
            "menge": pa.array(rng.integers(-1, 40, rows), pa.int8()),
            "gekauft": np.where(bought, "yes", "no"),
            "umsatz": np.where(bought, rng.lognormal(3, 1, rows), 0.0),
            "roh": pa.array([{"x": 1}] * rows),
        }
        if day > 2:
            columns["neu"] = rng.random(rows)
        folder = tmp_path / "log" / f"dt=2026-03-{day:02}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / "part-0.parquet", row_group_size=100)
        (folder / "_SUCCESS").touch()
    return tmp_path / "log"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, words)])


def test_both_files_load_and_every_day_encodes(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    answer = run(log, "--out", out)
    assert answer.exit_code == 0, answer.output
    config = load_config([out / "run.toml"])
    assert (config.name, config.data.path, config.data.batch_rows) == ("log", str(log), 64)
    schema = config.dataset
    assert (schema.label.column, schema.label.positive, schema.group_id) == ("gekauft", "yes", "customer_id")
    increments = select_increments(config.data.path, schema)
    assert [increment.num_rows for increment in increments] == [250] * 5
    dense = []
    for increment in increments:
        for file in increment.files:
            encoded = encode(pq.read_table(file.path), schema)
            dense.append(encoded.dense)
            assert all(len(ids) for ids in encoded.ids)
    joined = np.concatenate(dense)
    assert np.isfinite(joined).all()
    assert ((joined.std(axis=0) > 0.25) & (joined.std(axis=0) < 0.55)).all()  # filled ones lie in the middle
    assert "umsatz" not in {feature.source for feature in (*schema.dense, *schema.sparse)}


def test_it_says_what_was_chosen_what_was_left_out_and_what_to_type_next(log: Path, tmp_path: Path) -> None:
    answer = run(log, "--out", tmp_path / "a b", "--label", "gekauft")
    lines = answer.stdout.splitlines()
    assert any(line.split()[:2] == ["label", "gekauft"] for line in lines)
    assert any(line.split()[:2] == ["leak", "umsatz"] and "tells the label" in line for line in lines)
    assert any("a struct" in line for line in lines)
    config = f"--config '{tmp_path / 'a b' / 'run.toml'}'"
    assert lines[-2:] == [f"  diurnal validate {config}", f"  diurnal train {config} --day 2026-03-01"]
    text = (tmp_path / "a b" / "schema.toml").read_text(encoding="utf-8")
    assert '# name = "umsatz"' in text
    assert 'column = "Preis (€)"' in text


def test_json_has_every_guess_with_its_evidence(log: Path, tmp_path: Path) -> None:
    answer = run(log, "--out", tmp_path, "--label", "gekauft", "--json")
    told = json.loads(answer.stdout)
    assert told["files"] == [str(tmp_path / "schema.toml"), str(tmp_path / "run.toml")]
    assert told["label"]["column"] == "gekauft"
    assert all(guess["why"] for guess in told["guesses"])
    assert {out["column"] for out in told["left_out"] if out["is_leak"]} == {"umsatz"}


def test_nothing_is_written_over_without_force(log: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("mine")
    answer = run(log, "--out", tmp_path, "--label", "gekauft")
    assert answer.exit_code == 2
    assert "add --force" in answer.output
    assert (tmp_path / "run.toml").read_text() == "mine"
    assert not (tmp_path / "schema.toml").exists()
    assert run(log, "--out", tmp_path, "--label", "gekauft", "--force").exit_code == 0
    assert load_config([tmp_path / "run.toml"]).name == "log"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--label", "type"], "choose another column with --label"),
        (["--positive", "yes"], "add --label COLUMN"),
        (["--label", "gekauft", "--positive", "yes", "--at-least", "1"], "either --positive or --at-least"),
        (["--label", "gekauft", "--at-least", "1"], "--at-least takes a number"),
        (["--label", "gekauft", "--out", "{log}/dt=2026-03-01/part-0.parquet"], "a folder that can be written"),
    ],
)
def test_a_persons_fault_ends_with_2_and_says_how_to_mend_it(log: Path, words: list[str], told: str) -> None:
    answer = run(log, *(word.format(log=log) for word in words))
    assert answer.exit_code == 2
    assert told in answer.output
