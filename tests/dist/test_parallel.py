"""One step is the same function at every world size and under every placement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from diurnal.config import Config
from diurnal.model.dlrm import build_dlrm
from diurnal.model.loss import weighted_bce
from diurnal.model.twin import Twin
from diurnal.sharding.parallel import Parallel, parallelize
from diurnal.sharding.plan import make_plan
from diurnal.sharding.topology import Topology
from diurnal.testing import run_world, tiny_batch, tiny_config

MIXED = {"user": "row_wise", "item": "table_wise", "genres": "row_wise", "site": "data_parallel"}
PLACEMENTS = {
    "table_wise": {"default": "table_wise"},
    "row_wise": {"default": "row_wise"},
    "data_parallel": {"default": "data_parallel"},
    "auto": {"default": "auto"},
    "mixed": {"placement": MIXED},
    "mixed_otherwise": {"placement": {**MIXED, "user": "data_parallel", "item": "row_wise", "genres": "table_wise"}},
}


def spread(config: Config) -> Parallel:
    plan = make_plan(config, Topology.of_process_group())
    return parallelize(config, build_dlrm(config), torch.device("cpu"), plan)


def train_step(parallel: Parallel, step: int, rank: int, world_size: int, num_rows: int | None = None) -> torch.Tensor:
    """Answers the rank's logits from before the step."""
    batch = tiny_batch(parallel.config, step, rank, world_size, num_rows)
    logits = parallel.module(batch.dense, batch.sparse)
    weight = batch.weights.sum()
    dist.all_reduce(weight)
    parallel.zero_grad()
    (weighted_bce(logits, batch.labels, batch.weights) * world_size / weight).backward()
    parallel.step_dense()
    return logits.detach()


def everything(parallel: Parallel) -> dict[str, torch.Tensor]:
    tables = {t.name: parallel.gather_table(t.name) for t in parallel.config.dataset.tables}
    moments = {}
    if parallel.config.optim.sparse.kind != "sgd":
        moments = {f"{name}/moment": parallel.gather_table(name, "moment") for name in tables}
    return tables | moments | {name: p.detach() for name, p in parallel.dense_params.items()}


def train(rank: int, world_size: int, config: Config, num_rows: list[int]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    parallel = spread(config)
    logits = [train_step(parallel, step, rank, world_size, rows) for step, rows in enumerate(num_rows)]
    return logits, everything(parallel)


def in_order(shares: list[torch.Tensor], num_rows: int) -> torch.Tensor:
    """The logits of a global batch's real rows, which were dealt to the ranks in turn."""
    return torch.stack(shares, dim=1).flatten()[:num_rows]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("sparse", ["sgd", "adagrad", "rowwise_adagrad"])
def test_every_placement_and_world_size_trains_the_twins_model(sparse: str, placement: str, world_size: int) -> None:
    config = tiny_config({"optim": {"sparse": {"kind": sparse, "lr": 0.1}}, "sharding": PLACEMENTS[placement]})
    num_rows = [12, 12, 7, 1, 12]
    answers = run_world(train, world_size, config, num_rows)

    twin = Twin(config)
    for step, rows in enumerate(num_rows):
        expected = twin.train_step(tiny_batch(config, step, num_rows=rows))[:rows]
        logits = in_order([shares[step] for shares, _ in answers], rows)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)
    moments = {f"{name}/moment": moment for name, moment in twin.moments.items()}
    for _, state in answers:
        for name, value in {**twin.tables, **moments, **twin.dense}.items():
            torch.testing.assert_close(state[name], value.detach(), rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
