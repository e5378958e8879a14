"""When something runs: read from a person's words, and written for cron and for systemd. All of it is UTC."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from diurnal.errors import ConfigError, Fault

_RANGES = {"minute": (0, 59), "hour": (0, 23), "day of month": (1, 31), "month": (1, 12), "day of week": (0, 7)}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NUMBERS = {
    "month": {name: number for number, name in enumerate(_MONTHS, 1)},
    "day of week": {name: number for number, name in enumerate(_WEEKDAYS)},
}
_ITEM = re.compile(r"(?:\*|(?P<first>[0-9a-z]+)(?:-(?P<last>[0-9a-z]+))?)(?:/(?P<step>[0-9]{1,4}))?", re.ASCII)
_EVERY = tuple(n for n in range(1, 61) if 60 % n == 0) + tuple(60 * n for n in range(2, 25) if 24 % n == 0)
_QUARTERS = (0, 15, 30, 45)


@dataclass(frozen=True)
class Timing:
    """Minutes at which something runs, UTC: five fields of a crontab, as sorted numbers. Sunday is 0."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    is_either: bool = False
    """Day of month or day of week is enough, as cron has it when neither begins with `*`."""
    is_interval: bool = False
    """Only the distance between two runs matters, so that the zone does not."""

    def calendar(self) -> list[str]:
        """The same for systemd: one `OnCalendar=` a line, any of which is enough."""
        weekdays = "" if len(self.weekdays) == 7 else ",".join(_WEEKDAYS[n].title() for n in self.weekdays) + " "
        days, months = _list(self.days, 31), _list(self.months, 12)
        time = f"{_list(self.hours, 24)}:{_list(self.minutes, 60)}:00 UTC"
        if self.is_either:
            return [f"*-{months}-{days} {time}", f"{weekdays}*-{months}-* {time}"]
        return [f"{weekdays}*-{months}-{days} {time}"]

    def cron(self) -> str:
        """The five fields, for a cron that goes by UTC and reads lists of both days as either: see `is_plain`."""
        fields = [_cron_list(values, *_RANGES[name]) for name, values in zip(_RANGES, self._fields, strict=True)]
        return " ".join(fields)

    @property
    def _fields(self) -> tuple[tuple[int, ...], ...]:
        return self.minutes, self.hours, self.days, self.months, self.weekdays

    @property
    def is_plain(self) -> bool:
        """Whether a cron that goes by UTC can be told so in five fields."""
        return self.is_either or len(self.days) == 31 or len(self.weekdays) == 7

    def quarters(self) -> str:
        """The five fields of a line that fires whenever it may be time, in whichever zone."""
        minutes = sorted({(minute + quarter) % 60 for minute in self.minutes for quarter in _QUARTERS})
        return f"{_cron_list(minutes, 0, 59)} * * * *"

    def pattern(self) -> str:
        """What `date -u '+%M %H %d %m %w'` says when it is time, as an extended regular expression."""
        minute, hour, month = _any(self.minutes, 60), _any(self.hours, 24), _any(self.months, 12)
        day, weekday = _any(self.days, 31), _any(self.weekdays, 7, 1)
        if self.is_either:
            return f"{minute} {hour} ({day} {month} .|.. {month} {weekday})"
        return f"{minute} {hour} {day} {month} {weekday}"


def _list(values: Sequence[int], count: int) -> str:
    return "*" if len(values) == count else ",".join(f"{value:02}" for value in values)


def _cron_list(values: Sequence[int], low: int, high: int) -> str:
    count = high - low + 1 if high != 7 else 7
    return "*" if len(values) == count else ",".join(map(str, values))


def _any(values: Sequence[int], count: int, width: int = 2) -> str:
    if len(values) == count:
        return "." * width
    texts = [f"{value:0{width}}" for value in values]
    return texts[0] if len(texts) == 1 else f"({'|'.join(texts)})"


def parse_timing(at: str | None = None, every: int | None = None, cron: str | None = None) -> Timing:
    """Reads when to run; every hour, when nothing is given.

    Args:
        at: `HH:MM`, once a day.
        every: minutes; what divides an hour or a day, so that runs stay evenly apart.
        cron: five fields of a crontab, in numbers, names of three letters, ranges, steps and lists.

    Raises:
        ConfigError: it makes no sense, or more than one is given.
    """
    given = [name for name, value in (("--at", at), ("--every", every), ("--cron", cron)) if value is not None]
    if len(given) > 1:
        raise _fault("diurnal schedule", " and ".join(given), "one of --at, --every and --cron", "leave the others out")
    whole = tuple(range(1, 32)), tuple(range(1, 13)), tuple(range(7))
    if at is not None:
        found = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", at, re.ASCII)
        if not found:
            raise _fault("--at", at, "HH:MM, 00:00 to 23:59, UTC", "--at 03:30")
        return Timing((int(found[2]),), (int(found[1]),), *whole)
    if cron is not None:
        return _parse_cron(cron)
    every = 60 if every is None else every
    if every not in _EVERY:
        must = f"minutes that divide an hour or a day: {', '.join(map(str, _EVERY))}"
        raise _fault("--every", str(every), must, f"--every {min(_EVERY, key=lambda n: abs(n - every))}")
    hours = tuple(range(0, 24, max(1, every // 60)))
    return Timing(tuple(range(0, 60, min(every, 60))), hours, *whole, is_interval=every < 1440)


def _parse_cron(text: str) -> Timing:
    fields = text.split()
    if len(fields) != 5:
        must = "five fields: minute, hour, day of month, month, day of week"
        raise _fault("--cron", text, must, "--cron '30 3 * * *'")
    values = []
    for name, field in zip(_RANGES, fields, strict=True):
        parsed = {number for item in field.lower().split(",") for number in _parse_item(name, item, text)}
        values.append(tuple(sorted({n % 7 for n in parsed} if name == "day of week" else parsed)))
    is_either = not fields[2].startswith("*") and not fields[4].startswith("*")
    if is_either and (len(values[2]) == 31 or len(values[4]) == 7):
        values[2], values[4], is_either = tuple(range(1, 32)), tuple(range(7)), False
    timing = Timing(*values, is_either=is_either)
    latest = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
    if not timing.is_either and not any(timing.days[0] <= latest.get(month, 31) for month in timing.months):
        raise _fault("--cron", text, "a day that the month has", "choose an earlier day of the month")
    return timing


def _parse_item(name: str, item: str, text: str) -> range:
    low, high = _RANGES[name]
    found = _ITEM.fullmatch(item)
    first, last, step = found.group("first", "last", "step") if found else (None, None, None)
    numbers = [_number(name, part) for part in (first, last) if part is not None]
    is_sound = found is not None and None not in numbers and (step is None or (int(step) > 0 and (not first or last)))
    begin, end = low, high - (name == "day of week")
    if is_sound and numbers:
        begin, end = numbers[0] or 0, numbers[-1] or 0
    if not is_sound or not low <= begin <= end <= high:
        must = f"{name}: {low} to {high}, as in 5, 1-5, */2, 1-9/2 or 1,3"
        raise _fault("--cron", f"{item!r} in {text!r}", must, "--cron '30 3 * * *'")
    return range(begin, end + 1, int(step or 1))


def _number(name: str, text: str) -> int | None:
    return int(text) if text.isdecimal() else _NUMBERS.get(name, {}).get(text)


def machine_zone() -> tzinfo:
    """The zone that cron goes by; TZ of this shell is not it."""
    try:
        with Path("/etc/localtime").open("rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError):
        return UTC


def is_utc(zone: tzinfo, now: datetime | None = None) -> bool:
    """Whether the zone has no offset all year."""
    begin = now or datetime.now(UTC)
    return not any((begin + timedelta(days=7 * week)).astimezone(zone).utcoffset() for week in range(53))


def _fault(where: str, found: str, must: str, fix: str) -> ConfigError:
    return ConfigError([Fault(where, found, must, fix)])
