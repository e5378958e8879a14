"""The synthetic world: the same from the same seed, hard ids, and an oracle that is right."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from diurnal.config import load_config, load_schema


def read_day(folder: Path) -> pa.Table:
    return pa.concat_tables([pyarrow.parquet.ParquetFile(f).read() for f in sorted(folder.glob("*.parquet"))])


def generate(synthetic, out: Path, *more: str) -> Path:
    assert synthetic.generate.main(["--out", str(out), "--rows-per-day", "3000", "--days", "2", *more]) == 0
    return out


def test_same_seed_same_days_another_seed_another_world(synthetic, tmp_path):
    days = [generate(synthetic, tmp_path / name, "--seed", seed) for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))]
    a, b, c = [read_day(out / "dt=2026-01-02") for out in days]
    assert a.equals(b)
    assert not a.equals(c)
    assert not set(a["item"].to_pylist()) & set(c["item"].to_pylist())


def test_a_day_needs_no_earlier_day(synthetic):
    world = synthetic.world.World(5)
    alone = world.day(7, 500)
    world.day(3, 800)
    again = world.day(7, 500)
    np.testing.assert_array_equal(alone.probability, again.probability)
    np.testing.assert_array_equal(alone.click, again.click)


def test_new_ids_come_every_day_and_old_ones_keep_their_meaning(synthetic):
    world = synthetic.world.World(0)
    first, later = world.day(0, 20_000), world.day(5, 20_000)
    assert later.item.max() >= world._size.items > first.item.max()
    shop_then = dict(zip(first.item.tolist(), first.shop.tolist(), strict=True))
    shop_now = dict(zip(later.item.tolist(), later.shop.tolist(), strict=True))
    both = shop_then.keys() & shop_now.keys()
    assert len(both) > 500
    assert all(shop_then[item] == shop_now[item] for item in both)


def test_popularity_follows_zipf(synthetic):
    counts = np.sort(np.bincount(synthetic.world.World(0).day(0, 200_000).item))[::-1]
    ranks = np.arange(1, len(counts) + 1)
    middle = slice(20, 1000)
    slope = np.polyfit(np.log(ranks[middle]), np.log(counts[middle] + 1.0), 1)[0]
    assert -1.3 < slope < -0.7


def test_ids_use_all_their_bits(synthetic, tmp_path):
    table = read_day(generate(synthetic, tmp_path) / "dt=2026-01-01")
    items = table["item"].to_numpy()
    assert items.dtype == np.uint64
    assert (items > 2**63).any()
    assert (items < 2**63).any()
    users = table["user"].drop_null().to_numpy()
    assert users.dtype == np.int64
    assert users.min() >= 0
    assert users.max() > 2**62
    assert (users.astype(np.float64).astype(object) != users.astype(object)).any()
    assert table["user"].null_count > 0
    lengths = table["topics"].combine_chunks().value_lengths().to_numpy()
    assert lengths.min() == 0
    assert lengths.max() > 1
    ids = synthetic.generate.mix64(np.arange(100_000), 3)
    assert len(np.unique(ids)) == 100_000


def test_rows_are_in_order_of_time_within_the_day(synthetic, tmp_path):
    table = read_day(generate(synthetic, tmp_path) / "dt=2026-01-02")
    when = table["event_time"].cast(pa.int64()).to_numpy()
    midnight = int(np.datetime64("2026-01-02").astype("datetime64[us]").astype(int))
    assert (np.diff(when) >= 0).all()
    assert when.min() >= midnight
    assert when.max() < midnight + 86_400_000_000
    np.testing.assert_array_equal(table["hour"].to_numpy(), (when - midnight) // 3_600_000_000)


def test_oracle_is_calibrated_and_better_than_the_click_rate(synthetic):
    day = synthetic.world.World(0).day(4, 100_000)
    facts = synthetic.generate.oracle(day.probability, day.click)
    error = np.sqrt((day.probability * (1 - day.probability)).sum()) / day.click.sum()
    assert abs(facts["calibration"] - 1) < 4 * error
    assert facts["ne"] < 0.95
    assert facts["log_loss"] == pytest.approx(facts["expected_log_loss"], rel=0.02)
    edges = np.quantile(day.probability, np.linspace(0, 1, 11))
    decile = np.clip(np.searchsorted(edges, day.probability, side="right") - 1, 0, 9)
    for group in range(10):
        p, y = day.probability[decile == group], day.click[decile == group]
        assert abs(y.mean() - p.mean()) < 4.5 * np.sqrt((p * (1 - p)).sum()) / len(p)


def test_oracle_by_hand(synthetic):
    facts = synthetic.generate.oracle(np.array([0.5, 0.25]), np.array([1, 0], dtype=np.int8))
    assert facts["log_loss"] == pytest.approx(-(np.log(0.5) + np.log(0.75)) / 2)
    assert facts["ne"] == pytest.approx(facts["log_loss"] / np.log(2))
    assert (facts["rows"], facts["positives"], facts["calibration"]) == (2, 1, 0.75)
    assert synthetic.generate.oracle(np.array([0.5]), np.array([0], dtype=np.int8))["ne"] is None


def test_oracle_lies_beside_the_data_and_is_hidden_from_readers(synthetic, tmp_path):
    folder = generate(synthetic, tmp_path) / "dt=2026-01-01"
    assert synthetic.generate.ORACLE.startswith("_")
    facts = json.loads((folder / synthetic.generate.ORACLE).read_text())
    table = read_day(folder)
    assert (facts["rows"], facts["positives"]) == (table.num_rows, table["click"].to_numpy().sum())
    assert "probability" not in table.column_names
    assert (folder / "_SUCCESS").is_file()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_only_what_is_missing_is_written(synthetic, tmp_path, capsys):
    generate(synthetic, tmp_path)
    generate(synthetic, tmp_path, "--days", "3")
    assert "1 written now" in capsys.readouterr().out
    generate(synthetic, tmp_path, "--rows-per-day", "100")
    assert read_day(tmp_path / "dt=2026-01-01").num_rows == 100


def test_zero_rows_make_an_empty_day(synthetic, tmp_path):
    generate(synthetic, tmp_path, "--rows-per-day", "0", "--days", "1")
    assert read_day(tmp_path / "dt=2026-01-01").num_rows == 0


def test_every_declared_column_is_written(synthetic, tmp_path):
    written = read_day(generate(synthetic, tmp_path) / "dt=2026-01-01").column_names
    schema = load_schema(synthetic.folder / "schema.toml")
    assert {f.source for f in (*schema.dense, *schema.sparse)} | {schema.label.column, schema.event_time} <= set(
        written
    )


def test_a_million_rows_take_seconds(synthetic):
    started = time.process_time()
    day = synthetic.world.World(0).day(1, 250_000)
    synthetic.generate.to_table(day, synthetic.generate.dt.date(2026, 1, 2), 0)
    assert 4 * (time.process_time() - started) < 30


def test_the_committed_configuration_loads(synthetic, monkeypatch):
    monkeypatch.chdir(synthetic.root)
    config = load_config(["jobs/configs/synthetic.toml"])
    assert (config.name, config.workers.max) == ("synthetic", 2)
