"""`diurnal daily` and `diurnal backfill`: every ready increment in order, until there is nothing left to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from diurnal.checkpoint.history import History
from diurnal.checkpoint.store import Store
from diurnal.config import Config
from diurnal.daily.agenda import Asked
from diurnal.daily.cycle import Cycle
from diurnal.daily.mirror import Mirror
from diurnal.data.ids import ID_RULE, IncrementId
from diurnal.errors import DataError, Fault
from diurnal.ledger.claims import Ledger
from diurnal.ledger.records import IncrementRecord, VersionRecord
from diurnal.stack import check_stack
from diurnal.tracking.mlflow import Dataset, Tracker
from diurnal.train.desk import TrainingDesk
from diurnal.train.group import Groups, worker_groups
from diurnal.train.progress import Progress
from diurnal.train.run import held_lease, refuse_to_go_on
from diurnal.train.summary import retell

LOOK_EVERY_S = 2.0
"""Between two looks for an increment while no worker is held."""

RunGroup = Callable[[TrainingDesk, Callable[[str], Dataset | None]], Any]


@dataclass(frozen=True)
class DailyResult:
    """What a daily run did, and how the model stands after it."""

    name: str
    increments: tuple[IncrementRecord, ...]
    """Those that something came of, in order."""
    versions: tuple[VersionRecord, ...]
    """The versions that they ended in."""
    champion: int | None
    newest: IncrementRecord | None
    """Newest increment that something came of, now or before."""
    wall_s: float

    @property
    def needs_a_person(self) -> bool:
        """The newest increment was held, or nothing could be said of its version."""
        return self.newest is not None and self.newest.state in ("held", "judged")

    def to_dict(self) -> dict[str, Any]:
        by_number = {version.number: version for version in self.versions}
        days = []
        for record in self.increments:
            version = by_number.get(record.version or 0)
            days.append(
                {
                    "day": record.increment,
                    "state": record.state,
                    "rows": record.rows,
                    "version": record.version,
                    "verdict": version.verdict if version else None,
                    "reason": record.reason or (version.reason if version else ""),
                    "champion_scored": record.scored,
                }
            )
        return {
            "name": self.name,
            "days": days,
            "champion": self.champion,
            "newest": self.newest and {"day": self.newest.increment, "state": self.newest.state},
            "wall_s": self.wall_s,
        }


def daily(
    config: Config, asked: Asked | None = None, *, follow: bool = False, progress: Progress | None = None
) -> DailyResult:
    """Profiles, scores, learns, judges and promotes every ready increment in order. What is done already stays so.

    Args:
        follow: wait for what comes next, until somebody ends this.

    Raises:
        ConfigError, DataError, CheckpointError, ResourceError, StackError, LeaseHeld, LeaseLost, TrainingError: as
            `train.run.train` does.
    """
    started_s, progress, asked = time.time(), progress or Progress(), asked or Asked()
    _refuse_no_range(asked)
    check_stack()
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.of(config))
        lease = stack.enter_context(held_lease(config, ledger, "daily", asked.last))
        history = History(Store(config.storage, config.name), ledger, config.name)
        if count := history.rebuild(lease):
            progress.say(f"the ledger did not know of {count} versions in {config.storage}: they are registered")
        history.adopt(lease)
        tracker = stack.enter_context(Tracker(config))
        retell(tracker, config, history)
        mirror = Mirror(tracker, ledger, config)
        mirror.catch_up()
        groups: list[Groups] = []

        def run_group(desk: TrainingDesk, dataset: Callable[[str], Dataset | None]) -> None:
            if not groups:
                groups.append(stack.enter_context(worker_groups(config, "train", progress, started_s, lease, tracker)))
            groups[0].run(desk, dataset)

        cycle = Cycle(
            config,
            history,
            ledger,
            lease,
            progress.say,
            on_judged=mirror.judged,
            on_held=mirror.held,
            asked=asked,
            follow=follow,
        )
        go_round(config, history, ledger, lease, cycle, run_group, progress.say)
        if groups:
            groups[0].close()
        return _result(config, ledger, cycle, started_s)


def _refuse_no_range(asked: Asked) -> None:
    faults = []
    for where, bound in (("--from", asked.first), ("--until" if asked.first is None else "--to", asked.last)):
        try:
            IncrementId.parse(bound or "2000-01-01")
        except ValueError:
            faults.append(Fault(where, str(bound), ID_RULE, "correct it"))
    if not faults and asked.first and asked.last and asked.first[:10] > asked.last[:10]:
        faults.append(Fault("--to", asked.last, f"not before --from {asked.first}", "give the earlier one first"))
    if faults:
        raise DataError(faults)


def go_round(
    config: Config,
    history: History,
    ledger: Ledger,
    lease: Any,
    cycle: Cycle,
    run_group: RunGroup,
    say: Callable[[str], None],
) -> None:
    """Worker groups, one after the other, until the cycle has no more for them.

    A group ends when the next increment goes on from another version than the one that its workers have.
    """
    while True:
        cycle.is_running = False
        found = cycle.next()
        if found is None:
            time.sleep(LOOK_EVERY_S)
            continue
        if not found:
            return
        refuse_to_go_on(history, config)
        desk = TrainingDesk(
            config,
            history,
            ledger,
            lease,
            found,
            _held_for(config, cycle),
            say,
            trial_of=cycle.trial_of,
            may_learn=cycle.may_learn,
        )
        desk.prepare()
        cycle.is_running = True
        run_group(desk, cycle.dataset)


def _held_for(config: Config, cycle: Cycle) -> Callable[[], Any]:
    """What a group asks for more: workers are held for `workers.keep_alive`, and no longer."""
    idle_since_s: list[float] = []

    def more() -> Any:
        found: Any = cycle.next()
        if found is not None:
            idle_since_s.clear()
            return found
        idle_since_s.append(time.monotonic())
        return () if time.monotonic() - idle_since_s[0] >= config.workers.keep_alive else None

    return more


def _result(config: Config, ledger: Ledger, cycle: Cycle, started_s: float) -> DailyResult:
    records = {record.increment: record for record in ledger.increments(config.name)}
    ended = [r for r in records.values() if r.state in ("promoted", "judged", "held", "trained")]
    done = tuple(records[name] for name in dict.fromkeys(cycle.done))
    return DailyResult(
        name=config.name,
        increments=done,
        versions=tuple(v for v in ledger.versions(config.name) if v.number in {r.version for r in done}),
        champion=ledger.champion(config.name),
        newest=max(ended, key=lambda record: record.increment, default=None),
        wall_s=time.time() - started_s,
    )
