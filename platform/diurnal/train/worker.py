"""What each Ray Train worker runs. Heavy imports come after the versions were compared."""

from __future__ import annotations

import json
import socket
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import ray.train

from diurnal.data.objects import is_url
from diurnal.errors import ConfigError, Fault, StackError
from diurnal.stack import library_versions
from diurnal.train.spec import Spec

POINTER = "version.json"
"""The one file of Ray Train's checkpoint: where ours is. Our store is the truth."""


def work(task: dict[str, Any]) -> None:
    """Fits or scores the increments of `task["spec"]`, watched."""
    entered_s = time.time()
    spec: Spec = task["spec"]
    _refuse_mixed_versions(spec.versions)
    _refuse_a_storage_of_its_own(spec.scratch)
    from diurnal.config import from_resolved
    from diurnal.train.meters import WorkerMeters
    from diurnal.train.orders import Orders
    from diurnal.train.pulse import Pulse
    from diurnal.train.sequence import WorkerSequence, ask
    from diurnal.train.stall import Watchdog, die

    imported_s = time.time()
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    config = from_resolved(spec.config_json)
    workers = config.workers
    pulse = Pulse()
    orders, meters = Orders(spec.link, pulse), WorkerMeters(config.name, rank, pulse)

    def exchange(beat: dict[str, Any]) -> dict[str, Any]:
        if spec.mode == "train":
            meters.tell(beat["step_s"] if beat["limit_s"] is not None else None)
        return orders.exchange(beat)

    try:
        start = ask(spec.link, "start", world_size=world_size)
        on_stall = partial(die, tell=lambda _, words: spec.link.send("stalled", orders.increment, rank=rank, **words))
        watch = Watchdog(pulse, rank, world_size, workers.stall_s, exchange, on_stall, group=str(start.generation))
        with watch:
            timeline = {"entered_s": entered_s, "imported_s": imported_s}
            sequence = WorkerSequence(spec, start, _device(workers.gpus), timeline, pulse, orders, _report)
            sequence.evaluate() if spec.mode == "evaluate" else sequence.train()
    except Exception as error:
        rows = pulse.rows if orders.learns else 0
        spec.link.send("failed", orders.increment, rank=rank, rows=rows, error=f"{type(error).__name__}: {error}")
        # Ray Train hands the driver the bare exception; where it was raised would be lost.
        error.add_note(traceback.format_exc())
        raise


def _device(gpus: int) -> Any:
    import ray.train.torch
    import torch

    return ray.train.torch.get_device() if gpus else torch.device("cpu")


def _report(number: int, directory: str) -> None:
    """Hands Ray Train a pointer to a version. Without waiting, since the version is committed already."""
    mode = ray.train.CheckpointUploadMode.ASYNC
    if ray.train.get_context().get_world_rank() != 0:
        ray.train.report({"version": number}, checkpoint_upload_mode=mode)
        return
    folder = Path(tempfile.mkdtemp(prefix="diurnal-pointer-"))
    (folder / POINTER).write_text(json.dumps({"version": number, "path": directory}))
    checkpoint = ray.train.Checkpoint.from_directory(folder)
    ray.train.report({"version": number}, checkpoint=checkpoint, checkpoint_upload_mode=mode)


def _refuse_a_storage_of_its_own(scratch: str) -> None:
    """
    Raises:
        ConfigError: the folder that the driver made in the storage is not there: this machine has another one.
    """
    if not is_url(scratch) and not Path(scratch).is_dir():
        found = f"{scratch} is not there on {socket.gethostname()}, though the driver has made it"
        rule = "a storage that all nodes share, when there is more than one"
        fix = "use a shared file system, or workers on the driver's machine alone"
        raise ConfigError([Fault("storage", found, rule, fix)])


def _refuse_mixed_versions(driver: dict[str, str]) -> None:
    here = library_versions()
    faults = [
        Fault(f"worker: {name}", here.get(name, "not installed"), f"the driver's version, {version}", "use one image")
        for name, version in driver.items()
        if here.get(name) != version
    ]
    if faults:
        raise StackError(faults)
