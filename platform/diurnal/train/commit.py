"""The end of an increment: one commit of everything that learning needs, and what Ray Train is told of it."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray.train

from diurnal.checkpoint.load import load
from diurnal.checkpoint.manifest import Lineage, Position
from diurnal.checkpoint.save import save
from diurnal.checkpoint.store import Store, Version
from diurnal.data.streams import StreamPlan
from diurnal.train.setup import Learner
from diurnal.train.spec import Fit
from diurnal.train.totals import Totals

POINTER = "version.json"
"""The one file of Ray Train's checkpoint: where ours is. Our store is the truth."""

RUNNING_RATE = "running_rate"
"""Key among a version's metrics: weight of clicks, and of all rows, that the running-rate baseline has seen."""


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


class Committer:
    """Loads and saves the versions of one model, on all ranks together."""

    def __init__(self, store: Store, learner: Learner) -> None:
        self._store = store
        self._learner = learner

    def load(self, number: int) -> tuple[Carried, str]:
        """Continues from a version; the text says what was loaded, grown, new or dropped."""
        version = self._store.version(number)
        reset = self._learner.config.checkpoint.reset_optimizer
        compatibility = load(self._store, version, self._learner.state, reset_optimizer=reset)
        lineage = version.manifest().lineage
        positive, weight = lineage.metrics.get(RUNNING_RATE, (0.0, 0.0))
        return Carried((positive, weight), lineage.watermark_us), str(compatibility)

    def commit(
        self,
        fit: Fit,
        plan: StreamPlan,
        evaluated: Totals | None,
        learned: Totals,
        carried: Carried,
    ) -> dict[str, Any]:
        """Commits a version, then hands Ray Train a pointer to it.

        Returns:
            Number, path and size of the version, and the seconds that it took.
        """
        begun_s = time.perf_counter()
        lineage = Lineage(
            number=fit.number,
            parent=fit.number - 1 or None,
            increment=plan.increment_id,
            fingerprint=fit.fingerprint,
            attempt=fit.attempt,
            position=Position(
                steps=plan.num_steps,
                num_steps=plan.num_steps,
                rows=plan.num_rows,
                cursors=tuple(plan.cursors(plan.num_steps)),
            ),
            watermark_us=carried.watermark_us,
            metrics={
                "evaluated": evaluated and evaluated.report.to_dict(),
                "progressive": learned.report.to_dict(),
                "skipped_steps": learned.num_skipped_steps,
                "skipped_rows": learned.num_skipped_rows,
                RUNNING_RATE: carried.running_rate,
            },
        )
        version = save(self._store, self._learner.state, lineage)
        self._report(version)
        return {
            "version": version.number,
            "path": str(version.directory),
            "bytes": sum(record.bytes for record in version.files().values()),
            "save_s": time.perf_counter() - begun_s,
        }

    def _report(self, version: Version) -> None:
        metrics = {"version": version.number}
        if self._learner.rank != 0:
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory(prefix="diurnal-pointer-") as folder:
            Path(folder, POINTER).write_text(json.dumps({"version": version.number, "path": str(version.directory)}))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))
