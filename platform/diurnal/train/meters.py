"""What Prometheus is told while workers train: by the driver from their events, and by each rank of itself."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from diurnal.config import Config
from diurnal.data.objects import is_url
from diurnal.tracking import names
from diurnal.tracking.gauges import Gauges
from diurnal.train.desk import Restart
from diurnal.train.pulse import Phase, Pulse

if TYPE_CHECKING:
    from diurnal.train.events import Event

REPEAT_S = 1.0
"""Between two times that the driver tells all of its numbers again."""

_NE, _CALIBRATION = f"{names.PROGRESSIVE}/ne", f"{names.PROGRESSIVE}/calibration"
_OF_THE_MOMENT = (
    names.TRAIN_LOG_LOSS,
    names.TRAIN_DONE_SHARE,
    names.THROUGHPUT_DATA_WAIT_SHARE,
    _NE,
    _CALIBRATION,
)
"""Mean nothing while no increment is learned."""


class DriverMeters:
    """The run as a whole, from its making until `end`.

    Args:
        restarts: of the run so far; the list that the desk adds to.
    """

    def __init__(self, config: Config, restarts: Sequence[Restart]) -> None:
        self._gauges = Gauges(model=config.name)
        self._storage = config.storage
        self._restarts = restarts
        self._num_restarts_before: dict[str, int] = {}
        self._stall_s = 0.0
        self._ended = threading.Event()
        threading.Thread(target=self._repeat, name="diurnal-meters", daemon=True).start()

    def handle(self, event: Event) -> None:
        increment, data = event["increment"], event["data"]
        if event["kind"] == "model":
            self._gauges.set({names.CLUSTER_WORLD_SIZE: data["world_size"]})
        elif event["kind"] == "increment":
            self._begin(increment)
        elif event["kind"] == "progress" and data["mode"] == "learn":
            self._learned(increment, data)
        elif event["kind"] == "committed":
            self._committed(data)

    def end(self) -> None:
        """The workers are gone, and so is what was told of them."""
        self._ended.set()

    def _repeat(self) -> None:
        while not self._ended.wait(REPEAT_S):
            self._gauges.repeat()

    def _begin(self, increment: str) -> None:
        if increment not in self._num_restarts_before:
            self._num_restarts_before[increment], self._stall_s = len(self._restarts), 0.0
        self._gauges.set({names.TRAIN_DONE_SHARE: 0.0, names.TRAIN_SKIPPED_STEPS: 0.0, **self._changes(increment)})
        self._gauges.set({names.STORAGE_FREE_SHARE: _free_share(self._storage)})

    def _learned(self, increment: str, data: dict[str, Any]) -> None:
        report = data["report"]
        self._gauges.set(
            {
                names.TRAIN_DONE_SHARE: data["rows"] / max(data["num_rows"], 1),
                names.TRAIN_LOG_LOSS: data["window_log_loss"],
                names.TRAIN_SKIPPED_STEPS: data["num_skipped_steps"],
                names.TRAIN_GLOBAL_STEP: data["global_step"],
                names.THROUGHPUT_ROWS_PER_S: data["rows_per_s"],
                names.THROUGHPUT_DATA_WAIT_SHARE: data["wait_share"],
                _NE: report["ne"],
                _CALIBRATION: report["calibration"],
                **self._changes(increment),
            }
        )

    def _committed(self, data: dict[str, Any]) -> None:
        self._stall_s += data["stall_s"]
        told = {names.CHECKPOINT_SAVE_S: data["save_s"], names.CHECKPOINT_STALL_S: self._stall_s}
        if data["is_final"]:
            told |= {names.CHECKPOINT_BYTES: data["bytes"], names.THROUGHPUT_ROWS_PER_S: 0.0}
            self._gauges.set(dict.fromkeys(_OF_THE_MOMENT))
        self._gauges.set({**told, names.STORAGE_FREE_SHARE: _free_share(self._storage)})

    def _changes(self, increment: str) -> dict[str, float]:
        kinds = [restart.kind for restart in self._restarts[self._num_restarts_before.get(increment, 0) :]]
        return {names.CLUSTER_RESTARTS: kinds.count("restart"), names.CLUSTER_RESIZES: kinds.count("resize")}


class WorkerMeters:
    """One rank. Told by the thread that leaves its signs of life."""

    def __init__(self, model: str, rank: int, pulse: Pulse) -> None:
        self._gauges = Gauges(model=model, rank=str(rank))
        self._pulse = pulse
        self._num_steps = 0
        self._seconds = [0.0] * len(Phase)

    def tell(self, step_s: float | None) -> None:
        """
        Args:
            step_s: seconds since the step began; None between steps.
        """
        num_steps, seconds = self._pulse.moment.num_steps, list(self._pulse.seconds)
        self._gauges.add(names.WORKER_STEPS, num_steps - self._num_steps)
        for phase, before, now in zip(Phase, self._seconds, seconds, strict=True):
            self._gauges.add(names.WORKER_PHASE_S, now - before, phase=phase.word)
        self._num_steps, self._seconds = num_steps, seconds
        self._gauges.set({names.WORKER_STEP_AGE_S: step_s or 0.0})


def _free_share(storage: str) -> float | None:
    """None where the storage is not a folder of this machine."""
    if is_url(storage):
        return None
    try:
        usage = shutil.disk_usage(storage)
    except OSError:
        return None
    return usage.free / usage.total
