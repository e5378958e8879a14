"""Quality against staleness: what versions of the past score on increments that they have not learned.

Nothing is learned and nothing is written. For an age of a days, an increment is scored by the newest version whose own
increment ended at least a - 1 days before it began: age 1 is a model that is updated every day, age 7 one that was left
alone for a week. Age 0 is the newest version before the increment: for hourly data, a model that is updated every hour.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from diurnal.checkpoint.history import History
from diurnal.checkpoint.store import Store
from diurnal.config import Config
from diurnal.data.ids import IncrementId
from diurnal.data.partitions import Increment
from diurnal.data.pasts import Pasts
from diurnal.data.selection import select_increments
from diurnal.errors import CheckpointError, Fault
from diurnal.ledger.claims import Ledger
from diurnal.ledger.records import Commit
from diurnal.metrics.across_days import across_days
from diurnal.stack import check_stack
from diurnal.train.desk import ScoringDesk
from diurnal.train.group import worker_groups
from diurnal.train.planner import plan_of
from diurnal.train.progress import Progress
from diurnal.train.run import refuse_what_does_not_fit
from diurnal.train.spec import Fit, Start

AGES = (1, 2, 3, 7, 14)


@dataclass(frozen=True)
class Scored:
    """What one version scored on one increment."""

    increment: str
    number: int
    report: dict[str, Any]


@dataclass(frozen=True)
class Replay:
    """Columns of numbers over the same increments: one an age, and one for the version that was frozen."""

    increments: tuple[str, ...]
    columns: dict[str, tuple[Scored, ...]]
    """By name, one entry an increment."""
    wall_s: float

    def table(self) -> list[dict[str, Any]]:
        """For each column: pooled NE over all rows, mean AUC of the increments, calibration, and how much NE is
        above the first column's, in per cent."""
        rows = []
        for name, scored in self.columns.items():
            total = across_days(one.report for one in scored)
            rows.append({"model": name, **vars(total)})
        first = rows[0]["pooled_ne"] if rows else None
        for row in rows:
            row["excess_ne_pct"] = 100 * (row["pooled_ne"] / first - 1) if first and row["pooled_ne"] else None
        return rows

    def to_dict(self) -> dict[str, Any]:
        by_day = {name: [vars(one) for one in scored] for name, scored in self.columns.items()}
        return {"increments": list(self.increments), "table": self.table(), "columns": by_day, "wall_s": self.wall_s}


def replay(
    config: Config,
    first: str,
    last: str,
    ages: Sequence[int] = AGES,
    frozen: int | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Scores the increments from `first` to `last` by versions of each age, and by version `frozen` if one is given.

    Only increments that every column has a version for are scored, so that all columns are about the same rows.

    Raises:
        CheckpointError: there is no increment that has a version of every age.
    """
    started_s, progress = time.time(), progress or Progress(table=False)
    check_stack()
    data = config.data
    increments = select_increments(data.path, config.dataset, first, last, data.parts, on_bad_file=data.on_bad_file)
    with Ledger.of(config) as ledger:
        history = History(Store(config.storage, config.name), ledger, config.name)
        versions = [commit for commit in history.standing() if commit.is_final]
        for commit in versions[-1:]:
            refuse_what_does_not_fit(history.store.at(commit.path), config)
    names = {age: _name_of(age) for age in ages}
    plan: dict[str, dict[str, Commit]] = {}
    for increment in increments:
        chosen = {names[age]: _version_of_age(versions, increment.id, age) for age in ages}
        if frozen is not None:
            chosen[f"frozen version {frozen}"] = _frozen(versions, frozen, increment.id)
        if all(chosen.values()):
            plan[increment.id] = {name: commit for name, commit in chosen.items() if commit is not None}
    if not plan:
        found = f"versions of {', '.join(v.increment for v in versions[:3])} ..." if versions else "no versions"
        rule = f"for some increment from {first} to {last} a version of every age: {', '.join(names.values())}"
        raise CheckpointError([Fault(config.name, found, rule, "ask for later days, or for smaller ages")])
    by_id = {increment.id: increment for increment in increments}
    wanted = sorted({(commit.number, name) for name, chosen in plan.items() for commit in chosen.values()})
    paths = {commit.number: commit.path for commit in versions}
    lineages = {number: history.store.at(paths[number]).manifest().lineage for number, _ in wanted}
    pasts = {number: Pasts.of(config).path(lineage.past_after) for number, lineage in lineages.items()}
    seen = [(replace(by_id[name], past=pasts[number]), number, paths[number]) for number, name in wanted]
    reports = _score(config, seen, progress, started_s)
    columns = {
        column: tuple(
            Scored(name, chosen[column].number, reports[chosen[column].number, name]) for name, chosen in plan.items()
        )
        for column in next(iter(plan.values()))
    }
    return Replay(tuple(plan), columns, time.time() - started_s)


class _Collector(ScoringDesk):
    """Keeps what workers tell of each pass, which come in the order of the fits."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self.reports: list[dict[str, Any]] = []

    def answer(self, event: Any) -> Any:
        self.reports.clear()  # a group that went on where another one ended starts from the beginning
        return super().answer(event)

    def handle(self, event: Any) -> None:
        if event["kind"] == "evaluated":
            self.reports.append(event["data"]["report"])


def _score(
    config: Config, wanted: Sequence[tuple[Increment, int, str]], progress: Progress, started_s: float
) -> dict[tuple[int, str], dict[str, Any]]:
    """By version and increment; each version is loaded once."""
    fits = [
        Fit(plan_of(config, increment).to_json(), increment.fingerprint, 0, 0, number, path)
        for increment, number, path in wanted
    ]
    desk = _Collector(Start(0, fits[0].parent_path, False, tuple(fits), 1))
    with worker_groups(config, "evaluate", progress, started_s) as groups:
        groups.run(desk, lambda _: None)
    assert len(desk.reports) == len(fits), (len(desk.reports), len(fits))
    return {(number, inc.id): report for (inc, number, _), report in zip(wanted, desk.reports, strict=True)}


def _version_of_age(versions: Sequence[Commit], increment: str, age: int) -> Commit | None:
    begin = IncrementId.parse(increment).start
    until = begin.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=age - 1) if age else begin
    old = [v for v in versions if _end_of(v.increment) <= until]
    return max(old, key=lambda commit: commit.number, default=None)


def _frozen(versions: Sequence[Commit], number: int, increment: str) -> Commit | None:
    return next((v for v in versions if v.number == number and v.increment < increment), None)


def _end_of(increment: str) -> Any:
    name = IncrementId.parse(increment)
    if name.part == name.parts:
        return name.folder_end
    return name.whole.cut(name.parts)[name.part].start


def _name_of(age: int) -> str:
    return "newest version" if age == 0 else f"{age} day{'s' * (age != 1)} old"
