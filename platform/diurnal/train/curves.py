"""The points of a pass' curves: every so many steps, the numbers so far over all ranks."""

from __future__ import annotations

import time
from typing import Literal

import torch

from diurnal.data.streams import StreamPlan
from diurnal.metrics.report import report_from_sums
from diurnal.train.events import Link
from diurnal.train.passes import Pass
from diurnal.train.setup import Learner
from diurnal.train.totals import reduced

Mode = Literal["score", "learn", "judge"]
"""A frozen version scores an increment; rows are learned; versions score what they are compared on."""


class Curve:
    """The curve of one pass. All ranks make it and call it alike."""

    def __init__(self, link: Link, learner: Learner, plan: StreamPlan, mode: Mode) -> None:
        self._link = link
        self._learner = learner
        self._plan = plan
        self._mode = mode
        self._every_steps = learner.config.tracking.every_steps
        self._last_rows: int | None = None
        self._last_s = time.perf_counter()
        self._last_sums = torch.zeros(0)

    def point(self, done: Pass, steps: int) -> None:
        """Tells the numbers after so many steps of the increment, if it is time. A collective call then."""
        if self._last_rows is None:
            self._last_rows = self._plan.rows_before(steps - 1)
        if steps % self._every_steps != 0:
            return
        sums = reduced(done.sums())
        if self._learner.rank == 0:
            self._tell(done, steps, sums)

    def _tell(self, done: Pass, steps: int, sums: torch.Tensor) -> None:
        rows, now_s = self._plan.rows_before(steps), time.perf_counter()
        before = self._last_sums if self._last_sums.numel() else torch.zeros_like(sums)
        report, *of_tasks = [report_from_sums(of_outcome) for of_outcome in sums.tolist()]
        window = report_from_sums((sums - before)[0].tolist())
        self._link.send(
            "progress",
            self._plan.increment_id,
            mode=self._mode,
            rows=rows,
            num_rows=self._plan.num_rows,
            report=report.to_dict(),
            tasks={name: found.to_dict() for name, found in zip(done.tasks, of_tasks, strict=True)},
            window_log_loss=window.log_loss,
            rows_per_s=(rows - (self._last_rows or 0)) / max(now_s - self._last_s, 1e-9),
            wait_share=done.feed_wait_s / max(now_s - done.started_s, 1e-9),
            num_skipped_steps=done.num_skipped_steps,
            global_step=self._learner.state.global_step,
            lr_factor=self._learner.lr_factor(),
        )
        self._last_rows, self._last_s, self._last_sums = rows, now_s, sums
