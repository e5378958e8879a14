"""What Prometheus is given: every series with its labels, where it comes from, and what it means.

Numbers of a driver and of its workers go through Ray's own metrics endpoint, which puts `ray_` before each name, and
are there while they live; how a model stands comes from the ledger (`daily.exporter`), whether anything runs or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from diurnal.tracking import names

Source = Literal["driver", "worker", "ledger"]


@dataclass(frozen=True)
class Series:
    metric: str
    """As `names` spells it."""
    source: Source
    text: str
    tags: tuple[str, ...] = ("model",)
    """Labels. None of them has more values than there are ranks, tables, features or increments on show."""
    is_counter: bool = False

    @property
    def name(self) -> str:
        """Without what Ray and Prometheus add."""
        return names.prometheus_name(self.metric)

    @property
    def exposed(self) -> str:
        """The name that a query asks for."""
        through_ray = "" if self.source == "ledger" else "ray_"
        return f"{through_ray}{self.name}{'_total' if self.is_counter else ''}"


_RANK = ("model", "rank")
_INCREMENT = ("model", "increment")
_TABLE = ("model", "table")
_FEATURE = ("model", "feature")

_DRIVER = (
    names.TRAIN_LOG_LOSS,
    names.TRAIN_SKIPPED_STEPS,
    names.TRAIN_GLOBAL_STEP,
    names.THROUGHPUT_ROWS_PER_S,
    names.THROUGHPUT_DATA_WAIT_SHARE,
    names.CLUSTER_WORLD_SIZE,
    names.CLUSTER_RESTARTS,
    names.CLUSTER_RESIZES,
    names.CHECKPOINT_SAVE_S,
    names.CHECKPOINT_STALL_S,
    names.CHECKPOINT_BYTES,
    f"{names.PROGRESSIVE}/ne",
    f"{names.PROGRESSIVE}/calibration",
)
"""Metrics that MLflow has too, under the same name and with the same meaning."""


def _all() -> Iterable[Series]:
    yield from (Series(metric, "driver", names.METRICS[metric]) for metric in _DRIVER)
    yield Series(names.TRAIN_DONE_SHARE, "driver", "share of the increment's rows that were learned, 0 to 1")
    yield Series(names.STORAGE_FREE_SHARE, "driver", "share of the disk of a local storage folder that is free")
    yield Series(names.WORKER_STEPS, "worker", "steps that the rank has begun", _RANK, is_counter=True)
    phases = "seconds that the rank has spent in each phase of its steps, as its own clock has it"
    yield Series(names.WORKER_PHASE_S, "worker", phases, (*_RANK, "phase"), is_counter=True)
    yield Series(names.WORKER_STEP_AGE_S, "worker", "seconds since the rank's step began; 0 between steps", _RANK)
    yield from _of_ledger()


def _of_ledger() -> Iterable[Series]:
    def series(metric: str, text: str, *tags: str) -> Series:
        return Series(metric, "ledger", text, ("model", *tags))

    yield series(names.MODEL_UP, "1 if the ledger has answered")
    yield series(names.MODEL_CHAMPION, "number of the version that serving should use")
    yield series(names.MODEL_CHAMPION_AGE_S, "seconds since the champion was committed")
    yield series(names.MODEL_FRESHNESS_S, "age of the newest row that the champion has learned, seconds")
    yield series(names.MODEL_PENDING, "increments that are known and not done")
    yield series(names.MODEL_LATE, "1 if an increment is not done `days.wait_s` after its end")
    yield series(names.MODEL_LATE_S, "seconds since the oldest late increment was due; 0 if none is late")
    yield series(names.MODEL_NEEDS_A_PERSON, "1 if something waits for a person")
    yield series(names.MODEL_HELD_BY, "1 with the process that has the model, 0 with nobody", "holder")
    yield series(names.MODEL_LEARNING, "1 while workers are on an increment")
    yield series(names.MODEL_NEWEST_STATE, "1: the newest increment and its state", "increment", "state")
    yield series(
        names.MODEL_TROUBLE, "1: what is held, undecided, failed, late, and why", "increment", "kind", "reason"
    )
    yield Series(names.INCREMENT_NE, "ledger", "NE of the champion over the increment, unseen", _INCREMENT)
    calibration = "the champion's mean prediction over mean label of the increment, unseen; 1 is right"
    yield Series(names.INCREMENT_CALIBRATION, "ledger", calibration, _INCREMENT)
    yield Series(names.INCREMENT_ROWS, "ledger", "rows of the increment", _INCREMENT)
    yield series(names.INCREMENT_STATE, "version of the increment, 0 without", "increment", "state", "reason")
    for metric, text in {
        names.TABLE_ROWS: "rows that the table has, or units of an MLP",
        names.TABLE_LEARNED_ROWS: "rows that a gradient has ever reached",
        names.TABLE_NEW_ROWS: "rows that a gradient has reached in this increment for the first time",
        names.TABLE_DEAD_ROWS: "learned rows whose values are all zero",
        names.TABLE_NONFINITE: "values of weights and optimizer state that are not finite",
        names.TABLE_RMS: "root mean square of the weights of the learned rows",
        names.TABLE_MAX_ABS: "largest absolute value of a weight or of optimizer state",
    }.items():
        yield Series(metric, "ledger", f"{text}, newest judged version", _TABLE)
    for metric, text in {
        names.FEATURE_IDS: "ids that were looked up",
        names.FEATURE_UNKNOWN_IDS: "ids beyond the table",
        names.FEATURE_NO_ID: "null and negative ids",
    }.items():
        yield Series(metric, "ledger", f"{text}, newest judged version", _FEATURE)


SERIES: Mapping[str, Series] = MappingProxyType({series.metric: series for series in _all()})
"""By metric."""
