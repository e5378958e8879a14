"""When something runs: cron's words against a second reading of cron(5), in zones of all kinds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diurnal.daily.timing import is_utc, parse_timing
from diurnal.errors import ConfigError

FIELDS = st.tuples(
    st.sampled_from(["*", "*/7", "30", "0,15", "5-20/5"]),
    st.sampled_from(["*", "3", "*/6", "22-23,1"]),
    st.sampled_from(["*", "1", "*/2", "1-31", "10-20"]),
    st.sampled_from(["*", "3", "feb", "jan-jun"]),
    st.sampled_from(["*", "1", "mon-fri", "7", "0-7", "*/3"]),
)


def expand(field: str, low: int, high: int) -> set[int]:
    """A second reading of a crontab's field, by brute force."""
    words = {"feb": 2, "jan": 1, "jun": 6, "mon": 1, "fri": 5}
    found = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        begin, _, end = ("*" if span == "*" else span).partition("-")
        first = low if begin == "*" else words.get(begin) or int(begin)
        last = high if begin == "*" else words.get(end or begin) or int(end or begin)
        found |= {n for n in range(low, 60) if first <= n <= last and (n - first) % int(step or 1) == 0}
    return found


def is_time(text: str, now: datetime) -> bool:
    """What cron(5) says of five fields."""
    minute, hour, days, month, weekdays = text.split()
    in_days = now.day in expand(days, 1, 31)
    in_weekdays = now.isoweekday() % 7 in {n % 7 for n in expand(weekdays, 0, 6)}
    stars = days.startswith("*") or weekdays.startswith("*")
    return (
        now.minute in expand(minute, 0, 59)
        and now.hour in expand(hour, 0, 23)
        and now.month in expand(month, 1, 12)
        and (in_days and in_weekdays if stars else in_days or in_weekdays)
    )


MINUTES = st.integers(0, 2 * 366 * 24 * 60 - 1).map(lambda n: datetime(2027, 1, 1, tzinfo=UTC) + timedelta(minutes=n))


@given(
    FIELDS, MINUTES, st.sampled_from(["UTC", "Asia/Kolkata", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"])
)
def test_a_line_fires_when_its_expression_says_in_every_zone(fields: tuple[str, ...], now: datetime, zone: str):
    text = " ".join(fields)
    timing = parse_timing(cron=text)
    says = now.strftime("%M %H %d %m %w")
    fires = is_time(timing.quarters(), now.astimezone(ZoneInfo(zone))) and re.fullmatch(timing.pattern(), says)
    assert bool(fires) == is_time(text, now)
    if timing.is_plain:
        assert is_time(timing.cron(), now) == is_time(text, now)


@pytest.mark.parametrize(
    ("asked", "cron", "calendar"),
    [
        ({"at": "03:30"}, "30 3 * * *", ["*-*-* 03:30:00 UTC"]),
        ({"at": "00:00"}, "0 0 * * *", ["*-*-* 00:00:00 UTC"]),
        ({}, "0 * * * *", ["*-*-* *:00:00 UTC"]),
        ({"every": 20}, "0,20,40 * * * *", ["*-*-* *:00,20,40:00 UTC"]),
        ({"every": 480}, "0 0,8,16 * * *", ["*-*-* 00,08,16:00:00 UTC"]),
        ({"every": 1440}, "0 0 * * *", ["*-*-* 00:00:00 UTC"]),
        ({"cron": "5 4 * * mon-fri"}, "5 4 * * 1,2,3,4,5", ["Mon,Tue,Wed,Thu,Fri *-*-* 04:05:00 UTC"]),
        ({"cron": "5 4 1 * 7"}, "5 4 1 * 0", ["*-*-01 04:05:00 UTC", "Sun *-*-* 04:05:00 UTC"]),
    ],
)
def test_times_as_cron_and_systemd_have_them(asked: dict[str, str | int], cron: str, calendar: list[str]):
    timing = parse_timing(**asked)  # pyright: ignore[reportArgumentType]
    assert (timing.cron(), timing.calendar()) == (cron, calendar)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"at": "24:00"}, "HH:MM"),
        ({"at": "3:30"}, "HH:MM"),
        ({"at": "03:30", "every": 5}, "one of --at, --every and --cron"),
        ({"every": 0}, "--every 1"),
        ({"every": 7}, "--every 6"),
        ({"every": -60}, "--every 1"),
        ({"every": 10**6}, "--every 1440"),
        ({"cron": ""}, "five fields"),
        ({"cron": "@daily"}, "five fields"),
        ({"cron": "60 * * * *"}, "minute: 0 to 59"),
        ({"cron": "* 5-3 * * *"}, "hour: 0 to 23"),
        ({"cron": "* * 0 * *"}, "day of month: 1 to 31"),
        ({"cron": "* * * 13 *"}, "month: 1 to 12"),
        ({"cron": "* * * * someday"}, "day of week: 0 to 7"),
        ({"cron": "*/0 * * * *"}, "minute"),
        ({"cron": "5/2 * * * *"}, "minute"),
        ({"cron": "1,,2 * * * *"}, "minute"),
        ({"cron": "* * 30 feb *"}, "a day that the month has"),
    ],
)
def test_nonsense_is_refused_with_one_fault(asked: dict[str, str | int], words: str):
    with pytest.raises(ConfigError) as error:
        parse_timing(**asked)  # pyright: ignore[reportArgumentType]
    assert len(error.value.faults) == 1
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("zone", "answer"),
    [("UTC", True), ("Etc/GMT", True), ("Europe/London", False), ("Africa/Abidjan", True), ("Asia/Kolkata", False)],
)
def test_which_zones_are_utc(zone: str, answer: bool):
    assert is_utc(ZoneInfo(zone), datetime(2027, 1, 1, tzinfo=UTC)) is answer


def test_only_a_timing_that_repeats_evenly_ignores_the_zone():
    intervals = [every for every in (1, 30, 60, 720, 1440) if parse_timing(every=every).is_interval]
    assert intervals == [1, 30, 60, 720]
    assert not parse_timing(at="01:00").is_interval
