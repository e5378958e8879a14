"""The driver's view of running workers: each event becomes progress, MLflow points and a result."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from diurnal.config import Config
from diurnal.ledger.records import Commit
from diurnal.tracking import names
from diurnal.tracking.mlflow import Dataset, IncrementRun, Status, Tracker
from diurnal.tracking.plots import calibration_png, lift_png
from diurnal.tracking.tables import slices_csv
from diurnal.train.commit import EVALUATED, PROGRESSIVE
from diurnal.train.curves import Mode
from diurnal.train.desk import Restart
from diurnal.train.progress import Progress
from diurnal.train.summary import summary_of

if TYPE_CHECKING:
    from diurnal.train.events import Desk, Event


_log = logging.getLogger(__name__)

_DOING: dict[Mode, str] = {"score": "scoring", "learn": "learning", "judge": "judging"}


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
    freshness_s: float | None = None
    """Age of the newest row of the version when it was committed."""
    resume_points: int = 0
    restarts: int = 0
    num_restarts_before: int = 0
    """Restarts of the run when the increment was begun."""
    replayed_rows: int = 0
    stall_s: float = 0.0
    """Seconds that training stood still for commits."""
    quarantined_files: tuple[str, ...] = ()
    dropped_negatives: int = 0
    """That were not learned, as `label.keep_negatives` says."""
    """That could not be read, and were left out."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "day": self.increment,
            "rows": self.rows,
            "ne": _of(self.evaluated, "ne"),
            "auc": _of(self.evaluated, "auc"),
            "progressive_ne": _of(self.learned, "ne"),
            "progressive_auc": _of(self.learned, "auc"),
            "running_rate_ne": _of(self.learned, "running_rate_ne"),
            "gauc": _of(self.evaluated, "gauc"),
            "progressive_gauc": _of(self.learned, "gauc"),
            "calibration": _of(self.learned, "calibration"),
            "rows_per_s": self.learned and self.learned["rows_per_s"],
            "increment_s": self.increment_s,
            "freshness_s": self.freshness_s,
            "resume_points": self.resume_points,
            "restarts": self.restarts,
            "replayed_rows": self.replayed_rows,
            "stall_s": self.stall_s,
            "quarantined_files": list(self.quarantined_files),
            "dropped_negatives": self.dropped_negatives,
            "skipped_steps": self.learned and self.learned["num_skipped_steps"],
            "version": self.version,
            "path": self.path,
            "evaluated": self.evaluated,
            "learned": self.learned,
        }


@dataclass
class Watch:
    """Handles the events of a run, in order."""

    config: Config
    tracker: Tracker
    progress: Progress
    announced: Callable[[str], Dataset | None]
    """What an increment's run is told of its rows; None where there is no run."""
    restarts: Sequence[Restart] = ()
    replayed_rows: Mapping[str, int] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    timeline: dict[str, float] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    open_runs: dict[str, IncrementRun] = field(default_factory=dict)

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
        if event["kind"] in handlers:
            handlers[event["kind"]](event["increment"], event["data"])

    def adopt(self, commit: Commit) -> None:
        """A version that is there although nobody could tell of it any more."""
        outcome = self.outcomes.get(commit.increment)
        if outcome is None or not commit.is_final or outcome.version is not None:
            return
        outcome.version, outcome.path = commit.number, commit.path
        if commit.watermark_us is not None:
            outcome.freshness_s = time.time() - commit.watermark_us / 1e6
        self.progress.row(_cells(outcome, bool(self.config.dataset.group_id)))
        run = self.open_runs.pop(commit.increment, None)
        if run is not None:
            run.finish("FINISHED", version=commit.number, step_rows=outcome.rows)

    def end(self, status: Status) -> None:
        """Closes the runs of increments that were not committed."""
        self.progress.end()
        for run in self.open_runs.values():
            run.finish(status)
        self.open_runs.clear()

    def freshness(self) -> str | None:
        """How old the newest row of the newest version was when it was committed; None where rows have no time."""
        versions = [outcome for outcome in self.outcomes.values() if outcome.version is not None]
        if not versions or versions[-1].freshness_s is None:
            return None
        age = timedelta(seconds=round(versions[-1].freshness_s))
        return f"version {versions[-1].version}: its newest row was {age} old when it was committed"

    def _on_timeline(self, _: str, data: dict[str, Any]) -> None:
        if not self.timeline:
            self.timeline = {name: at_s - data["started_s"] for name, at_s in data.items() if name != "started_s"}

    def _on_model(self, _: str, data: dict[str, Any]) -> None:
        if data["loaded"] and not self.model:
            self.progress.say(data["loaded"])
        self.model = data

    def _on_increment(self, increment: str, data: dict[str, Any]) -> None:
        self.progress.begin(increment, data["rows"])
        left_out = tuple(data.get("quarantined_files", ()))
        if increment in self.outcomes and self.outcomes[increment].version is None:
            self.outcomes[increment].restarts += 1
        else:
            self.outcomes[increment] = Outcome(
                increment,
                data["rows"],
                num_restarts_before=len(self.restarts),
                quarantined_files=left_out,
                dropped_negatives=data.get("dropped_negatives", 0),
            )
            for path in left_out:
                self.progress.say(f"{increment}: left out, since it cannot be read: {path}")
        dataset = self.announced(increment)
        if dataset is None:
            return
        run = self.open_runs.get(increment)
        if run is not None:
            run.tags({names.TAG_ATTEMPT: str(data["attempt"])})
            return
        run = self.open_runs[increment] = self.tracker.begin_increment(
            increment, attempt=data["attempt"], parent_version=data["parent"], dataset=dataset
        )
        run.params({"used": self.model["hyperparameters"]})
        run.artifact_text(names.PLAN_ARTIFACT, self.model["plan"])

    def _on_progress(self, increment: str, data: dict[str, Any]) -> None:
        report, tasks, mode = data["report"], data.get("tasks", {}), data["mode"]
        ne = "-" if report["ne"] is None else f"{report['ne']:.4f}"
        numbers = {"NE": ne, "rows/s": f"{data['rows_per_s']:,.0f}", "data wait": f"{data['wait_share']:.0%}"}
        self.progress.at(f"{increment} {_DOING[mode]}", data["rows"], data["num_rows"], numbers)
        run = self.open_runs.get(increment)
        if run is None or mode == "judge":
            return
        if mode == "score":
            of_tasks = names.task_metrics(names.EVAL, tasks)
            run.log({**names.report_metrics(names.EVAL, report), **of_tasks}, data["rows"])
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
        of_tasks = names.task_metrics(names.PROGRESSIVE, tasks)
        run.log({**names.report_metrics(names.PROGRESSIVE, report), **of_tasks, **points}, data["rows"])

    def _on_evaluated(self, increment: str, data: dict[str, Any]) -> None:
        self.outcomes[increment].evaluated = data
        self.progress.begin(increment, self.outcomes[increment].rows)
        if increment in self.open_runs:
            self.open_runs[increment].tags(names.report_tags(names.EVAL, data["report"]))

    def _on_learned(self, increment: str, data: dict[str, Any]) -> None:
        self.outcomes[increment].learned = data
        run = self.open_runs.get(increment)
        if run is not None:
            run.tags(names.report_tags(names.PROGRESSIVE, data["report"]))
            curve = {name: np.asarray(values) for name, values in data["reliability"].items()}
            title = f"{increment}, before each row was learned"
            run.figure(names.CALIBRATION_ARTIFACT, calibration_png(**curve, title=title))
            run.figure(names.LIFT_ARTIFACT, lift_png(**curve, title=title))
            if data["slices"]:
                before = (self.outcomes[increment].evaluated or {}).get("slices", ())
                run.artifact_text(names.SLICES_ARTIFACT, slices_csv(data["slices"], before))

    def _on_committed(self, increment: str, data: dict[str, Any]) -> None:
        outcome = self.outcomes[increment]
        outcome.stall_s += data["stall_s"]
        if not data["is_final"]:
            outcome.resume_points += 1
            return
        outcome.version, outcome.path, outcome.increment_s = data["version"], data["directory"], data["increment_s"]
        outcome.replayed_rows = self.replayed_rows.get(increment, 0)
        learned = outcome.learned or {}
        restarts = self.restarts[outcome.num_restarts_before :]
        if data["watermark_us"] is not None:
            outcome.freshness_s = time.time() - data["watermark_us"] / 1e6
        self.progress.row(_cells(outcome, bool(self.config.dataset.group_id)))
        run = self.open_runs.pop(increment, None)
        if run is None:
            return
        summary = {
            **summary_of(
                learned["report"],
                learned["counts"],
                learned["num_skipped_steps"],
                learned["rows"],
                outcome.evaluated and outcome.evaluated["report"],
                learned["slices"],
                {EVALUATED: _tasks(outcome.evaluated), PROGRESSIVE: _tasks(learned)},
            ),
            names.TRAIN_REPLAYED_ROWS: outcome.replayed_rows,
            names.THROUGHPUT_ROWS_PER_S: learned["rows_per_s"],
            names.THROUGHPUT_DATA_WAIT_SHARE: learned["wait_share"],
            names.THROUGHPUT_INCREMENT_S: data["increment_s"],
            names.CHECKPOINT_SAVE_S: data["save_s"],
            names.CHECKPOINT_STALL_S: outcome.stall_s,
            names.CHECKPOINT_BYTES: data["bytes"],
            names.CLUSTER_WORLD_SIZE: self.model["world_size"],
            names.CLUSTER_RESTARTS: sum(restart.kind == "restart" for restart in restarts),
            names.CLUSTER_RESIZES: sum(restart.kind == "resize" for restart in restarts),
            names.CLUSTER_RECOVERY_S: sum(restart.recovery_s or 0.0 for restart in restarts),
            names.DATA_FRESHNESS_S: outcome.freshness_s,
            names.DATA_QUARANTINED_FILES: len(outcome.quarantined_files),
            names.DATA_DROPPED_NEGATIVES: outcome.dropped_negatives,
        }
        run.finish("FINISHED", version=outcome.version, summary=summary, step_rows=outcome.rows)


class Listener(Protocol):
    def handle(self, event: Event) -> None: ...


class Driver:
    """Takes what workers tell: first as the truth, then for people to see.

    Args:
        others: hear of every event after `watch`.
    """

    def __init__(self, desk: Desk, watch: Watch, *others: Listener) -> None:
        self._desk = desk
        self._watch = watch
        self._listeners: tuple[Listener, ...] = (watch, *others)

    @property
    def num_commits(self) -> int:
        return self._desk.num_commits

    @property
    def generation(self) -> int:
        return self._desk.generation

    @property
    def adopted(self) -> Sequence[Commit]:
        return self._desk.adopted

    def handle(self, event: Event) -> None:
        self._desk.handle(event)
        for listener in self._listeners:
            try:
                listener.handle(event)
            except Exception:
                # What people see is not worth the training.
                _log.exception("%s of %s is not shown", event["kind"], event["increment"] or "the run")

    def answer(self, event: Event) -> Any:
        answer = self._desk.answer(event)
        for commit in self._desk.adopted if event["kind"] == "start" else ():
            self._watch.adopt(commit)
        return answer


def _of(totals: dict[str, Any] | None, name: str) -> float | None:
    return None if totals is None else totals["report"].get(name)  # not all are in what an earlier release has told


def _tasks(totals: dict[str, Any] | None) -> dict[str, Any]:
    return (totals or {}).get("tasks", {})


def _cells(outcome: Outcome, has_groups: bool) -> dict[str, Any]:
    numbers = outcome.to_dict()
    of_groups = {"GAUC before": numbers["gauc"], "GAUC learning": numbers["progressive_gauc"]}
    return {
        **(of_groups if has_groups else {}),
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
        **{f"NE {name}": report["ne"] for name, report in _tasks(outcome.learned).items()},
    }
