"""A model spread over its ranks: tables where the plan puts them, everything else replicated.

Gradients are averaged over the W ranks, those of tables (by TorchRec) as all others (by us). So a rank's loss has to be
W times its weighted sum divided by the weight of the global batch: then one step is the same function at every world
size and under every placement, with one exception: where columns are cut, row-wise AdaGrad keeps a moment for each
range of them (see `checkpoint/state.py`); but the cut goes by the largest world of the run, not by the present one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    DenseTableBatchedEmbeddingBagsCodegen,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardingEnv

from diurnal.config.run import Config
from diurnal.model.dlrm import Dlrm, PooledVectors
from diurnal.model.optim import (
    MOMENT,
    dense_optimizer,
    describe_fused,
    describe_hyperparameters,
    fused_optimizer_args,
    table_optimizer,
)
from diurnal.model.tables import initial_rows
from diurnal.sharding.gradients import FlatGradients
from diurnal.sharding.plan import TABLES, Plan, table_sharders

WEIGHT = "weight"

FILL_ROWS = 1 << 16
"""Rows of a shard whose first values are drawn at once."""


@dataclass(frozen=True)
class Piece:
    """The part of a table, or of its moments, that this rank holds: live memory, not a copy."""

    table: str
    slot: str
    """`weight` or `moment`."""
    shape: tuple[int, ...]
    """Of the whole: (rows, dim); of a moment per row (rows,), or (rows, k) where columns are cut into k equal ranges
    and a row has one moment for each."""
    offsets: tuple[int, ...]
    """Where the part begins in the whole."""
    tensor: torch.Tensor
    is_replica: bool
    """Every rank holds the whole, all of them equal."""


class Parallel:
    """What the step loop and the checkpoint need of a spread model."""

    def __init__(self, config: Config, module: DistributedModelParallel, plan: Plan, group: dist.ProcessGroup) -> None:
        self.config = config
        self.module = module
        """Called with a rank's dense inputs and bags, answers its logits."""
        self.group = group
        self.plan = plan
        self.dense_params: dict[str, nn.Parameter] = {
            name: parameter for name, parameter in module.module.named_parameters() if not name.startswith(f"{TABLES}.")
        }
        """Parameters of the MLPs, named as in `Dlrm`; equal on all ranks."""
        self.dense_optimizer = dense_optimizer(self.dense_params.values(), config.optim.dense)
        _start_slots(self.dense_optimizer)
        replicated = [t for t, p in plan.report.placement().items() if p == "data_parallel"]
        self._replicas: dict[str, nn.Parameter] = {
            name: self._tables.embedding_bags.get_submodule(name).get_parameter(WEIGHT) for name in replicated
        }
        self.table_optimizer = table_optimizer(self._replicas.values(), config.optim.sparse) if self._replicas else None
        """Of replicated tables; None without any. Those of the others work inside backward."""
        kernels = [m for lookup in self._tables._lookups for m in lookup.modules()]
        self.kernels = [k for k in kernels if isinstance(k, SplitTableBatchedEmbeddingBagsCodegen)]
        """What holds and updates this rank's shards."""
        replicas = [k.weights for k in kernels if isinstance(k, DenseTableBatchedEmbeddingBagsCodegen)]
        self._gradients = FlatGradients([*self.dense_params.values(), *replicas], group)
        self._lr_factor = 1.0

    @property
    def _tables(self) -> ShardedEmbeddingBagCollection:
        tables = self.module.module.get_submodule(TABLES)
        assert isinstance(tables, ShardedEmbeddingBagCollection)
        return tables

    @property
    def lr(self) -> dict[str, float]:
        """The learning rates of the next step, `dense` and `sparse`."""
        optim = self.config.optim
        return {"dense": optim.dense.lr * self._lr_factor, "sparse": optim.sparse.lr * self._lr_factor}

    def set_lr_factor(self, factor: float) -> None:
        """Multiplies the configured learning rates of all optimizers, those inside backward included."""
        if factor == self._lr_factor:
            return
        self._lr_factor = factor
        for kernel in self.kernels:
            kernel.set_learning_rate(self.lr["sparse"])
        for optimizer, kind in ((self.dense_optimizer, "dense"), (self.table_optimizer, "sparse")):
            for group in optimizer.param_groups if optimizer is not None else ():
                group["lr"] = self.lr[kind]

    def zero_grad(self) -> None:
        self._gradients.zero()

    def step_dense(self) -> None:
        """After backward: updates what it has not updated, MLPs and replicated tables. A collective call."""
        self._gradients.average()
        self.dense_optimizer.step()
        if self.table_optimizer is not None:
            self.table_optimizer.step()

    def hyperparameters(self) -> dict[str, dict[str, Any]]:
        """What the optimizers really use, read from themselves: `dense`; `sparse` where this rank holds shards;
        `replicated` where there are replicated tables."""
        used = {"dense": describe_hyperparameters(self.dense_optimizer)}
        if self.kernels:
            used["sparse"] = describe_fused(self.kernels[0])
        if self.table_optimizer is not None:
            used["replicated"] = describe_hyperparameters(self.table_optimizer)
        return used

    def pieces(self) -> Iterator[Piece]:
        """This rank's parts of all tables and their moments."""
        for name, weight in self._replicas.items():
            yield _replica(name, WEIGHT, weight)
            assert self.table_optimizer is not None
            moment = self.table_optimizer.state[weight].get(MOMENT)
            if moment is not None:
                yield _replica(name, MOMENT, moment)
        fused = self._tables.fused_optimizer
        for path, weight in fused.params.items():
            name = path.split(".")[1]
            assert len(fused.state[weight]) <= 1, "one moment, or none"
            for slot, whole in ((WEIGHT, weight), *((MOMENT, moment) for moment in fused.state[weight].values())):
                assert isinstance(whole, ShardedTensor)
                shape, ranges = tuple(whole.size()), self.plan.num_column_ranges(name)
                for shard in whole.local_shards():
                    offsets, tensor = tuple(shard.metadata.shard_offsets), shard.tensor.detach()
                    if len(shape) == 1 and ranges > 1:
                        # TorchRec strings the moments of all ranges together, in the order of columns.
                        rows = shape[0] // ranges
                        place = (0, offsets[0] // rows)
                        yield Piece(name, slot, (rows, ranges), place, tensor.unsqueeze(1), is_replica=False)
                    else:
                        yield Piece(name, slot, shape, offsets, tensor, is_replica=False)

    @torch.no_grad()
    def fill_tables(self) -> None:
        """Gives all rows the values that they start with, which depend on the seed and the table alone."""
        for piece in self.pieces():
            if piece.slot == WEIGHT:
                table, scale = self.config.dataset.table(piece.table), self.config.model.init_scale
                (first, column), width = piece.offsets, piece.tensor.shape[1]
                for done, block in enumerate(piece.tensor.split(FILL_ROWS)):
                    start = first + done * FILL_ROWS
                    rows = initial_rows(self.config.seed, table, start, start + len(block), scale)
                    block.copy_(rows[:, column : column + width])

    def gather_table(self, name: str, slot: str = WEIGHT) -> torch.Tensor:
        """A whole table, or its moments, on every rank, of the shape that `Piece` tells: for tests and small tables."""
        pieces = [piece for piece in self.pieces() if (piece.table, piece.slot) == (name, slot)]
        table, ranges = self.config.dataset.table(name), self.plan.num_column_ranges(name)
        shape: tuple[int, ...] = (table.rows, table.dim)
        if slot == MOMENT and self.config.optim.sparse.kind == "rowwise_adagrad":
            shape = (table.rows, ranges) if ranges > 1 else (table.rows,)
        whole = torch.zeros(shape, device=self.module.device)
        for piece in pieces:
            if piece.is_replica:
                return piece.tensor.clone()
            assert piece.shape == shape, (name, slot, piece.shape, shape)
            held = zip(piece.offsets, piece.tensor.shape, strict=True)
            whole[tuple(slice(offset, offset + size) for offset, size in held)] = piece.tensor
        dist.all_reduce(whole, group=self.group)
        return whole


@torch.enable_grad()
def parallelize(
    config: Config,
    model: Dlrm,
    device: torch.device,
    plan: Plan,
    process_group: dist.ProcessGroup | None = None,
) -> Parallel:
    """Spreads a model over the ranks of a process group (the world, if none is given). A collective call.

    Args:
        model: as `build_dlrm` makes it, its tables on the meta device; it becomes part of the answer.
        plan: the same one on every rank.
    """
    optimizer_class, optimizer_args = fused_optimizer_args(config.optim.sparse)
    for name, placement in plan.report.placement().items():
        if placement != "data_parallel":
            weight = model.tables.get_parameter(f"embedding_bags.{name}.{WEIGHT}")
            apply_optimizer_in_backward(optimizer_class, [weight], optimizer_args)
    group = process_group or dist.group.WORLD
    assert group is not None, "a process group is needed, also for one rank"
    module = DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(group),
        device=device,
        plan=plan.torchrec,
        # An id beyond its table is a bug of ours, since encoding maps all ids: fail, do not train another row.
        sharders=table_sharders({"bounds_check_mode": BoundsCheckMode.FATAL}),
        init_parameters=False,
        init_data_parallel=False,
    )
    _mend(module.module.get_submodule(TABLES), model, config, device)
    parallel = Parallel(config, module, plan, group)
    parallel.fill_tables()
    return parallel


def _start_slots(optimizer: torch.optim.Optimizer) -> None:
    """Adam makes its slots in the first step; here they are there from the start, so that a checkpoint always has the
    same names."""
    if isinstance(optimizer, torch.optim.Adam):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                slots = {name: torch.zeros_like(parameter, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = {"step": torch.tensor(0.0), **slots}


def _mend(tables: nn.Module, model: Dlrm, config: Config, device: torch.device) -> None:
    """Three things that TorchRec 1.8 does otherwise than its caller would, when tables have different placements.

    It answers pooled vectors grouped by placement, no longer in the order of the tables. As soon as one row-wise table
    has mean pooling, it divides the vectors of every feature by the length of their bag, except those that it knows to
    be of row-wise tables with sum pooling: so it is told that all others are such (whose vectors it divides by 1 + 1e-6
    then). And it wraps replicated tables into DDP, whose work `FlatGradients` does.
    """
    assert isinstance(tables, ShardedEmbeddingBagCollection)
    keys = tables._embedding_names
    if keys != model.pooled.keys:
        features = [feature.name for feature in config.dataset.sparse]
        model.pooled = PooledVectors(features, keys, model.pooled.dim).to(device)
    features_by_pooling = tables._pooling_type_to_rs_features
    means = set(features_by_pooling["MEAN"])
    features_by_pooling["SUM"] = [name for name in keys if name not in means]
    for index, lookup in enumerate(tables._lookups):
        if isinstance(lookup, DistributedDataParallel):
            lookup._remove_autograd_hooks()
            tables._lookups[index] = lookup.module


def _replica(table: str, slot: str, tensor: torch.Tensor) -> Piece:
    shape = tuple(tensor.shape)
    return Piece(table, slot, shape, (0,) * len(shape), tensor.detach(), is_replica=True)
