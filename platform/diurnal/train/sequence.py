"""One worker group's work: increment after increment, each scored by the version before it, learned, and committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import ray.train.torch
import torch

from diurnal.checkpoint.store import Store
from diurnal.config import from_resolved
from diurnal.data.batch import Batch
from diurnal.data.streams import StreamPlan
from diurnal.metrics.report import report_from_sums
from diurnal.train.commit import Carried, Committer
from diurnal.train.events import Kind
from diurnal.train.loop import Pass, learn, score
from diurnal.train.pipeline import Feed, one_ahead
from diurnal.train.setup import build_learner
from diurnal.train.spec import Fit, Spec
from diurnal.train.totals import Totals, add_up, reduced


class Sequence:
    """The increments of a spec, on one rank.

    Args:
        entered_s: `time.time()` when the worker's function was entered.
        imported_s: when its imports were done.
    """

    def __init__(self, spec: Spec, rank: int, entered_s: float, imported_s: float) -> None:
        self._spec = spec
        self._rank = rank
        config = from_resolved(spec.config_json)
        self._every_steps = config.tracking.every_steps
        device = ray.train.torch.get_device() if config.workers.gpus else torch.device("cpu")
        self._learner = build_learner(config, device)
        self._committer = Committer(Store(config.storage, config.name), self._learner)
        self._timeline = {"started_s": spec.started_s, "entered_s": entered_s, "imported_s": imported_s}
        self._timeline["built_s"] = time.time()
        self._carried, loaded = self._committer.load(spec.parent) if spec.parent is not None else (Carried(), "")
        self._timeline["loaded_s"] = time.time()
        self._tell("model", **self._learner.describe(), loaded=loaded)

    def train(self) -> None:
        plans = [StreamPlan.from_json(fit.plan) for fit in self._spec.fits]
        with one_ahead(self._starts(plans)) as feeds:
            for index, (fit, plan) in enumerate(zip(self._spec.fits, plans, strict=True)):
                self._fit(fit, plan, feeds, has_parent=self._has_parent(index))

    def evaluate(self) -> None:
        for fit in self._spec.fits:
            plan = StreamPlan.from_json(fit.plan)
            self._tell("increment", plan.increment_id, rows=plan.num_rows)
            with self._learner.feed(plan) as feed:
                done = score(self._learner, feed, plan.num_steps, self._on_step(plan, "score"))
            self._tell_totals("evaluated", plan.increment_id, add_up(self._learner, done, self._carried.running_rate))

    def _starts(self, plans: list[StreamPlan]) -> Iterator[Callable[[], Feed]]:
        """The passes in order. A model without a parent has nothing to be scored for."""
        for index, plan in enumerate(plans):
            for _ in range(2 if self._has_parent(index) else 1):
                yield lambda plan=plan: self._learner.feed(plan)

    def _has_parent(self, index: int) -> bool:
        return index > 0 or self._spec.parent is not None

    def _fit(self, fit: Fit, plan: StreamPlan, feeds: Iterator[Feed], has_parent: bool) -> None:
        increment, begun_s = plan.increment_id, time.perf_counter()
        self._tell("increment", increment, rows=plan.num_rows)
        evaluated: Totals | None = None
        if has_parent:
            done = score(self._learner, next(feeds), plan.num_steps, self._on_step(plan, "score"))
            evaluated = add_up(self._learner, done, self._carried.running_rate)
            self._tell_totals("evaluated", increment, evaluated)
        done = learn(self._learner, next(feeds), plan.num_steps, self._on_step(plan, "learn"))
        learned = add_up(self._learner, done, self._carried.running_rate)
        self._tell_totals("learned", increment, learned)
        self._carried = self._carried.after(learned)
        committed = self._committer.commit(fit, plan, evaluated, learned, self._carried)
        increment_s = time.perf_counter() - begun_s
        self._tell("committed", increment, increment_s=increment_s, **committed)

    def _on_step(self, plan: StreamPlan, mode: str) -> Callable[[Pass, Batch], None]:
        last = {"rows": 0, "s": time.perf_counter(), "sums": torch.zeros(0)}

        def on_step(done: Pass, batch: Batch) -> None:
            if self._timeline and mode == "learn":
                self._tell("timeline", **self._timeline, first_step_s=time.time())
                self._timeline = {}
            if (batch.step + 1) % self._every_steps != 0:
                return
            sums = reduced(done.metrics.sums())
            if self._rank == 0:
                self._tell_point(plan, mode, done, batch.step + 1, sums, last)

        return on_step

    def _tell_point(
        self, plan: StreamPlan, mode: str, done: Pass, steps: int, sums: torch.Tensor, last: dict[str, Any]
    ) -> None:
        rows, now_s = plan.rows_before(steps), time.perf_counter()
        before = last["sums"] if last["sums"].numel() else torch.zeros_like(sums)
        report, window = report_from_sums(sums.tolist()), report_from_sums((sums - before).tolist())
        self._tell(
            "progress",
            plan.increment_id,
            mode=mode,
            rows=rows,
            num_rows=plan.num_rows,
            report=report.to_dict(),
            window_log_loss=window.log_loss,
            rows_per_s=(rows - last["rows"]) / max(now_s - last["s"], 1e-9),
            wait_share=done.wait_s / max(now_s - done.started_s, 1e-9),
            num_skipped_steps=done.num_skipped_steps,
            global_step=self._learner.state.global_step,
            lr_factor=self._learner.lr_factor(),
        )
        last.update(rows=rows, s=now_s, sums=sums)

    def _tell_totals(self, kind: Kind, increment: str, totals: Totals) -> None:
        if self._rank == 0:
            r = totals.reliability
            curve = {"prediction": r.prediction.tolist(), "rate": r.rate.tolist(), "weight": r.weight.tolist()}
            self._tell(kind, increment, **totals.to_dict(), reliability=curve)

    def _tell(self, kind: Kind, increment: str = "", /, **data: Any) -> None:
        if self._rank == 0:
            self._spec.channel.send(kind, increment, **data)
