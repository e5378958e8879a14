"""Saving a commit: every rank writes what it holds, then one of them makes the commit record.

What is saved is first copied to the host; the copy is written by a thread over a process group of its own, while
training goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from diurnal.checkpoint.manifest import Contract, Lineage, Manifest, Provenance, config_hash, schema_hash
from diurnal.checkpoint.media import FileRecord
from diurnal.checkpoint.points import reached
from diurnal.checkpoint.state import Sections, TrainState
from diurnal.checkpoint.store import Store, Version
from diurnal.checkpoint.tensors import Named, write
from diurnal.data.objects import Place
from diurnal.errors import CheckpointError, Fault
from diurnal.sharding.parallel import Parallel
from diurnal.stack import library_versions

T = TypeVar("T")

PROGRESS = "progress"
"""Section of a resume point: what the pass over the increment has added up so far, `<rank>/<name>`."""

RETRY_EVERY_S = 1.0

Clock = Callable[[], datetime]


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Snapshot:
    """All that one rank has to write, as it was at one moment, in host memory of its own."""

    sections: Sections
    parallel: Parallel
    global_step: int
    hyperparameters: dict[str, dict[str, Any]]

    @staticmethod
    def of(state: TrainState, progress: dict[str, torch.Tensor] | None = None) -> Snapshot:
        """
        Args:
            progress: what this rank has added up inside the increment, by name.
        """
        shares = {
            section: {name: tensor.share(state.rank, state.world_size).copied() for name, tensor in tensors.items()}
            for section, tensors in state.sections().items()
        }
        if progress is not None:
            mine = {f"{state.rank}/{name}": Named.whole(tensor, is_replica=False) for name, tensor in progress.items()}
            shares[PROGRESS] = {name: tensor.copied() for name, tensor in mine.items()}
        return Snapshot(shares, state.parallel, state.global_step, state.parallel.hyperparameters())

    @property
    def num_bytes(self) -> int:
        tensors = [tensor for section in self.sections.values() for tensor in section.values()]
        return sum(part.tensor.nbytes for tensor in tensors for part in tensor.parts)


@dataclass(frozen=True)
class Saved:
    """What became of a save."""

    version: Version | None
    """None: the storage failed, and a resume point is not worth waiting for."""
    reason: str
    """Why there is none; of a save that was tried again, why the first try failed."""
    wait_s: float
    """Training stood still for the save before this one."""
    copy_s: float
    """Training stood still for the copy."""
    write_s: float


def save(store: Store, state: TrainState, lineage: Lineage, now: Clock = _utc_now) -> Version:
    """Writes and commits a version. A collective call: no rank returns before the commit is on disk.

    A process that dies on the way leaves a folder that no reader takes for a version.
    """
    store.prepare()
    return _write(store, Snapshot.of(state), lineage, state.group, now)


class Saver:
    """Saves in the background, one commit at a time. Made and used by all ranks alike.

    Args:
        retry_s: how long a version is tried again while the storage fails.
        on_saved: called on the first rank, by the thread that wrote, once the outcome is known.
    """

    def __init__(
        self, store: Store, state: TrainState, retry_s: float, on_saved: Callable[[Lineage, Saved], None]
    ) -> None:
        self._store = store
        self._state = state
        self._retry_s = retry_s
        self._on_saved = on_saved
        store.prepare()
        # Of its own, since the messages of two threads in one group would be taken for each other's.
        self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, lineage: Lineage, progress: dict[str, torch.Tensor] | None = None) -> None:
        """Copies the state and starts to write it; waits first for a save that is still being written. A collective
        call.

        Raises:
            what the save before has ended with.
        """
        asked_s = time.monotonic()
        self.settle()
        settled_s = time.monotonic()
        snapshot = Snapshot.of(self._state, progress)
        waits = settled_s - asked_s, time.monotonic() - settled_s
        args = (snapshot, lineage, waits)
        self._thread = threading.Thread(target=self._run, args=args, name="diurnal-save", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Waits until what was begun is committed, or given up.

        Raises:
            CheckpointError: on all ranks, when the storage did not take a version in time.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self, timeout_s: float) -> None:
        """Lets what was begun be written before this process ends, whatever it ends for; no collective call."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, snapshot: Snapshot, lineage: Lineage, waits: tuple[float, float]) -> None:
        try:
            saved = self._save(snapshot, lineage, waits)
            if self._state.rank == 0:
                self._on_saved(lineage, saved)
        except BaseException as error:
            self._error = error

    def _save(self, snapshot: Snapshot, lineage: Lineage, waits: tuple[float, float]) -> Saved:
        begun_s, first_reason = time.monotonic(), ""
        while True:
            try:
                version = _write(self._store, snapshot, lineage, self._group, _utc_now)
                return Saved(version, first_reason, *waits, time.monotonic() - begun_s)
            except (OSError, CheckpointException) as error:
                # The same on all ranks, at the same point: what follows is decided alike.
                reason = _why(error)
            first_reason = first_reason or reason
            if not lineage.position.is_final:
                return Saved(None, reason, *waits, time.monotonic() - begun_s)
            is_over = [time.monotonic() - begun_s > self._retry_s]
            dist.broadcast_object_list(is_over, group=self._group, group_src=0)
            if is_over[0]:
                rule = f"the storage takes a version within checkpoint.retry_s = {self._retry_s:g} s"
                fix = "make room, or mend the storage, and start the same command again"
                raise CheckpointError([Fault(str(self._store.root), reason, rule, fix)])
            time.sleep(RETRY_EVERY_S)


def describe(
    snapshot: Snapshot, lineage: Lineage, hyperparameters: dict[str, dict[str, Any]], now: datetime
) -> Manifest:
    """What the commit of a snapshot says about itself."""
    config, report = snapshot.parallel.config, snapshot.parallel.plan.report
    return Manifest(
        model=config.name,
        lineage=lineage,
        global_step=snapshot.global_step,
        contract=Contract.of(config),
        provenance=Provenance(
            schema_hash=schema_hash(config.dataset),
            config_hash=config_hash(config),
            config=config.public().model_dump(mode="json"),
            libraries=library_versions(),
            world_size=report.world_size,
            device=report.device,
            placement=dict(report.placement()),
            hyperparameters=hyperparameters,
        ),
        created_at=now.astimezone(UTC).isoformat(timespec="seconds"),
    )


def _write(store: Store, snapshot: Snapshot, lineage: Lineage, group: dist.ProcessGroup | None, now: Clock) -> Version:
    """Writes a snapshot and commits it. A collective call; an error of the storage on one rank is raised on all."""
    rank = dist.get_rank(group)
    _refuse_without_room(store, snapshot, group)
    directory = _on_first_rank(group, lambda: store.begin(lineage.number, lineage.attempt, lineage.position.steps))
    written: dict[str, FileRecord] = {}
    try:
        reached("checkpoint/before-shards", rank)
        for section, tensors in snapshot.sections.items():
            shares = {name: share for name, share in tensors.items() if share.parts}
            written |= {f"{section}/{name}": file for name, file in write(directory / section, shares, group).items()}
        reached("checkpoint/before-commit", rank)
        files, hyperparameters = _of_all_ranks(store, directory, written, snapshot, group)
        version = _on_first_rank(
            group, lambda: store.commit(directory, describe(snapshot, lineage, hyperparameters, now()), files)
        )
    except (OSError, CheckpointException):
        if rank == 0:
            store.discard(directory)
        raise
    reached("checkpoint/committed", rank)
    return version


def _refuse_without_room(store: Store, snapshot: Snapshot, group: dist.ProcessGroup | None) -> None:
    needed = torch.tensor([snapshot.num_bytes])
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    needed = needed.to(device)
    dist.all_reduce(needed, group=group)
    _on_first_rank(group, lambda: store.refuse_without_room(int(needed.item())))


def _of_all_ranks(
    store: Store,
    directory: Place,
    written: dict[str, FileRecord],
    snapshot: Snapshot,
    group: dist.ProcessGroup | None,
) -> tuple[dict[str, FileRecord], dict[str, dict[str, Any]]]:
    """Checksums of all files, each computed by the rank that wrote it; and what the optimizers of all ranks use."""
    rank = dist.get_rank(group)
    mine: dict[str, FileRecord] | OSError
    try:
        mine = store.records(directory, rank, written)
    except OSError as error:
        mine = error
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, (mine, snapshot.hyperparameters), group=group)
    for files, _ in gathered:
        if isinstance(files, OSError):
            raise files
    files = {path: record for files, _ in gathered for path, record in files.items()}
    return files, {part: used for _, parts in gathered for part, used in parts.items()}


def _on_first_rank(group: dist.ProcessGroup | None, action: Callable[[], T]) -> T:
    """What the action answers on the first rank; its error is raised on all ranks, since none may wait for another."""
    answer: list[T | Exception | None] = [None]
    if dist.get_rank(group) == 0:
        try:
            answer = [action()]
        except Exception as error:
            answer = [error]
    dist.broadcast_object_list(answer, group=group, group_src=0)
    (value,) = answer
    if isinstance(value, Exception):
        raise value
    return value  # pyright: ignore[reportReturnType]


def _why(error: OSError | CheckpointException) -> str:
    """The first reason, in one line."""
    cause: BaseException = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
    return f"{type(cause).__name__}: {cause}".splitlines()[0]
