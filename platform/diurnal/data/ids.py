"""The name of an increment: the one place where it is spelled and read.

    2026-01-02             a day
    2026-01-02T05          an hour of an hourly day
    2026-01-02P03of24      the third of 24 equal parts of a day that is one partition, cut by rows
    2026-01-02T05P01of04   likewise of an hour

Part numbers begin at 1 and are padded to the width of the number of parts, at least two digits. As long as a folder
is cut one way, as `selection.cut_faults` demands, names sort as text in the order of time. They hold letters, digits
and `-` alone: safe as a folder's name and as a value of MLflow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

ID_RULE = "a day YYYY-MM-DD or an hour YYYY-MM-DDTHH, or a part of one such as 2026-01-02P03of24"
"""What an increment's name looks like, for messages."""

_PATTERN = re.compile(r"(\d{4}-\d{2}-\d{2})(?:T([01]\d|2[0-3]))?(?:P(\d{2,})of(\d{2,}))?", re.ASCII)


@dataclass(frozen=True)
class IncrementId:
    """What the name of an increment says; `str` gives the name."""

    day: date
    hour: int | None = None
    """0 to 23, or None when the increment is the whole day's folder or a part of that."""
    part: int = 1
    """From 1."""
    parts: int = 1
    """Into how many the folder is cut; 1 is the folder as a whole."""

    @staticmethod
    def parse(text: str) -> IncrementId:
        """Reads a name.

        Raises:
            ValueError: it is none, names no date of the calendar, or is spelled in another way than `str` does.
        """
        found = _PATTERN.fullmatch(text)
        name = found and _read(*found.groups())
        if name is None or not 1 <= name.part <= name.parts or str(name) != text:
            raise ValueError(f"{text!r} is not {ID_RULE}")
        return name

    def __str__(self) -> str:
        hour = "" if self.hour is None else f"T{self.hour:02}"
        width = max(2, len(str(self.parts)))
        part = "" if self.parts == 1 else f"P{self.part:0{width}}of{self.parts:0{width}}"
        return f"{self.day.isoformat()}{hour}{part}"

    @property
    def folder(self) -> str:
        """The increment's folder in the dataset: `dt=2026-01-02` or `dt=2026-01-02/hr=05`."""
        return f"dt={self.day.isoformat()}" + ("" if self.hour is None else f"/hr={self.hour:02}")

    @property
    def whole(self) -> IncrementId:
        """The folder that a part belongs to."""
        return replace(self, part=1, parts=1)

    def cut(self, parts: int) -> list[IncrementId]:
        """The parts of the folder, in order; the folder itself when there is one."""
        return [replace(self, part=part, parts=parts) for part in range(1, parts + 1)]

    @property
    def start(self) -> datetime:
        """The first instant, UTC; that of a part as if the folder's rows were spread evenly over its time."""
        begin = datetime(self.day.year, self.day.month, self.day.day, self.hour or 0, tzinfo=UTC)
        return begin + self._folder_time * (self.part - 1) / self.parts

    @property
    def folder_end(self) -> datetime:
        """The first instant after the day or hour of the folder, UTC."""
        return self.whole.start + self._folder_time

    @property
    def place(self) -> int:
        """Days since 1970-01-01, hours for an hour, times `parts` and so many further for a part: neighbours are one
        apart."""
        since_1970 = self.whole.start - datetime(1970, 1, 1, tzinfo=UTC)
        return since_1970 // self._folder_time * self.parts + self.part - 1

    @property
    def _folder_time(self) -> timedelta:
        return timedelta(days=1) if self.hour is None else timedelta(hours=1)


def days_between(earlier: str, later: str) -> float:
    """From the first instant of one increment to that of another, in days: 1 from a day to the next one, 1/24 from an
    hour to the next one, and days that are missing in between count. Never below 0, also when the names stand the
    other way round.

    Raises:
        ValueError: one is no name of an increment.
    """
    passed = IncrementId.parse(later).start - IncrementId.parse(earlier).start
    return max(0.0, passed / timedelta(days=1))


def folders_between(earlier: IncrementId, later: IncrementId) -> list[IncrementId]:
    """The folders that the calendar has between those of two increments, in order; none when they are neighbours.

    They are hours between two hours, and days between two days. Where one is an hour and the other a whole day, the
    day of the hour has hours, and the others are days.
    """
    hourly_days = {name.day for name in (earlier, later) if name.hour is not None}
    is_hourly = earlier.hour is not None and later.hour is not None
    found: list[IncrementId] = []
    begin = earlier.folder_end
    while begin < later.whole.start:
        has_hours = is_hourly or begin.date() in hourly_days
        found.append(IncrementId(begin.date(), begin.hour if has_hours else None))
        begin = found[-1].folder_end
    return found


def _read(day: str, hour: str | None, part: str | None, parts: str | None) -> IncrementId | None:
    try:
        return IncrementId(date.fromisoformat(day), int(hour) if hour else None, int(part or 1), int(parts or 1))
    except ValueError:
        return None
