"""Negatives that are dropped: the same rows after a kill and in other worlds, and predictions of the true scale."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from diurnal.checkpoint.history import History
from diurnal.checkpoint.manifest import Lineage
from diurnal.checkpoint.store import Store
from diurnal.config import Config, resolved_json
from diurnal.data.selection import select_increments
from diurnal.ledger.claims import Ledger
from diurnal.stack import library_versions
from diurnal.testing import kill_world, run_world, tensors_of, tiny_config
from diurnal.testing_daily import (
    NUM_ROWS,
    Life,
    config_of,
    daily,
    day_of,
    held_out,
    outcome,
    rows_learned,
    same_tensors,
    states_of,
    versions_of,
    write_days,
)
from diurnal.testing_daily import play as play_daily
from diurnal.train.commit import COUNTS, DROPPED_NEGATIVES
from diurnal.train.desk import TrainingDesk
from diurnal.train.events import Direct
from diurnal.train.orders import Orders
from diurnal.train.pulse import Pulse
from diurnal.train.sequence import WorkerSequence, ask
from diurnal.train.spec import Spec

RATE = 0.4


def write_rare(days: Path, num_days: int, num_rows: int) -> Path:
    """Days of which about 2 % of the rows are positives; the item tells how likely one is, from 0.3 % to 9 %."""
    for index in range(num_days):
        rng = np.random.default_rng(index)
        item = rng.integers(0, 10, num_rows)
        chance = 1 / (1 + np.exp(4.4 - 1.6 * np.sin(item * 2.0)))
        columns: dict[str, Any] = {
            "label": (rng.random(num_rows) < chance).astype(np.int64),
            "age": rng.random(num_rows),
            "price": rng.random(num_rows),
            "user": rng.integers(0, 50, num_rows),
            "item": item,
            "site": rng.integers(0, 2, num_rows),
            "liked": pa.array([[]] * num_rows, pa.list_(pa.int64())),
            "genres": pa.array([[]] * num_rows, pa.list_(pa.int64())),
        }
        folder = days / f"dt={day_of(index)}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / "0.parquet", row_group_size=num_rows // 3)
        (folder / "_SUCCESS").touch()
    return days


def rare_config(days: Path, storage: Path, rate: float, batch_rows: int = 240, every_rows: int = 480) -> Config:
    return tiny_config(
        {
            "data": {"path": str(days), "batch_rows": batch_rows, "streams": 6, "task_rows": 2000},
            "dataset": {"label": {"keep_negatives": rate}},
            "storage": str(storage),
            "checkpoint": {"every_rows": every_rows, "every_s": 0.0},
            "metrics": {"auc_bins": 1024},
            "workers": {"max": 3, "min": 1},
            "optim": {"sparse": {"lr": 0.1}, "dense": {"lr": 0.01}},
        }
    )


def play(rank: int, world_size: int, config: Config, num_days: int) -> list[str]:
    """One life of a world whose first rank is its own driver; what was said."""
    said: list[str] = []
    link, lease = Direct(None), None  # pyright: ignore[reportArgumentType]
    if rank == 0:
        ledger = Ledger.of(config)
        lease = ledger.claim(config.name, "test", 30.0)
        history = History(Store(config.storage, config.name), ledger, config.name)
        done = {commit.increment for commit in history.commits() if commit.is_final}
        found = select_increments(config.data.path, config.dataset, day_of(0), day_of(num_days - 1))
        todo = [increment for increment in found if increment.id not in done]
        link = Direct(TrainingDesk(config, history, ledger, lease, todo, say=said.append))
    spec = Spec("train", resolved_json(config), library_versions(), link, config.storage, 0.0)
    start, pulse = ask(link, "start", world_size=world_size), Pulse()
    device = torch.device("cpu")
    WorkerSequence(spec, start, device, {}, pulse, Orders(link, pulse), lambda *_: None).train()
    if lease is not None:
        lease.release()
    return said


def lineage_of(config: Config, number: int) -> Lineage:
    store = Store(config.storage, config.name)
    return store.at(versions_of(config)[number].path).manifest().lineage


def test_a_kill_and_another_world_and_rate_end_the_increment_as_it_was_begun(
    tmp_path: Path,
) -> None:
    days = write_rare(tmp_path / "days", 2, 9000)
    unbroken = rare_config(days, tmp_path / "unbroken", RATE)
    run_world(play, 2, unbroken, 1, timeout_s=120.0)
    kill_world(play, 2, rare_config(days, tmp_path, RATE), 2, point="learn/12", rank=1)
    other_rate = rare_config(days, tmp_path, 0.1)
    said, *_ = run_world(play, 3, other_rate, 2, timeout_s=120.0)
    assert re.search("goes on after step [0-9]+ of 1[56]", "\n".join(said))
    first, second = lineage_of(other_rate, 1), lineage_of(other_rate, 2)
    assert first.sampled == lineage_of(unbroken, 1).sampled
    assert first.position == lineage_of(unbroken, 1).position
    numbers, expected = (one.metrics["progressive"] for one in (first, lineage_of(unbroken, 1)))
    for name in ("rows", "positives", "weight", "base_rate", "ne", "calibration"):
        assert numbers[name] == pytest.approx(expected[name], rel=1e-4), name
    for number, tensor in tensors_of(unbroken, 1).items():
        torch.testing.assert_close(tensors_of(other_rate, 1)[number], tensor, atol=2e-5, rtol=1e-4)
    assert second.sampled is not None
    assert second.sampled["sampling"]["rate"] == 0.1
    assert first.position.rows > 2.5 * second.position.rows


@pytest.mark.slow
def test_a_tenth_of_the_negatives_trains_a_model_of_the_same_scale(tmp_path: Path) -> None:
    """The version before the last day scores all rows of that day."""
    days = write_rare(tmp_path / "days", 3, 24_000)
    found = {}
    for rate in (1.0, 0.1):
        config = rare_config(days, tmp_path / str(rate), rate, 60, 0)
        run_world(play, 1, config, 3, timeout_s=120.0)
        last, middle = lineage_of(config, 3), lineage_of(config, 2)
        found[rate] = (last.metrics["evaluated"], middle.metrics["progressive"], middle.position.rows)
        assert middle.position.rows + middle.metrics[DROPPED_NEGATIVES] == 24_000
        print(rate, {name: last.metrics["evaluated"][name] for name in ("rows", "positives", "ne", "calibration")})
        print(rate, {name: middle.metrics["progressive"][name] for name in ("rows", "weight", "base_rate", "ne")})
    (all_rows, progressive, rows), (tenth, of_tenth, tenth_rows) = found[1.0], found[0.1]
    assert 7 < rows / tenth_rows < 9
    assert all_rows["rows"] == tenth["rows"] == 24_000
    # A frozen version is off by what its last batches were, and the day by the noise of some 500 positives.
    assert tenth["calibration"] == pytest.approx(1.0, abs=0.25)
    assert all_rows["calibration"] == pytest.approx(1.0, abs=0.25)
    assert tenth["ne"] == pytest.approx(all_rows["ne"], abs=0.02)
    assert of_tenth["weight"] == pytest.approx(24_000, rel=0.05)
    assert of_tenth["base_rate"] == pytest.approx(progressive["base_rate"], rel=0.05)
    assert of_tenth["ne"] == pytest.approx(progressive["ne"], abs=0.05)


def with_buckets() -> dict[str, Any]:
    """Beside the inputs that there are, quarters of the past of a number."""
    dataset = tiny_config().dataset.model_dump(mode="json", exclude={"dense"})
    buckets = {"name": "age_bucket", "column": "age", "type": "float", "mapping": "bucketize", "quantiles": 4}
    return {
        "dataset": {
            "label": {"keep_negatives": RATE},
            "sparse": [*dataset["sparse"], buckets],
            "tables": [*dataset["tables"], {"name": "age_bucket", "rows": 4, "dim": 4}],
        }
    }


def test_in_the_daily_cycle_every_positive_is_learned_once_whatever_is_killed(tmp_path: Path) -> None:
    days = write_days(tmp_path / "days", 2)
    whole, killed = (config_of(days, tmp_path / name, with_buckets()) for name in ("whole", "killed"))
    daily(whole)
    assert states_of(whole) == ["promoted"] * 2, outcome(whole)
    kill_world(play_daily, 1, killed, Life(), point="learn/9")
    daily(killed)
    assert outcome(killed) == outcome(whole)
    assert same_tensors(killed, 2, whole, 2)
    learned = rows_learned(whole, 2)
    np.testing.assert_array_equal(rows_learned(killed, 2), learned)
    assert len(np.unique(learned)) == len(learned)
    positives, negatives = [], []
    for index in range(2):
        labels = pq.ParquetDataset(days / f"dt={day_of(index)}").read()["label"].to_numpy()
        rows = np.arange(NUM_ROWS)[~held_out(whole, index)] if index == 1 else np.arange(NUM_ROWS)
        positives += (rows[labels[rows] == 1] * 8 + index).tolist()
        negatives += (rows[labels[rows] == 0] * 8 + index).tolist()
    assert set(positives) <= set(learned.tolist()) <= {*positives, *negatives}
    kept = len(learned) - len(positives)
    assert RATE - 0.06 < kept / len(negatives) < RATE + 0.06
    dropped = [lineage_of(whole, number).metrics[DROPPED_NEGATIVES] for number in (1, 2)]
    assert sum(dropped) == len(negatives) - kept
    with Ledger.of(whole) as ledger:
        notes = [event.reason for event in ledger.events(whole.name, 1000) if event.kind == "dropped"]
    assert len(notes) == 2
    counts = [lineage_of(whole, number).metrics[COUNTS] for number in (1, 2)]
    assert [count["sparse/age_bucket/ids"] for count in counts][0] == 0
    assert [count["sparse/age_bucket/unknown"] for count in counts][1] == 0
    scored = [line.split(" ") for line in Path(whole.storage, "scored").read_text().splitlines()]
    assert [int(rows) for _, mode, rows, *_ in scored if mode == "score"] == [NUM_ROWS], "all rows of the day"
