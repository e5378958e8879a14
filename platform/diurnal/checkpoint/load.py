"""Continuing from a version: compare, verify, read. What does not fit is said before any tensor is read."""

from __future__ import annotations

import dataclasses

import torch
import torch.distributed as dist

from diurnal.checkpoint.compatibility import Compatibility, compare
from diurnal.checkpoint.manifest import Manifest
from diurnal.checkpoint.save import PROGRESS
from diurnal.checkpoint.state import MODEL, OPTIMIZER, RANDOM, TrainState
from diurnal.checkpoint.store import Store, Version
from diurnal.checkpoint.tensors import Folder
from diurnal.errors import CheckpointError, Fault


def load(store: Store, version: Version, state: TrainState, *, reset_optimizer: bool = False) -> Compatibility:
    """Fills a newly made state from a version, at any world size and placement. A collective call.

    Args:
        state: of a new model under the configuration that is to be continued with; its tables hold their first values.
        reset_optimizer: leave moments and random numbers as new; the schedule goes on.

    Returns:
        What was loaded, grown, new, changed or dropped; the same on every rank.

    Raises:
        CheckpointError: on all ranks, before a tensor is read, with everything that does not fit or is damaged.
    """
    manifest = version.manifest()
    compatibility = compare(manifest, state.parallel.config, reset_optimizer=reset_optimizer)
    compatibility.refuse_if_broken()
    sections = (MODEL,) if reset_optimizer else (MODEL, OPTIMIZER, RANDOM)
    _verify(store, version, sections, state)
    folders = {section: Folder(version.directory / section) for section in sections}
    _nothing_is_missing(version, manifest, folders, state)
    state.global_step = manifest.global_step
    state.read(folders, manifest.contract)
    return compatibility


def load_progress(
    store: Store, version: Version, state: TrainState
) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """What the ranks that made a resume point had added up inside the increment. A collective call.

    Returns:
        By name: what rank 0 had; and what each of the ranks had that this rank stands for now. Over all ranks of now,
        each rank of then is there once.

    Raises:
        CheckpointError: on all ranks, when it is damaged.
    """
    _verify(store, version, (PROGRESS,), state)
    folder = Folder(version.directory / PROGRESS)
    ranks = sorted({int(name.split("/")[0]) for name in folder.shapes})

    def of(rank: int) -> dict[str, torch.Tensor]:
        names = [name for name in folder.shapes if name.startswith(f"{rank}/")]
        return {name.split("/", 1)[1]: tensor for name, tensor in folder.read_whole(names).items()}

    return of(0), [of(rank) for rank in ranks if rank % state.world_size == state.rank]


def _verify(store: Store, version: Version, sections: tuple[str, ...], state: TrainState) -> None:
    """Every rank verifies a share of the files, so that each is read once."""
    needed = [path for path in sorted(version.files()) if "/" not in path or path.split("/")[0] in sections]
    faults = store.verify(version, needed[state.rank :: state.world_size])
    _agree([_with_way_out(version, fault) for fault in faults], state)


def _nothing_is_missing(version: Version, manifest: Manifest, folders: dict[str, Folder], state: TrainState) -> None:
    faults = []
    for section, tensors in state.wanted(manifest.contract).items():
        for name in tensors if section in folders else ():
            if name not in folders[section].shapes:
                rule = "what the configuration needs was saved"
                fault = Fault(f"{version.directory / section}", f"no {name}", rule, _EARLIER)
                faults.append(_with_way_out(version, fault))
    _agree(faults, state)


_EARLIER = "restore it from a copy, or continue from an earlier version"


def _with_way_out(version: Version, fault: Fault) -> Fault:
    if fault.where.startswith(str(version.directory / OPTIMIZER)):
        fix = f"{fault.fix}, or start the optimizers anew with checkpoint.reset_optimizer = true"
        return dataclasses.replace(fault, fix=fix)
    return fault


def _agree(faults: list[Fault], state: TrainState) -> None:
    """All ranks raise what any of them found."""
    gathered: list[list[Fault]] = [[]] * state.world_size
    dist.all_gather_object(gathered, faults, group=state.group)
    found = list(dict.fromkeys(fault for some in gathered for fault in some))
    if found:
        raise CheckpointError(found)
