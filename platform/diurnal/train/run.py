"""The driver: which increments are next, one worker group that fits them, and what came of it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from diurnal.checkpoint.compatibility import compare
from diurnal.checkpoint.store import Store, Version
from diurnal.config import Config, resolved_json
from diurnal.data.partitions import Increment
from diurnal.data.selection import select_increments
from diurnal.data.streams import StreamPlan, plan_increment
from diurnal.errors import DataError, Fault
from diurnal.stack import check_stack, library_versions
from diurnal.tracking.mlflow import Dataset, Tracker, TrackingReport
from diurnal.train.claim import exclusive, next_attempt
from diurnal.train.interrupt import Interrupted, fit_until_interrupted
from diurnal.train.progress import Progress
from diurnal.train.resources import cluster
from diurnal.train.spec import Fit, Spec
from diurnal.train.watch import Announced, Outcome, Watch


@dataclass(frozen=True)
class Result:
    """What a command did."""

    name: str
    outcomes: tuple[Outcome, ...]
    already: tuple[str, ...]
    """Increments that were trained before, so that nothing was done for them."""
    timeline: dict[str, float]
    """Seconds since the command began: entered_s, imported_s, built_s, loaded_s, first_step_s."""
    hyperparameters: dict[str, Any]
    tracking: TrackingReport | None
    wall_s: float

    def to_dict(self) -> dict[str, Any]:
        tracking = self.tracking
        return {
            "name": self.name,
            "days": [outcome.to_dict() for outcome in self.outcomes],
            "already": list(self.already),
            "timeline": self.timeline,
            "hyperparameters": self.hyperparameters,
            "tracking": tracking and {"sent": tracking.sent, "dropped": tracking.dropped, "reason": tracking.reason},
            "wall_s": self.wall_s,
        }


def train(config: Config, first: str, last: str | None = None, progress: Progress | None = None) -> Result:
    """Fits the increments from `first` to `last` one after another and commits a version after each.

    An increment that a version was committed for is done already, and nothing happens for it.

    Raises:
        ConfigError, DataError, CheckpointError, ResourceError, StackError: before any worker starts.
        LeaseHeld: another process trains this model.
        TrainingError: too many steps were not finite; what was committed before stays.
    """
    started_s, progress = time.time(), progress or Progress()
    check_stack()
    increments = select_increments(config.data.path, config.dataset, first, last)
    store = Store(config.storage, config.name)
    with exclusive(config.storage, config.name):
        versions = store.versions()
        todo, already = _not_yet_trained(increments, versions)
        for increment in already:
            progress.say(f"{increment}: trained already")
        if not todo:
            return Result(config.name, (), tuple(already), {}, {}, None, time.time() - started_s)
        parent = versions[-1] if versions else None
        if parent is not None:
            _refuse_what_does_not_fit(parent, config)
        fits = []
        for number, increment in enumerate(todo, start=1 + (parent.number if parent else 0)):
            plan = _plan(config, increment)
            attempt = next_attempt(config.storage, config.name, increment.id)
            fits.append(Fit(plan.to_json(), increment.fingerprint, number, attempt))
        announced = {
            increment.id: Announced(_dataset(config, increment), fit.attempt, fit.number - 1 or None)
            for increment, fit in zip(todo, fits, strict=True)
        }
        watch, report = _run_workers(config, "train", fits, parent, announced, progress, started_s)
    return Result(
        name=config.name,
        outcomes=tuple(watch.outcomes.values()),
        already=tuple(already),
        timeline=watch.timeline,
        hyperparameters=watch.model.get("hyperparameters", {}),
        tracking=report,
        wall_s=time.time() - started_s,
    )


def evaluate(config: Config, number: int, increment_id: str, progress: Progress | None = None) -> Result:
    """Lets the frozen version `number` score an increment. Nothing is learned and nothing is written.

    Raises:
        CheckpointError: there is no such version, or it does not fit the configuration.
    """
    started_s, progress = time.time(), progress or Progress(table=False)
    check_stack()
    increments = select_increments(config.data.path, config.dataset, increment_id)
    store = Store(config.storage, config.name)
    version = store.version(number)
    _refuse_what_does_not_fit(version, config)
    fits = [Fit(_plan(config, increment).to_json(), increment.fingerprint, 0, 0) for increment in increments]
    watch, _ = _run_workers(config, "evaluate", fits, version, {}, progress, started_s)
    outcomes = tuple(watch.outcomes.values())
    return Result(config.name, outcomes, (), watch.timeline, {}, None, time.time() - started_s)


def _refuse_what_does_not_fit(version: Version, config: Config) -> None:
    """Before any worker starts, and before any tensor is read."""
    compare(version.manifest(), config, reset_optimizer=config.checkpoint.reset_optimizer).refuse_if_broken()


def _not_yet_trained(increments: Sequence[Increment], versions: Sequence[Version]) -> tuple[list[Increment], list[str]]:
    """Splits increments into those to do and those done.

    Raises:
        DataError: an increment lies before the newest trained one, or has changed since it was trained.
    """
    lineages = [version.manifest().lineage for version in versions]
    trained = {lineage.increment: lineage for lineage in lineages}
    newest = max(trained, default="")
    faults, todo, done = [], [], []
    for increment in increments:
        lineage = trained.get(increment.id)
        if lineage is not None and lineage.fingerprint == increment.fingerprint:
            done.append(increment.id)
        elif lineage is not None:
            found = f"files that differ from those that version {lineage.number} was trained on"
            fix = "put the files back, or start a new lineage under another name"
            faults.append(Fault(increment.id, found, "a trained increment does not change", fix))
        elif increment.id < newest:
            rule = f"later than {newest}, the newest increment that was trained"
            faults.append(Fault(increment.id, "an earlier increment", rule, "start a new lineage under another name"))
        else:
            todo.append(increment)
    if faults:
        raise DataError(faults)
    return todo, done


def _plan(config: Config, increment: Increment) -> StreamPlan:
    return plan_increment(
        increment,
        batch_rows=config.data.batch_rows,
        num_streams=config.num_streams,
        seed=config.seed,
        order=config.data.order,
        task_rows=config.data.task_rows,
    )


def _dataset(config: Config, increment: Increment) -> Dataset:
    day, _, hour = increment.id.partition("T")
    folder = f"{config.data.path}/dt={day}" + (f"/hr={hour}" if hour else "")
    return Dataset(Path(config.data.path).name, folder, increment.fingerprint, increment.num_rows)


def _run_workers(
    config: Config,
    mode: str,
    fits: Sequence[Fit],
    parent: Version | None,
    announced: dict[str, Announced],
    progress: Progress,
    started_s: float,
) -> tuple[Watch, TrackingReport | None]:
    with cluster(config), _scratch(config) as scratch, Tracker(config) as tracker:
        from diurnal.train.events import Inbox

        watch = Watch(config, tracker, progress, announced)
        inbox = Inbox(watch.handle)
        spec = Spec(
            mode="train" if mode == "train" else "evaluate",
            config_json=resolved_json(config),
            fits=tuple(fits),
            parent=parent.number if parent else None,
            versions=library_versions(),
            channel=inbox.channel(),
            started_s=started_s,
        )
        try:
            fit_until_interrupted(config, spec, scratch)
        except BaseException as error:
            inbox.close()
            watch.end("KILLED" if isinstance(error, Interrupted) else "FAILED")
            raise
        inbox.close()
        watch.end("FAILED")
        report = tracker.close()
        if report.dropped:
            progress.say(str(report))
        if inbox.num_dropped:
            progress.say(f"progress: {inbox.num_dropped} points dropped, since the driver did not keep up")
        if mode == "train" and config.tracking.enabled:
            progress.say(_where_it_is_tracked(tracker.link()))
    return watch, report


def _where_it_is_tracked(link: str) -> str:
    if link.startswith("http"):
        return f"MLflow: {link}"
    return "MLflow: `python -m diurnal.tracking.ui` with the same --config serves the runs and prints the link"


@contextmanager
def _scratch(config: Config) -> Iterator[str]:
    """A folder for Ray Train's own records of one worker group; ours are elsewhere, so it goes with the group."""
    folder = Path(config.storage) / config.name / "ray" / uuid4().hex
    folder.mkdir(parents=True)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
