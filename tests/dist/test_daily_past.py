"""Inputs from the past, over days of which one is held: what the lineage has learned, no row of the same day."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.checkpoint.manifest import Lineage
from diurnal.checkpoint.store import Store
from diurnal.config import Config
from diurnal.checkpoint.history import History
from diurnal.data.hashing import hash_int64, rows_from_hash
from diurnal.data.selection import select_increments
from diurnal.errors import DataError
from diurnal.ledger.claims import Ledger
from diurnal.testing import run_world
from diurnal.testing_daily import (
    config_of,
    daily,
    day_of,
    learn,
    lineage_of,
    rows_learned,
    scales_price,
    states_of,
    versions_of,
    write_days,
)
from diurnal.train.desk import TrainingDesk

PRIOR = 20.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Five days; the fourth is implausible and held."""
    days = write_days(tmp_path_factory.mktemp("days"), 5, {3: scales_price})
    config = config_of(days, tmp_path_factory.mktemp("storage"))
    daily(config)
    assert states_of(config) == ["promoted", "promoted", "promoted", "held", "promoted"]
    return config


def lineages(config: Config) -> dict[int, Lineage]:
    store = Store(config.storage, config.name)
    return {number: store.at(version.path).manifest().lineage for number, version in versions_of(config).items()}


def columns_of(config: Config, tags: np.ndarray) -> pa.Table:
    """The rows with these tags: (8 * row + day) each."""
    days = {
        day: pq.ParquetDataset(Path(config.data.path, f"dt={day_of(day)}")).read() for day in set((tags % 8).tolist())
    }
    return pa.concat_tables([days[tag % 8].slice(tag // 8, 1) for tag in tags.tolist()])


def test_an_input_is_made_of_what_the_lineage_had_learned_before(model: Config) -> None:

    def rows_of(table: str, ids: np.ndarray) -> np.ndarray:
        return rows_from_hash(hash_int64(ids, model.dataset.hash_seed), model.dataset.table(table).rows)

    for number in (1, 2, 3, 4):
        seen = np.concatenate([np.load(file) for file in Path(model.storage, "seen", str(number)).glob("*.npy")])
        rows = columns_of(model, (seen[:, 1] * 8192).round().astype(np.int64))
        before = lineage_of(model, number)[:-1]
        if not before:
            assert not seen[:, 2:].any()
            continue
        known = columns_of(model, rows_learned(model, before[-1]))
        labels, items, genres_known = (
            known["label"].to_numpy(),
            rows_of("item", known["item"].to_numpy()),
            rows_of("genres", known["genres"].combine_chunks().flatten().to_numpy()),
        )
        effect = [
            (labels[items == i].sum() - labels.mean() * (items == i).sum()) / ((items == i).sum() + PRIOR)
            for i in range(10)
        ]
        expected = 2.0 * np.array(effect)[rows_of("item", rows["item"].to_numpy())]
        np.testing.assert_allclose(seen[:, 2], expected, atol=1e-6)
        genres = np.bincount(genres_known, minlength=7)
        bags = [rows_of("genres", np.array(bag, np.int64)) for bag in rows["genres"].to_pylist()]
        of_bags = [genres[bag].mean() if len(bag) else 0.0 for bag in bags]
        np.testing.assert_allclose(seen[:, 3], 0.1 * np.log1p(of_bags), atol=1e-5)
        assert np.abs(seen[:, 2]).max() > 0.1


def test_each_version_scores_with_its_own_past(model: Config) -> None:
    of = lineages(model)
    assert of[1].past == ""
    assert [one.past for one in of.values()][1:] == [one.past_after for one in of.values()][:-1]
    assert [one.past_after[:10] for one in of.values()] == [day_of(0), day_of(1), day_of(2), day_of(4)]
    scored = [line.split(" ") for line in Path(model.storage, "scored").read_text().splitlines()]
    by_mode = {
        mode: {(day, past.rstrip()) for day, this, _, past in scored if this == mode} for mode in ("score", "judge")
    }
    day = {1: day_of(0), 2: day_of(1), 3: day_of(2), 4: day_of(4)}
    before = {(day[number], of[number - 1].past_after) for number in (2, 3, 4)}
    assert by_mode["score"] == before
    assert by_mode["judge"] == before | {(day[number], of[number].past_after) for number in of}


def train_span(rank: int, world_size: int, config: Config) -> str:
    """One life of `diurnal train` over all days, without Ray. Answers what has ended it."""
    ledger = Ledger.of(config)
    lease = ledger.claim(config.name, "train", 30.0)
    history = History(Store(config.storage, config.name), ledger, config.name)
    desk = TrainingDesk(config, history, ledger, lease, select_increments(config.data.path, config.dataset))
    try:
        desk.prepare()
        learn(config, desk)
        return ""
    except DataError as error:
        return str(error)
    finally:
        lease.release()


def test_a_span_of_days_is_counted_while_it_is_learned(tmp_path: Path) -> None:
    """What is wrong on a later day costs none of those before it; what they are seen with is what days that come one by
    one are seen with."""
    days = write_days(tmp_path / "days", 3)
    spoilt = write_days(tmp_path / "spoilt", 3, {2: lambda columns: columns["label"].put(7, 9)})
    whole, until = (config_of(path, tmp_path / path.name / "storage") for path in (days, spoilt))
    assert run_world(train_span, 1, whole) == [""]
    [why] = run_world(train_span, 1, until)
    assert f"{day_of(2)}/part-0.parquet: column label (label)" in why
    pasts = [one.past_after for one in lineages(whole).values()]
    assert [name[:10] for name in pasts] == [day_of(0), day_of(1), day_of(2)]
    assert [one.past for one in lineages(whole).values()] == ["", *pasts[:-1]]
    assert [one.past_after for one in lineages(until).values()] == pasts[:2]
