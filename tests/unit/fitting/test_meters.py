"""What Prometheus is told of a run, and that nobody waits or fails for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diurnal.testing import tiny_config
from diurnal.tracking import gauges, names
from diurnal.tracking.gauges import Gauges
from diurnal.tracking.series import SERIES
from diurnal.train.desk import Restart
from diurnal.train.events import Event
from diurnal.train.meters import DriverMeters, WorkerMeters
from diurnal.train.pulse import Phase, Pulse

REPORT = {"ne": 0.9, "calibration": 1.1}


class Told(Gauges):
    """Writes down what Ray would be told."""

    def __init__(self) -> None:
        super().__init__(model="m")
        self.last: dict[tuple[str, ...], float] = {}
        self.sums: dict[tuple[str, ...], float] = {}

    def _record(self, metric: str, value: float, labels: Any) -> None:
        key = (metric, *labels.values())
        self.last[key] = value
        self.sums[key] = self.sums.get(key, 0.0) + value


def event(kind: str, **data: Any) -> Event:
    return Event(kind=kind, increment="2026-01-01", data=data, ask=0)


def progress(rows: int, **more: Any) -> Event:
    numbers = {"num_skipped_steps": 1, "global_step": 7, "rows_per_s": 50.0, "wait_share": 0.1}
    about = {"mode": "learn", "rows": rows, "num_rows": 100, "report": REPORT, "window_log_loss": 0.5}
    return event("progress", **{**about, **numbers, **more})


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[tuple[DriverMeters, Told, list[Restart]]]:
    restarts: list[Restart] = []
    meters, told = DriverMeters(tiny_config({"storage": str(tmp_path)}), restarts), Told()
    meters._gauges = told
    yield meters, told, restarts
    meters.end()


def test_an_object_store_has_no_disk_to_tell_of(driver: Any) -> None:
    _, all_told, _ = driver
    meters = DriverMeters(tiny_config({"storage": "s3://log/models"}), [])
    meters._gauges = all_told
    meters.handle(event("increment"))
    meters.end()
    assert all_told.last[names.TRAIN_DONE_SHARE,] == 0.0
    assert all_told.last.get((names.STORAGE_FREE_SHARE,)) is None


def test_an_increment_from_its_beginning_to_the_end(driver: Any) -> None:
    meters, all_told, restarts = driver
    told = all_told.last
    meters.handle(event("model", world_size=2))
    meters.handle(event("increment"))
    restarts.append(Restart("resize", 2, 1, "a node left"))
    meters.handle(event("increment"))
    meters.handle(progress(25))
    meters.handle(progress(99, mode="score"))
    assert told[names.CLUSTER_WORLD_SIZE,] == 2
    assert told[names.TRAIN_DONE_SHARE,] == 0.25
    assert told["progressive/ne",] == 0.9
    assert (told[names.CLUSTER_RESIZES,], told[names.CLUSTER_RESTARTS,]) == (1, 0)
    assert 0 < told[names.STORAGE_FREE_SHARE,] < 1
    meters.handle(event("committed", is_final=True, bytes=10, save_s=1.0, stall_s=0.5))
    assert told[names.CHECKPOINT_STALL_S,] == 0.5
    assert told[names.THROUGHPUT_ROWS_PER_S,] == 0
    assert "progressive/ne" not in all_told._last, "nothing is learned now"


def test_ray_forgets_what_is_not_told_again(driver: Any) -> None:
    meters, told, _ = driver
    meters.handle(event("model", world_size=2))
    told.last.clear()
    until_s = time.monotonic() + 10
    while not told.last:
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert told.last == {(names.CLUSTER_WORLD_SIZE,): 2}


def test_what_is_undefined_is_no_number(driver: Any) -> None:
    meters, told, _ = driver
    meters.handle(event("increment"))
    meters.handle(progress(25))
    meters.handle(progress(30, report={"ne": None, "calibration": None}))
    assert "progressive/ne" not in told._last


def test_a_rank_tells_of_its_steps_and_phases() -> None:
    pulse, told = Pulse(), Told()
    meters = WorkerMeters("m", 3, pulse)
    meters._gauges = told
    for step in range(2):
        for phase in (Phase.DATA, Phase.FORWARD):
            pulse.mark(phase, step)
            time.sleep(0.01)
        meters.tell(0.01)
    with pulse.paused():
        time.sleep(0.05)
    pulse.mark(Phase.DATA, 2)
    meters.tell(None)
    assert told.sums[names.WORKER_STEPS,] == 3
    assert told.sums[names.WORKER_PHASE_S, "data"] >= 0.02
    assert 0.02 <= told.sums[names.WORKER_PHASE_S, "forward"] < 0.05, "a pause is in no phase"
    assert told.last[names.WORKER_STEP_AGE_S,] == 0


def test_without_ray_nothing_is_told_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    told = Gauges(model="m")
    told.set({names.TRAIN_LOG_LOSS: 0.5})
    assert told._metrics == {}


def test_a_failure_is_said_once_and_ends_nothing(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no agent")

    monkeypatch.setattr(gauges, "_has_ray", lambda: True)
    monkeypatch.setattr(Gauges, "_made", broken)
    told = Gauges(model="m")
    for _ in range(3):
        told.set({names.TRAIN_LOG_LOSS: 0.5})
        told.add(names.WORKER_STEPS, 1.0, rank="0")
    assert [record.message for record in caplog.records] == [
        "no more metrics of this process: train/log_loss: no agent"
    ]


def test_series_are_few_and_spelled_as_prometheus_allows() -> None:
    known = {"model", "rank", "phase", "increment", "state", "kind", "reason", "holder", "table", "feature"}
    exposed = [series.exposed for series in SERIES.values()]
    assert len(set(exposed)) == len(exposed)
    for series in SERIES.values():
        assert series.exposed.replace("_", "a").isalnum()
        assert series.tags[0] == "model"
        assert set(series.tags) <= known
    assert SERIES[names.WORKER_STEPS].exposed == "ray_diurnal_worker_steps_total"
    assert SERIES[names.THROUGHPUT_ROWS_PER_S].exposed == "ray_diurnal_throughput_rows_per_s"
    assert SERIES[names.MODEL_UP].exposed == "diurnal_model_up"
