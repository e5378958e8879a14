"""The sharding plan: which rank holds which rows of which table. Made without a process group, from the configuration
and a topology alone, so that every rank comes to the same one and any cluster can be planned anywhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec import EmbeddingBagCollection
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner import Topology as PlannerTopology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import KernelConfig, PlannerError, TopologyFactory, TrainerConfig
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    ModuleSharder,
    ParameterSharding,
    ShardingPlan,
    ShardingType,
)

from diurnal.config.features import Table
from diurnal.config.run import Config, Placement
from diurnal.errors import Fault, ResourceError
from diurnal.model.optim import fused_optimizer_args
from diurnal.model.tables import embedding_bag_configs
from diurnal.sharding.report import PlanReport, TablePlacement
from diurnal.sharding.topology import Topology

TABLES = "tables"
"""Path of the tables within the model."""

PLACEMENTS: tuple[Placement, ...] = ("table_wise", "row_wise", "column_wise", "data_parallel")

COLUMNS_MULTIPLE = 4
"""FBGEMM wants rows of float32 in multiples of 16 bytes, also of a part of the columns."""

CPU_DATA_PARALLEL_MAX_BYTES = 64 * 1024
"""On CPU, tables up to this size are replicated: reducing their whole gradient costs less than exchanging vectors."""

CPU_ROW_WISE_MIN_BYTES = 256 * 1024**2
"""On CPU, tables from this size on are cut into rows: below, a table as a whole exchanges fewer bytes."""

_FREE_SHARE = 0.15
"""Of the memory that the planner assumes, what is kept free of tables for activations and buffers."""


class TableSharder(EmbeddingBagCollectionSharder):
    """Offers all placements on every device. (The stock sharder leaves row-wise out on CPU, where it works.)"""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return list(PLACEMENTS)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        is_replicated = sharding_type == ShardingType.DATA_PARALLEL.value
        return [(EmbeddingComputeKernel.DENSE if is_replicated else EmbeddingComputeKernel.FUSED).value]


def table_sharders(fused_params: dict[str, Any] | None = None) -> list[ModuleSharder[nn.Module]]:
    """How TorchRec spreads the tables of a model."""
    return [cast(ModuleSharder[nn.Module], TableSharder(fused_params))]


@dataclass(frozen=True)
class Plan:
    """A plan as TorchRec executes it, and as people read it."""

    torchrec: ShardingPlan
    report: PlanReport

    def shards(self, table: str) -> list[ShardMetadata]:
        """Of a table, in TorchRec's order; none of a replicated one."""
        spec = embedding_shardings(self.torchrec)[table].sharding_spec
        assert spec is None or isinstance(spec, EnumerableShardingSpec)
        return [] if spec is None else spec.shards

    def num_column_ranges(self, table: str) -> int:
        """Into how many ranges of equal width the columns of a table are cut; 1 where rows stay whole."""
        return len({shard.shard_offsets[1] for shard in self.shards(table)}) or 1


def embedding_shardings(plan: ShardingPlan) -> EmbeddingModuleShardingPlan:
    """What a plan says of each table."""
    shardings = plan.get_plan_for_module(TABLES)
    assert isinstance(shardings, EmbeddingModuleShardingPlan)
    return shardings


def make_plan(config: Config, topology: Topology) -> Plan:
    """Places every table: as the configuration says, or, at "auto", by size on CPU and by TorchRec's planner on GPUs
    (whose cost model is one of GPUs). Which rank gets a whole table, or a range of columns, is the planner's choice
    always. "auto" cuts no columns: row-wise AdaGrad would become another function by that.

    Raises:
        ResourceError: the tables do not fit into the memory of the ranks.
    """
    allowed = {table.name: _allowed_placements(config, table, topology) for table in config.dataset.tables}
    schema = config.dataset
    tables = EmbeddingBagCollection(embedding_bag_configs(schema), schema.has_bag_weights, torch.device("meta"))
    optimizer_class, optimizer_args = fused_optimizer_args(config.optim.sparse)
    with torch.enable_grad():
        apply_optimizer_in_backward(optimizer_class, tables.parameters(), optimizer_args)
    planner = EmbeddingShardingPlanner(
        topology=_planner_topology(topology),
        batch_size=-(-config.data.batch_rows // topology.world_size),
        constraints={
            name: ParameterConstraints(sharding_types=list(a.placements), min_partition=a.column_width)
            for name, a in allowed.items()
        },
        storage_reservation=FixedPercentageStorageReservation(0 if topology.table_bytes_per_rank else _FREE_SHARE),
        stats=[],
        debug=False,
    )
    try:
        with _without_noise():
            plan = planner.plan(nn.ModuleDict({TABLES: tables}), table_sharders())
    except PlannerError as error:
        raise _do_not_fit(config, topology) from error
    shardings = embedding_shardings(plan)
    placed = tuple(_describe(config, t, allowed[t.name], shardings[t.name], topology) for t in config.dataset.tables)
    return Plan(plan, PlanReport(topology.world_size, topology.device, placed))


@dataclass(frozen=True)
class _Allowed:
    placements: tuple[Placement, ...]
    chosen_by: Literal["config", "size", "planner"]
    note: str = ""
    column_width: int | None = None
    """Of the ranges that columns are cut into."""


def _allowed_placements(config: Config, table: Table, topology: Topology) -> _Allowed:
    wanted = config.sharding.placement.get(table.name, config.sharding.default)
    has_row_on_every_rank = -(-table.rows // topology.world_size) * (topology.world_size - 1) < table.rows
    if wanted == "row_wise" and not has_row_on_every_rank:
        note = f"not row_wise: {table.rows} rows leave one of {topology.world_size} ranks without any"
        return _Allowed(("table_wise",), "size", note)
    if wanted == "column_wise":
        return _cut_columns(config, table, topology)
    if wanted != "auto":
        return _Allowed(tuple(p for p in PLACEMENTS if p == wanted), "config")
    if topology.device == "cuda":
        offered: list[Placement] = ["table_wise", "data_parallel", *(["row_wise"] if has_row_on_every_rank else [])]
        return _Allowed(tuple(p for p in PLACEMENTS if p in offered), "planner")
    num_bytes = _weight_bytes(table)
    if num_bytes <= CPU_DATA_PARALLEL_MAX_BYTES:
        return _Allowed(("data_parallel",), "size")
    is_cut = num_bytes >= CPU_ROW_WISE_MIN_BYTES and topology.world_size > 1
    return _Allowed(("row_wise",) if is_cut else ("table_wise",), "size")


def _cut_columns(config: Config, table: Table, topology: Topology) -> _Allowed:
    """Ranges as wide as needed for one on each rank of the largest world, not of the present one: where a run grows and
    shrinks between `workers.min` and `workers.max`, row-wise AdaGrad stays the same function."""
    num_ranks = max(config.workers.max, topology.world_size)
    least = max(COLUMNS_MULTIPLE, -(-table.dim // num_ranks))
    widths = range(least, table.dim)
    width = next((w for w in widths if table.dim % w == 0 and w % COLUMNS_MULTIPLE == 0), None)
    if width is None:
        why = f"{table.dim} columns, {num_ranks} ranks: no equal parts in multiples of {COLUMNS_MULTIPLE}"
        return _Allowed(("table_wise",), "size", f"not column_wise: {why}")
    return _Allowed(("column_wise",), "config", f"{table.dim // width} ranges of {width} columns", width)


def _planner_topology(topology: Topology) -> PlannerTopology:
    memory = topology.table_bytes_per_rank or None
    is_gpu = topology.device == "cuda"
    trainer = TrainerConfig(
        world_size=topology.world_size,
        local_world_size=topology.local_world_size,
        hbm_cap_bytes=memory if is_gpu else None,
        ddr_cap_bytes=None if is_gpu else memory,
    )
    return TopologyFactory.create_topology(trainer, kernel_config=KernelConfig(compute_device=topology.device))


@contextmanager
def _without_noise() -> Iterator[None]:
    """The planner warns of every replicated table through the root logger, and thereby gives that one a handler."""

    def is_news(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Sharding spec not found")

    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    root.addFilter(is_news)
    try:
        yield
    finally:
        root.removeFilter(is_news)
        root.removeHandler(handler)


def _describe(
    config: Config, table: Table, allowed: _Allowed, sharding: ParameterSharding, topology: Topology
) -> TablePlacement:
    rows_by_rank, columns_by_rank = [0] * topology.world_size, [0] * topology.world_size
    if sharding.sharding_spec is None:
        rows_by_rank, columns_by_rank = [table.rows] * topology.world_size, [table.dim] * topology.world_size
    else:
        for shard in sharding.sharding_spec.shards:  # pyright: ignore[reportAttributeAccessIssue]
            rank = shard.placement.rank()
            rows_by_rank[rank] = shard.shard_sizes[0]
            columns_by_rank[rank] += shard.shard_sizes[1] if shard.shard_sizes[0] else 0
    return TablePlacement(
        table=table.name,
        rows=table.rows,
        dim=table.dim,
        placement=next(p for p in PLACEMENTS if p == sharding.sharding_type),
        chosen_by=allowed.chosen_by,
        rows_by_rank=tuple(rows_by_rank),
        columns_by_rank=tuple(columns_by_rank),
        weight_bytes=_weight_bytes(table),
        moment_bytes=_moment_bytes(config, table, allowed.column_width or table.dim),
        note=allowed.note,
    )


def _weight_bytes(table: Table) -> int:
    return 4 * table.rows * table.dim


def _moment_bytes(config: Config, table: Table, column_width: int) -> int:
    ranges = table.dim // column_width
    values_per_row = {"sgd": 0, "rowwise_adagrad": ranges, "adagrad": table.dim, "adam": 2 * table.dim}
    return 4 * table.rows * values_per_row[config.optim.sparse.kind]


def _do_not_fit(config: Config, topology: Topology) -> ResourceError:
    needed = sum(_weight_bytes(table) + _moment_bytes(config, table, table.dim) for table in config.dataset.tables)
    memory = f"{topology.table_bytes_per_rank:,} bytes" if topology.table_bytes_per_rank else "the assumed memory"
    rule = f"tables and moments fit {topology.world_size} ranks with {memory} for them each"
    fix = 'use more workers, smaller tables, or sharding.default = "row_wise"'
    return ResourceError([Fault("sharding", f"{needed:,} bytes of tables and moments", rule, fix)])
