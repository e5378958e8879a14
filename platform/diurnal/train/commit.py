"""Commits of an increment, each of everything that learning needs, and what Ray Train is told of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any

from diurnal.checkpoint.compatibility import resets_optimizer
from diurnal.checkpoint.load import load, load_progress
from diurnal.checkpoint.manifest import Lineage, Manifest, Position
from diurnal.checkpoint.save import Saved, Saver
from diurnal.checkpoint.store import Store, Version
from diurnal.data.streams import StreamPlan
from diurnal.train.events import Link
from diurnal.train.passes import Pass
from diurnal.train.setup import Learner
from diurnal.train.spec import Fit
from diurnal.train.totals import Totals

RUNNING_RATE = "running_rate"
"""Key among a commit's metrics: weight of clicks, and of all rows, that the running-rate baseline has seen in the
increments before."""

EVALUATED = "evaluated"
"""Key among a commit's metrics: what the version before it scored on the increment."""

TRIAL = "trial"
"""Key among a commit's metrics: what `train.trial` has measured, for versions to be judged by."""

COUNTS = "counts"
"""Key among a version's metrics: what encoding counted in the rows that it learned, see `data.encode.count_names`."""

PROGRESSIVE = "progressive"
"""Key among a version's metrics: report of the scores of its rows before they were learned."""

SLICES = "slices"
"""Key among a version's metrics: the same for each id of the features that `metrics.slices` names."""

ROWS = "rows"
"""Key among a version's metrics: rows that it learned, those without weight included."""

TASKS = "tasks"
"""Key among a version's metrics: reports of the outcomes beside the label, by `EVALUATED` and `PROGRESSIVE`, then by
task."""

SKIPPED_STEPS = "skipped_steps"

QUARANTINED = "quarantined_files"
"""Key among a version's metrics: files of the increment that could not be read, and were left out."""

DROPPED_NEGATIVES = "dropped_negatives"
"""Key among a version's metrics: negatives of the increment that were not learned, as `label.keep_negatives` says."""

LAST_COMMIT_S = 30.0
"""How long a worker that has failed waits for a commit that it had begun."""

Report = Callable[[int, str], None]
"""Tells Ray Train of a version: its number and, on rank 0, its folder; a collective call."""


@dataclass(frozen=True)
class Carried:
    """What a lineage carries from increment to increment beside the model."""

    running_rate: tuple[float, float] = (0.0, 0.0)
    """Weight of the clicks, and of all rows, that were learned: what the running-rate baseline knows."""
    watermark_us: int | None = None
    """Newest event time that was learned."""

    def after(self, learned: Totals) -> Carried:
        report = learned.report
        positive, weight = self.running_rate
        positive += report.weight * (report.base_rate or 0.0)
        watermark_us = max(filter(None, (self.watermark_us, learned.watermark_us)), default=None)
        return Carried((positive, weight + report.weight), watermark_us)


@dataclass
class Progress:
    """Where learning an increment stands on this rank."""

    fit: Fit
    plan: StreamPlan
    done: Pass
    evaluated: dict[str, Any] | None
    """Totals of the version before, as numbers; None without one."""
    trial: dict[str, Any] | None = None
    """What was measured for the gate so far."""
    begun_s: float = field(default_factory=time.perf_counter)


class Committer:
    """Loads and saves the commits of one model, on all ranks together.

    Args:
        token: of the driver's lease; it goes into every commit.
    """

    def __init__(self, store: Store, learner: Learner, link: Link, report: Report, token: int) -> None:
        self._store = store
        self._learner = learner
        self._link = link
        self._report = report
        self._token = token
        self._saver = Saver(store, learner.state, learner.config.checkpoint.retry_s, self._tell)
        self._begun_s: dict[int, float] = {}
        self._unreported: int | None = None
        self._path = ""
        self.last_rows = 0
        """Rows of the increment that the newest commit covers."""
        self.last_s = time.monotonic()
        """When it was begun."""

    def load(self, path: str) -> tuple[Carried, Manifest, str]:
        """Continues from a commit; the text says what was loaded, grown, new or dropped."""
        version = self._store.at(path)
        manifest = version.manifest()
        reset = resets_optimizer(manifest, self._learner.config)
        compatibility = load(self._store, version, self._learner.state, reset_optimizer=reset)
        positive, weight = manifest.lineage.metrics.get(RUNNING_RATE, (0.0, 0.0))
        return Carried((positive, weight), manifest.lineage.watermark_us), manifest, str(compatibility)

    def load_pass(self, path: str, plan: StreamPlan) -> Pass:
        """The pass that a resume point was made in."""
        done = Pass.new(self._learner, plan.num_steps)
        done.go_on(*load_progress(self._store, self._store.at(path), self._learner.state))
        return done

    def begin_increment(self, rows: int) -> None:
        """Counts what is not committed from here: `rows` of the increment are."""
        self.last_rows, self.last_s = rows, time.monotonic()

    def point(self, progress: Progress, steps: int, carried: Carried) -> None:
        """Begins to commit a resume point after so many steps of the increment. A collective call."""
        metrics = {EVALUATED: progress.evaluated, TRIAL: progress.trial}
        lineage = self._lineage(progress, steps, carried, metrics)
        self.last_rows, self.last_s = lineage.position.rows, time.monotonic()
        self._saver.begin(lineage, progress.done.to_tensors())

    def version(self, progress: Progress, learned: Totals, carried: Carried) -> None:
        """Begins to commit the version that the increment ends in. A collective call."""
        evaluated = progress.evaluated
        metrics = {
            EVALUATED: evaluated and evaluated["report"],
            TRIAL: progress.trial,
            PROGRESSIVE: learned.report.to_dict(),
            TASKS: {EVALUATED: (evaluated or {}).get("tasks", {}), PROGRESSIVE: learned.to_dict()["tasks"]},
            SLICES: [one.to_dict() for one in learned.slices],
            COUNTS: learned.counts,
            ROWS: learned.rows,
            SKIPPED_STEPS: learned.num_skipped_steps,
            QUARANTINED: list(progress.plan.increment.quarantined_files),
            DROPPED_NEGATIVES: progress.plan.num_dropped,
            "skipped_rows": learned.num_skipped_rows,
        }
        self.settle()
        self._begun_s[progress.fit.number] = progress.begun_s
        self._saver.begin(self._lineage(progress, progress.plan.num_steps, carried, metrics))
        self._unreported = progress.fit.number

    def settle(self) -> None:
        """Waits until what was begun is committed, and tells Ray Train of a version. A collective call."""
        self._saver.settle()
        number, self._unreported = self._unreported, None
        if number is not None:
            self._report(number, self._path)

    def wait(self) -> None:
        """Lets what was begun be committed although training has failed since: other ranks' threads write on too."""
        self._saver.wait(LAST_COMMIT_S)

    def _lineage(self, progress: Progress, steps: int, carried: Carried, metrics: dict[str, Any]) -> Lineage:
        fit, plan = progress.fit, progress.plan
        return Lineage(
            number=fit.number,
            parent=fit.parent,
            increment=plan.increment_id,
            fingerprint=fit.fingerprint,
            attempt=fit.attempt,
            token=self._token,
            position=Position(
                steps=steps,
                num_steps=plan.num_steps,
                rows=plan.rows_before(steps),
                cursors=tuple(plan.cursors(steps)),
            ),
            recipe=plan.recipe(),
            joined=tuple(asdict(file) for file in plan.increment.joined),
            held_out=plan.increment.held_out and plan.increment.held_out.to_json(),
            sampled=plan.increment.sampled and asdict(plan.increment.sampled),
            past=PurePath(plan.increment.past).name,
            past_after=PurePath(fit.past_after).name,
            watermark_us=carried.watermark_us,
            metrics={**metrics, RUNNING_RATE: carried.running_rate},
        )

    def _tell(self, lineage: Lineage, saved: Saved) -> None:
        """On rank 0, from the thread that wrote."""
        increment, is_final = lineage.increment, lineage.position.is_final
        if saved.reason:
            self._link.send("save_failed", increment, rows=lineage.position.rows, reason=saved.reason)
        if saved.version is None:
            return
        self._path = str(saved.version.directory)
        begun_s = self._begun_s.get(lineage.number, 0.0)
        self._link.send(
            "committed",
            increment,
            version=lineage.number,
            path=self._store.path_of(saved.version),
            directory=self._path,
            is_final=is_final,
            rows=lineage.position.rows,
            watermark_us=lineage.watermark_us,
            bytes=_size(saved.version),
            save_s=saved.copy_s + saved.write_s,
            stall_s=saved.wait_s + saved.copy_s,
            increment_s=time.perf_counter() - begun_s if is_final else None,
        )


def _size(version: Version) -> int:
    return sum(record.bytes for record in version.files().values())
