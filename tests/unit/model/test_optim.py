from __future__ import annotations

from typing import Literal

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from pydantic import ValidationError
from torch import nn
from torchrec.modules.fused_embedding_modules import convert_optimizer_type_and_kwargs

from diurnal.config import DenseOptimizer, SparseOptimizer
from diurnal.config import Schedule as ScheduleConfig
from diurnal.config.run import Optim
from diurnal.errors import ConfigError
from diurnal.model.optim import (
    MOMENT,
    Schedule,
    age_moment,
    aging_factor,
    dense_optimizer,
    describe_fused,
    describe_hyperparameters,
    fused_optimizer_args,
    table_optimizer,
)

Kind = Literal["rowwise_adagrad", "adagrad", "sgd"]
KINDS = pytest.mark.parametrize("kind", ["rowwise_adagrad", "adagrad", "sgd"])
EPS = pytest.mark.parametrize("eps", [1e-8, 0.3])
"""The large one shows where eps stands: beside the root, not below it."""
ROWS, DIM = 9, 8


def fused(config: SparseOptimizer) -> SplitTableBatchedEmbeddingBagsCodegen:
    converted = convert_optimizer_type_and_kwargs(*fused_optimizer_args(config))
    assert converted is not None
    optimizer, kwargs = converted
    spec = [(ROWS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)]
    return SplitTableBatchedEmbeddingBagsCodegen(spec, optimizer=optimizer, pooling_mode=PoolingMode.SUM, **kwargs)


@KINDS
@EPS
def test_a_replicated_table_moves_as_the_fused_kernel_moves_it(kind: Kind, eps: float) -> None:
    config = SparseOptimizer(kind=kind, lr=0.1, eps=eps)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(ROWS, DIM, generator=generator)
    kernel = fused(config)
    kernel.split_embedding_weights()[0].copy_(start)
    table = nn.EmbeddingBag.from_pretrained(start.clone(), freeze=False, mode="sum", include_last_offset=True)
    optimizer = table_optimizer(table.parameters(), config)
    offsets = torch.tensor([0, 3, 3, 6])
    for _ in range(5):
        ids = torch.randint(0, ROWS - 1, (6,), generator=generator)
        gradient = torch.randn(3, DIM, generator=generator)
        kernel(ids, offsets).backward(gradient)
        optimizer.zero_grad()
        table(ids, offsets).backward(gradient)
        optimizer.step()
    torch.testing.assert_close(table.weight.detach(), kernel.split_embedding_weights()[0], rtol=2e-6, atol=2e-6)
    assert torch.equal(table.weight[-1], start[-1])
    if kind != "sgd":
        moment = optimizer.state[table.weight][MOMENT]
        assert moment.shape == ((ROWS,) if kind == "rowwise_adagrad" else (ROWS, DIM))
        torch.testing.assert_close(moment, kernel.split_optimizer_states()[0][0], rtol=2e-6, atol=2e-6)


@KINDS
def test_one_step_written_out(kind: Kind) -> None:
    """The numbers that the formulas of the module's docstring give for w = 1, lr = 0.1, eps = 1."""
    gradient = torch.tensor([1.0, 2.0, 3.0, 4.0] * 2)
    divisor = {"sgd": 1, "adagrad": gradient + 1, "rowwise_adagrad": 7.5**0.5 + 1}[kind]
    expected = torch.ones(ROWS, DIM)
    expected[2] -= 0.1 * gradient / divisor
    config = SparseOptimizer(kind=kind, lr=0.1, eps=1.0)

    table = nn.Parameter(torch.ones(ROWS, DIM))
    table.grad = torch.zeros(ROWS, DIM)
    table.grad[2] = gradient
    table_optimizer([table], config).step()
    torch.testing.assert_close(table.detach(), expected)

    kernel = fused(config)
    kernel.split_embedding_weights()[0].fill_(1.0)
    kernel(torch.tensor([2]), torch.tensor([0, 1])).backward(gradient[None])
    torch.testing.assert_close(kernel.split_embedding_weights()[0], expected)


@KINDS
def test_the_moment_is_there_from_the_start_and_survives_a_round_trip(kind: Kind) -> None:
    config = SparseOptimizer(kind=kind)
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = table_optimizer([weight], config)
    if kind != "sgd":
        assert not optimizer.state[weight][MOMENT].any()
    weight.grad = torch.ones(3, 2)
    optimizer.step()
    restored = table_optimizer([weight], config)
    restored.load_state_dict(optimizer.state_dict())
    for slot, value in optimizer.state[weight].items():
        assert torch.equal(restored.state[weight][slot], value)


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    weight = nn.Parameter(torch.ones(3, 2))
    table_optimizer([weight], SparseOptimizer()).step()
    assert torch.equal(weight, torch.ones(3, 2))


@KINDS
def test_hyperparameters_are_read_from_what_uses_them(kind: Kind) -> None:
    config = SparseOptimizer(kind=kind, lr=0.25, eps=0.5)
    expected = {"kind": kind, "lr": 0.25} | ({} if kind == "sgd" else {"eps": 0.5})
    assert describe_fused(fused(config)) == {**expected, "weight_decay": 0.0}
    assert describe_hyperparameters(table_optimizer([nn.Parameter(torch.ones(1, 1))], config)) == expected


def test_a_changed_rate_shows_in_the_kernel() -> None:
    kernel = fused(SparseOptimizer(lr=0.25))
    kernel.set_learning_rate(0.125)
    assert describe_fused(kernel)["lr"] == 0.125


@pytest.mark.parametrize("kind", ["adagrad", "adam", "sgd"])
def test_the_dense_optimizer_uses_what_was_configured(kind: Literal["adagrad", "adam", "sgd"]) -> None:
    config = DenseOptimizer(kind=kind, lr=0.25, eps=0.5, betas=(0.75, 0.875), weight_decay=0.125)
    expected = {"kind": kind, "lr": 0.25, "weight_decay": 0.125}
    expected |= {} if kind == "sgd" else {"eps": 0.5}
    expected |= {"betas": (0.75, 0.875)} if kind == "adam" else {}
    assert describe_hyperparameters(dense_optimizer([nn.Parameter(torch.ones(1))], config)) == expected


def test_adam_is_refused_for_tables_with_a_reason() -> None:
    config = SparseOptimizer.model_construct(kind="adam", lr=0.1, eps=1e-8)
    for build in (fused_optimizer_args, lambda config: table_optimizer([], config)):
        with pytest.raises(ConfigError, match="no fused Adam"):
            build(config)


@pytest.mark.parametrize(("warmup", "factors"), [(0, [1, 1, 1]), (1, [0, 1, 1]), (4, [0, 0.25, 0.5, 0.75, 1, 1])])
def test_the_warm_up_is_a_line(warmup: int, factors: list[float]) -> None:
    schedule = Schedule(ScheduleConfig(warmup_steps=warmup))
    assert [schedule.factor(step) for step in range(len(factors))] == factors


def test_a_half_life_halves_once_in_its_time_and_none_never() -> None:
    assert [aging_factor(7.0, days) for days in (0.0, 7.0, 14.0)] == [1.0, 0.5, 0.25]
    assert aging_factor(0.0, 1e9) == 1.0
    assert aging_factor(1.0, 1 / 24) ** 24 == pytest.approx(0.5)


def test_an_aged_moment_keeps_what_is_zero_and_what_is_not() -> None:
    nan, inf, least = float("nan"), float("inf"), torch.finfo(torch.float32).tiny
    moment = torch.tensor([0.0, 1.0, least, 1e-40, 3e38, inf, nan])
    age_moment(moment, 0.5)
    torch.testing.assert_close(
        moment, torch.tensor([0.0, 0.5, least, least, 1.5e38, inf, nan]), rtol=0, atol=0, equal_nan=True
    )
    age_moment(moment[:5], 0.0)
    assert moment[:5].tolist() == [0.0, least, least, least, least]


@pytest.mark.parametrize("shape", [(0,), (0, 8), (5,), (700_001,), (90_001, 8), (3, 1)])
def test_a_moment_of_any_size_is_aged_once_everywhere(shape: tuple[int, ...]) -> None:
    moment = torch.rand(shape)
    expected = moment * 0.9
    age_moment(moment, 1.0)
    age_moment(moment, 0.9)
    assert torch.equal(moment, expected)


@pytest.mark.parametrize(("sparse", "dense"), [("sgd", "sgd"), ("sgd", "adam")])
def test_a_half_life_without_an_adagrad_is_refused(sparse: str, dense: str) -> None:
    kinds = {"sparse": {"kind": sparse}, "dense": {"kind": dense}}
    with pytest.raises(ValidationError, match="no accumulators to age"):
        Optim.model_validate({**kinds, "half_life_days": 7.0})
    assert Optim.model_validate(kinds).half_life_days == 0
    assert Optim.model_validate({"sparse": {"kind": sparse}, "half_life_days": 7.0}).dense.kind == "adagrad"
