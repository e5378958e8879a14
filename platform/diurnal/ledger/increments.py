"""What the ledger keeps of increments: how far each has come. Each function works inside its caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from diurnal.ledger.records import Commit, IncrementRecord, IncrementState, Writer, iso_time
from diurnal.ledger.schema import INCREMENTS

_OF_THESE_FILES = ("rows", "profile", "scored")
_JSON = ("profile", "scored")


def increments_of(connection: sa.Connection, model: str, increment: str | None = None) -> list[IncrementRecord]:
    """By name; one of them, or all."""
    columns = [column for column in INCREMENTS.c if column.name != "profile"]
    query = sa.select(*columns).where(INCREMENTS.c.model == model)
    if increment is not None:
        query = query.where(INCREMENTS.c.increment == increment)
    found = []
    for row in connection.execute(query).mappings():
        values = dict(row)
        values["scored"] = None if values["scored"] is None else json.loads(values["scored"])
        first_us, updated_us = values["first_seen_us"], values.pop("updated_us")
        found.append(IncrementRecord(**values, first_seen_at=iso_time(first_us), updated_at=iso_time(updated_us)))
    # Not by the database, whose order of letters depends on its locale.
    return sorted(found, key=lambda record: record.increment)


def profile_of(connection: sa.Connection, model: str, increment: str) -> dict[str, Any] | None:
    here = (INCREMENTS.c.model == model) & (INCREMENTS.c.increment == increment)
    text = connection.execute(sa.select(INCREMENTS.c.profile).where(here)).scalar()
    return None if text is None else json.loads(text)


def mark(writer: Writer, increment: str, state: IncrementState, reason: str = "", **given: Any) -> None:
    """Brings an increment into a state, as `Lease.mark` says, with an event if that is news."""
    fingerprint = given.get("fingerprint")
    if _put(writer, increment, state, reason, given):
        data = {"state": state, "version": given.get("version"), "fingerprint": fingerprint}
        writer.event("state", increment, reason, {name: value for name, value in data.items() if value is not None})


def keep_trained(writer: Writer, commits: Iterable[Commit]) -> None:
    """The increments of the final ones among the commits are trained; their own events say so."""
    for commit in commits:
        if commit.is_final:
            found = _row(writer, commit.increment)
            counted = found is not None and found["rows"] is not None and found["fingerprint"] == commit.fingerprint
            given = {"fingerprint": commit.fingerprint, "version": commit.number}
            given |= {} if counted else {"rows": commit.rows}
            _put(writer, commit.increment, "trained", "", given)


def _put(writer: Writer, increment: str, state: IncrementState, reason: str, given: dict[str, Any]) -> bool:
    """Whether the state, its reason or the fingerprint was another one."""
    values = {name: value for name, value in given.items() if value is not None}
    values |= {name: json.dumps(values[name], sort_keys=True) for name in _JSON if name in values}
    values |= {"state": state, "reason": writer.database.tell(reason)}
    found = _row(writer, increment)
    now_us = writer.database.now_us(writer.connection)
    written = {"updated_us": now_us, "actor": writer.actor}
    if found is None:
        first = {"model": writer.model, "increment": increment, "fingerprint": "", "first_seen_us": now_us}
        writer.connection.execute(INCREMENTS.insert().values(**{**first, **values, **written}))
        return True
    if values.get("fingerprint", found["fingerprint"]) != found["fingerprint"]:
        values = {**dict.fromkeys(_OF_THESE_FILES), **values}
    changed = {name for name, value in values.items() if found[name] != value}
    if changed:
        writer.connection.execute(INCREMENTS.update().where(_here(writer, increment)).values(**values, **written))
    return bool(changed & {"state", "reason", "fingerprint"})


def _row(writer: Writer, increment: str) -> sa.RowMapping | None:
    return writer.connection.execute(sa.select(INCREMENTS).where(_here(writer, increment))).mappings().first()


def _here(writer: Writer, increment: str) -> sa.ColumnElement[bool]:
    return (INCREMENTS.c.model == writer.model) & (INCREMENTS.c.increment == increment)
