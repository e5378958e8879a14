"""Which increment is trained next, and what is wrong with the calendar: a pure function of folders, ledger and clock.

Increments are taken in order of time. Whatever stands in the way of that has a kind, a declared policy (`[days]` of the
configuration) and a notice, and what is left out is a decision that the caller records: nothing is skipped in silence,
and nothing is trained twice. Days are UTC: an increment's time is in its name, and the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from diurnal.config.daily import Days
from diurnal.daily.book import Asked, Book, Known, Sighting, Trained
from diurnal.data.ids import IncrementId, folders_between
from diurnal.errors import DataError, Fault

Kind = Literal["missing", "late", "changed", "empty", "one_class", "not_ready", "held_changed"]
Action = Literal["wait", "skip", "retrain", "report"]


@dataclass(frozen=True)
class Notice:
    """Something that a person should see. It comes back at each look for as long as it is so."""

    increment: str
    """Of a run of missing increments the first."""
    kind: Kind
    text: str
    action: Action
    until_us: int | None = None
    """When a `wait` ends, in microseconds since the epoch; None when it has no end."""


@dataclass(frozen=True)
class Decision:
    """The state that the ledger has to give to an increment before anything is trained."""

    increment: str
    state: Literal["seen", "ready", "skipped"]
    reason: str
    fingerprint: str | None = None
    rows: int | None = None


@dataclass(frozen=True)
class Rewind:
    """What the ledger has to supersede, in one transaction, before anything is trained."""

    increments: tuple[str, ...]
    """All that are trained from some increment on. They are in `todo` again, if nothing stops it earlier."""
    numbers: tuple[int, ...]
    """Their versions."""
    reason: str


@dataclass(frozen=True)
class Agenda:
    todo: tuple[str, ...]
    """What may be trained now, one after the other. An increment whose run was cut off is among them."""
    waiting: Notice | None
    """What blocks everything after `todo`; it is in `notices` too."""
    unjudged: tuple[str, ...]
    """Increments whose version has no verdict, in order of time. They are trained, and so are not in `todo`."""
    notices: tuple[Notice, ...]
    """In order of time."""
    decisions: tuple[Decision, ...]
    """At most one an increment, in order of time."""
    rewind: Rewind | None = None
    asked: Asked = field(default_factory=Asked)
    """What to ask next time, once all this is recorded and the first of `todo` was tried: `retrain` and `retry` hold
    once, or the same increment would be next forever."""


def make_agenda(
    sightings: Iterable[Sighting],
    known: Iterable[Known],
    versions: Iterable[Trained],
    days: Days,
    now_us: int,
    asked: Asked | None = None,
) -> Agenda:
    """Says what is next. Ask again after every increment: a day that arrives meanwhile is then taken in its order.

    An increment is late when the newest one that has a version is after it. A gap is missing when it is newer than
    whatever was trained, and an increment that could be trained stands after it. With rewinding, everything that is
    trained from an increment on is superseded and trained anew, in order.

    Args:
        sightings: everything that the dataset shows, also beyond what is asked for; already cut into parts.
        known: everything that the ledger knows of the model's increments.
        versions: all versions of the model, superseded ones too.
        now_us: microseconds since the epoch.
        asked: all of it, when None.

    Raises:
        DataError: `retrain` or `retry` names what cannot be trained, or would lose what was trained after it.
    """
    book = Book(sightings, known, versions, days, now_us, asked or Asked())
    faults = _asked_faults(book)
    if faults:
        raise DataError(faults)
    page = _Page()
    rewind = _look_back(book, page)
    todo, waiting = _walk_on(book, page, rewind)
    for name, seen in book.seen.items():
        state = "ready" if seen.is_ready else "seen"
        if name not in page.decisions and book.is_news(seen, state):
            page.decisions[name] = Decision(name, state, seen.why, seen.fingerprint, seen.rows)
    gone = set(rewind.increments if rewind else ())
    return Agenda(
        todo=tuple(todo),
        waiting=waiting,
        unjudged=tuple(sorted(i for i, v in book.live.items() if not v.is_judged and i not in gone)),
        notices=tuple(sorted(page.notices, key=lambda notice: notice.increment)),
        decisions=tuple(page.decisions[name] for name in sorted(page.decisions)),
        rewind=rewind,
        asked=replace(book.asked, retrain=frozenset(), retry=frozenset(book.retry - set(todo[:1]))),
    )


class _Page:
    """What is being written: notices and decisions."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.decisions: dict[str, Decision] = {}

    def note(self, increment: str, kind: Kind, text: str, action: Action, until_us: int | None = None) -> Notice:
        self.notices.append(Notice(increment, kind, text, action, until_us))
        return self.notices[-1]

    def skip(self, increment: str, kind: Kind, text: str, seen: Sighting | None) -> None:
        self.note(increment, kind, text, "skip")
        self.decide(increment, text, seen)

    def decide(self, increment: str, text: str, seen: Sighting | None) -> None:
        facts = (seen.fingerprint, seen.rows) if seen else (None, None)
        self.decisions[increment] = Decision(increment, "skipped", text, *facts)


def _look_back(book: Book, page: _Page) -> Rewind | None:
    """What became complete or changed after a later one, or after itself, was trained."""
    found: dict[str, tuple[Kind, str]] = {}
    for name in sorted(book.seen):
        if name > book.frontier:
            break
        seen = book.seen[name]
        if name in book.live:
            if not seen.is_ready:
                page.note(name, "not_ready", f"was trained, and is not complete any more: {seen.why}", "report")
            elif book.is_changed(seen):
                found[name] = "changed", f"changed after it was trained: {_difference(book, seen)}"
            elif name in book.retrain:
                found[name] = "changed", "is trained again because it was asked for"
        elif book.is_settled(name) or book.is_covered(name):
            continue
        elif not seen.is_ready:
            page.note(name, "not_ready", f"is not complete, and {book.frontier} is trained: {seen.why}", "report")
        elif _flaw(seen) and name not in book.retrain:
            kind, words = _flaw(seen) or ("empty", "")
            page.skip(name, kind, f"{words}, and {book.frontier} was trained before it was complete", seen)
        else:
            record = book.known.get(name)
            was_held = record is not None and record.state == "held"
            kind, words = ("held_changed", "was held and has changed") if was_held else ("late", "became complete")
            found[name] = kind, f"{words} after {book.frontier} was trained"
    refusals = {name: _refusal(book, found, name) for name in found}
    start = min((name for name in found if not refusals[name]), default=None)
    for name, (kind, text) in found.items():
        if start is not None and name >= start:
            page.note(name, kind, text, "retrain")
        elif kind == "changed":
            page.note(name, kind, f"{text}; {refusals[name]}", "skip")
        else:
            page.skip(name, kind, f"{text}; {refusals[name]}", book.seen[name])
    return None if start is None else _rewind(book, start, f"{start} {found[start][1]}")


def _rewind(book: Book, start: str, reason: str) -> Rewind:
    names = sorted(name for name in book.live if name >= start)
    numbers = {book.live[name].number for name in names}
    numbers |= {v.number for v in book.versions if v.increment >= start and not v.is_superseded}
    return Rewind(tuple(names), tuple(sorted(numbers)), reason)


def _refusal(book: Book, found: Iterable[str], name: str) -> str:
    """Why nothing is rewound to this one; empty when it is."""
    if name in book.retrain:
        return ""
    days = book.days
    if (days.changed if name in book.live else days.late) == "skip":
        return f"days.{'changed' if name in book.live else 'late'} is skip"
    if book.seen[name].rows == 0:
        return "it has no row"
    again = {other for other in (*book.live, *found) if other >= name}
    if len(again) > days.max_retrained:
        return f"{len(again)} increments would be trained again, and days.max_retrained is {days.max_retrained}"
    gone = _gone(book, name)
    return f"{', '.join(gone)} could not be trained again, as the dataset does not have it complete" if gone else ""


def _gone(book: Book, start: str) -> list[str]:
    return sorted(name for name in book.live if name >= start and not book.is_ready(name))


def _walk_on(book: Book, page: _Page, rewind: Rewind | None) -> tuple[list[str], Notice | None]:
    """Everything after the newest increment whose version stays, in order, until something blocks."""
    again = book.superseded | set(rewind.increments if rewind else ())
    base = max((name for name in book.live if name not in again), default="")
    there = {*book.seen, *book.known, *filter(book.is_asked, again)}
    names = sorted(name for name in there if name > base and not book.is_covered(name))
    ready = [name for name in names if book.is_ready(name) and not book.is_settled(name)]
    walk = _Walk(book, page, again, ready)
    previous = base
    for name in names:
        if walk.is_full:
            break
        gap = _gap(book, previous, name) if previous and ready and name <= ready[-1] else []
        if gap:
            walk.lack(gap, "there is no folder")
        walk.step(name)
        previous = name
    return walk.todo, walk.waiting


def _gap(book: Book, earlier: str, later: str) -> list[str]:
    last = IncrementId.parse(later)
    folders = folders_between(IncrementId.parse(earlier), last)
    names = [str(part) for folder in folders for part in folder.cut(last.parts)]
    return [name for name in names if name > book.reached and name >= book.low]


class _Walk:
    def __init__(self, book: Book, page: _Page, again: set[str], ready: Sequence[str]) -> None:
        self.book, self.page, self.again, self.ready = book, page, again, ready
        self.todo: list[str] = []
        self.waiting: Notice | None = None

    @property
    def is_full(self) -> bool:
        return self.book.most is not None and len(self.todo) >= self.book.most

    def step(self, name: str) -> None:
        book, seen = self.book, self.book.seen.get(name)
        is_overtaken = name < book.reached and name not in self.again
        if book.is_settled(name):
            return
        if seen is None or not seen.is_ready:
            why = seen.why if seen else "its folder is not there any more"
            if is_overtaken:
                self.page.note(name, "not_ready", f"is not complete, and a later one was trained: {why}", "report")
            elif self.ready and name < self.ready[-1]:
                self.lack([name], why)
            else:
                self.page.note(name, "not_ready", f"is not complete: {why}", "wait")
            return
        flaw = _flaw(seen) if name not in book.retry | book.retrain else None
        if flaw is not None:
            # Rows of a folder that is complete are in its first parts, and nothing more comes.
            is_hopeless = is_overtaken or IncrementId.parse(name).part > 1
            policy = "skip" if is_hopeless else getattr(book.days, flaw[0])
            self._meet([name], flaw[0], flaw[1], policy, book.until_us([name]))
        elif self.waiting is None:
            record = book.known.get(name)
            if record is not None and record.state == "held":
                self.page.note(name, "held_changed", "was held, and is tried again", "retrain")
            self.todo.append(name)

    def lack(self, names: Sequence[str], why: str) -> None:
        later = [name for name in self.ready if name > names[-1]]
        span = "" if len(names) == 1 else f" up to {names[-1]} ({len(names)} increments)"
        text = f"is missing{span} before {later[0]}: {why}"
        self._meet(names, "missing", text, self.book.days.missing, self.book.until_us(later))

    def _meet(self, names: Sequence[str], kind: Kind, text: str, policy: str, until_us: int) -> None:
        """Waits for what should be between, or goes on without it. What is behind a block is only told of."""
        if policy == "wait" and self.book.now_us < until_us:
            notice = self.page.note(names[0], kind, f"{text}; until {_utc(until_us)}", "wait", until_us)
            self.waiting = self.waiting or notice
        elif self.waiting is None:
            reason = f"{text}; waited until {_utc(until_us)}" if policy == "wait" else text
            self.page.note(names[0], kind, reason, "skip")
            for name in names:
                self.page.decide(name, reason, self.book.seen.get(name))


def _flaw(seen: Sighting) -> tuple[Literal["empty", "one_class"], str] | None:
    if seen.rows == 0:
        return "empty", "has no row"
    return ("one_class", "all its labels are the same") if seen.one_class else None


def _difference(book: Book, seen: Sighting) -> str:
    record = book.all_known.get(seen.increment)
    trained = book.live[seen.increment].fingerprint
    if record is None or record.rows is None or seen.rows is None or record.fingerprint != trained:
        return "its files are others"
    more = seen.rows - record.rows
    if more == 0:
        return f"its files are others, with {seen.rows} rows as before"
    return f"{abs(more)} {'more' if more > 0 else 'fewer'} row{'' if abs(more) == 1 else 's'}"


def _asked_faults(book: Book) -> list[Fault]:
    faults = []
    for name in sorted(book.retrain | book.retry):
        where = "--retrain" if name in book.retrain else "--retry"
        seen, record = book.seen.get(name), book.known.get(name)
        if seen is None or not seen.is_ready:
            why = seen.why if seen else "the dataset does not have it, or not between the days asked for"
            faults.append(Fault(f"{where} {name}", why, "a complete increment of the dataset", "choose another one"))
        elif name in book.retrain:
            gone = _gone(book, name)
            if gone:
                must = "what was trained from there on is complete, since all of it is trained again"
                faults.append(Fault(f"{where} {name}", f"not complete: {', '.join(gone)}", must, "put it back"))
        elif record is None or record.state not in ("held", "skipped") or name in book.live:
            found = "it is trained" if name in book.live else "it was neither held nor skipped"
            must = "an increment that was held before it was trained, or skipped"
            faults.append(Fault(f"{where} {name}", found, must, f"--retrain {name} trains again"))
        elif name < book.frontier:
            found = f"{book.frontier} is trained"
            must = "an increment after the newest one that is trained"
            faults.append(Fault(f"{where} {name}", found, must, f"--retrain {name} goes back to it"))
    return faults


def _utc(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
