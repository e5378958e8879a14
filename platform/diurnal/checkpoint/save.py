"""Saving a version: every rank writes what it holds, then one of them commits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from diurnal.checkpoint.manifest import Contract, Lineage, Manifest, Provenance, config_hash, schema_hash
from diurnal.checkpoint.points import reached
from diurnal.checkpoint.state import TrainState
from diurnal.checkpoint.store import FileRecord, Store, Version
from diurnal.checkpoint.tensors import write
from diurnal.stack import library_versions

T = TypeVar("T")


def save(
    store: Store, state: TrainState, lineage: Lineage, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Version:
    """Writes and commits a version. A collective call: no rank returns before the commit is on disk.

    A process that dies on the way leaves a folder that no reader takes for a version.
    """
    rank, world_size = state.rank, state.world_size
    directory = _on_first_rank(state, lambda: store.begin(lineage.number, lineage.attempt, state.global_step))
    reached("checkpoint/before-shards", rank)
    for section, tensors in state.sections().items():
        shares = {name: tensor.share(rank, world_size) for name, tensor in tensors.items()}
        write(directory / section, {name: share for name, share in shares.items() if share.parts}, state.group)
    reached("checkpoint/before-commit", rank)
    files, hyperparameters = _of_all_ranks(directory, state)
    version = _on_first_rank(
        state, lambda: store.commit(directory, describe(state, lineage, hyperparameters, now()), files)
    )
    reached("checkpoint/committed", rank)
    return version


def describe(
    state: TrainState, lineage: Lineage, hyperparameters: dict[str, dict[str, Any]], now: datetime
) -> Manifest:
    """What the version of this state says about itself."""
    parallel = state.parallel
    config, report = parallel.config, parallel.plan.report
    return Manifest(
        model=config.name,
        lineage=lineage,
        global_step=state.global_step,
        contract=Contract.of(config),
        provenance=Provenance(
            schema_hash=schema_hash(config.dataset),
            config_hash=config_hash(config),
            config=config.model_dump(mode="json"),
            libraries=library_versions(),
            world_size=state.world_size,
            device=report.device,
            placement=dict(report.placement()),
            hyperparameters=hyperparameters,
        ),
        created_at=now.astimezone(UTC).isoformat(timespec="seconds"),
    )


def _of_all_ranks(directory: Path, state: TrainState) -> tuple[dict[str, FileRecord], dict[str, dict[str, Any]]]:
    """Checksums of all files, each computed by the rank that wrote it; and what the optimizers of all ranks use."""
    patterns = [f"*/__{state.rank}_*", *(["*/.metadata"] if state.rank == 0 else [])]
    paths = [path for pattern in patterns for path in directory.glob(pattern)]
    mine = {path.relative_to(directory).as_posix(): FileRecord.of(path) for path in paths}
    gathered: list[Any] = [None] * state.world_size
    dist.all_gather_object(gathered, (mine, state.parallel.hyperparameters()), group=state.group)
    files = {path: record for files, _ in gathered for path, record in files.items()}
    return files, {part: used for _, parts in gathered for part, used in parts.items()}


def _on_first_rank(state: TrainState, action: Callable[[], T]) -> T:
    """What the action answers on the first rank; its error is raised on all ranks, since none may wait for another."""
    answer: list[T | Exception | None] = [None]
    if state.rank == 0:
        try:
            answer = [action()]
        except Exception as error:
            answer = [error]
    dist.broadcast_object_list(answer, group=state.group, group_src=0)
    (value,) = answer
    if isinstance(value, Exception):
        raise value
    return value  # pyright: ignore[reportReturnType]
