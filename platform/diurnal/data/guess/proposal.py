"""What was guessed of a dataset, with the evidence: what the files say and what a person is told come from here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from diurnal.data.guess.label import LabelGuess
from diurnal.data.guess.survey import Survey


@dataclass(frozen=True)
class Entry:
    """A section of `schema.toml`, one of an array when it is `dense`, `sparse` or `tables`."""

    section: Literal["dense", "sparse", "tables", "readiness", "days", "gate"]
    settings: dict[str, Any]
    why: str


@dataclass(frozen=True)
class Key:
    """A column with a role of its own: weight, event_time, request_id or group_id."""

    role: str
    column: str
    why: str


@dataclass(frozen=True)
class LeftOut:
    """A column that is not used."""

    column: str
    types: str
    reason: str
    is_leak: bool = False
    entries: tuple[Entry, ...] = ()
    """What to write to use it all the same."""


@dataclass(frozen=True)
class Proposal:
    """A schema and a run."""

    name: str
    survey: Survey
    label: LabelGuess
    keys: tuple[Key, ...]
    readiness: Entry
    dense: tuple[Entry, ...]
    sparse: tuple[Entry, ...]
    tables: tuple[Entry, ...]
    ideas: tuple[Entry, ...]
    """Inputs that are worth a try, and not used."""
    left_out: tuple[LeftOut, ...]
    batch_rows: int
    days: Entry | None
    """The run's section `[days]`, where the defaults would wait for days that never come."""
    gate: Entry | None
    """The run's section `[gate]`, where a slice of an increment would never have the rows that judging takes."""
    notes: tuple[str, ...] = ()
    """What a person has to know before anything else."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.dense + self.sparse + self.tables

    def schema(self) -> dict[str, Any]:
        """What `schema.toml` says."""
        keys: dict[str, Any] = {key.role: key.column for key in self.keys}
        sections = {"label": self.label.settings, "readiness": self.readiness.settings}
        lists = {name: [e.settings for e in getattr(self, name)] for name in ("dense", "sparse", "tables")}
        return keys | sections | lists

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: every guess with its evidence."""
        found = self.survey
        looked = {
            "path": found.path,
            "increments": len(found.increments),
            "looked_at": [folder.increment for folder in found.folders],
            "footers": found.num_footers,
            "rows": found.rows_looked_at,
            "rows_read": found.num_rows,
            "bad_files": [{"file": file, "why": why} for file, why in found.bad_files],
        }
        guesses = [{"section": e.section, **e.settings, "why": e.why} for e in (self.readiness, *self.entries)]
        return {
            "name": self.name,
            "data": looked,
            "label": {**self.label.settings, "positive_share": self.label.rate, "why": self.label.why},
            "keys": [vars(key) for key in self.keys],
            "guesses": guesses,
            "left_out": [
                {"column": o.column, "types": o.types, "reason": o.reason, "is_leak": o.is_leak} for o in self.left_out
            ],
            "batch_rows": self.batch_rows,
            "notes": list(self.notes),
        }

    def table(self) -> str:
        """For a terminal: what was chosen, and what was left out and why."""
        rows = [("label", self.label.column, self.label.why)]
        rows += [(key.role, key.column, key.why) for key in self.keys]
        for section in ("dense", "sparse"):
            entries: tuple[Entry, ...] = getattr(self, section)
            rows += [(section, _source(entry), entry.why) for entry in entries[:_MAX_SHOWN]]
            if len(entries) > _MAX_SHOWN:
                rows.append((section, "...", f"and {len(entries) - _MAX_SHOWN:,} more, in schema.toml"))
        rows.append(("readiness", self.readiness.settings["rule"], self.readiness.why))
        lines = list(_lines([(role, name, _brief(why)) for role, name, why in rows]))
        if self.left_out:
            lines += [
                "",
                f"left out: {len(self.left_out)} column{'s' * (len(self.left_out) > 1)}, in schema.toml as comments",
            ]
            lines += _lines(_by_reason(self.left_out))
        return "\n".join([*lines, *(f"\nnote: {note}" for note in self.notes)])


_MAX_SHOWN = 40
"""Inputs of a kind: nobody reads hundreds of lines on a terminal."""
_MAX_COLUMN_CHARS = 32
_BRIEF_CHARS = 100


def _by_reason(left_out: tuple[LeftOut, ...]) -> list[tuple[str, str, str]]:
    """Leaks first, then columns that are left out for the same reason together."""
    alike: dict[tuple[bool, str], list[str]] = {}
    for out in sorted(left_out, key=lambda out: not out.is_leak):
        alike.setdefault((out.is_leak, out.reason), []).append(out.column)
    rows = []
    for (is_leak, reason), names in alike.items():
        more = f" ({len(names) - 1:,} more, as {', '.join(map(printable, names[1:4]))})" if len(names) > 1 else ""
        rows.append(("leak" if is_leak else "", names[0], f"{reason}{more}"))
    return rows


def _source(entry: Entry) -> str:
    return str(entry.settings.get("column", entry.settings["name"]))


def _brief(why: str) -> str:
    """The first clauses: the files have them all."""
    brief, *clauses = why.split("; ")
    for clause in clauses:
        if len(brief) + len(clause) > _BRIEF_CHARS:
            break
        brief += f"; {clause}"
    return brief


def _lines(rows: list[tuple[str, str, str]]) -> Iterator[str]:
    shown = [(role, printable(name)[:_MAX_COLUMN_CHARS], why) for role, name, why in rows]
    first, second = (max(len(row[i]) for row in shown) for i in (0, 1))
    yield from (f"{role:{first}}  {name:{second}}  {why}" for role, name, why in shown)


def printable(text: str) -> str:
    """On one line, without what a terminal would take as a command."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
