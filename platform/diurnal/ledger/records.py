"""What the ledger keeps of a model: commits, attempts, events here, the rest in the modules beside this one.

Each function works inside its caller's transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal

import sqlalchemy as sa

from diurnal.ledger.database import Database
from diurnal.ledger.schema import ATTEMPTS, COMMITS, EVENTS

Outcome = Literal["committed", "failed", "killed", "resized", "interrupted", "held"]
IncrementState = Literal[
    "seen",
    "ready",
    "claimed",
    "profiled",
    "trained",
    "judged",
    "promoted",
    "held",
    "failed",
    "superseded",
    "skipped",
]
"""`judged` is an increment whose version is undecided."""
Verdict = Literal["promote", "hold", "undecided", "superseded"]


@dataclass(frozen=True)
class Commit:
    """A whole folder in the store. It counts from when it is published until it is withdrawn."""

    model: str
    number: int
    """Version that it belongs to: a resume point comes before its version, the final commit is the version."""
    increment: str
    fingerprint: str
    """Of the increment's files."""
    attempt: int
    token: int
    """Of the lease under which it was written."""
    global_step: int
    steps: int
    """Global batches of the increment that it has learned, of `num_steps`."""
    num_steps: int
    rows: int
    """Rows of the increment that it has learned."""
    path: str
    """Below `<storage>/<model>/versions`, as in `3/1-40`. Never used twice."""
    watermark_us: int | None
    """Newest event time that was learned, in microseconds since the epoch, UTC."""
    created_at: str
    parent: int | None = None
    """Version that it goes on from; None for one that began with nothing."""

    @property
    def is_final(self) -> bool:
        return self.steps == self.num_steps


@dataclass(frozen=True)
class Attempt:
    """One start of the workers on an increment."""

    model: str
    increment: str
    attempt: int
    """From 1 within (model, increment)."""
    number: int
    """Version that it was to make."""
    world_size: int
    token: int
    actor: str
    started_at: str
    ended_at: str | None
    outcome: Outcome | Literal[""]
    """Empty while it goes on."""
    reason: str
    rows: int
    """Rows of the increment that were learned when it was last heard of, those of commits before it included."""
    replayed_rows: int
    """Rows that it learned again, since they came after the last commit of the attempt before."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a model, in the order in which it was noted."""

    id: int
    at: str
    model: str
    actor: str
    kind: str
    increment: str
    reason: str
    data: dict[str, Any]


@dataclass(frozen=True)
class IncrementRecord:
    """How far the model has come with an increment."""

    model: str
    increment: str
    fingerprint: str
    """Of its files as they were last looked at; empty before that."""
    rows: int | None
    """Rows of those files; where nobody has counted them, those that its version learned."""
    state: IncrementState
    reason: str
    version: int | None
    """The last one that learned it."""
    scored: dict[str, Any] | None
    """What the champion's scores of it came to before it was learned."""
    first_seen_at: str
    updated_at: str
    first_seen_us: int
    """`first_seen_at` in microseconds since the epoch, UTC."""
    actor: str
    """Who brought it into this state."""


@dataclass(frozen=True)
class VersionRecord:
    """A visible version, and what was decided about it."""

    model: str
    number: int
    increment: str
    parent: int | None
    path: str
    fingerprint: str
    watermark_us: int | None
    created_at: str
    verdict: Verdict | Literal[""]
    """Empty until it is judged. The gate's, which stays what it was when a person decides otherwise later; a person's
    where the gate has not spoken."""
    rejected: bool
    """Nothing goes on from it."""
    reason: str
    """Of the last decision about it, the gate's or a person's."""
    judged_at: str | None


@dataclass(frozen=True)
class Promotion:
    """A change of the champion."""

    id: int
    model: str
    number: int
    """The champion from then on."""
    previous: int | None
    """The champion until then."""
    kind: Literal["promote", "rollback"]
    reason: str
    actor: str
    at: str


@dataclass(frozen=True)
class Writer:
    """Who writes about which model, within one transaction."""

    database: Database
    connection: sa.Connection
    model: str
    actor: str

    def event(self, kind: str, increment: str = "", reason: str = "", data: Mapping[str, Any] | None = None) -> None:
        add_event(self.database, self.connection, self.model, self.actor, kind, increment, reason, data)


_COMMIT_FIELDS = tuple(field.name for field in fields(Commit))


def iso_time(us: int) -> str:
    """Microseconds since the epoch as `2026-01-02T03:04:05.678+00:00`."""
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="milliseconds")


def visible_commits(connection: sa.Connection, model: str) -> list[Commit]:
    """In the order in which they were learned: by version, then by step."""
    mine = (COMMITS.c.model == model) & COMMITS.c.withdrawn_us.is_(None)
    order = (COMMITS.c.number, COMMITS.c.global_step, COMMITS.c.attempt, COMMITS.c.published_us)
    rows = connection.execute(sa.select(COMMITS).where(mine).order_by(*order)).mappings()
    return [Commit(**{name: row[name] for name in _COMMIT_FIELDS}) for row in rows]


def is_known(connection: sa.Connection, model: str) -> bool:
    """Whether the model ever had a commit here, visible or withdrawn."""
    return connection.execute(sa.select(COMMITS.c.path).where(COMMITS.c.model == model).limit(1)).first() is not None


def add_commits(connection: sa.Connection, commits: Iterable[Commit], now_us: int) -> list[Commit]:
    """Makes commits visible, those that are not yet; says which.

    Raises:
        ValueError: the path was used before, by another commit or by one that was withdrawn since; or the version is
            there already, under another path.
    """
    added: list[Commit] = []
    for commit in commits:
        here = (COMMITS.c.model == commit.model) & (COMMITS.c.path == commit.path)
        there = connection.execute(sa.select(COMMITS).where(here)).mappings().first()
        if there is None:
            _refuse_a_second_version(connection, commit)
            connection.execute(COMMITS.insert().values(**asdict(commit), published_us=now_us))
            added.append(commit)
        elif there["withdrawn_us"] is not None:
            raise ValueError(f"{commit.model}: {commit.path} was withdrawn and cannot be published again")
        elif Commit(**{name: there[name] for name in _COMMIT_FIELDS}) != commit:
            raise ValueError(f"{commit.model}: {commit.path} was published before, as another commit")
    return added


def _refuse_a_second_version(connection: sa.Connection, commit: Commit) -> None:
    same = (COMMITS.c.model == commit.model) & (COMMITS.c.number == commit.number) & COMMITS.c.withdrawn_us.is_(None)
    finals = sa.select(COMMITS.c.path).where(same & (COMMITS.c.steps == COMMITS.c.num_steps))
    other = connection.scalar(finals.limit(1)) if commit.is_final else None
    if other is not None:
        raise ValueError(f"{commit.model}: {commit.path} would be version {commit.number}, which {other} is")


def withdraw_commits(
    connection: sa.Connection, model: str, paths: Iterable[str], now_us: int, final: bool
) -> list[str]:
    """Hides commits; says which of the paths were visible until now.

    Raises:
        ValueError: a version is among them, and `final` does not allow it.
    """
    wanted = set(paths)
    hidden = [commit for commit in visible_commits(connection, model) if commit.path in wanted]
    versions = [commit.path for commit in hidden if commit.is_final]
    if versions and not final:
        raise ValueError(f"{model}: {', '.join(versions)}: a version, not a resume point")
    for commit in hidden:
        here = (COMMITS.c.model == model) & (COMMITS.c.path == commit.path)
        connection.execute(COMMITS.update().where(here).values(withdrawn_us=now_us))
    return [commit.path for commit in hidden]


def next_attempt(connection: sa.Connection, model: str, increment: str) -> int:
    """One more than any that has begun, or that has left a commit."""
    newest = [
        connection.scalar(
            sa.select(sa.func.max(table.c.attempt)).where(table.c.model == model, table.c.increment == increment)
        )
        for table in (ATTEMPTS, COMMITS)
    ]
    return 1 + max(number or 0 for number in newest)


def begin_attempt(connection: sa.Connection, **values: Any) -> None:
    connection.execute(ATTEMPTS.insert().values(**values, outcome="", reason=""))


def attempts_of(connection: sa.Connection, model: str, increment: str | None) -> list[Attempt]:
    """In the order in which they began."""
    mine = ATTEMPTS.c.model == model
    if increment is not None:
        mine &= ATTEMPTS.c.increment == increment
    order = (ATTEMPTS.c.started_us, ATTEMPTS.c.increment, ATTEMPTS.c.attempt)
    found = []
    for row in connection.execute(sa.select(ATTEMPTS).where(mine).order_by(*order)).mappings():
        values = dict(row)
        started_us, ended_us = values.pop("started_us"), values.pop("ended_us")
        ended_at = None if ended_us is None else iso_time(ended_us)
        found.append(Attempt(**values, started_at=iso_time(started_us), ended_at=ended_at))
    return found


def end_attempts(connection: sa.Connection, which: sa.ColumnElement[bool], now_us: int, **values: Any) -> int:
    """Ends those of the attempts that are still open; says how many."""
    still_open = which & ATTEMPTS.c.ended_us.is_(None)
    return connection.execute(ATTEMPTS.update().where(still_open).values(ended_us=now_us, **values)).rowcount


def add_event(
    database: Database,
    connection: sa.Connection,
    model: str,
    actor: object,
    kind: str,
    increment: str = "",
    reason: str = "",
    data: Mapping[str, Any] | None = None,
) -> None:
    """Notes an event that happens now. No password in a URL gets into it."""
    told = json.dumps(_told(data or {}, database.tell), default=str, sort_keys=True)
    values = {
        "model": model,
        "actor": str(actor),
        "kind": kind,
        "increment": increment,
        "reason": database.tell(reason),
    }
    connection.execute(EVENTS.insert().values(**values, at_us=database.now_us(connection), data=told))


def events_of(
    connection: sa.Connection, model: str | None, limit: int | None, kind: str | None, increment: str | None
) -> list[Event]:
    """The newest `limit` of those asked for, oldest first."""
    query = sa.select(EVENTS).order_by(EVENTS.c.id.desc()).limit(limit)
    for column, wanted in ((EVENTS.c.model, model), (EVENTS.c.kind, kind), (EVENTS.c.increment, increment)):
        if wanted is not None:
            query = query.where(column == wanted)
    found = []
    for row in connection.execute(query).mappings():
        values = dict(row)
        at = iso_time(values.pop("at_us"))
        found.append(Event(**{**values, "data": json.loads(values["data"])}, at=at))
    return found[::-1]


def _told(value: Any, tell: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {tell(str(key)): _told(part, tell) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_told(part, tell) for part in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return tell(str(value))
