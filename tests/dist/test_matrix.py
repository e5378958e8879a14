"""Saved at every world size under every placement, continued at every other: the twin's losses and weights."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from diurnal.checkpoint.load import load
from diurnal.checkpoint.manifest import Lineage, Position
from diurnal.checkpoint.save import save
from diurnal.checkpoint.state import TrainState
from diurnal.checkpoint.store import Store
from diurnal.config import Config
from diurnal.data.batch import Batch
from diurnal.model.twin import Twin
from diurnal.sharding.parallel import Parallel
from diurnal.testing import everything, run_world, spread, tiny_batch, tiny_config, train_step

MIXED = {"user": "column_wise", "item": "row_wise", "genres": "data_parallel", "site": "table_wise"}
PLACEMENTS = {
    "table_wise": {"default": "table_wise"},
    "row_wise": {"default": "row_wise"},
    "column_wise": {"default": "column_wise"},
    "data_parallel": {"default": "data_parallel"},
    "mixed": {"placement": MIXED},
}
ROUNDED = {"row_wise", "mixed"}
"""Row-wise, a bag's vectors are summed rank by rank, and TorchRec divides by 1 + 1e-6: not the same to the last bit."""
WORLDS = (1, 2, 3, 4)
DIM, NUM_RANGES = 24, {1: 2, 2: 2, 3: 3, 4: 6}
"""Ranges that columns are cut into at each world size: conversions between all, also where they divide unevenly."""
STEPS, MORE = 5, 10
RTOL, ATOL = 2e-5, 2e-6
"""Of losses and weights after `STEPS` + `MORE` steps in float32, whose sums are taken in another order."""

Cut = tuple[tuple[str, int], ...]
"""Tables whose columns are cut, and into how many ranges."""


def configure(world_size: int, placement: str) -> Config:
    settings = {
        "optim": {"sparse": {"kind": "rowwise_adagrad", "lr": 0.1}, "dense": {"kind": "adagrad"}},
        "sharding": PLACEMENTS[placement],
        "workers": {"max": NUM_RANGES[world_size]},
    }
    return tiny_config(settings, dim=DIM)


def cut_of(world_size: int, placement: str) -> Cut:
    names = {"column_wise": ("user", "item", "genres", "site"), "mixed": ("user",)}.get(placement, ())
    return tuple((name, NUM_RANGES[world_size]) for name in names)


def store_of(storage: Path, world_size: int, placement: str) -> Store:
    return Store(storage, f"{placement}{world_size}")


Saved = tuple[dict[str, torch.Tensor], torch.Tensor]
"""All values, and logits of a fixed batch."""


@torch.no_grad()
def score(parallel: Parallel) -> torch.Tensor:
    """The same batch on every rank, so that no rank has another share of it at another world size."""
    batch = tiny_batch(parallel.config, 99)
    return parallel.module(batch.dense, batch.sparse)


def train_and_save(rank: int, world_size: int, storage: Path) -> dict[str, Saved]:
    """Under every placement at this world size."""
    saved = {}
    for placement in PLACEMENTS:
        state = TrainState(spread(configure(world_size, placement)))
        for step in range(STEPS):
            train_step(state.parallel, tiny_batch(state.parallel.config, step, rank, world_size))
            state.global_step += 1
        saved[placement] = everything(state.parallel), score(state.parallel)
        lineage = Lineage(
            number=1,
            parent=None,
            increment="2026-01-01",
            fingerprint="day1",
            attempt=1,
            position=Position(steps=STEPS, num_steps=STEPS, rows=12 * STEPS, cursors=(12 * STEPS,)),
        )
        save(store_of(storage, world_size, placement), state, lineage)
    return saved


Loaded = tuple[Saved, torch.Tensor, dict[str, torch.Tensor]]
"""Directly after the load; the rank's logits of `MORE` steps, (MORE, rows); all values after them."""


def load_and_train(
    rank: int, world_size: int, storage: Path, placement: str
) -> tuple[dict[tuple[int, str], Loaded], dict[str, int]]:
    """Every saved state under one placement, one after the other into the same model, nothing of which may remain."""
    state = TrainState(spread(configure(world_size, placement)))
    config, plan = state.parallel.config, state.parallel.plan
    batches = [tiny_batch(config, step, rank, world_size) for step in range(STEPS, STEPS + MORE)]
    found = {}
    for saved_world in WORLDS:
        for saved_placement in PLACEMENTS:
            store = store_of(storage, saved_world, saved_placement)
            load(store, store.version(1), state)
            values, logits = everything(state.parallel), score(state.parallel)
            learned = torch.stack([train_step(state.parallel, batch) for batch in batches])
            later = everything(state.parallel)
            # All ranks have the same values: one of them tells.
            found[saved_world, saved_placement] = (
                ((values, logits), learned, later) if rank == 0 else (({}, logits), learned, {})
            )
    return found, {table.name: plan.num_column_ranges(table.name) for table in config.dataset.tables}


@cache
def twin_at_save(cut: Cut) -> dict[str, torch.Tensor]:
    twin = Twin(configure(1, "table_wise"), num_column_ranges=dict(cut))
    for step in range(STEPS):
        twin.train_step(global_batch(step))
    return twin.values()


@cache
def twin_goes_on(saved: Cut, now: Cut) -> tuple[dict[str, torch.Tensor], list[float], dict[str, torch.Tensor]]:
    """Values as converted, the losses of the next steps, and values after them."""
    twin = Twin(configure(1, "table_wise"), num_column_ranges=dict(now))
    twin.continue_from(twin_at_save(saved), STEPS)
    converted = twin.values()
    losses = losses_of([twin.train_step(global_batch(step)) for step in range(STEPS, STEPS + MORE)])
    return converted, losses, twin.values()


@cache
def global_batch(step: int) -> Batch:
    return tiny_batch(configure(1, "table_wise"), step)


def losses_of(logits: Iterable[torch.Tensor]) -> list[float]:
    """Of the global batches after the save, each from its rows' logits; a world's padding at the end is left out."""
    losses = []
    for step, of_batch in enumerate(logits, STEPS):
        batch = global_batch(step)
        rows = functional.binary_cross_entropy_with_logits(of_batch.flatten()[: batch.num_rows], batch.labels, reduction="none")
        losses.append(((rows * batch.weights).sum() / batch.weights.sum()).item())
    return losses


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[int, str], Saved]]:
    storage = tmp_path_factory.mktemp("matrix")
    by_world = {world_size: run_world(train_and_save, world_size, storage, timeout_s=200)[0] for world_size in WORLDS}
    return storage, {(w, placement): by_world[w][placement] for w in WORLDS for placement in PLACEMENTS}


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("world_size", WORLDS)
def test_whatever_was_saved_goes_on_as_the_twin_does(
    saved: tuple[Path, dict[tuple[int, str], Saved]], world_size: int, placement: str
) -> None:
    """20 saved states. meta-pytorch/torchrec#2534."""
    storage, states = saved
    by_rank = run_world(load_and_train, world_size, storage, placement, timeout_s=200)
    cut = cut_of(world_size, placement)
    assert {name: ranges for name, ranges in by_rank[0][1].items() if ranges > 1} == dict(cut)
    for place, (values_at_save, logits_at_save) in states.items():
        (values, logits), _, later = by_rank[0][0][place]
        converted, losses, expected = twin_goes_on(cut_of(*place), cut)
        cut_alike = {name for name, value in values_at_save.items() if value.shape == values[name].shape}
        assert [name for name in cut_alike if not torch.equal(values[name], values_at_save[name])] == [], place
        others = values.keys() - cut_alike
        assert [name for name in others if not torch.allclose(values[name], converted[name], RTOL, ATOL)] == [], place
        assert others == {f"{name}/moment" for name, _ in set(cut) ^ set(cut_of(*place))}, place
        if place == (world_size, placement) or not ROUNDED & {place[1], placement}:
            assert torch.equal(logits, logits_at_save), place
        torch.testing.assert_close(logits, logits_at_save, rtol=1e-5, atol=1e-6)
        learned = torch.stack([found[place][1] for found, _ in by_rank], dim=2).flatten(1)
        assert losses_of(learned) == pytest.approx(losses, rel=RTOL), place
        assert [name for name in expected if not torch.allclose(later[name], expected[name], RTOL, ATOL)] == [], place
