"""The driver: which increments are next, one worker group that fits them, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from diurnal.checkpoint.compatibility import compare, resets_optimizer
from diurnal.checkpoint.history import History
from diurnal.checkpoint.manifest import Manifest, schema_hash
from diurnal.checkpoint.store import Store, Version
from diurnal.config import Config
from diurnal.data.partitions import Increment
from diurnal.data.pasts import Pasts
from diurnal.data.selection import select_increments
from diurnal.errors import CheckpointError, Fault
from diurnal.ledger.claims import Ledger
from diurnal.ledger.lease import Lease
from diurnal.stack import check_stack
from diurnal.tracking.mlflow import TrackingReport
from diurnal.train.desk import Restart, ScoringDesk, TrainingDesk
from diurnal.train.group import worker_groups
from diurnal.train.planner import plan_of
from diurnal.train.progress import Progress
from diurnal.train.span import Span
from diurnal.train.spec import Fit, Start
from diurnal.train.summary import retell
from diurnal.train.todo import not_yet_trained
from diurnal.train.watch import Outcome


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
    with Ledger.of(config) as ledger, held_lease(config, ledger, first, last) as lease:
        history = History(Store(config.storage, config.name), ledger, config.name)
        if count := history.rebuild(lease):
            progress.say(f"the ledger did not know of {count} versions in {config.storage}: they are registered")
        todo, already = not_yet_trained(increments, history.standing())
        for increment in already:
            progress.say(f"{increment}: trained already")
        refuse_to_go_on(history, config)
        while not todo and (found := span.wait_for_more(progress.say)):
            todo, more_already = not_yet_trained(found, history.standing())
            already += more_already
        if not todo:
            return Result(config.name, (), tuple(already), {}, {}, None, (), time.time() - started_s)

        def more() -> list[Increment] | None:
            found = span.more()
            return None if found is None else not_yet_trained(found, history.standing())[0]

        desk = TrainingDesk(config, history, ledger, lease, todo, more, progress.say)
        desk.prepare()
        with worker_groups(config, "train", progress, started_s, lease) as groups:
            retell(groups.tracker, config, history)
            watch = groups.run(desk, span.dataset)
            report = groups.close()
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
    data = config.data
    increments = select_increments(
        data.path, config.dataset, increment_id, parts=data.parts, on_bad_file=data.on_bad_file
    )
    with Ledger.of(config) as ledger:
        history = History(Store(config.storage, config.name), ledger, config.name)
        version = history.version(number)
    refuse_what_does_not_fit(version, config)
    past = Pasts.of(config).path(version.manifest().lineage.past_after)
    seen = [(plan_of(config, increment).seen_with(past), increment.fingerprint) for increment in increments]
    fits = [Fit(plan.to_json(), fingerprint, 0, 0) for plan, fingerprint in seen]
    desk = ScoringDesk(Start(0, history.store.path_of(version), False, tuple(fits), 1))
    with worker_groups(config, "evaluate", progress, started_s) as groups:
        watch = groups.run(desk, lambda _: None)
    outcomes = tuple(watch.outcomes.values())
    return Result(config.name, outcomes, (), watch.timeline, {}, None, (), time.time() - started_s)


def refuse_to_go_on(history: History, config: Config) -> None:
    """Before any worker starts: what it would go on from has to fit the configuration.

    Raises:
        CheckpointError: it does not.
    """
    parent, newest = history.parent(), history.newest()
    begun = newest if newest is not None and not newest.is_final else None
    for commit in filter(None, (parent, begun)):
        refuse_what_does_not_fit(history.store.at(commit.path), config)


def refuse_what_does_not_fit(version: Version, config: Config) -> None:
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


@contextmanager
def held_lease(config: Config, ledger: Ledger, first: str, last: str | None) -> Iterator[Lease]:
    what = first if last in (None, first) else f"{first} to {last}"
    lease = ledger.claim(config.name, what, config.ledger.lease_s)
    try:
        # Whoever lost it cannot commit, so that an answer may be waited for as long as for the storage.
        with lease.heartbeat(patience_s=config.checkpoint.retry_s):
            yield lease
    finally:
        lease.release()
