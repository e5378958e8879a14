"""The driver: which increments are next, one worker group that fits them, and what came of it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from diurnal.checkpoint.compatibility import compare, resets_optimizer
from diurnal.checkpoint.history import History
from diurnal.checkpoint.manifest import Manifest, schema_hash
from diurnal.checkpoint.store import Store, Version
from diurnal.config import Config, resolved_json
from diurnal.data.selection import select_increments
from diurnal.errors import CheckpointError, DiurnalError, Fault, LeaseLost
from diurnal.ledger.claims import Ledger
from diurnal.ledger.database import default_url
from diurnal.ledger.lease import Lease
from diurnal.stack import check_stack, library_versions
from diurnal.tracking.mlflow import Dataset, Tracker, TrackingReport
from diurnal.train.desk import Restart, ScoringDesk, TrainingDesk, plan_of
from diurnal.train.interrupt import Interrupted, fit_until_interrupted
from diurnal.train.progress import Progress
from diurnal.train.resources import cluster
from diurnal.train.span import Span
from diurnal.train.spec import Fit, Spec, Start
from diurnal.train.todo import not_yet_trained
from diurnal.train.watch import Driver, Outcome, Watch


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
    restarts: tuple[Restart, ...]
    """Worker groups that went on where another one ended."""
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
            "restarts": [vars(restart) for restart in self.restarts],
            "wall_s": self.wall_s,
        }


def train(config: Config, first: str, last: str | None = None, progress: Progress | None = None) -> Result:
    """Fits the increments from `first` to `last` one after another and commits a version after each.

    An increment that a version was committed for is done already, and nothing happens for it. One that was begun goes
    on from its newest resume point. With `workers.keep_alive`, increments that are not complete yet are waited for.

    Raises:
        ConfigError, DataError, CheckpointError, ResourceError, StackError: before any worker starts.
        LeaseHeld: another process trains this model.
        LeaseLost: another process took the model over while this one trained it.
        TrainingError: too many steps were not finite; what was committed before stays.
    """
    started_s, progress = time.time(), progress or Progress()
    check_stack()
    span = Span(config, first, last)
    increments = span.complete()
    with _ledger(config) as ledger, _lease(config, ledger, first, last) as lease:
        history = History(Store(config.storage, config.name), ledger, config.name)
        if count := history.rebuild(lease):
            progress.say(f"the ledger did not know of {count} versions in {config.storage}: they are registered")
        todo, already = not_yet_trained(increments, history.commits())
        for increment in already:
            progress.say(f"{increment}: trained already")
        newest = history.newest()
        if newest is not None:
            _refuse_what_does_not_fit(history.store.at(newest.path), config)
        while not todo and (found := span.wait_for_more(progress.say)):
            todo, more_already = not_yet_trained(found, history.commits())
            already += more_already
        if not todo:
            return Result(config.name, (), tuple(already), {}, {}, None, (), time.time() - started_s)
        desk = TrainingDesk(config, history, ledger, lease, todo, span.more, progress.say)
        watch, report = _run_workers(config, "train", desk, span.dataset, progress, started_s, lease)
    return Result(
        name=config.name,
        outcomes=tuple(watch.outcomes.values()),
        already=tuple(already),
        timeline=watch.timeline,
        hyperparameters=watch.model.get("hyperparameters", {}),
        tracking=report,
        restarts=tuple(desk.restarts),
        wall_s=time.time() - started_s,
    )


def evaluate(config: Config, number: int, increment_id: str, progress: Progress | None = None) -> Result:
    """Lets the frozen version `number` score an increment. Nothing is learned and nothing is written.

    Raises:
        CheckpointError: there is no such version, or it does not fit the configuration.
    """
    started_s, progress = time.time(), progress or Progress(table=False)
    check_stack()
    increments = select_increments(config.data.path, config.dataset, increment_id, parts=config.data.parts)
    with _ledger(config) as ledger:
        history = History(Store(config.storage, config.name), ledger, config.name)
        version = history.version(number)
    _refuse_what_does_not_fit(version, config)
    fits = [Fit(plan_of(config, increment).to_json(), increment.fingerprint, 0, 0) for increment in increments]
    desk = ScoringDesk(Start(0, history.store.path_of(version), False, tuple(fits), 1))
    watch, _ = _run_workers(config, "evaluate", desk, lambda _: None, progress, started_s)
    outcomes = tuple(watch.outcomes.values())
    return Result(config.name, outcomes, (), watch.timeline, {}, None, (), time.time() - started_s)


def _refuse_what_does_not_fit(version: Version, config: Config) -> None:
    """Before any worker starts, and before any tensor is read."""
    manifest = version.manifest()
    _refuse_another_schema_half_way(manifest, config)
    compare(manifest, config, reset_optimizer=resets_optimizer(manifest, config)).refuse_if_broken()


def _refuse_another_schema_half_way(manifest: Manifest, config: Config) -> None:
    """What a resume point has counted means nothing under other columns or bins."""
    if manifest.lineage.position.is_final:
        return
    provenance, increment = manifest.provenance, manifest.lineage.increment
    saved_bins, bins = provenance.config["metrics"]["auc_bins"], config.metrics.auc_bins
    rule = f"{increment} is finished under the schema and the metrics that it was begun with"
    faults = []
    if provenance.schema_hash != schema_hash(config.dataset):
        found = "another schema than that of its resume point"
        faults.append(Fault("data.schema_file", found, rule, f"change the schema after {increment}"))
    if saved_bins != bins:
        faults.append(Fault("metrics.auc_bins", f"{bins}, and {saved_bins} at its start", rule, f"use {saved_bins}"))
    if faults:
        raise CheckpointError(faults)


def _ledger(config: Config) -> Ledger:
    return Ledger(config.ledger.url or default_url(config.storage))


@contextmanager
def _lease(config: Config, ledger: Ledger, first: str, last: str | None) -> Iterator[Lease]:
    what = first if last in (None, first) else f"{first} to {last}"
    lease = ledger.claim(config.name, what, config.ledger.lease_s)
    try:
        # Whoever lost it cannot commit, so that an answer may be waited for as long as for the storage.
        with lease.heartbeat(patience_s=config.checkpoint.retry_s):
            yield lease
    finally:
        lease.release()


def _run_workers(
    config: Config,
    mode: Literal["train", "evaluate"],
    desk: TrainingDesk | ScoringDesk,
    dataset: Callable[[str], Dataset | None],
    progress: Progress,
    started_s: float,
    lease: Lease | None = None,
) -> tuple[Watch, TrackingReport | None]:
    with cluster(config), _scratch(config, mode) as scratch, Tracker(config) as tracker:
        from diurnal.train.elastic import elastic_trainer
        from diurnal.train.events import Inbox
        from diurnal.train.silence import Silence
        from diurnal.train.worker import work

        watch = Watch(config, tracker, progress, dataset)
        inbox = Inbox(Driver(desk, watch))
        spec = Spec(mode, resolved_json(config), library_versions(), inbox.channel(), scratch, started_s)
        trainer = elastic_trainer(work, config, {"spec": spec}, scratch, inbox.mailbox)
        if isinstance(desk, TrainingDesk):
            desk.beats = inbox.beats
            watch.restarts, watch.replayed_rows = desk.restarts, desk.replayed_rows

        silence = Silence(inbox)

        def check() -> None:
            if inbox.error is not None:
                raise inbox.error
            silence.end()
            if lease is not None and lease.lost.is_set():
                raise LeaseLost(lease.lost_reason)

        grace_s = config.workers.grace_s if mode == "train" else 0.0
        try:
            fit_until_interrupted(trainer, grace_s, lambda reason: inbox.order("stop", reason), check)
            inbox.close()
        except BaseException as error:
            is_interrupted = isinstance(error, Interrupted)
            with suppress(BaseException):
                inbox.close()
            if isinstance(desk, TrainingDesk):
                with suppress(DiurnalError):
                    desk.close("interrupted" if is_interrupted else "failed", f"{type(error).__name__}: {error}")
            watch.end("KILLED" if is_interrupted else "FAILED")
            raise
        watch.end("FAILED")
        report = tracker.close()
        if report.dropped:
            progress.say(str(report))
        if inbox.num_dropped:
            progress.say(f"progress: {inbox.num_dropped} points dropped, since the driver did not keep up")
        if (freshness := watch.freshness()) is not None:
            progress.say(freshness)
        if mode == "train" and config.tracking.enabled:
            progress.say(_where_it_is_tracked(tracker.link()))
    return watch, report


def _where_it_is_tracked(link: str) -> str:
    if link.startswith("http"):
        return f"MLflow: {link}"
    return "MLflow: `python -m diurnal.tracking.ui` with the same --config serves the runs and prints the link"


@contextmanager
def _scratch(config: Config, mode: Literal["train", "evaluate"]) -> Iterator[str]:
    """A folder for Ray Train's own records of one run; ours are elsewhere, so it goes with the run."""
    parent = Path(config.storage) / config.name / "ray" / mode
    if mode == "train":
        # Who holds the lease is the only one; a driver that was killed has left its own.
        shutil.rmtree(parent, ignore_errors=True)
    folder = parent / uuid4().hex
    folder.mkdir(parents=True)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # a second run has its own folder beside it
            parent.rmdir()
            parent.parent.rmdir()
