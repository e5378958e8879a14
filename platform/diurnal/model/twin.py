"""The DLRM and its training once more: one process, one row after the other, every formula written out.

Nothing but tests runs this. It shares the starting values with `build_dlrm`, and no code of forward, loss or update, so
that what agrees with it is right, or wrong twice in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from diurnal.config.run import Config
from diurnal.model.dlrm import build_dlrm
from diurnal.model.tables import initial_rows

if TYPE_CHECKING:
    from torchrec import KeyedJaggedTensor

    from diurnal.data.batch import Batch


class Twin:
    """A DLRM in plain tensors.

    Args:
        config: the run.
        dtype: of all values; float64 tells a rounding difference from a wrong formula.
        num_column_ranges: of tables whose columns are cut into equal ranges, each with moments of its own under
            rowwise_adagrad.
    """

    def __init__(
        self, config: Config, dtype: torch.dtype = torch.float32, num_column_ranges: Mapping[str, int] | None = None
    ) -> None:
        self.config = config
        self.num_column_ranges = dict(num_column_ranges or {})
        self.step = 0
        """Updates made so far: what the schedule counts."""
        self.dense: dict[str, torch.Tensor] = {
            name: parameter.detach().to(dtype).requires_grad_()
            for name, parameter in build_dlrm(config).named_parameters()
            if not name.startswith("tables.")
        }
        """Parameters of the MLPs, named as in `Dlrm`."""
        scale = config.model.init_scale
        self.tables: dict[str, torch.Tensor] = {
            table.name: initial_rows(config.seed, table, 0, table.rows, scale).to(dtype).requires_grad_()
            for table in config.dataset.tables
        }
        self.moments: dict[str, torch.Tensor] = {}
        """Of each table, once it was updated: (rows, dim) for adagrad, for rowwise_adagrad (rows,), or (rows, k) of a
        table that is cut into k ranges of columns."""
        self.dense_state: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self.dense}
        """Of each MLP parameter, once it was updated: `sum`, or `exp_avg` and `exp_avg_sq`."""

    def values(self) -> dict[str, torch.Tensor]:
        """All weights and moments: tables by name, `<table>/moment`, parameters of the MLPs, `<parameter>/<slot>`."""
        moments = {f"{name}/moment": moment for name, moment in self.moments.items()}
        slots = {f"{name}/{slot}": value for name, state in self.dense_state.items() for slot, value in state.items()}
        return {name: v.detach().clone() for name, v in {**self.tables, **moments, **self.dense, **slots}.items()}

    def continue_from(self, values: Mapping[str, torch.Tensor], step: int) -> None:
        """Goes on from `values()` of another one, after its update number `step`, whatever that cut its tables into:
        every column is given the moment of the range that it was in, and a new range the mean of its columns."""
        dtype = next(iter(self.dense.values())).dtype
        self.step = step
        with torch.no_grad():
            for name, weight in {**self.tables, **self.dense}.items():
                weight.copy_(values[name])
        for name, table in self.tables.items():
            if f"{name}/moment" in values:
                moment = values[f"{name}/moment"].to(dtype)
                if self.config.optim.sparse.kind == "rowwise_adagrad":
                    rows, dim = table.shape
                    by_range = moment.reshape(rows, -1)
                    by_column = by_range.repeat_interleave(dim // by_range.shape[1], dim=1)
                    moment = self._mean_of_ranges(name, by_column)
                self.moments[name] = moment.clone()
        for name, state in self.dense_state.items():
            for slot in ("sum", "exp_avg", "exp_avg_sq"):
                if f"{name}/{slot}" in values:
                    state[slot] = values[f"{name}/{slot}"].to(dtype, copy=True)

    def logits(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        """(B, num_dense) and the bags of all features to (B,)."""
        bags = {name: jagged.to_dense() for name, jagged in sparse.to_dict().items()}
        dtype = next(iter(self.dense.values())).dtype
        rows = [self._logit(row.to(dtype), {name: bags[name][i] for name in bags}) for i, row in enumerate(dense)]
        return torch.stack(rows)

    def train_step(self, batch: Batch) -> torch.Tensor:
        """Learns one global batch, and answers the logits (B,) from before. A batch without weight changes nothing."""
        logits = self.logits(batch.dense, batch.sparse)
        weights = batch.weights.to(logits)
        if weights.sum() == 0:
            return logits.detach()
        log_chances = functional.logsigmoid(torch.where(batch.labels == 1, logits, -logits))
        loss = -(weights * log_chances).sum() / weights.sum()
        names = [*self.tables, *self.dense]
        leaves = [*self.tables.values(), *self.dense.values()]
        gradients = dict(zip(names, torch.autograd.grad(loss, leaves, materialize_grads=True), strict=True))
        warmup = self.config.optim.schedule.warmup_steps
        factor = min(1.0, self.step / warmup) if warmup else 1.0
        with torch.no_grad():
            for name, weight in self.tables.items():
                self._update_table(name, weight, gradients[name], factor)
            for name, weight in self.dense.items():
                self._update_dense(weight, gradients[name], self.dense_state[name], factor)
        self.step += 1
        return logits.detach()

    def _logit(self, dense: torch.Tensor, bags: dict[str, torch.Tensor]) -> torch.Tensor:
        model = self.config.model
        for weight, bias in self._layers("bottom"):
            dense = torch.relu(weight @ dense + bias)
        vectors = [dense] + [self._pooled(feature.name, bags[feature.name]) for feature in self.config.dataset.sparse]
        products = []
        for i, left in enumerate(vectors):
            for j, right in enumerate(vectors):
                if j < i or (j == i and model.self_interaction):
                    products.append(left @ right)
        kept = vectors if model.concat == "all" else [dense]
        hidden = torch.cat([*kept, torch.stack(products)])
        *hidden_layers, (last_weight, last_bias) = self._layers("over")
        for weight, bias in hidden_layers:
            hidden = torch.relu(weight @ hidden + bias)
        return (last_weight @ hidden + last_bias).squeeze(0)

    def _pooled(self, feature_name: str, ids: torch.Tensor) -> torch.Tensor:
        feature = {feature.name: feature for feature in self.config.dataset.sparse}[feature_name]
        table = self.config.dataset.table(feature.table_name)
        total = torch.zeros_like(self.tables[table.name][0])
        for row in ids.tolist():
            total = total + self.tables[table.name][row]
        return total / len(ids) if table.pooling == "mean" and len(ids) else total

    def _layers(self, part: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        positions = sorted({int(name.split(".")[1]) for name in self.dense if name.startswith(f"{part}.")})
        return [(self.dense[f"{part}.{i}.weight"], self.dense[f"{part}.{i}.bias"]) for i in positions]

    def _update_table(self, name: str, weight: torch.Tensor, gradient: torch.Tensor, factor: float) -> None:
        optim = self.config.optim.sparse
        lr = optim.lr * factor
        if optim.kind == "sgd":
            weight -= lr * gradient
            return
        squares = gradient**2 if optim.kind == "adagrad" else self._mean_of_ranges(name, gradient**2)
        moment = self.moments[name] = self.moments.get(name, torch.zeros_like(squares)) + squares
        divisor = moment.sqrt() + optim.eps
        if optim.kind == "rowwise_adagrad":
            by_range = divisor.reshape(len(weight), -1)
            divisor = by_range.repeat_interleave(weight.shape[1] // by_range.shape[1], dim=1)
        weight -= lr * gradient / divisor

    def _mean_of_ranges(self, name: str, by_column: torch.Tensor) -> torch.Tensor:
        """(rows, dim) to the mean over the columns of each range: (rows, k), or (rows,) where there is one."""
        ranges = by_column.chunk(self.num_column_ranges.get(name, 1), dim=1)
        means = [columns.sum(dim=1) / columns.shape[1] for columns in ranges]
        return means[0] if len(means) == 1 else torch.stack(means, dim=1)

    def _update_dense(
        self, weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor], factor: float
    ) -> None:
        optim = self.config.optim.dense
        lr = optim.lr * factor
        gradient = gradient + optim.weight_decay * weight
        zeros = torch.zeros_like(gradient)
        if optim.kind == "sgd":
            weight -= lr * gradient
        elif optim.kind == "adagrad":
            state["sum"] = state.get("sum", zeros) + gradient**2
            weight -= lr * gradient / (state["sum"].sqrt() + optim.eps)
        else:
            decays, num_updates = optim.betas, self.step + 1
            state["exp_avg"] = decays[0] * state.get("exp_avg", zeros) + (1 - decays[0]) * gradient
            state["exp_avg_sq"] = decays[1] * state.get("exp_avg_sq", zeros) + (1 - decays[1]) * gradient**2
            mean = state["exp_avg"] / (1 - decays[0] ** num_updates)
            variance = state["exp_avg_sq"] / (1 - decays[1] ** num_updates)
            weight -= lr * mean / (variance.sqrt() + optim.eps)
