"""What is known of the increments when the next one is chosen: the dataset's folders and the ledger, side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from diurnal.config.daily import Days
from diurnal.data.ids import IncrementId

_TRAINED = ("trained", "judged", "promoted", "held")
"""States of an increment that has a version; `held` may be without one."""


@dataclass(frozen=True)
class Sighting:
    """An increment of the dataset, as it is now."""

    increment: str
    is_ready: bool
    why: str = ""
    """Why it is complete or not."""
    fingerprint: str | None = None
    """None when nobody looked: an increment that is trained, held or skipped then counts as unchanged."""
    rows: int | None = None
    one_class: bool | None = None
    """Whether all its labels are the same; None before it is profiled. Once known it has to be told each time."""


@dataclass(frozen=True)
class Known:
    """What the ledger keeps of an increment."""

    increment: str
    state: str
    fingerprint: str | None = None
    rows: int | None = None
    version: int | None = None
    first_seen_us: int = 0


@dataclass(frozen=True)
class Trained:
    """A version, whatever came of it."""

    number: int
    increment: str
    fingerprint: str
    is_superseded: bool = False
    is_judged: bool = True


@dataclass(frozen=True)
class Asked:
    """What the caller asks for."""

    first: str | None = None
    """A day `YYYY-MM-DD`, an hour or a part: nothing before it is trained or reported."""
    last: str | None = None
    """Likewise, included: a day with all its hours, a folder with all its parts."""
    most: int | None = None
    """Longest `todo`."""
    retrain: frozenset[str] = frozenset()
    """Increments to be trained again, or although they are late, whatever the policy and its limit. A day stands for
    its hours, a folder for its parts."""
    retry: frozenset[str] = frozenset()
    """Increments that were held before training, or skipped, to be tried once more as they are."""


class Book:
    """Folders and ledger side by side."""

    def __init__(
        self,
        sightings: Iterable[Sighting],
        known: Iterable[Known],
        versions: Iterable[Trained],
        days: Days,
        now_us: int,
        asked: Asked,
    ) -> None:
        self.days, self.now_us, self.asked = days, now_us, asked
        self.all_seen = {seen.increment: seen for seen in sightings}
        self.all_known = {record.increment: record for record in known}
        self.versions = list(versions)
        self.low, self.high, self.most = asked.first or "", asked.last or "9999", asked.most
        self.seen = {name: seen for name, seen in self.all_seen.items() if self.is_asked(name)}
        self.known = {name: record for name, record in self.all_known.items() if self.is_asked(name)}
        self.retrain = self._spelled_out(asked.retrain)
        self.retry = self._spelled_out(asked.retry)

    def _spelled_out(self, names: Iterable[str]) -> set[str]:
        return {i for name in names for i in ([s for s in self.seen if s.startswith(name)] or [name])}

    def is_asked(self, name: str) -> bool:
        return self.low <= name and (name <= self.high or name.startswith(self.high))

    @cached_property
    def live(self) -> dict[str, Trained]:
        """By increment, the newest version that counts. One whose version was deleted long ago is trained as well."""
        found: dict[str, Trained] = {}
        for version in sorted(self.versions, key=lambda version: version.number):
            if not version.is_superseded:
                found[version.increment] = version
        listed = {version.number for version in self.versions}
        for name, record in self.all_known.items():
            is_trained = record.state in _TRAINED and record.version is not None and record.version not in listed
            if is_trained and name not in found:
                found[name] = Trained(record.version or 0, name, record.fingerprint or "")
        return found

    @cached_property
    def superseded(self) -> set[str]:
        """Increments whose rows are in no version any more."""
        names = {version.increment for version in self.versions if version.is_superseded}
        names |= {name for name, record in self.all_known.items() if record.state == "superseded"}
        return names - set(self.live)

    @cached_property
    def frontier(self) -> str:
        """Newest increment that has a version; empty when none has."""
        return max(self.live, default="")

    @cached_property
    def reached(self) -> str:
        """Newest increment that ever had a version: no gap before it is waited for."""
        return max(self.superseded | {self.frontier})

    def is_changed(self, seen: Sighting) -> bool:
        trained = self.live[seen.increment].fingerprint
        return bool(seen.fingerprint and trained) and seen.fingerprint != trained

    def is_ready(self, name: str) -> bool:
        return name in self.all_seen and self.all_seen[name].is_ready

    def is_settled(self, name: str) -> bool:
        """Held before it was trained, or skipped, and as it was then."""
        record, seen = self.all_known.get(name), self.all_seen.get(name)
        if record is None or record.state not in ("held", "skipped") or name in self.retrain | self.retry:
            return False
        if seen is None or not seen.is_ready:
            return True
        if not record.fingerprint:
            return record.state == "held"
        return seen.fingerprint in (None, record.fingerprint)

    def is_covered(self, name: str) -> bool:
        """Whether its rows were trained under other names: the whole folder, or all its parts, or the whole day."""
        folder = IncrementId.parse(name)
        if folder.hour is not None and str(replace(folder.whole, hour=None)) in self._whole_folders:
            return True
        return name not in self.live and str(folder.whole) in self._whole_folders

    @cached_property
    def _whole_folders(self) -> set[str]:
        parts: dict[tuple[str, int], int] = {}
        for name in map(IncrementId.parse, self.live):
            key = str(name.whole), name.parts
            parts[key] = parts.get(key, 0) + 1
        return {folder for (folder, count), found in parts.items() if found == count}

    def is_news(self, seen: Sighting, state: str) -> bool:
        if seen.increment in self.live or self.is_covered(seen.increment):
            return False
        record = self.all_known.get(seen.increment)
        if record is None or (record.state, state) == ("seen", "ready"):
            return True
        return record.state == state == "ready" and seen.fingerprint not in (None, record.fingerprint)

    def first_seen_us(self, name: str) -> int:
        record = self.all_known.get(name)
        return record.first_seen_us if record else self.now_us

    def until_us(self, names: Iterable[str]) -> int:
        return min(map(self.first_seen_us, names)) + round(self.days.wait_s * 1e6)
