"""What the values of increments say together: told once for each column, however many increments it is true of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from diurnal.config import Config
from diurnal.data.contract import Note
from diurnal.data.partitions import Increment
from diurnal.data.plausible import Finding, compare
from diurnal.data.profile import Profile, profile_of
from diurnal.data.tally import Tally
from diurnal.data.values import FileValues
from diurnal.errors import Fault

_CONSTANT_ROWS = 20
"""In fewer rows a column may have one value by chance."""

_COUNTED = {
    "nonfinite": "NaN, infinite, too large for 32 bits, or outside the transform's domain, so that {instead}",
    "negative": "negative ids, which mean no id; if they name something, write them as uint64 or as text",
    "unknown": "ids beyond the rows of the table, which mean no id; a larger table would know them",
    "truncated": "ids beyond max_length, which are dropped; raise it to learn them",
}
"""What encoding counts and nobody may know of."""

_SINGLE = 3
"""Columns of which the same is true that are told one by one."""
_SHOWN = 8

_REFUSED = ("labels", "weights")
"""Findings of a profile that encoding refuses, so that they are faults of their files already."""


@dataclass
class _Remark:
    text: str
    first: str
    count: int = 0
    increments: int = 0
    last: str = ""

    def add(self, increment: str, count: int) -> None:
        self.increments += increment != self.last
        self.last = increment
        self.count += count


class Remarks:
    """Takes in increment after increment, in the order of time."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._remarks: dict[tuple[str, str], _Remark] = {}
        self._increments = 0
        self._rows = 0

    def add(self, increment: Increment, values: Sequence[FileValues]) -> list[Fault]:
        """What of it is a fault: event times that are outside the increment, or not there at all."""
        self._increments += 1
        if not increment.num_rows:
            self._remark("increments", "without a row; what daily does with one is days.empty", increment, increment.id)
            return []
        schema, tally = self._config.dataset, Tally(self._config.dataset)
        # What is refused is a fault of its file; which ids a vocabulary knows is for the past to say.
        silent = [f for f in schema.sparse if f.unknown == "refuse" or f.mapping == "vocab"]
        unsaid = {("unknown", feature.name) for feature in silent}
        fills = {"fill": "`fill` stands for it", "keep": 'its step is skipped (nonfinite = "keep")'}
        instead = {f.name: fills[f.nonfinite] for f in schema.dense}
        for of_file in values:
            tally.merge(of_file.tally)
            for name, count in of_file.counts.items():
                kind, feature, what = name.split("/", 2)
                if what in _COUNTED and (what, feature) not in unsaid:
                    text = _COUNTED[what].format(instead=instead.get(feature, ""))
                    self._remark(f"{kind} {feature}", text, increment, of_file.path, count)
        self._rows += tally.rows
        if not tally.rows:
            return []
        profile = profile_of(tally, increment, schema)
        faults = []
        for finding in compare(profile, [], self._config.profile, schema):
            if finding.column == schema.event_time and finding.what in ("share outside", "null share"):
                limit = self._config.profile.outside
                faults.append(_time_fault(finding, schema.event_time, limit, values))
            elif finding.what not in _REFUSED:
                does = "waits, or skips it: days.one_class" if finding.what == "one class" else "holds such a day"
                text = f"{_without_name(finding)}, as far as looked at; daily {does}"
                self._remark(finding.column, text, increment, increment.id, kind=finding.what)
        self._remark_times(profile, increment, values)
        if profile.rows >= _CONSTANT_ROWS:
            clocks = {f"sparse {f.name}" for f in schema.sparse if f.mapping in ("hour", "weekday")}
            # Within an hour, or a day, a clock stands still.
            for name in (one for one in _constant(profile) if one not in clocks):
                self._remark(name, "the same in all rows looked at", increment, increment.id)
        return faults

    def notes(self) -> Iterator[Note]:
        """One for each column, or one for all columns of which the same is true, where these are many."""
        alike: dict[str, list[tuple[str, _Remark]]] = {}
        for (where, kind), remark in self._remarks.items():
            alike.setdefault(kind, []).append((where, remark))
        for same in alike.values():
            if len(same) <= _SINGLE:
                yield from (self._note(where, remark) for where, remark in same)
            else:
                yield self._joint_note(same)

    def _note(self, where: str, remark: _Remark) -> Note:
        count = f": {remark.count:,} in {self._rows:,} rows looked at" if remark.count else ""
        among = f"in {remark.increments:,} of {self._increments:,} increments, " if self._increments > 1 else ""
        return Note(where, f"{remark.text}{count} ({among}first: {remark.first})")

    def _joint_note(self, same: list[tuple[str, _Remark]]) -> Note:
        names = [f"{where} ({one.count:,})" if one.count else where for where, one in same[:_SHOWN]]
        more = f" and {len(same) - _SHOWN} more" if len(same) > _SHOWN else ""
        of = f", of {self._rows:,} rows looked at" if same[0][1].count else ""
        return Note(
            f"{len(same)} columns", f"{same[0][1].text}: {', '.join(names)}{more}{of} (first: {same[0][1].first})"
        )

    def _remark(
        self, where: str, text: str, increment: Increment, first: str, count: int = 0, kind: str | None = None
    ) -> None:
        """`kind` tells what is one remark, when the text has numbers of the increment."""
        self._remarks.setdefault((where, kind or text), _Remark(text, first)).add(increment.id, count)

    def _remark_times(self, profile: Profile, increment: Increment, values: Sequence[FileValues]) -> None:
        time, name = profile.time, self._config.dataset.event_time
        if time is None or time.null == profile.rows:
            return
        if time.null:
            path = next(one.path for one in values if one.tally.time.null)
            self._remark(f"column {name}", "rows without an event time", increment, path, time.null)
        if 0 < time.outside <= self._config.profile.outside * (profile.rows - time.null):
            path = next(one.path for one in values if one.tally.time.outside)
            text = "rows outside the time of their increment, UTC"
            self._remark(f"column {name}", text, increment, path, time.outside)


def _time_fault(finding: Finding, name: str, limit: float, values: Sequence[FileValues]) -> Fault:
    worst = max(values, key=lambda one: one.tally.time.outside + one.tally.time.null)
    found, rule, fix = (
        _without_name(finding),
        finding.rule,
        "write the event times, or take event_time out of the schema",
    )
    if finding.what == "share outside":
        found = f"{found.partition(' (')[0]}; in this file the times are {_span(worst)}"
        rule = f"at most {100 * limit:g} % of the rows (profile.outside) lie outside their increment's own time, UTC"
        fix = "check the column's unit and zone, put rows into their own day, or raise profile.outside"
    return Fault(f"{worst.path}: column {name} (event_time)", found, rule, fix)


def _span(one: FileValues) -> str:
    lowest, highest = one.tally.time.lowest_us, one.tally.time.highest_us
    return "none" if lowest is None or highest is None else f"from {_spelled(lowest)} to {_spelled(highest)}"


def _spelled(time_us: int) -> str:
    """To the second; what lies outside the calendar as it is stored."""
    try:
        return (datetime(1970, 1, 1) + timedelta(microseconds=time_us)).isoformat(timespec="seconds")
    except OverflowError:
        return f"{time_us:,} us since 1970"


def _without_name(finding: Finding) -> str:
    return finding.text.removeprefix(f"{finding.column}: ")


def _constant(profile: Profile) -> Iterator[str]:
    for name, one in profile.dense.items():
        if one.min is not None and one.min == one.max and not one.null + one.missing + one.nonfinite:
            yield f"dense {name}"
    for name, one in profile.sparse.items():
        if len(one.sketch.hashes) == 1 and not one.no_id:
            yield f"sparse {name}"
