"""The driver's view of running workers: each event becomes progress, MLflow points and a result."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diurnal.config import Config
from diurnal.tracking import names
from diurnal.tracking.mlflow import Dataset, IncrementRun, Status, Tracker
from diurnal.tracking.plots import calibration_png
from diurnal.train.claim import record_attempt
from diurnal.train.events import Event
from diurnal.train.progress import Progress


@dataclass
class Outcome:
    """What became of one increment."""

    increment: str
    rows: int
    evaluated: dict[str, Any] | None = None
    """Totals of the version before it scoring it; None without one."""
    learned: dict[str, Any] | None = None
    version: int | None = None
    """Number of the version that was committed."""
    path: str = ""
    increment_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "day": self.increment,
            "rows": self.rows,
            "ne": _of(self.evaluated, "ne"),
            "auc": _of(self.evaluated, "auc"),
            "progressive_ne": _of(self.learned, "ne"),
            "progressive_auc": _of(self.learned, "auc"),
            "running_rate_ne": _of(self.learned, "running_rate_ne"),
            "calibration": _of(self.learned, "calibration"),
            "rows_per_s": self.learned and self.learned["rows_per_s"],
            "increment_s": self.increment_s,
            "skipped_steps": self.learned and self.learned["num_skipped_steps"],
            "version": self.version,
            "path": self.path,
            "evaluated": self.evaluated,
            "learned": self.learned,
        }


@dataclass(frozen=True)
class Announced:
    """What the driver knows of an increment before it is fitted."""

    dataset: Dataset
    attempt: int
    parent: int | None


@dataclass
class Watch:
    """Handles the events of one worker group, in order."""

    config: Config
    tracker: Tracker
    progress: Progress
    announced: Mapping[str, Announced]
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    timeline: dict[str, float] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    open_run: IncrementRun | None = None

    def handle(self, event: Event) -> None:
        handlers = {
            "timeline": self._on_timeline,
            "model": self._on_model,
            "increment": self._on_increment,
            "progress": self._on_progress,
            "evaluated": self._on_evaluated,
            "learned": self._on_learned,
            "committed": self._on_committed,
        }
        handlers[event["kind"]](event["increment"], event["data"])

    def end(self, status: Status) -> None:
        """Closes the run of an increment that was not committed."""
        self.progress.end()
        if self.open_run is not None:
            self.open_run.finish(status)
            self.open_run = None

    def _on_timeline(self, _: str, data: dict[str, Any]) -> None:
        self.timeline = {name: at_s - data["started_s"] for name, at_s in data.items() if name != "started_s"}

    def _on_model(self, _: str, data: dict[str, Any]) -> None:
        self.model = data
        if data["loaded"]:
            self.progress.say(data["loaded"])

    def _on_increment(self, increment: str, data: dict[str, Any]) -> None:
        self.outcomes[increment] = Outcome(increment, data["rows"])
        self.progress.begin(increment, data["rows"])
        announced = self.announced.get(increment)
        if announced is None:
            return
        record_attempt(self.config.storage, self.config.name, increment, announced.attempt)
        self.open_run = self.tracker.begin_increment(
            increment, attempt=announced.attempt, parent_version=announced.parent, dataset=announced.dataset
        )
        self.open_run.params({"used": self.model["hyperparameters"]})
        self.open_run.artifact_text(names.PLAN_ARTIFACT, self.model["plan"])

    def _on_progress(self, increment: str, data: dict[str, Any]) -> None:
        report, learning = data["report"], data["mode"] == "learn"
        ne = "-" if report["ne"] is None else f"{report['ne']:.4f}"
        numbers = {"NE": ne, "rows/s": f"{data['rows_per_s']:,.0f}", "data wait": f"{data['wait_share']:.0%}"}
        title = f"{increment} {'learning' if learning else 'scoring'}"
        self.progress.at(title, data["rows"], data["num_rows"], numbers)
        if self.open_run is None:
            return
        if not learning:
            self.open_run.log(names.report_metrics(names.EVAL, report), data["rows"])
            return
        points = {
            names.TRAIN_LOG_LOSS: data["window_log_loss"],
            names.TRAIN_SKIPPED_STEPS: data["num_skipped_steps"],
            names.TRAIN_GLOBAL_STEP: data["global_step"],
            names.THROUGHPUT_ROWS_PER_S: data["rows_per_s"],
            names.THROUGHPUT_DATA_WAIT_SHARE: data["wait_share"],
            names.LR_SPARSE: self.config.optim.sparse.lr * data["lr_factor"],
            names.LR_DENSE: self.config.optim.dense.lr * data["lr_factor"],
            names.CLUSTER_WORLD_SIZE: self.model["world_size"],
        }
        self.open_run.log({**names.report_metrics(names.PROGRESSIVE, report), **points}, data["rows"])

    def _on_evaluated(self, increment: str, data: dict[str, Any]) -> None:
        self.outcomes[increment].evaluated = data
        self.progress.begin(increment, self.outcomes[increment].rows)
        if self.open_run is not None:
            self.open_run.tags(names.report_tags(names.EVAL, data["report"]))

    def _on_learned(self, increment: str, data: dict[str, Any]) -> None:
        self.outcomes[increment].learned = data
        if self.open_run is not None:
            self.open_run.tags(names.report_tags(names.PROGRESSIVE, data["report"]))
            curve = {name: np.asarray(values) for name, values in data["reliability"].items()}
            png = calibration_png(**curve, title=f"{increment}, before each row was learned")
            self.open_run.figure(names.CALIBRATION_ARTIFACT, png)

    def _on_committed(self, increment: str, data: dict[str, Any]) -> None:
        outcome = self.outcomes[increment]
        outcome.version, outcome.path, outcome.increment_s = data["version"], data["path"], data["increment_s"]
        self.progress.row(_cells(outcome))
        if self.open_run is None:
            return
        learned = outcome.learned or {}
        summary = {
            **names.report_metrics(names.PROGRESSIVE, learned["report"]),
            **names.count_metrics(learned["counts"]),
            names.TRAIN_SKIPPED_STEPS: learned["num_skipped_steps"],
            names.THROUGHPUT_ROWS_PER_S: learned["rows_per_s"],
            names.THROUGHPUT_DATA_WAIT_SHARE: learned["wait_share"],
            names.THROUGHPUT_INCREMENT_S: data["increment_s"],
            names.CHECKPOINT_SAVE_S: data["save_s"],
            names.CHECKPOINT_BYTES: data["bytes"],
            names.CLUSTER_WORLD_SIZE: self.model["world_size"],
            names.DATA_ROWS: learned["rows"],
        }
        if learned["watermark_us"] is not None:
            summary[names.DATA_WATERMARK_LAG_S] = time.time() - learned["watermark_us"] / 1e6
        if outcome.evaluated is not None:
            summary |= names.report_metrics(names.EVAL, outcome.evaluated["report"])
        self.open_run.finish("FINISHED", version=outcome.version, summary=summary, step_rows=outcome.rows)
        self.open_run = None


def _of(totals: dict[str, Any] | None, name: str) -> float | None:
    return None if totals is None else totals["report"][name]


def _cells(outcome: Outcome) -> dict[str, Any]:
    numbers = outcome.to_dict()
    return {
        "day": outcome.increment,
        "rows": outcome.rows,
        "NE before": numbers["ne"],
        "AUC before": numbers["auc"],
        "NE learning": numbers["progressive_ne"],
        "AUC learning": numbers["progressive_auc"],
        "NE of rate": numbers["running_rate_ne"],
        "calibration": numbers["calibration"],
        "rows/s": numbers["rows_per_s"],
        "version": outcome.version,
    }
