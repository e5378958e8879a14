"""One life of a plain gloo world, as its ranks live it: rank 0 is its own driver, and every learned row is written
down beside the model, in a way that survives any death."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diurnal.checkpoint.history import History
from diurnal.checkpoint.store import Store
from diurnal.config import from_resolved
from diurnal.data.batch import Batch
from diurnal.data.selection import select_increments
from diurnal.data.streams import StreamPlan
from diurnal.ledger.claims import Ledger
from diurnal.train.commit import Progress
from diurnal.train.desk import TrainingDesk
from diurnal.train.events import Direct, Link
from diurnal.train.loop import Wishes
from diurnal.train.orders import Orders
from diurnal.train.passes import Pass
from diurnal.train.pulse import Pulse
from diurnal.train.run import not_yet_trained
from diurnal.train.sequence import WorkerSequence, ask
from diurnal.train.spec import Spec, Start

TINY_FILE_BYTES = 512


@dataclass(frozen=True)
class Life:
    config_json: str
    folder: Path
    """Its records: `token`, `<rank>.pid`, `<increment>/<rank>-{tags,times}.npy`."""
    step_s: float = 0.0
    """Added to each step, so that there is something to interrupt."""
    full_disk: tuple[int, float, float] | None = None
    """Rank, seconds after its first step, and for how long it can write small files only."""


class Record:
    """The tags that one rank has learned, by step, in a file that is mapped into memory: the kernel keeps it whatever
    becomes of the process, and no limit on the size of files touches it."""

    def __init__(self, folder: Path, plan: StreamPlan, rank: int, world_size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shape = (plan.num_steps, plan.local_batch_rows(world_size))
        self._tags = self._times = np.zeros(shape)
        if plan.num_steps:
            self._tags = np.lib.format.open_memmap(folder / f"{rank}-tags.npy", "w+", np.int64, shape)
            self._tags[:] = -1
            self._times = np.lib.format.open_memmap(folder / f"{rank}-times.npy", "w+", np.float64, shape[:1])

    def add(self, batch: Batch) -> None:
        tags = batch.sparse["tag"].values().numpy()
        assert len(tags) == batch.num_rows, "every real row has its tag"
        assert self._times[batch.step] == 0, f"step {batch.step} is learned twice in one life"
        self._tags[batch.step, : len(tags)] = tags
        self._times[batch.step] = time.time()


class _Recorded(WorkerSequence):
    """Writes down what is learned, after the step and before anything is committed."""

    def __init__(self, life: Life, world_size: int, rank: int, spec: Spec, start: Start, *args: Any) -> None:
        super().__init__(spec, start, *args)
        plans = [StreamPlan.from_json(fit.plan) for fit in start.fits]
        self._records = {p.increment_id: Record(life.folder / p.increment_id, p, rank, world_size) for p in plans}
        self._life = life
        self._full_disk = _FullDisk(life, rank)

    def _on_learned(self, progress: Progress) -> Callable[[Pass, Batch, Wishes], bool]:
        on_step, record = super()._on_learned(progress), self._records[progress.plan.increment_id]

        def recorded(done: Pass, batch: Batch, agreed: Wishes) -> bool:
            record.add(batch)
            self._full_disk.begin()
            time.sleep(self._life.step_s)
            return on_step(done, batch, agreed)

        return recorded


class _FullDisk:
    """A disk that takes only small files for a while, as this process sees it."""

    def __init__(self, life: Life, rank: int) -> None:
        self._after = life.full_disk if life.full_disk and life.full_disk[0] == rank else None
        self._folder = life.folder

    def begin(self) -> None:
        if self._after is not None:
            threading.Thread(target=self._run, args=self._after[1:], daemon=True).start()
            self._after = None

    def _run(self, after_s: float, for_s: float) -> None:
        time.sleep(after_s)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        (self._folder / "full-disk").touch()
        resource.setrlimit(resource.RLIMIT_FSIZE, (TINY_FILE_BYTES, hard))
        time.sleep(for_s)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def live(rank: int, world_size: int, life: Life) -> None:
    """Trains what is left of the dataset, unless something comes between."""
    (life.folder / f"{rank}.pid").write_text(str(os.getpid()))
    config = from_resolved(life.config_json)
    with ExitStack() as stack:
        link: Any = None
        if rank == 0:
            link = _drive(config, life.folder, stack)
        pulse = Pulse()
        orders = Orders(link or _Nobody(), pulse)
        spec = Spec("train", life.config_json, {}, link or _Nobody(), "", time.time())
        start = ask(spec.link, "start", world_size=world_size)
        cpu = torch.device("cpu")
        _Recorded(life, world_size, rank, spec, start, cpu, {}, pulse, orders, lambda _, __: None).train()


def _drive(config: Any, folder: Path, stack: ExitStack) -> Link:
    """As `train.run.train` does."""
    ledger = stack.enter_context(Ledger.of(config))
    lease = ledger.claim(config.name, "torture", config.ledger.lease_s)
    stack.callback(lease.release)
    stack.enter_context(lease.heartbeat())
    (folder / "token").write_text(str(lease.token))
    history = History(Store(config.storage, config.name), ledger, config.name)
    history.rebuild(lease)
    increments = select_increments(config.data.path, config.dataset, parts=config.data.parts)
    todo, _ = not_yet_trained(increments, history.commits())
    desk = TrainingDesk(config, history, ledger, lease, todo, say=print)
    stack.callback(desk.close, "failed")
    return Direct(desk)


class _Nobody:
    """The link of the ranks that tell nothing."""

    def send(self, *_: Any, **__: Any) -> None:
        pass

    def ask(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("rank 0 asks")

    def beat(self, beat: dict[str, Any]) -> dict[str, Any]:
        return {"beats": {}, "orders": {}}
