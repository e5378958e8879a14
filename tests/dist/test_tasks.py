"""Other tasks beside the label in worlds of one, two and three ranks: what is learned, measured, skipped and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diurnal.checkpoint.load import load
from diurnal.checkpoint.manifest import Lineage, Position
from diurnal.checkpoint.save import save
from diurnal.checkpoint.state import TrainState
from diurnal.checkpoint.store import Store
from diurnal.config import Config
from diurnal.data.encode import count_names
from diurnal.metrics.exact import exact_auc, exact_ne
from diurnal.model.twin import Twin
from diurnal.testing import everything, run_world, spread, tiny_batch, tiny_config, train_step
from diurnal.train.loop import Wishes, learn
from diurnal.train.passes import Pass
from diurnal.train.pipeline import Feed
from diurnal.train.pulse import Pulse
from diurnal.train.setup import Learner, build_learner
from diurnal.train.totals import Totals, add_up

CPU = torch.device("cpu")
BOUGHT, KEPT = {"name": "bought", "weight": 0.5, "missing": "skip"}, {"name": "kept", "weight": 2.0}
ROWS = [None, 11, 1, 0, None]


class Batches(list[Any]):
    def close(self) -> None:
        pass


def config_of(tasks: list[dict[str, Any]], **changes: Any) -> Config:
    placement = {"user": "row_wise", "item": "table_wise", "genres": "data_parallel"}
    settings = {"dataset": {"tasks": tasks}, "metrics": {"auc_bins": 65536}, "sharding": {"placement": placement}}
    return tiny_config(settings | changes)


def learn_all(learner: Learner, rank: int, world_size: int) -> Pass:
    batches = Batches(tiny_batch(learner.config, step, rank, world_size, n) for step, n in enumerate(ROWS))
    for batch in batches:
        batch.counts = np.zeros(len(count_names(learner.config.dataset)), np.int64)
    feed, done = Feed(batches, CPU), Pass.new(learner, len(ROWS))
    return learn(learner, feed, done, Pulse(), Wishes, lambda *_: True)


def learned(rank: int, world_size: int, config: Config) -> tuple[Totals, dict[str, torch.Tensor]]:
    learner = build_learner(config, CPU)
    totals = add_up(learner, learn_all(learner, rank, world_size))
    return totals, everything(learner.parallel)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_loop_learns_and_measures_what_the_twin_does(world_size: int) -> None:
    """A third of the rows lacks a label of each task; the ranks have different numbers of them."""
    config = config_of([BOUGHT, KEPT])
    twin = Twin(config)
    batches = [tiny_batch(config, step, 0, 1, n) for step, n in enumerate(ROWS)]
    logits = torch.cat([twin.train_step(batch) for batch in batches]).numpy()
    labels = torch.cat([batch.task_labels for batch in batches], dim=1).numpy()
    weights = torch.cat([batch.weights for batch in batches]).numpy()
    for totals, values in run_world(learned, world_size, config):
        assert totals.report.rows == 36
        for index, (name, report) in enumerate(totals.tasks.items()):
            counts = ~np.isnan(labels[index]) & (weights > 0)
            of_task = logits[counts, 1 + index], labels[index][counts], weights[counts]
            assert (name, report.rows) == (config.dataset.tasks[index].name, counts.sum())
            assert report.ne == pytest.approx(exact_ne(*of_task), abs=1e-5)
            assert report.auc == pytest.approx(exact_auc(*of_task), abs=1e-9 + (report.auc_error or 0.0))
        for name, value in twin.values().items():
            torch.testing.assert_close(values[name], value, atol=1e-5, rtol=1e-5, msg=name)


def poisoned(rank: int, world_size: int, config: Config) -> tuple[Totals, bool]:
    learner = build_learner(config, CPU)
    with torch.no_grad():
        learner.parallel.dense_params["tasks.kept.bias"].fill_(float("inf"))
    before = everything(learner.parallel)
    totals = add_up(learner, learn_all(learner, rank, world_size))
    return totals, all(torch.equal(before[name], value) for name, value in everything(learner.parallel).items())


def test_a_task_whose_loss_is_not_finite_skips_the_step_before_a_table_is_touched() -> None:
    for totals, is_untouched in run_world(poisoned, 2, config_of([BOUGHT, KEPT], optim={"max_skipped_steps": 9})):
        assert (totals.num_steps, totals.num_skipped_steps) == (0, 5)
        assert is_untouched


Answer = tuple[dict[str, torch.Tensor], torch.Tensor, str]


@torch.no_grad()
def logits_of(state: TrainState) -> torch.Tensor:
    batch = tiny_batch(config_of([]), 99)
    return state.parallel.module(batch.dense, batch.sparse)


def train_and_save(rank: int, world_size: int, storage: Path, over: tuple[int, ...]) -> Answer:
    config = config_of([BOUGHT, KEPT], optim={"dense": {"kind": "adam"}}, model={"bottom": [6], "over": list(over)})
    state = TrainState(spread(config))
    for step in range(3):
        train_step(state.parallel, tiny_batch(config, step, rank, world_size))
    position = Position(steps=3, num_steps=3, rows=36, cursors=(36,))
    line = Lineage(number=1, parent=None, increment="2026-01-01", fingerprint="", attempt=1, position=position)
    save(Store(storage, "tiny"), state, line)
    return everything(state.parallel), logits_of(state), ""


def load_with(rank: int, world_size: int, storage: Path, over: tuple[int, ...], tasks: list[Any]) -> Answer:
    model = {"bottom": [6], "over": list(over)}
    config = config_of(tasks, optim={"dense": {"kind": "adam"}}, model=model)
    state, store = TrainState(spread(config)), Store(storage, "tiny")
    compatibility = load(store, store.version(1), state)
    values, logits = everything(state.parallel), logits_of(state)
    train_step(state.parallel, tiny_batch(config, 9, rank, world_size))
    return values, logits, str(compatibility)


@pytest.mark.parametrize("over", [(5,), ()])
def test_tasks_of_a_version_are_found_by_name(tmp_path: Path, over: tuple[int, ...]) -> None:
    """Another order, one that is gone and one that is new; nothing of the label changes, nor of who stays."""
    saved, logits, _ = run_world(train_and_save, 2, tmp_path, over)[0]
    assert saved["tasks.kept.weight/exp_avg"].any()
    for found, found_logits, report in run_world(load_with, 2, tmp_path, over, [KEPT, {"name": "shared"}, BOUGHT]):
        torch.testing.assert_close(found_logits[:, [0, 3, 1]], logits, atol=1e-6, rtol=1e-5)
        assert [name for name, value in saved.items() if not torch.equal(found[name], value)] == []
        assert not found["tasks.shared.weight/exp_avg"].any()
        assert "new     task shared" in report
        assert "loaded  task kept: column kept" in report
    ((found, found_logits, report),) = run_world(load_with, 1, tmp_path, over, [KEPT])
    torch.testing.assert_close(found_logits, logits[:, [0, 2]], atol=1e-6, rtol=1e-5)
    assert saved.keys() - found.keys() == {name for name in saved if name.startswith("tasks.bought.")}
    assert "dropped task bought" in report
