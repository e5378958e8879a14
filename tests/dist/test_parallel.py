"""One step is the same function at every world size and under every placement."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from diurnal.config import Config
from diurnal.model.optim import Schedule
from diurnal.model.twin import Twin
from diurnal.testing import everything, run_world, spread, tiny_batch, tiny_config, train_step

MIXED = {"user": "row_wise", "item": "table_wise", "genres": "row_wise", "site": "data_parallel"}
PLACEMENTS = {
    "table_wise": {"default": "table_wise"},
    "row_wise": {"default": "row_wise"},
    "data_parallel": {"default": "data_parallel"},
    "auto": {"default": "auto"},
    "mixed": {"placement": MIXED},
    "mixed_otherwise": {"placement": {**MIXED, "user": "data_parallel", "item": "row_wise", "genres": "table_wise"}},
}
OPTIMIZERS = {"sgd": "sgd", "adagrad": "adam", "rowwise_adagrad": "adagrad"}
"""Sparse to dense."""
CUT = {
    "column_wise": {"default": "column_wise"},
    "mixed": {"placement": {"user": "column_wise", "item": "row_wise", "genres": "column_wise", "site": "table_wise"}},
}
"""Placements that cut columns: by them row-wise AdaGrad becomes another function."""
DIM, NUM_RANGES = 24, {1: 2, 2: 2, 3: 3}
"""Ranges of columns at each world size, which are as many as there are workers at most."""
NUM_ROWS = [12, 12, 7, 1, 12]
"""Real rows of each step's global batch of 12: with one row, ranks are without any."""


def configure(placement: str, sparse: str) -> Config:
    optim = {"sparse": {"kind": sparse, "lr": 0.1}, "dense": {"kind": OPTIMIZERS[sparse]}}
    return tiny_config({"optim": optim, "sharding": PLACEMENTS[placement]})


@cache
def twin_after_training(sparse: str) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    return after_training(Twin(configure("auto", sparse)))


def after_training(twin: Twin) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    batches = [(tiny_batch(twin.config, step, num_rows=rows), rows) for step, rows in enumerate(NUM_ROWS)]
    return [twin.train_step(batch)[:rows] for batch, rows in batches], twin.values()


def train(
    rank: int, world_size: int, configs: list[Config]
) -> list[tuple[list[torch.Tensor], dict[str, torch.Tensor]]]:
    answers = []
    for config in configs:
        parallel = spread(config)
        batches = [tiny_batch(config, step, rank, world_size, rows) for step, rows in enumerate(NUM_ROWS)]
        answers.append(([train_step(parallel, batch) for batch in batches], everything(parallel)))
    return answers


def in_order(shares: list[torch.Tensor], num_rows: int) -> torch.Tensor:
    """The logits of a global batch's real rows, which were dealt to the ranks in turn."""
    return torch.stack(shares, dim=1).flatten()[:num_rows]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_world_size_and_placement_trains_the_twins_model(placement: str, world_size: int) -> None:
    """meta-pytorch/torchrec#2251, and #4638 for ranks without rows."""
    by_rank = run_world(train, world_size, [configure(placement, sparse) for sparse in OPTIMIZERS])
    for index, sparse in enumerate(OPTIMIZERS):
        assert_the_twins([answers[index] for answers in by_rank], twin_after_training(sparse))


def assert_the_twins(
    by_rank: list[tuple[list[torch.Tensor], dict[str, torch.Tensor]]],
    expected: tuple[list[torch.Tensor], dict[str, torch.Tensor]],
) -> None:
    for step, (rows, logits) in enumerate(zip(NUM_ROWS, expected[0], strict=True)):
        found = in_order([shares[step] for shares, _ in by_rank], rows)
        torch.testing.assert_close(found, logits[:, 0], rtol=1e-5, atol=1e-6)
    for _, state in by_rank:
        for name, value in expected[1].items():
            torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def configure_cut(placement: str, sparse: str, world_size: int) -> Config:
    optim = {"sparse": {"kind": sparse, "lr": 0.1}, "dense": {"kind": OPTIMIZERS[sparse]}}
    workers = {"max": NUM_RANGES[world_size]}
    return tiny_config({"optim": optim, "sharding": CUT[placement], "workers": workers}, dim=DIM)


@cache
def cut_twin_after_training(
    placement: str, sparse: str, num_ranges: int
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    cut = ("user", "genres") if placement == "mixed" else ("user", "item", "genres", "site")
    twin = Twin(configure_cut(placement, sparse, 1), num_column_ranges=dict.fromkeys(cut, num_ranges))
    return after_training(twin)


@pytest.mark.parametrize("world_size", NUM_RANGES)
@pytest.mark.parametrize("placement", CUT)
def test_every_range_of_columns_is_trained_as_a_table_of_its_own(placement: str, world_size: int) -> None:
    configs = [configure_cut(placement, sparse, world_size) for sparse in OPTIMIZERS]
    by_rank = run_world(train, world_size, configs)
    for index, sparse in enumerate(OPTIMIZERS):
        expected = cut_twin_after_training(placement, sparse, NUM_RANGES[world_size])
        assert_the_twins([answers[index] for answers in by_rank], expected)
    user_moments = by_rank[0][list(OPTIMIZERS).index("rowwise_adagrad")][1]["user/moment"]
    assert user_moments.shape == (50, NUM_RANGES[world_size])


def start(rank: int, world_size: int, configs: list[Config]) -> list[dict[str, torch.Tensor]]:
    return [everything(spread(config)) for config in configs]


def test_starting_values_depend_on_neither_world_size_nor_placement() -> None:
    configs = [configure(placement, "rowwise_adagrad") for placement in ("row_wise", "mixed", "mixed_otherwise")]
    configs += [configure_cut(placement, "rowwise_adagrad", 2) for placement in CUT]
    twins = [Twin(config) for config in configs]
    for world_size in (1, 2, 3):
        for states in run_world(start, world_size, configs):
            for state, twin in zip(states, twins, strict=True):
                assert all(torch.equal(state[name], value) for name, value in {**twin.tables, **twin.dense}.items())
    rows = twins[0].tables["user"].detach()
    assert len(torch.unique(rows, dim=0)) == len(rows), "no two rows start alike"


def one_sgd_step(rank: int, world_size: int) -> dict[str, torch.Tensor]:
    optim = {"sparse": {"kind": "sgd", "lr": 1.0}, "dense": {"kind": "sgd", "lr": 1.0}}
    parallel = spread(tiny_config({"optim": optim, "data": {"batch_rows": 8}, "sharding": {"default": "row_wise"}}))
    train_step(parallel, tiny_batch(parallel.config, 0, rank, world_size))
    return everything(parallel)


def test_an_update_is_the_same_for_one_rank_of_8_rows_and_two_of_4() -> None:
    (one,), (two, _) = run_world(one_sgd_step, 1), run_world(one_sgd_step, 2)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=1e-6)


def warm_up(rank: int, world_size: int) -> list[dict[str, Any]]:
    """Each step's learning rates and how far they moved what they move."""
    optim = {
        "sparse": {"kind": "sgd", "lr": 0.1},
        "dense": {"kind": "sgd", "lr": 0.1},
        "schedule": {"warmup_steps": 10},
    }
    parallel = spread(tiny_config({"optim": optim, "sharding": PLACEMENTS["mixed"]}))
    schedule, seen = Schedule(parallel.config.optim.schedule), []
    for step in range(12):
        before = everything(parallel)
        parallel.set_lr_factor(schedule.factor(step))
        train_step(parallel, tiny_batch(parallel.config, 0, rank, world_size))
        after = everything(parallel)
        moved = {name: (after[name] - before[name]).abs().max().item() for name in after}
        seen.append({**parallel.lr, "used": parallel.hyperparameters(), "moved": moved})
    return seen


def test_the_schedule_reaches_every_optimizer() -> None:
    """pytorch/FBGEMM#3597."""
    for seen in run_world(warm_up, 2):
        assert seen[6]["sparse"] == pytest.approx(0.06, abs=1e-9)
        assert seen[6]["dense"] == pytest.approx(0.06, abs=1e-9)
        for part in ("dense", "sparse", "replicated"):
            assert [step["used"][part]["lr"] for step in seen] == pytest.approx(
                [s / 100 for s in range(10)] + [0.1, 0.1]
            )
        assert set(seen[0]["moved"].values()) == {0.0}, "the first step's factor is 0"
        for name in ("user", "item", "genres", "site", "over.0.weight"):
            assert seen[11]["moved"][name] > 0
            assert seen[1]["moved"][name] == pytest.approx(seen[2]["moved"][name] / 2, rel=0.02), name


def describe(rank: int, world_size: int, config: Config) -> dict[str, dict[str, Any]]:
    return spread(config).hyperparameters()


def test_hyperparameters_are_those_in_use() -> None:
    sparse = {"kind": "rowwise_adagrad", "lr": 0.25, "eps": 1e-3}
    dense = {"kind": "adam", "lr": 0.5, "eps": 1e-5, "betas": [0.5, 0.75], "weight_decay": 0.125}
    optim = {"sparse": sparse, "dense": dense}
    (used,) = run_world(describe, 1, tiny_config({"optim": optim, "sharding": {"placement": MIXED}}))
    for part, expected in (("sparse", sparse), ("replicated", sparse), ("dense", dense | {"betas": (0.5, 0.75)})):
        assert {name: used[part][name] for name in expected} == expected


def skip_every_other(rank: int, world_size: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Forward passes without backward, as when all ranks skip a step, the very first included."""
    config = configure("mixed", "rowwise_adagrad")
    skipping, plain = spread(config), spread(config)
    for step in range(4):
        unsound = tiny_batch(config, 100 + step, rank, world_size)
        unsound.dense.fill_(float("nan"))
        assert skipping.module(unsound.dense, unsound.sparse).isnan().any()
        for parallel in (skipping, plain):
            train_step(parallel, tiny_batch(config, step, rank, world_size))
    return everything(skipping), everything(plain)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_step_that_is_skipped_before_backward_leaves_no_trace(world_size: int) -> None:
    """facebookresearch/dlrm#363."""
    for skipping, plain in run_world(skip_every_other, world_size):
        assert all(torch.equal(skipping[name], value) for name, value in plain.items())


def mean_beside_sum(rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    config = tiny_config({"sharding": {"placement": MIXED}})
    parallel, batch = spread(config), tiny_batch(config, 0, rank, world_size)
    pooled = parallel.module.module.get_submodule("tables")(batch.sparse).to_dict()["liked"]
    table = parallel.gather_table("item")
    bags = batch.sparse["liked"].to_dense()
    return pooled.detach(), torch.stack([table[bag].sum(0) for bag in bags])


def test_row_wise_mean_pooling_leaves_other_tables_alone() -> None:
    """TorchRec 1.8 divides all vectors by the length of their bag, once a row-wise table has mean pooling."""
    for pooled, expected in run_world(mean_beside_sum, 2):
        torch.testing.assert_close(pooled, expected, rtol=1e-5, atol=1e-6)
