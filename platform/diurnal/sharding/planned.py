"""Plans that are kept in a folder, one file for each set of circumstances, since planning hundreds of tables takes
many seconds and every resize of a run needs a plan for another number of ranks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version

import torch.distributed as dist
from pydantic import TypeAdapter
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan

from diurnal.config.run import Config, Placement
from diurnal.data.objects import ObjectPath, Place
from diurnal.errors import DiurnalError, ResourceError
from diurnal.sharding.plan import (
    CPU_DATA_PARALLEL_MAX_BYTES,
    CPU_ROW_WISE_MIN_BYTES,
    TABLES,
    Plan,
    embedding_shardings,
    make_plan,
)
from diurnal.sharding.report import PlanReport
from diurnal.sharding.topology import Topology

FORMAT = 1
"""Raised when the same circumstances lead to another plan than before, or to another record of it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Shard:
    offsets: tuple[int, ...]
    """Row and column."""
    sizes: tuple[int, ...]
    place: str
    """As torch spells it: `rank:0/cpu`."""


@dataclass(frozen=True)
class _Table:
    placement: Placement
    kernel: str
    ranks: tuple[int, ...]
    shards: tuple[_Shard, ...]
    """None of a replicated table."""


@dataclass(frozen=True)
class _Record:
    """What a file holds."""

    key: str
    tables: dict[str, _Table]
    report: PlanReport


@cache
def _records() -> TypeAdapter[_Record]:
    return TypeAdapter(_Record)


def plan_key(config: Config, topology: Topology) -> str:
    """Hash of all that a plan depends on."""
    dataset = config.dataset
    circumstances = {
        "format": FORMAT,
        "torchrec": version("torchrec"),
        "thresholds": [CPU_DATA_PARALLEL_MAX_BYTES, CPU_ROW_WISE_MIN_BYTES],
        "tables": [table.model_dump(mode="json") for table in dataset.tables],
        "features": [(feature.name, feature.table_name) for feature in dataset.sparse],
        "sharding": config.sharding.model_dump(mode="json"),
        "optimizer": config.optim.sparse.kind,
        "batch_rows": config.data.batch_rows,
        "max_workers": config.workers.max,
        "topology": asdict(topology),
    }
    return hashlib.sha256(json.dumps(circumstances, sort_keys=True).encode()).hexdigest()[:32]


def to_json(plan: Plan, key: str) -> str:
    """A plan as text, with the key of what it depends on."""
    tables = {}
    for name, sharding in embedding_shardings(plan.torchrec).items():
        shards = tuple(
            _Shard(tuple(shard.shard_offsets), tuple(shard.shard_sizes), str(shard.placement))
            for shard in plan.shards(name)
        )
        placement = plan.report.placement()[name]
        tables[name] = _Table(placement, sharding.compute_kernel, tuple(sharding.ranks or ()), shards)
    return _records().dump_json(_Record(key, tables, plan.report)).decode()


def from_json(text: str | bytes, key: str | None = None) -> Plan:
    """The plan that `to_json` wrote, of certain circumstances or, with None, of any.

    Raises:
        ValueError: it is no such text, or one of other circumstances.
    """
    record = _records().validate_json(text)
    if key is not None and record.key != key:
        raise ValueError(f"a plan for {record.key}, not for {key}")
    shardings = EmbeddingModuleShardingPlan()
    for name, table in record.tables.items():
        shards = [ShardMetadata(list(s.offsets), list(s.sizes), s.place) for s in table.shards]
        shardings[name] = ParameterSharding(
            sharding_type=table.placement,
            compute_kernel=table.kernel,
            ranks=list(table.ranks),
            sharding_spec=EnumerableShardingSpec(shards) if shards else None,
        )
    return Plan(ShardingPlan({TABLES: shardings}), record.report)


def planned(
    config: Config, topology: Topology, folder: Place | None = None, group: dist.ProcessGroup | None = None
) -> Plan:
    """The plan of `make_plan`: the first rank takes it from the folder, or makes it and puts it there, and hands it to
    the others. A collective call.

    Args:
        topology: what the first rank says of it counts.
        folder: kept plans; it need not exist. A file in it that is broken or of other circumstances is replaced; where
            nothing can be written, the plan is made each time.
        group: the ranks that are planned for; the world, when None.

    Raises:
        ResourceError: on all ranks: the tables do not fit into their memory.
    """
    answer: list[str | Exception | None] = [None]
    error: Exception | None = None
    if dist.get_rank(group) == 0:
        try:
            answer = [_kept_or_made(config, topology, folder)]
        except Exception as caught:
            # The others wait for an answer, so it has to be one that can travel.
            error = caught
            answer = [caught if isinstance(caught, DiurnalError) else RuntimeError(f"rank 0 has no plan: {caught!r}")]
    dist.broadcast_object_list(answer, group=group, group_src=0)
    (text,) = answer
    if error is not None:
        raise error
    if isinstance(text, Exception):
        raise text
    assert text is not None
    return from_json(text)


def plan_ahead(config: Config, topologies: Iterable[Topology], folder: Place) -> list[Topology]:
    """Puts plans into the folder where they are not there yet. No process group, and nothing but CPU time is needed.

    Returns:
        The topologies that there is a plan for now. The others are too small for the tables.
    """
    fitting = []
    for topology in topologies:
        with contextlib.suppress(ResourceError):
            _kept_or_made(config, topology, folder)
            fitting.append(topology)
    return fitting


def _kept_or_made(config: Config, topology: Topology, folder: Place | None) -> str:
    key = plan_key(config, topology)
    path = folder / f"{key}.json" if folder is not None else None
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
            from_json(text, key)
            return text
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning("made anew, since %s is no such plan: %s", path, str(error).partition("\n")[0])
    text = to_json(make_plan(config, topology), key)
    if path is not None:
        _keep(path, text)
    return text


def _keep(path: Place, text: str) -> None:
    """Replaces the file as a whole. A plan can be made again, so that no disk has to be waited for, nor a failure be
    more than a warning."""
    if isinstance(path, ObjectPath):
        try:
            path.write_text(text)
        except OSError as error:
            log.warning("the plan is not kept: %s", error)
        return
    unfinished = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        log.warning("the plan is not kept: %s", error)
        with contextlib.suppress(OSError):
            unfinished.unlink()
