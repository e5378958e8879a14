"""The driver's side of the truth: what a worker group is to do, and which of its commits count.

Knows nothing of Ray or MLflow: a rank of a plain process group can be its own driver.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from diurnal.checkpoint.history import History
from diurnal.config import Config
from diurnal.data.partitions import Increment
from diurnal.data.pasts import Pasts
from diurnal.errors import CheckpointError, ConfigError
from diurnal.ledger.claims import Ledger
from diurnal.ledger.lease import Lease
from diurnal.ledger.records import Commit
from diurnal.train.ahead import Ahead
from diurnal.train.planner import Planned, Planner
from diurnal.train.spec import Fit, Start, Trial

if TYPE_CHECKING:
    from diurnal.train.events import Event

More = Callable[[], Sequence[Increment] | None]
"""Increments to be trained beyond those known, `()` when there will be none, None when it is too early to say."""

TrialOf = Callable[[Increment], Trial | None]
"""What is to be measured while an increment is fitted, which may be one whose beginning was learned before."""

MayLearn = Callable[[str, dict[str, Any]], bool]
"""Whether an increment is learned, now that it was scored; asked where something is to be measured."""


RETRY_EVERY_S = 0.5

ANSWER_WITHIN_S = 5.0
"""Who asks for more hears in this time that there is nothing yet, and asks again."""

_MANY_ROWS = 1_000_000

KEEP_EVERY_S = 2.0
"""Seconds between two looks of the ledger at how far an attempt is; a driver that is killed leaves the last one."""


@dataclass
class _Open:
    """The attempt that is going on."""

    increment: str
    attempt: int
    rows: int
    """Rows of the increment that it has learned, as far as is known."""
    kept_s: float = 0.0
    """When the ledger was told of them."""


@dataclass
class Restart:
    """A worker group that went on where another one ended."""

    kind: Literal["restart", "resize"]
    old: int
    """Workers before."""
    new: int
    reason: str
    recovery_s: float | None = None
    """From the last sign of life of the old group to the first step of the new one; None until then."""
    replayed_rows: int = 0


class TrainingDesk:
    """Hands out increments and publishes commits, under a lease.

    Args:
        todo: increments to be trained, in order.
        more: asked when they are done, and everything is committed.
        trial_of: says what is to be measured; nothing, when left out.
        may_learn: asked before an increment of which something is measured is learned.
        say: shows a line to a person.
        beats: latest signs of life of the ranks.
    """

    def __init__(
        self,
        config: Config,
        history: History,
        ledger: Ledger,
        lease: Lease,
        todo: Sequence[Increment],
        more: More = tuple,
        say: Callable[[str], None] = print,
        beats: Callable[[], list[dict[str, Any]]] = list,
        trial_of: TrialOf = lambda _: None,
        may_learn: MayLearn = lambda *_: True,
    ) -> None:
        self._config = config
        self._history = history
        self._ledger = ledger
        self._lease = lease
        self._pasts = Pasts.of(config)
        self._planner = Planner(config, history, self._pasts, say)
        self._todo = list(todo)
        self._more = more
        self._planned: Ahead[Planned] = Ahead(())
        self._is_asking = self._is_early = False
        self._say = say
        self._trial_of = trial_of
        self._may_learn = may_learn
        self.beats = beats
        self._open: dict[str, _Open] = {}
        self._ended_as: Literal["failed", "resized"] = "failed"
        self._why = ""
        self._world_size = 0
        self._lost_s: float | None = None
        self.restarts: list[Restart] = []
        self.adopted: list[Commit] = []
        """Commits of the group before that became visible when the newest one started: nobody had told of them."""
        self.num_commits = 0
        self.generation = 0
        self.replayed_rows: Counter[str] = Counter()
        """By increment: rows that were learned again, since they came after the last commit before a restart."""

    def prepare(self) -> None:
        """Makes what the first rows are seen with, so that no worker waits for it."""
        if self._config.dataset.is_counted and self._todo:
            rows = self._todo[0].num_rows
            if rows >= _MANY_ROWS:
                self._say(f"counting the ids of {rows:,} rows, which the increment after them is seen with")
            list(self._planner.plans(self._todo[:1], self._history.parent()))

    def answer(self, event: Event) -> Any:
        if event["kind"] == "start":
            return self._start(event["data"]["world_size"])
        if event["kind"] == "scored":
            return self._scored(event["increment"], event["data"])
        return self._next() if event["kind"] == "more" else None

    def handle(self, event: Event) -> None:
        increment, data = event["increment"], event["data"]
        if event["kind"] == "increment":
            self._begin(increment, data)
        elif event["kind"] == "progress" and data["mode"] == "learn":
            self._has_learned(increment, data["rows"])
        elif event["kind"] == "committed":
            self._publish(data)
        elif event["kind"] == "timeline" and self._lost_s is not None:
            self._recovered()
        elif event["kind"] == "save_failed":
            self._keep(lambda: self._lease.note("save_failed", increment, data["reason"], {"rows": data["rows"]}))
            self._say(f"{increment}: the storage did not take a commit: {data['reason']}")
        elif event["kind"] == "failed":
            self._has_learned(increment, data["rows"])
            self._why = self._why or f"rank {data['rank']}: {data['error']}"
        elif event["kind"] == "stalled":
            # Says more than what ranks say that were cut off from the one that stalls.
            self._why = data["text"]
            told = {"rank": data["rank"], "stacks": data["stacks"]}
            self._keep(lambda: self._lease.note("stalled", increment, data["text"], told))
        elif event["kind"] == "note":
            self._on_note(data)

    def _on_note(self, data: dict[str, Any]) -> None:
        """What Ray Train's controller has decided: a resize is one by its word alone."""
        if data["what"] == "resize":
            self._ended_as, self._why = "resized", data["reason"]
        elif data["what"] == "restart":
            self._why = self._why or data["reason"]
        self._keep(lambda: self._lease.note(data["what"], reason=self._why, data=data))

    def close(self, outcome: Any, reason: str = "") -> None:
        """Ends what attempts are open."""
        for attempt in self._open.values():
            self._lease.has_learned(attempt.increment, attempt.attempt, attempt.rows)
            self._lease.end_attempt(attempt.increment, attempt.attempt, outcome, reason)
        self._open.clear()

    def _start(self, world_size: int) -> Start:
        # First of all: an attempt whose version was whole has not failed.
        self.adopted = self._history.adopt(self._lease)
        for commit in self.adopted:
            self._count(commit)
        if self.generation:
            self._end_group(world_size)
        self._world_size = world_size
        newest = self._history.newest()
        resumed = newest if newest is not None and self._goes_on(newest) else None
        parent = self._history.parent()
        begin = resumed or parent
        self.generation += 1
        self._planned.close()
        self._is_asking = False  # what the group before has asked for, nobody waits for any more
        self._planned = Ahead(self._planner.plans(list(self._todo), parent, resumed))
        # Those after the first are planned while it is learned, where rows have to be counted for that.
        known = self._planned.take(None) if self._config.dataset.is_counted else self._planned.take_all()
        return Start(
            token=self._lease.token,
            path=begin.path if begin else "",
            is_resumed=resumed is not None,
            fits=tuple(self._fits(known)),
            generation=self.generation,
        )

    def _end_group(self, world_size: int) -> None:
        """Takes the last words of the group before, and ends its attempts."""
        beats = self.beats()
        for beat in beats:
            self._has_learned(beat.get("increment", ""), beat["rows"] if beat.get("learning") else 0)
        self._lost_s = time.monotonic() - max((beat["age_s"] for beat in beats), default=0.0)
        kind = "resize" if self._ended_as == "resized" else "restart"
        self.restarts.append(Restart(kind, self._world_size, world_size, self._why or "a worker died"))
        for attempt in self._open.values():
            self._lease.has_learned(attempt.increment, attempt.attempt, attempt.rows)
            self._lease.end_attempt(attempt.increment, attempt.attempt, self._ended_as, self._why)
            self._say(
                f"{attempt.increment}: attempt {attempt.attempt} {self._ended_as}: {self._why or 'a worker died'}"
            )
        self._open.clear()
        self._ended_as, self._why = "failed", ""

    def _recovered(self) -> None:
        restart = self.restarts[-1]
        restart.recovery_s = time.monotonic() - (self._lost_s or 0.0)
        self._lost_s = None
        self._keep(lambda: self._lease.note("recovered", reason=restart.reason, data=vars(restart)))
        self._say(
            f"{restart.kind} from {restart.old} to {restart.new} workers: {restart.recovery_s:.1f} s without a step"
        )

    def _goes_on(self, newest: Commit) -> bool:
        """Whether a commit is a resume point of the increment that is next."""
        if newest.is_final or not self._todo or newest.increment != self._todo[0].id:
            return False
        parent = self._history.parent()
        why = ""
        if newest.fingerprint != self._todo[0].fingerprint:
            why = "its files changed since it was interrupted"
        elif newest.parent != (parent and parent.number):
            why = f"version {newest.parent}, which it went on from, does not count any more"
        if not why:
            self._say(f"{newest.increment}: goes on after step {newest.steps} of {newest.num_steps}")
            return True
        self._lease.note("begun_anew", newest.increment, why)
        stale = [c.path for c in self._history.commits() if c.number == newest.number and not c.is_final]
        self._lease.withdraw(stale)
        self._say(f"{newest.increment}: begun anew, since {why}")
        return False

    def _fits(self, planned: Sequence[Planned]) -> Iterator[Fit]:
        """Of the increments that are next."""
        done = max((commit.number for commit in self._history.commits() if commit.is_final), default=0)
        tried = {attempt.increment: attempt.attempt for attempt in self._ledger.attempts(self._lease.model)}
        parent = self._history.parent()
        goes_on_from = (parent.number, parent.path) if parent else (None, "")
        for number, (plan, past) in enumerate(planned, done + 1):
            yield Fit(
                plan.to_json(),
                plan.increment.fingerprint,
                number,
                tried.get(plan.increment_id, 0) + 1,
                *goes_on_from,
                self._trial_of(plan.increment),
                self._pasts.path(past),
            )
            goes_on_from = number, ""

    def _next(self) -> tuple[Fit, ...] | None:
        while True:
            planned = self._planned.take(ANSWER_WITHIN_S)
            if planned:
                self._is_asking = False
                return tuple(self._fits(planned))
            if not self._planned.is_done:
                return None
            if self._is_asking:
                self._is_asking = False
                return None if self._is_early else ()
            self._is_asking, self._planned = True, Ahead(self._beyond())

    def _beyond(self) -> Iterator[Planned]:
        """Plans of what there is beyond what is known."""
        increments = self._more()
        self._is_early = increments is None
        self._todo += increments or ()
        yield from self._planner.plans(increments or (), self._history.parent())

    def _scored(self, increment: str, data: dict[str, Any]) -> bool:
        if self._may_learn(increment, data):
            return True
        attempt = self._open.pop(increment)
        self._lease.end_attempt(increment, attempt.attempt, "held")
        self._todo = [other for other in self._todo if other.id != increment]
        return False

    def _begin(self, increment: str, data: dict[str, Any]) -> None:
        """The attempt before learned some rows beyond its last commit: they are learned again."""
        before = self._ledger.attempts(self._lease.model, increment)
        rows = data["rows_done"]
        replayed = max(0, before[-1].rows - rows) if before else 0
        attempt = self._lease.begin_attempt(increment, data["number"], self._world_size, rows, replayed)
        self._open[increment] = _Open(increment, attempt, rows)
        self.replayed_rows[increment] = replayed + sum(other.replayed_rows for other in before)
        if files := [path.rpartition("/")[2] for path in data.get("quarantined_files", ())]:
            told = {"version": data["number"], "files": files}
            self._keep(lambda: self._lease.note("left_out", increment, "no whole Parquet files", told))
        if dropped := data["dropped_negatives"]:
            why = f"{dropped:,} negatives are dropped, {data['rows']:,} rows are learned"
            self._keep(lambda: self._lease.note("dropped", increment, why, {"negatives": dropped}))
        if replayed:
            self._say(f"{increment}: {replayed:,} rows are learned again")
        if self.restarts and self.restarts[-1].recovery_s is None:
            self.restarts[-1].replayed_rows += replayed

    def _has_learned(self, increment: str, rows: int) -> None:
        attempt = self._open.get(increment)
        if attempt is None or rows <= attempt.rows:
            return
        attempt.rows, now_s = rows, time.monotonic()
        if now_s - attempt.kept_s >= KEEP_EVERY_S:
            attempt.kept_s = now_s
            self._keep(lambda: self._lease.has_learned(increment, attempt.attempt, rows))

    def _keep(self, tell: Callable[[], None]) -> None:
        """Tells the ledger what training does not depend on: a database that is away does not end it."""
        try:
            tell()
        except ConfigError as error:
            self._say(f"the ledger does not know: {error.faults[0].found if error.faults else error}")

    def _published(self, path: str) -> Commit:
        """The commit, visible; its manifest is read again and again while the storage fails."""
        until_s = time.monotonic() + self._config.checkpoint.retry_s
        while True:
            try:
                return self._history.publish(self._history.store.at(path), self._lease)
            except (OSError, CheckpointError):
                if time.monotonic() > until_s:
                    raise
                time.sleep(RETRY_EVERY_S)

    def _publish(self, data: dict[str, Any]) -> None:
        self._count(self._published(data["path"]))

    def _count(self, commit: Commit) -> None:
        """A commit has become visible: what it makes superfluous goes."""
        self.num_commits += 1
        if commit.is_final:
            self._todo = [other for other in self._todo if other.id != commit.increment]
            attempt = self._open.pop(commit.increment, None)
            if attempt is not None:
                self._keep(lambda: self._lease.has_learned(commit.increment, attempt.attempt, commit.rows))
                self._lease.end_attempt(commit.increment, attempt.attempt, "committed")
        kept = self._config.checkpoint
        self._history.sweep(self._lease, kept.keep, commit, kept.keep_versions if commit.is_final else 0)
        if commit.is_final and kept.keep_versions:
            lineages = [self._history.store.at(other.path).manifest().lineage for other in self._history.commits()]
            named = {name for lineage in lineages for name in (lineage.past, lineage.past_after)}
            self._pasts.sweep(named, [increment.id for increment in self._todo])


class ScoringDesk:
    """Hands one version and the increments that it is to score to workers. Nothing is written."""

    num_commits = 0
    adopted: Sequence[Commit] = ()

    def __init__(self, start: Start) -> None:
        self._answer = start
        self.generation = 0

    def answer(self, event: Event) -> Any:
        self.generation = self._answer.generation
        return self._answer

    def handle(self, event: Event) -> None:
        pass
