"""One worker group's work: increment after increment, each scored by the version before it, learned, and committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from diurnal.checkpoint.store import Store
from diurnal.config import from_resolved
from diurnal.data.audit import RowAudit
from diurnal.data.batch import Batch
from diurnal.data.objects import place_of
from diurnal.data.streams import StreamPlan
from diurnal.metrics.blocks import Evidence
from diurnal.sharding.planned import plan_ahead
from diurnal.sharding.topology import Topology
from diurnal.train.aging import age
from diurnal.train.commit import EVALUATED, TRIAL, Carried, Committer, Progress, Report
from diurnal.train.curves import Curve, Mode
from diurnal.train.events import Kind, Link, Question
from diurnal.train.health import health
from diurnal.train.loop import Wishes, learn, score
from diurnal.train.orders import Orders
from diurnal.train.passes import Pass
from diurnal.train.pipeline import Feed, one_ahead
from diurnal.train.pulse import Phase, Pulse, mark_forward
from diurnal.train.setup import Learner, build_learner
from diurnal.train.spec import Fit, Spec, Start, Trial
from diurnal.train.totals import Totals, add_up, summed
from diurnal.train.trial import BASELINE, JUDGED, TABLES, TrialSums, What, Who, rounds

MORE_EVERY_S = 1.0


class WorkerSequence:
    """The increments of a run, on one rank, from where the newest commit stands.

    Args:
        start: what the driver answered; the same on all ranks.
        timeline: moments of this worker's start, `time.time()` by name.
        report: tells Ray Train of a version.
    """

    def __init__(
        self,
        spec: Spec,
        start: Start,
        device: torch.device,
        timeline: dict[str, float],
        pulse: Pulse,
        orders: Orders,
        report: Report,
    ) -> None:
        self._spec = spec
        self._start = start
        self._rank = dist.get_rank()
        self._pulse = pulse
        self._orders = orders
        self._timeline = {"started_s": spec.started_s, **timeline}
        self._config = from_resolved(spec.config_json)
        self._plans = place_of(self._config.storage, self._config.name, "plans")
        self._learner = build_learner(self._config, device, self._plans)
        mark_forward(self._learner.parallel.module, pulse)
        store = Store(self._config.storage, self._config.name)
        self._committer = Committer(store, self._learner, spec.link, report, start.token)
        self._timeline["built_s"] = time.time()
        self._carried, self._resumed, loaded = Carried(), None, ""
        self._parent_increment = ""
        if start.path:
            self._carried, manifest, loaded = self._committer.load(start.path)
            self._parent_increment = manifest.lineage.increment
            self._resumed = manifest.lineage if start.is_resumed else None
        self._has_parent = bool(start.path)
        self._timeline["loaded_s"] = time.time()
        self._tell("model", **self._learner.describe(), loaded=loaded)

    def train(self) -> None:
        """Fits the known increments, then those that the driver has more, until it has none."""
        try:
            fits = self._start.fits or self._more()
            while fits and self._fit_all(fits):
                self._committer.settle()
                fits = self._more()
            self._committer.settle()
        except BaseException:
            self._committer.wait()
            raise

    def evaluate(self) -> None:
        loaded = self._start.path
        for fit in self._start.fits:
            plan = StreamPlan.from_json(fit.plan)
            if fit.parent_path not in ("", loaded):
                loaded = fit.parent_path
                self._load(loaded)
            self._tell("increment", plan.increment_id, rows=plan.num_rows, rows_done=0)
            with self._learner.feed(plan) as feed:
                self._tell_totals("evaluated", plan.increment_id, self._score(plan, feed)[0])

    def _fit_all(self, fits: Sequence[Fit]) -> bool:
        """False when somebody ended the run on the way."""
        plans = [StreamPlan.from_json(fit.plan) for fit in fits]
        # All at once: what they begin with is settled now, and changes while they are taken.
        with one_ahead(list(self._passes(fits, plans))) as feeds:
            for fit, plan in zip(fits, plans, strict=True):
                if not self._fit(fit, plan, feeds):
                    return False
        return True

    def _passes(self, fits: Sequence[Fit], plans: Sequence[StreamPlan]) -> Iterator[Callable[[], Feed]]:
        """The passes in order. A model without a parent has nothing to be scored for, and what was begun was scored."""
        resumed = self._resumed
        for index, (fit, plan) in enumerate(zip(fits, plans, strict=True)):
            if resumed is not None and index == 0:
                yield partial(self._learner.feed, plan, resumed.position.steps)
            else:
                for who, what in rounds(fit, self._has_parent or index > 0):
                    yield partial(self._learner.feed, _seen_by(who, what, fit, plan))
                yield partial(self._learner.feed, plan)
            if fit.trial is not None and fit.trial.slice is not None:
                yield partial(self._learner.feed, _slice_of(fit, fit.past_after))

    def _fit(self, fit: Fit, plan: StreamPlan, feeds: Iterator[Feed]) -> bool:
        progress, rows_done = self._begin(fit, plan), 0
        if self._resumed is not None:
            rows_done = self._resumed.position.rows
            self._resumed = None
        else:
            if not self._may_learn(progress, feeds):
                return False
            age(self._learner, self._parent_increment, plan.increment_id)
        self._committer.begin_increment(rows_done)
        self._pulse.rows = rows_done
        self._orders.learns = True
        done = learn(self._learner, next(feeds), progress.done, self._pulse, self._wish, self._on_learned(progress))
        self._orders.learns = False
        if self._orders.is_stopped:
            return False
        learned = add_up(self._learner, done, self._carried.running_rate, fit.trial.named if fit.trial else ())
        _refuse_other_rows(self._learner, plan, learned)
        self._tell_totals("learned", plan.increment_id, learned)
        self._carried = self._carried.after(learned)
        if fit.trial is not None:
            self._try(progress, feeds)
        self._pulse.mark(Phase.COMMIT, plan.num_steps)
        self._committer.version(progress, learned, self._carried)
        self._has_parent, self._parent_increment = True, plan.increment_id
        return True

    def _may_learn(self, progress: Progress, feeds: Iterator[Feed]) -> bool:
        """Lets the versions before score the increment; what is judged asks the driver then."""
        fit, plan, trial = progress.fit, progress.plan, progress.fit.trial
        measured: dict[str, Any] = {}
        loaded = fit.parent_path
        for who, what in rounds(fit, self._has_parent):
            path = trial.baseline_path if trial is not None and who == "baseline" else fit.parent_path
            if path != loaded:
                self._load(path)
                loaded = path
            scored = _seen_by(who, what, fit, plan)
            mode = "score" if progress.evaluated is None else "judge"
            totals, evidence = self._score(scored, next(feeds), trial, mode)
            if progress.evaluated is None:
                progress.evaluated = totals.to_dict()
                self._tell_totals("evaluated", plan.increment_id, totals)
            if trial is not None and evidence is not None and (what == "slice" or trial.slice is None):
                key, number = (BASELINE, trial.baseline) if who == "baseline" else (JUDGED, fit.parent)
                measured[key] = {"number": number, "evidence": evidence.to_json()}
        if loaded != fit.parent_path:
            self._load(fit.parent_path)
        if trial is None:
            return True
        progress.trial = measured
        with self._pulse.paused():
            told = {"evaluated": progress.evaluated, "trial": measured, "parent": fit.parent}
            return ask(self._spec.link, "scored", plan.increment_id, **told)

    def _load(self, path: str) -> None:
        with self._pulse.paused():
            self._committer.load(path)

    def _try(self, progress: Progress, feeds: Iterator[Feed]) -> None:
        """Measures the version that is about to be committed."""
        fit, trial = progress.fit, progress.fit.trial
        measured = progress.trial = {**(progress.trial or {}), TABLES: health(self._learner)}
        if trial is not None and trial.slice is not None:
            _, evidence = self._score(_slice_of(fit, fit.past_after), next(feeds), trial, "judge")
            measured[JUDGED] = {"number": fit.number, "evidence": evidence and evidence.to_json()}

    def _begin(self, fit: Fit, plan: StreamPlan) -> Progress:
        increment, resumed = plan.increment_id, self._resumed
        self._orders.increment, self._orders.num_rows = increment, plan.num_rows
        begun: dict[str, Any] = {"rows": plan.num_rows, "quarantined_files": plan.increment.quarantined_files}
        begun |= {"parent": fit.parent, "attempt": fit.attempt, "number": fit.number}
        begun |= {"dropped_negatives": plan.num_dropped}
        if resumed is None:
            self._tell("increment", increment, **begun, rows_done=0)
            return Progress(fit, plan, Pass.new(self._learner, plan.num_steps), None)
        done = self._committer.load_pass(self._start.path, plan)
        evaluated = resumed.metrics[EVALUATED]
        self._tell("increment", increment, **begun, rows_done=resumed.position.rows)
        if evaluated is not None:
            self._tell("evaluated", increment, **evaluated)
        return Progress(fit, plan, done, evaluated, resumed.metrics.get(TRIAL))

    def _score(
        self, plan: StreamPlan, feed: Feed, trial: Trial | None = None, mode: Mode = "score"
    ) -> tuple[Totals, Evidence | None]:
        curve = Curve(self._spec.link, self._learner, plan, mode)

        def on_step(done: Pass, batch: Batch, _: Wishes) -> bool:
            self._pulse.rows = plan.rows_before(batch.step + 1)
            curve.point(done, batch.step + 1)
            return True

        make = Pass.bare if mode == "judge" else Pass.new
        begun = make(self._learner, plan.num_steps)
        if trial is not None:
            begun.blocks = TrialSums(plan.num_rows, trial.segments, self._learner.device)
        done = score(self._learner, feed, begun, self._pulse, on_step)
        totals = add_up(self._learner, done, self._carried.running_rate, trial.named if trial else ())
        return totals, done.blocks and done.blocks.evidence()

    def _wish(self) -> Wishes:
        """What this rank wants after the step at hand. Time and orders are rank 0's to see, so that they are asked
        for once."""
        if self._rank != 0:
            return Wishes()
        every_s = self._config.checkpoint.every_s
        is_due = every_s > 0 and time.monotonic() - self._committer.last_s >= every_s
        return Wishes(is_due, self._orders.wants("hold"), self._orders.wants("stop"))

    def _on_learned(self, progress: Progress) -> Callable[[Pass, Batch, Wishes], bool]:
        plan, every_rows = progress.plan, self._config.checkpoint.every_rows
        curve = Curve(self._spec.link, self._learner, plan, "learn")

        def on_step(done: Pass, batch: Batch, agreed: Wishes) -> bool:
            steps = batch.step + 1
            rows = self._pulse.rows = plan.rows_before(steps)
            if self._timeline:
                self._tell("timeline", **self._timeline, first_step_s=time.time())
                self._timeline = {}
                self._plan_ahead()
            curve.point(done, steps)
            if steps == plan.num_steps:
                # The version comes at once: it is what anybody could wish for.
                return True
            if agreed or 0 < every_rows <= rows - self._committer.last_rows:
                self._pulse.mark(Phase.COMMIT, batch.step)
                self._committer.point(progress, steps, self._carried)
            if agreed.hold or agreed.stop:
                self._pause(plan, agreed)
            self._orders.is_stopped = agreed.stop
            return not agreed.stop

        return on_step

    def _plan_ahead(self) -> None:
        """While training goes on: plans for the other numbers of workers that there may be."""
        workers, size = self._config.workers, self._learner.world_size
        device = "cuda" if self._learner.device.type == "cuda" else "cpu"
        others = [Topology(w, device=device) for w in range(workers.least, workers.max + 1) if w != size]
        if self._rank == 0 and others:
            threading.Thread(target=plan_ahead, args=(self._config, others, self._plans), daemon=True).start()

    def _pause(self, plan: StreamPlan, agreed: Wishes) -> None:
        """Lets what was begun become visible; before a resize, waits for it, which ends this process. If none comes,
        training goes on."""
        with self._pulse.paused():
            self._committer.settle()
            if agreed.hold and not agreed.stop:
                if self._rank == 0:
                    self._spec.link.ask("held", plan.increment_id)
                    self._orders.wait_while_held()
                    self._spec.link.send("resumed", plan.increment_id)
                dist.barrier()

    def _more(self) -> tuple[Fit, ...]:
        """What the driver has beyond what it had at the start; it may take its time."""
        with self._pulse.paused():
            while True:
                fits = ask(self._spec.link, "more")
                if fits is not None:
                    return fits
                time.sleep(MORE_EVERY_S)

    def _tell_totals(self, kind: Kind, increment: str, totals: Totals) -> None:
        if self._rank == 0:
            r = totals.reliability
            curve = {"prediction": r.prediction.tolist(), "rate": r.rate.tolist(), "weight": r.weight.tolist()}
            self._tell(kind, increment, **totals.to_dict(), reliability=curve)

    def _tell(self, kind: Kind, increment: str = "", /, **data: Any) -> None:
        if self._rank == 0:
            self._spec.link.send(kind, increment, **data)


def ask(link: Link, question: Question, increment: str = "", /, **data: Any) -> Any:
    """Rank 0 asks the driver, all ranks have the answer, or raise what the driver raised. A collective call."""
    answer: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            answer = [link.ask(question, increment, **data)]
        except Exception as error:
            answer = [error]
    dist.broadcast_object_list(answer)
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]


def _seen_by(who: Who, what: What, fit: Fit, plan: StreamPlan) -> StreamPlan:
    """Rows that a version scores before the increment is learned, each version with its own past."""
    past = fit.trial.baseline_past if fit.trial is not None and who == "baseline" else plan.increment.past
    return _slice_of(fit, past) if what == "slice" else plan.of_own_rows().seen_with(past)


def _slice_of(fit: Fit, past: str) -> StreamPlan:
    assert fit.trial is not None
    assert fit.trial.slice is not None
    return StreamPlan.from_json(fit.trial.slice).seen_with(past)


def _refuse_other_rows(learner: Learner, plan: StreamPlan, learned: Totals) -> None:
    """Every row once, whatever happened on the way: proven before it is committed.

    Raises:
        RuntimeError: on all ranks; it would be a fault of this program.
    """
    share = RowAudit.expected_of(plan.increment, learner.rank, learner.world_size)
    verdict = learned.audit.verdict(summed(share, learner.device))
    if verdict is not None:
        raise RuntimeError(
            f"{plan.increment_id}: what was learned is not each row once: {verdict}; nothing is committed"
        )
