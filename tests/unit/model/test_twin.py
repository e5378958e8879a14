from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

from diurnal.config import Config, DenseOptimizer, Model, Optim, SparseOptimizer
from diurnal.config import Schedule as ScheduleConfig
from diurnal.data.batch import Batch
from diurnal.model.dlrm import Dlrm, build_dlrm
from diurnal.model.loss import weighted_bce
from diurnal.model.optim import MOMENT, Schedule, dense_optimizer, fused_optimizer_args, table_optimizer
from diurnal.model.tables import embedding_bag_configs
from diurnal.model.twin import Twin

MakeConfig = Callable[..., Config]
MakeBatch = Callable[..., Batch]

SPARSE = ("rowwise_adagrad", "adagrad", "sgd")
DENSE = ("adagrad", "adam", "sgd")
STEPS = 6
assert_same = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)


def optim(sparse: str, dense: str, warmup_steps: int = 0) -> Optim:
    return Optim.model_validate(
        {
            "sparse": SparseOptimizer.model_validate({"kind": sparse, "lr": 0.05, "eps": 0.01}),
            "dense": DenseOptimizer.model_validate({"kind": dense, "lr": 0.02, "eps": 0.01, "weight_decay": 0.001}),
            "schedule": ScheduleConfig(warmup_steps=warmup_steps),
        }
    )


def dense_parameters(model: Dlrm) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if not name.startswith("tables.")}


def mean_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    return weighted_bce(logits, batch.labels, batch.weights) / batch.weights.sum()


@pytest.mark.parametrize("model", [Model(bottom=(8,), over=(8, 4)), Model(self_interaction=True, concat="all")])
def test_starting_values_and_logits_are_the_same(make_config: MakeConfig, make_batch: MakeBatch, model: Model) -> None:
    config = make_config(model=model, seed=3)
    dlrm, twin, batch = build_dlrm(config, tables_device="cpu"), Twin(config), make_batch(0)
    for name, parameter in dense_parameters(dlrm).items():
        assert torch.equal(twin.dense[name], parameter)
    for name, bag in dlrm.tables.embedding_bags.items():
        assert torch.equal(twin.tables[name], bag.get_parameter("weight"))
    assert_same(twin.logits(batch.dense, batch.sparse), dlrm(batch.dense, batch.sparse))


@pytest.mark.parametrize("sparse", SPARSE)
@pytest.mark.parametrize("dense", DENSE)
def test_training_with_our_table_optimizers_is_the_twin(
    make_config: MakeConfig, make_batch: MakeBatch, sparse: str, dense: str
) -> None:
    config = make_config(optim=optim(sparse, dense))
    model, twin = build_dlrm(config, tables_device="cpu"), Twin(config)
    tables = table_optimizer(model.tables.parameters(), config.optim.sparse)
    others = dense_optimizer(dense_parameters(model).values(), config.optim.dense)
    for step in range(STEPS):
        batch = make_batch(step)
        logits = model(batch.dense, batch.sparse)
        model.zero_grad()
        mean_loss(logits, batch).backward()
        tables.step()
        others.step()
        assert_same(twin.train_step(batch), logits.detach())
    for name, bag in model.tables.embedding_bags.items():
        weight = bag.get_parameter("weight")
        assert_same(twin.tables[name], weight)
        if sparse != "sgd":
            assert_same(twin.moments[name], tables.state[weight][MOMENT])
    for name, parameter in dense_parameters(model).items():
        assert_same(twin.dense[name], parameter)
        for slot, value in twin.dense_state[name].items():
            assert_same(value, others.state[parameter][slot])


@pytest.mark.parametrize("sparse", SPARSE)
@pytest.mark.parametrize("warmup_steps", [0, 4])
def test_training_with_the_fused_kernels_is_the_twin(
    make_config: MakeConfig, make_batch: MakeBatch, sparse: str, warmup_steps: int
) -> None:
    config = make_config(optim=optim(sparse, "adagrad", warmup_steps))
    model, twin = build_dlrm(config), Twin(config)
    fused = FusedEmbeddingBagCollection(
        embedding_bag_configs(config.dataset), *fused_optimizer_args(config.optim.sparse)
    )
    weights = {name: bag.get_parameter("weight") for name, bag in fused.embedding_bags.items()}
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(twin.tables[name])
    model.add_module("tables", fused)
    tables = cast("torch.optim.Optimizer", fused.fused_optimizer())
    others = dense_optimizer(dense_parameters(model).values(), config.optim.dense)
    schedule = Schedule(config.optim.schedule)
    for step in range(STEPS):
        batch = make_batch(step)
        for optimizer, lr in ((tables, config.optim.sparse.lr), (others, config.optim.dense.lr)):
            for group in optimizer.param_groups:
                group["lr"] = lr * schedule.factor(step)
        tables.zero_grad()
        others.zero_grad()
        logits = model(batch.dense, batch.sparse)
        mean_loss(logits, batch).backward()
        others.step()
        assert_same(twin.train_step(batch), logits.detach())
    for name, weight in weights.items():
        assert_same(twin.tables[name], weight)
    moments = tables.state_dict()["state"]
    for name, moment in twin.moments.items():
        assert_same(moment, moments[f"{name}.weight"][f"{name}.weight.momentum_1"])


def test_a_batch_of_padding_changes_nothing(make_config: MakeConfig, make_batch: MakeBatch) -> None:
    twin = Twin(make_config())
    before = {name: value.clone() for name, value in (twin.tables | twin.dense).items()}
    twin.train_step(make_batch(0, rows=2))
    assert all(torch.equal(value, before[name]) for name, value in (twin.tables | twin.dense).items())
    assert twin.step == 0


def test_padding_does_not_change_the_update(make_config: MakeConfig, make_batch: MakeBatch) -> None:
    config, padded = make_config(), make_batch(0)
    real = padded.num_rows
    lengths = padded.sparse.lengths().view(-1, padded.batch_rows)[:, :real].reshape(-1)
    bare = Batch(
        dense=padded.dense[:real],
        sparse=type(padded.sparse)(keys=padded.sparse.keys(), values=padded.sparse.values(), lengths=lengths),
        labels=padded.labels[:real],
        weights=padded.weights[:real],
        row_index=padded.row_index[:real],
        step=0,
        num_rows=real,
        counts=padded.counts,
    )
    one, two = Twin(config), Twin(config)
    one.train_step(padded)
    two.train_step(bare)
    for name in one.tables:
        assert_same(one.tables[name], two.tables[name])


def test_it_learns(make_config: MakeConfig, make_batch: MakeBatch) -> None:
    twin, batch = Twin(make_config(optim=optim("rowwise_adagrad", "adam")), torch.float64), make_batch(0)
    losses = [mean_loss(twin.train_step(batch).float(), batch).item() for _ in range(30)]
    assert losses[-1] < losses[0] / 2
