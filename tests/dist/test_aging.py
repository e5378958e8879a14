"""AdaGrad's moments age between increments, by the days in between, alike on every world and placement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from diurnal.config import Config
from diurnal.model.twin import Twin
from diurnal.sharding.aging import age
from diurnal.testing import everything, run_world, spread, tiny_batch, tiny_config, train_step
from diurnal.train.aging import age as age_learner
from diurnal.train.setup import Learner

FACTOR = 0.5 ** (3 / 7)
STEPS = 3
PLACEMENTS = {
    "table_wise": {"default": "table_wise"},
    "row_wise": {"default": "row_wise"},
    "column_wise": {"default": "column_wise"},
    "data_parallel": {"default": "data_parallel"},
    "mixed": {
        "placement": {"user": "column_wise", "item": "row_wise", "genres": "data_parallel", "site": "table_wise"}
    },
}
CUT = {"column_wise": ("user", "item", "genres", "site"), "mixed": ("user",)}


def configure(placement: str, sparse: str, dense: str = "adagrad", half_life_days: float = 0.0) -> Config:
    optim = {"sparse": {"kind": sparse, "lr": 0.1}, "dense": {"kind": dense}, "half_life_days": half_life_days}
    return tiny_config({"optim": optim, "sharding": PLACEMENTS[placement], "workers": {"max": 2}}, dim=8)


def train_with_aging(rank: int, world_size: int, config: Config, factor: float) -> dict[str, torch.Tensor]:
    parallel = spread(config)
    for step in range(2 * STEPS):
        if step == STEPS:
            age(parallel, factor)
        train_step(parallel, tiny_batch(config, step, rank, world_size))
    return everything(parallel)


def twin_that_ages_by_hand(config: Config, placement: str) -> dict[str, torch.Tensor]:
    twin = Twin(config, num_column_ranges=dict.fromkeys(CUT.get(placement, ()), 2))
    for step in range(2 * STEPS):
        if step == STEPS:
            for moments in (twin.moments, *twin.dense_state.values()):
                for name in moments.keys() - {"exp_avg", "exp_avg_sq"}:
                    moments[name] = moments[name] * FACTOR
        twin.train_step(tiny_batch(config, step))
    return twin.values()


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(("sparse", "dense"), [("rowwise_adagrad", "adagrad"), ("adagrad", "adam")])
def test_an_aged_run_is_the_one_of_a_twin_that_ages_by_hand(
    placement: str, world_size: int, sparse: str, dense: str
) -> None:
    config = configure(placement, sparse, dense)
    expected = twin_that_ages_by_hand(config, placement)
    for state in run_world(train_with_aging, world_size, config, FACTOR):
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def moments_around(rank: int, world_size: int, config: Config, factor: float) -> list[dict[str, torch.Tensor]]:
    parallel = spread(config)
    for step in range(STEPS):
        train_step(parallel, tiny_batch(config, step, rank, world_size))
    before = everything(parallel)
    age(parallel, factor)
    return [before, everything(parallel)]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("factor", [1.0, FACTOR])
def test_moments_are_multiplied_and_nothing_else_and_not_a_bit_by_one(placement: str, factor: float) -> None:
    (before, after), *_ = run_world(moments_around, 2, configure(placement, "rowwise_adagrad"), factor)
    aged = {name for name in before if name.endswith(("/moment", "/sum"))}
    assert len(aged) == 4 + 8
    for name, value in before.items():
        assert torch.equal(after[name], value * factor if name in aged else value), name


def ages(rank: int, world_size: int, config: Config, pairs: list[tuple[str, str]]) -> list[tuple[float, Any]]:
    parallel = spread(config)
    train_step(parallel, tiny_batch(config, 0, rank, world_size))
    learner = cast(Learner, SimpleNamespace(config=config, parallel=parallel))
    return [(age_learner(learner, *pair), everything(parallel)["user/moment"]) for pair in pairs]


def test_days_decide_and_an_increment_that_is_resumed_does_not_age_again() -> None:
    config = configure("row_wise", "rowwise_adagrad", half_life_days=7.0)
    days = [
        ("", "2026-01-01"),
        ("2026-01-01", "2026-01-08"),
        ("2026-01-08", "2026-01-08"),
        ("2026-01-08", "2026-01-09T12"),
    ]
    ((_, start), (week, aged), (resumed, same), (part, last)), *_ = run_world(ages, 1, config, days)
    assert (week, resumed) == (0.5, 1.0)
    assert part == 0.5 ** (1.5 / 7)
    assert torch.equal(aged, start * 0.5)
    assert torch.equal(same, aged)
    assert torch.equal(last, aged * part)


def test_without_a_half_life_nothing_ages() -> None:
    config = configure("table_wise", "rowwise_adagrad")
    ((_, start), (factor, later)), *_ = run_world(ages, 1, config, [("", "2026-01-01"), ("2026-01-01", "2027-01-01")])
    assert factor == 1.0
    assert torch.equal(start, later)
