"""Optimizers of the tables and of everything else, the same functions whether a kernel applies them or we do.

For tables there are two appliers. Sharded tables are updated by FBGEMM inside backward (`fused_optimizer_args` says
how). Replicated tables have a dense gradient and take a `TableOptimizer`. With gradient g of a row of width D, in both:

    sgd               w -= lr * g
    adagrad           m += g * g;          w -= lr * g / (sqrt(m) + eps)        m (rows, D)
    rowwise_adagrad   m += sum(g * g) / D; w -= lr * g / (sqrt(m) + eps)        m (rows,)

where D is the width of what is updated as one: of a range of columns, in a table that is cut column-wise.

A row without a gradient keeps its value and its moment, so "rows of the batch" and "all rows" are the same thing.

The m of AdaGrad only grows: after a year of days, a day moves next to nothing. `age_moment`, between increments, makes
of it a sum in which a gradient counts the less the older its increment is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import nn
from torchrec.optim import RowWiseAdagrad

from diurnal.config.run import DenseOptimizer, SparseOptimizer
from diurnal.config.run import Schedule as ScheduleConfig
from diurnal.errors import ConfigError, Fault

MOMENT = "moment"
"""Key of a table's moment in the state of a `TableOptimizer`."""


DENSE_MOMENT = "sum"
"""Key of AdaGrad's moment in the state of the optimizer of `dense_optimizer`."""

AGED_VALUES = 1 << 18
"""Values of a moment that are aged at once."""


class Schedule:
    """What both learning rates are multiplied with."""

    def __init__(self, config: ScheduleConfig) -> None:
        self._warmup_steps = config.warmup_steps

    def factor(self, step: int) -> float:
        """The factor at a step, counted from 0 over the whole lineage of versions."""
        return 1.0 if step >= self._warmup_steps else step / self._warmup_steps


def dense_optimizer(parameters: Iterable[nn.Parameter], config: DenseOptimizer) -> torch.optim.Optimizer:
    """The optimizer of everything but the tables. Weight decay is L2: added to the gradient."""
    parameters = list(parameters)
    lr, eps, decay = config.lr, config.eps, config.weight_decay
    match config.kind:
        case "adagrad":
            return torch.optim.Adagrad(parameters, lr=lr, eps=eps, weight_decay=decay)
        case "adam":
            return torch.optim.Adam(parameters, lr=lr, eps=eps, weight_decay=decay, betas=config.betas)
        case "sgd":
            return torch.optim.SGD(parameters, lr=lr, weight_decay=decay)


class TableOptimizer(torch.optim.Optimizer):
    """Updates replicated tables from their dense gradients."""

    def __init__(self, parameters: Iterable[nn.Parameter], config: SparseOptimizer) -> None:
        super().__init__(parameters, {"lr": config.lr, "eps": config.eps})

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = closure() if closure is not None else None
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._update(weight, weight.grad, group["lr"], group["eps"])
        return loss

    @abstractmethod
    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, lr: float, eps: float) -> None: ...


class TableSgd(TableOptimizer):
    """Keeps no state, and has no use for `eps`."""

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, lr: float, eps: float) -> None:
        weight.add_(gradient, alpha=-lr)


class TableAdagrad(TableOptimizer):
    """One moment per value (Duchi et al., 2011); zero before the first step, and there from the start."""

    def __init__(self, parameters: Iterable[nn.Parameter], config: SparseOptimizer) -> None:
        super().__init__(parameters, config)
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight][MOMENT] = torch.zeros_like(weight, requires_grad=False)

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, lr: float, eps: float) -> None:
        moment = self.state[weight][MOMENT].addcmul_(gradient, gradient)
        weight.addcdiv_(gradient, moment.sqrt().add_(eps), value=-lr)


class TableRowwiseAdagrad(TableOptimizer):
    """One moment per row: the sum over steps of the mean of its squared gradients."""

    def __init__(self, parameters: Iterable[nn.Parameter], config: SparseOptimizer) -> None:
        super().__init__(parameters, config)
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight][MOMENT] = weight.new_zeros(weight.shape[0])

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, lr: float, eps: float) -> None:
        moment = self.state[weight][MOMENT].add_(gradient.square().mean(dim=1))
        weight.addcdiv_(gradient, moment.sqrt().add_(eps).unsqueeze(1), value=-lr)


def table_optimizer(parameters: Iterable[nn.Parameter], config: SparseOptimizer) -> TableOptimizer:
    """The optimizer of replicated tables, the same function as the fused one of sharded tables.

    Raises:
        ConfigError: for a kind that has no such twin.
    """
    match config.kind:
        case "sgd":
            return TableSgd(parameters, config)
        case "adagrad":
            return TableAdagrad(parameters, config)
        case "rowwise_adagrad":
            return TableRowwiseAdagrad(parameters, config)
        case "adam":
            raise _no_adam(config)


def fused_optimizer_args(config: SparseOptimizer) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Class and keyword arguments for TorchRec's `apply_optimizer_in_backward`, every value spelled out, since the
    defaults of the classes and of the kernels differ.

    Raises:
        ConfigError: for a kind whose kernel is not there on CPU.
    """
    match config.kind:
        case "sgd":
            return torch.optim.SGD, {"lr": config.lr}
        case "adagrad":
            return torch.optim.Adagrad, {"lr": config.lr, "eps": config.eps}
        case "rowwise_adagrad":
            return RowWiseAdagrad, {"lr": config.lr, "eps": config.eps}
        case "adam":
            raise _no_adam(config)


def aging_factor(half_life_days: float, days: float) -> float:
    """What AdaGrad's moments are multiplied with after so many days: 0.5 ** (days / half_life_days), and 1 exactly when
    the half-life is 0, which stands for "never"."""
    return 0.5 ** (days / half_life_days) if half_life_days > 0 else 1.0


@torch.no_grad()
def age_moment(moment: torch.Tensor, factor: float) -> None:
    """Multiplies a moment in place; with 1 not a bit of it changes.

    What is above 0 stays so, at the least normal number if need be: it says that there was a gradient, and numbers
    below that one are slow on CPUs. What is not finite stays that, to be found.
    """
    if factor == 1.0:
        return
    least = torch.finfo(moment.dtype).tiny
    for block in moment.split(max(1, AGED_VALUES * len(moment) // max(1, moment.numel()))):
        is_zero = block == 0
        block.mul_(factor).clamp_(min=least).masked_fill_(is_zero, 0)


def describe_hyperparameters(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimizer of this file really uses, from the optimizer itself: its kind and its group's numbers."""
    kind = _KIND_OF_CLASS[type(optimizer)]
    (group,) = optimizer.param_groups
    return {"kind": kind} | {name: group[name] for name in _NUMBERS_OF_KIND[kind] if name in group}


def describe_fused(kernel: SplitTableBatchedEmbeddingBagsCodegen) -> dict[str, Any]:
    """The same for tables that FBGEMM updates inside backward, from the kernel itself; it keeps its rate in float32."""
    kind = _KIND_OF_KERNEL[kernel.optimizer]
    numbers = {"lr": kernel.get_learning_rate(), **kernel.optimizer_args._asdict()}
    return {"kind": kind} | {name: numbers[name] for name in _NUMBERS_OF_KIND[kind]}


_NUMBERS_OF_KIND = {
    "sgd": ("lr", "weight_decay"),
    "adagrad": ("lr", "eps", "weight_decay"),
    "rowwise_adagrad": ("lr", "eps", "weight_decay"),
    "adam": ("lr", "eps", "betas", "weight_decay"),
}
_KIND_OF_CLASS: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.SGD: "sgd",
    torch.optim.Adagrad: "adagrad",
    torch.optim.Adam: "adam",
    TableSgd: "sgd",
    TableAdagrad: "adagrad",
    TableRowwiseAdagrad: "rowwise_adagrad",
}
_KIND_OF_KERNEL = {
    EmbOptimType.EXACT_SGD: "sgd",
    EmbOptimType.EXACT_ADAGRAD: "adagrad",
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: "rowwise_adagrad",
}


def _no_adam(config: SparseOptimizer) -> ConfigError:
    rule = "rowwise_adagrad, adagrad or sgd: FBGEMM has no fused Adam for CPU"
    return ConfigError([Fault("optim.sparse.kind", config.kind, rule, "use rowwise_adagrad")])
