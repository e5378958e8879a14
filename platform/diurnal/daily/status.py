"""How a model stands, from the ledger alone: neither data, nor storage, nor tracking is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from diurnal.config import Config
from diurnal.data.ids import IncrementId
from diurnal.ledger.claims import Ledger
from diurnal.ledger.records import IncrementRecord, VersionRecord

SHOWN = 10
"""Increments that are listed, the newest ones; and troubles that need nobody."""

SHOWN_FILES = 3

PENDING = ("seen", "ready", "claimed", "profiled", "trained", "failed")


Kind = Literal["held", "undecided", "failed", "waiting", "skipped", "left_out", "late"]


@dataclass(frozen=True)
class Trouble:
    """Something that needs a person, or will."""

    increment: str
    kind: Kind
    what: str
    what_to_do: str
    needs_a_person: bool


@dataclass(frozen=True)
class Status:
    name: str
    holder: str | None
    """Process that has the model now."""
    champion: VersionRecord | None
    champion_age_s: float | None
    """Since its increment was committed."""
    freshness_s: float | None
    """Age of the newest row that the champion has learned; None where rows have no time."""
    newest: VersionRecord | None
    next_increment: str | None
    """On the calendar, after the newest one that is known."""
    increments: tuple[IncrementRecord, ...]
    """The newest ones, in order."""
    num_pending: int
    troubles: tuple[Trouble, ...]

    @property
    def needs_a_person(self) -> bool:
        return any(trouble.needs_a_person for trouble in self.troubles)

    def to_dict(self) -> dict[str, Any]:
        days = [{k: v for k, v in asdict(record).items() if k != "model"} for record in self.increments]
        versions = {
            name: version and {k: v for k, v in asdict(version).items() if k != "model"}
            for name, version in (("champion", self.champion), ("newest", self.newest))
        }
        return {
            "name": self.name,
            "holder": self.holder,
            **versions,
            "champion_age_s": self.champion_age_s,
            "freshness_s": self.freshness_s,
            "next_increment": self.next_increment,
            "increments": days,
            "num_pending": self.num_pending,
            "troubles": [asdict(trouble) for trouble in self.troubles],
            "needs_a_person": self.needs_a_person,
        }

    def text(self) -> str:
        lines = [f"model {self.name}"]
        if self.champion is None:
            lines.append("  champion    none")
        else:
            since = _age(self.champion_age_s)
            lines.append(f"  champion    version {self.champion.number} of {self.champion.increment}, {since} old")
        if self.newest is not None and self.newest != self.champion:
            verdict = self.newest.verdict or "not judged"
            lines.append(f"  newest      version {self.newest.number} of {self.newest.increment}: {verdict}")
        if self.freshness_s is not None:
            lines.append(f"  freshness   the champion's newest row is {_age(self.freshness_s)} old")
        lines.append(f"  at work     {self.holder or 'nobody'}")
        if self.increments:
            lines += ["", f"  {'increment':<16} {'state':<10} {'rows':>12}  {'version':>7}  reason"]
        for record in self.increments:
            rows = "-" if record.rows is None else f"{record.rows:,}"
            version = record.version or "-"
            told = f"  {record.increment:<16} {record.state:<10} {rows:>12}  {version:>7}  {record.reason}"
            lines.append(told.rstrip())
        if self.num_pending:
            following = f"next on the calendar: {self.next_increment}"
            lines.append(f"  {self.num_pending} increments are known and not done; {following}")
        lines += self._troubles_text()
        if not self.troubles:
            lines += ["", "nothing needs a person"]
        return "\n".join(lines)

    def _troubles_text(self) -> list[str]:
        """All that need a person, and the newest ones of the others."""
        groups = _together(list(self.troubles))
        others = [group for group in groups if not group[0].needs_a_person]
        left_out = others[:-SHOWN]
        lines = []
        for group in groups:
            if group in left_out:
                continue
            first, last = group[0], group[-1]
            span = first.increment if first is last else f"{first.increment} to {last.increment} ({len(group)})"
            mark = "!" if first.needs_a_person else "-"
            lines += ["", f"{mark} {span}: {first.what}", f"  to do: {first.what_to_do}"]
        if left_out:
            lines += ["", f"and {sum(map(len, left_out))} earlier ones that need nobody (all with --json)"]
        return lines


def _together(troubles: list[Trouble]) -> list[list[Trouble]]:
    """Those that follow each other for the same reason, as the hours of a gap do."""
    groups: list[list[Trouble]] = []
    for trouble in troubles:
        if groups and (groups[-1][-1].kind, groups[-1][-1].what) == (trouble.kind, trouble.what):
            groups[-1].append(trouble)
        else:
            groups.append([trouble])
    return groups


def status(config: Config, ledger: Ledger, clock: Callable[[], float] = time.time) -> Status:
    """How the model of a configuration stands."""
    model = config.name
    return status_of(config, ledger, ledger.increments(model), ledger.versions(model), clock())


def status_of(
    config: Config,
    ledger: Ledger,
    increments: list[IncrementRecord],
    versions: list[VersionRecord],
    now_s: float,
) -> Status:
    """The same for who has read the ledger's lists already."""
    model = config.name
    by_number = {version.number: version for version in versions}
    champion = by_number.get(ledger.champion(model) or 0)
    watermark_us = champion.watermark_us if champion else None
    newest_known = max((record.increment for record in increments), default=None)
    following = newest_known and _next(newest_known)
    return Status(
        name=model,
        holder=ledger.held(model),
        champion=champion,
        champion_age_s=now_s - datetime.fromisoformat(champion.created_at).timestamp() if champion else None,
        freshness_s=None if watermark_us is None else now_s - watermark_us / 1e6,
        newest=versions[-1] if versions else None,
        next_increment=following,
        increments=tuple(increments[-SHOWN:]),
        num_pending=sum(record.state in PENDING and record.version is None for record in increments),
        troubles=(
            *_left_out(ledger, model, increments[-SHOWN:]),
            *_troubles(config, increments, champion, following, now_s),
        ),
    )


def _troubles(
    config: Config,
    increments: list[IncrementRecord],
    champion: VersionRecord | None,
    following: str | None,
    now_s: float,
) -> list[Trouble]:
    found, newest_done = [], max((r.increment for r in increments if r.state == "promoted"), default="")
    for record in increments:
        is_current = record.increment > newest_done
        if record.state == "held":
            what = f"held: {record.reason}"
            to_do = (
                f"look at the data; when they are right, `diurnal daily --retry {record.increment}`"
                if record.version is None
                else f"look at the run in MLflow; `diurnal promote {record.version}` if it is good all the same"
            )
            if is_current:
                found.append(Trouble(record.increment, "held", what, to_do, True))
        elif record.state == "judged" and is_current:
            to_do = "nothing: the next version is judged"
            found.append(Trouble(record.increment, "undecided", f"undecided: {record.reason}", to_do, False))
        elif record.state == "failed":
            what = f"failed: {record.reason}"
            found.append(Trouble(record.increment, "failed", what, "run `diurnal daily` again", True))
        elif record.state in ("seen", "claimed") and record.reason and is_current:
            to_do = "wait, or write what is missing"
            found.append(Trouble(record.increment, "waiting", record.reason, to_do, False))
        elif record.state == "skipped" and is_current:
            to_do = f"nothing, or `diurnal daily --retry {record.increment}`"
            found.append(Trouble(record.increment, "skipped", f"skipped: {record.reason}", to_do, False))
    if following is not None:
        late_s = now_s - due_s(config, following)
        if late_s > 0 and champion is not None:
            what = f"late: nothing was seen of it {_age(late_s)} after it was due"
            to_do = "run `diurnal daily`, or look at what writes the data"
            found.append(Trouble(following, "late", what, to_do, True))
    return found


def _left_out(ledger: Ledger, model: str, increments: list[IncrementRecord]) -> Iterator[Trouble]:
    """Versions that have not learned all files of their increment."""
    files = {(e.increment, e.data["version"]): e.data["files"] for e in ledger.events(model, kind="left_out")}
    for record in increments:
        if names := files.get((record.increment, record.version)):
            shown = ", ".join(names[:SHOWN_FILES]) + (", ..." if len(names) > SHOWN_FILES else "")
            what = f"learned without {len(names)} damaged file{'s' * (len(names) > 1)}: {shown}"
            to_do = 'write them again, and learn the day anew with `days.changed = "retrain"`'
            yield Trouble(record.increment, "left_out", what, to_do, False)


def due_s(config: Config, increment: str) -> float:
    """When an increment that is not done is late: `days.wait_s` after its end, seconds since the epoch."""
    return (IncrementId.parse(increment).folder_end + timedelta(seconds=config.days.wait_s)).timestamp()


def _next(increment: str) -> str:
    """The increment after this one on the calendar."""
    name = IncrementId.parse(increment)
    if name.part < name.parts:
        return str(name.whole.cut(name.parts)[name.part])
    begin = name.folder_end
    following = IncrementId(begin.date(), begin.hour if name.hour is not None else None)
    return str(following.cut(name.parts)[0])


def _age(seconds: float | None) -> str:
    return "?" if seconds is None else str(timedelta(seconds=round(max(0.0, seconds))))
