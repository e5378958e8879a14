"""Verdicts on versions, and which version is the champion. Each function works inside its caller's transaction.

Where something is decided, the model's row of leases is locked in it: decisions come one after the other.

The champions are a stack: a promotion puts a version on it, a rollback takes versions off. The log of both is what is
kept, the stack is what it comes to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa

from diurnal.errors import DiurnalError, Fault
from diurnal.ledger import increments, records
from diurnal.ledger.records import IncrementState, Promotion, Verdict, VersionRecord, Writer, iso_time
from diurnal.ledger.schema import COMMITS, PROMOTIONS, VERDICTS

ANY: Final = object()
"""Whichever champion there is, or none."""


class PromotionError(DiurnalError):
    """A version cannot become the champion."""

    title = "promotion"


@dataclass(frozen=True)
class Decision:
    """What `Lease.judge` keeps of a version."""

    verdict: Verdict
    reason: str
    evidence: Mapping[str, Any]
    rejected: bool
    state: IncrementState
    expected_champion: int | None
    promote: bool


def versions_of(connection: sa.Connection, model: str) -> list[VersionRecord]:
    """The visible ones, by number."""
    same = (VERDICTS.c.model == COMMITS.c.model) & (VERDICTS.c.path == COMMITS.c.path)
    visible = (COMMITS.c.model == model) & COMMITS.c.withdrawn_us.is_(None) & (COMMITS.c.steps == COMMITS.c.num_steps)
    names = ("model", "number", "increment", "parent", "path", "fingerprint", "watermark_us", "created_at")
    about = (VERDICTS.c.verdict, VERDICTS.c.rejected, VERDICTS.c.reason, VERDICTS.c.judged_us)
    query = sa.select(*(COMMITS.c[name] for name in names), *about).select_from(COMMITS.outerjoin(VERDICTS, same))
    found = []
    for row in connection.execute(query.where(visible).order_by(COMMITS.c.number)).mappings():
        values = dict(row)
        judged_us = values.pop("judged_us")
        values |= {"verdict": row["verdict"] or "", "reason": row["reason"] or "", "rejected": bool(row["rejected"])}
        found.append(VersionRecord(**values, judged_at=None if judged_us is None else iso_time(judged_us)))
    return found


def evidence_of(connection: sa.Connection, model: str, path: str) -> dict[str, Any] | None:
    """What the verdict on the version at a path was made from."""
    here = (VERDICTS.c.model == model) & (VERDICTS.c.path == path)
    text = connection.execute(sa.select(VERDICTS.c.evidence).where(here)).scalar()
    return None if text is None else json.loads(text)


def promotions_of(connection: sa.Connection, model: str) -> list[Promotion]:
    """In the order in which they happened."""
    query = sa.select(PROMOTIONS).where(PROMOTIONS.c.model == model).order_by(PROMOTIONS.c.id)
    found = []
    for row in connection.execute(query).mappings():
        values = dict(row)
        at_us, _ = values.pop("at_us"), values.pop("ticket")
        found.append(Promotion(**values, at=iso_time(at_us)))
    return found


def champions(promotions: Iterable[Promotion]) -> list[int]:
    """The stack that the log comes to: the champion last, before it those that a rollback may go back to."""
    stack: list[int] = []
    for promotion in promotions:
        if promotion.kind == "promote":
            stack.append(promotion.number)
            continue
        stack.pop()
        while stack[-1] != promotion.number:
            stack.pop()
    return stack


def champion_of(connection: sa.Connection, model: str) -> int | None:
    stack = champions(promotions_of(connection, model))
    return stack[-1] if stack else None


def rollback_target_of(connection: sa.Connection, model: str) -> int | None:
    """The last champion before this one that is visible and neither rejected nor superseded."""
    stack = champions(promotions_of(connection, model))
    good = {version.number for version in versions_of(connection, model) if not version.rejected}
    return next((number for number in stack[-2::-1] if number in good and number != stack[-1]), None)


def promote(writer: Writer, number: int, reason: str, expected: object) -> bool:
    """See `Ledger.promote`."""
    champion = champion_of(writer.connection, writer.model)
    if champion == number:
        return False
    versions = {version.number: version for version in versions_of(writer.connection, writer.model)}
    _refuse_to_promote(writer.model, number, versions, champion, expected)
    version = versions[number]
    _put(writer, version, verdict=version.verdict or "promote", rejected=False, reason=reason)
    _change_champion(writer, version, champion, "promote", reason)
    increments.mark(writer, version.increment, "promoted", reason, version=number)
    return True


def roll_back(writer: Writer, reason: str, ticket: str) -> int:
    """See `Ledger.rollback`.

    Args:
        ticket: of the call. It counts once, also when the answer was lost and it is done again.
    """
    mine = (PROMOTIONS.c.model == writer.model) & (PROMOTIONS.c.ticket == ticket)
    done = writer.connection.scalar(sa.select(PROMOTIONS.c.number).where(mine))
    if done is not None:
        return done
    champion, target = (of(writer.connection, writer.model) for of in (champion_of, rollback_target_of))
    if champion is None or target is None:
        found = "no champion" if champion is None else f"champion {champion}, and none before it to go back to"
        rule = "a champion before this one that is still there, not rejected and not superseded"
        fix = "promote a version by its number"
        raise PromotionError([Fault(f"model {writer.model}", found, rule, fix)])
    versions = {version.number: version for version in versions_of(writer.connection, writer.model)}
    _change_champion(writer, versions[target], champion, "rollback", reason, ticket)
    left = versions.get(champion)
    if left is not None and left.verdict != "superseded":
        told = f"rolled back to version {target}" + (f": {reason}" if reason else "")
        _put(writer, left, verdict=left.verdict or "hold", rejected=True, reason=told)
        increments.mark(writer, left.increment, "held", told, version=champion)
    return target


def judge(writer: Writer, number: int, decision: Decision) -> bool:
    """See `Lease.judge`."""
    (version,) = _known(writer, [number])
    if version.verdict:
        return True
    champion = champion_of(writer.connection, writer.model)
    if champion != decision.expected_champion:
        return False
    about = {"verdict": decision.verdict, "rejected": decision.rejected, "reason": decision.reason}
    _put(writer, version, **about, evidence=json.dumps(decision.evidence, sort_keys=True))
    data = {"number": number, "verdict": decision.verdict, "rejected": decision.rejected, "champion": champion}
    writer.event("judge", version.increment, decision.reason, data)
    if decision.promote and champion != number:
        _change_champion(writer, version, champion, "promote", decision.reason)
    increments.mark(writer, version.increment, decision.state, decision.reason, version=number)
    return True


def supersede(writer: Writer, numbers: Sequence[int], days: Sequence[str], reason: str) -> None:
    """See `Lease.supersede`."""
    changed = [version for version in _known(writer, numbers) if version.verdict != "superseded"]
    for version in changed:
        _put(writer, version, verdict="superseded", rejected=True, reason=reason)
    gone: list[str] = []
    if changed:
        visible = records.visible_commits(writer.connection, writer.model)
        points = [c.path for c in visible if not c.is_final and c.number >= min(numbers)]
        now_us = writer.database.now_us(writer.connection)
        gone = records.withdraw_commits(writer.connection, writer.model, points, now_us, final=False)
        data = {"numbers": [version.number for version in changed], "increments": list(days), "paths": gone}
        writer.event("supersede", "", reason, data)
    for day in days:
        increments.mark(writer, day, "superseded", reason)


def _known(writer: Writer, numbers: Sequence[int]) -> list[VersionRecord]:
    versions = {version.number: version for version in versions_of(writer.connection, writer.model)}
    missing = [number for number in numbers if number not in versions]
    if missing:
        raise ValueError(f"{writer.model}: no version {', '.join(map(str, missing))}")
    return [versions[number] for number in numbers]


def _refuse_to_promote(
    model: str, number: int, versions: Mapping[int, VersionRecord], champion: int | None, expected: object
) -> None:
    where, fault = f"version {number} of model {model}", None
    if number not in versions:
        newest = ", ".join(map(str, sorted(versions)[-10:])) or "none so far"
        fault = Fault(
            where, "no such version", f"a version that is there, the newest are: {newest}", "name one of them"
        )
    elif versions[number].verdict == "superseded":
        found = f"superseded: {versions[number].reason}"
        fault = Fault(
            where, found, "a version whose increment was not trained again", "promote the one that came of that"
        )
    elif expected is not ANY and expected != champion:
        found = f"it would replace {_called(champion)}"
        fault = Fault(where, found, f"it replaces {_called(expected)}", "compare it with the champion of now")
    if fault is not None:
        raise PromotionError([fault])


def _called(champion: object) -> str:
    return "no champion" if champion is None else f"champion {champion}"


def _put(writer: Writer, version: VersionRecord, **values: Any) -> None:
    """What is left out stays as it was; the time is that of the verdict, not of what a person does about it later."""
    values["reason"] = writer.database.tell(values["reason"])
    here = (VERDICTS.c.model == writer.model) & (VERDICTS.c.path == version.path)
    if version.verdict:
        writer.connection.execute(VERDICTS.update().where(here).values(**values))
        return
    now_us = writer.database.now_us(writer.connection)
    named = {"model": writer.model, "path": version.path, "number": version.number, "judged_us": now_us}
    writer.connection.execute(VERDICTS.insert().values(**named, **values))


def _change_champion(
    writer: Writer,
    version: VersionRecord,
    previous: int | None,
    kind: Literal["promote", "rollback"],
    reason: str,
    ticket: str = "",
) -> None:
    told = {"reason": writer.database.tell(reason), "actor": writer.actor, "ticket": ticket}
    at_us = writer.database.now_us(writer.connection)
    values = {"model": writer.model, "number": version.number, "previous": previous, "kind": kind, "at_us": at_us}
    writer.connection.execute(PROMOTIONS.insert().values(**values, **told))
    writer.event(kind, version.increment, reason, {"number": version.number, "previous": previous})
