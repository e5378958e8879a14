"""Names of increments: spelled one way, read back, and in order of time as plain text."""

from __future__ import annotations

import random
import re
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diurnal.data.ids import IncrementId, days_between, folders_between

DAYS = st.dates(date(1970, 1, 1), date(2100, 1, 1))
HOURS = st.one_of(st.none(), st.integers(0, 23))
PARTS = st.integers(1, 1000)


@st.composite
def names(draw: st.DrawFn) -> IncrementId:
    parts = draw(PARTS)
    return IncrementId(draw(DAYS), draw(HOURS), draw(st.integers(1, parts)), parts)


@given(names())
def test_a_name_is_read_as_it_is_spelled(name: IncrementId) -> None:
    text = str(name)
    assert IncrementId.parse(text) == name
    assert re.fullmatch(r"[A-Za-z0-9-]+", text)
    assert text.startswith(str(name.whole))


@pytest.mark.parametrize(
    ("text", "name", "folder"),
    [
        ("2026-01-02", IncrementId(date(2026, 1, 2)), "dt=2026-01-02"),
        ("2026-01-02T05", IncrementId(date(2026, 1, 2), 5), "dt=2026-01-02/hr=05"),
        ("2026-01-02P03of24", IncrementId(date(2026, 1, 2), None, 3, 24), "dt=2026-01-02"),
        ("2026-01-02T05P01of04", IncrementId(date(2026, 1, 2), 5, 1, 4), "dt=2026-01-02/hr=05"),
        ("2026-01-02P0003of1000", IncrementId(date(2026, 1, 2), None, 3, 1000), "dt=2026-01-02"),
    ],
)
def test_how_names_look(text: str, name: IncrementId, folder: str) -> None:
    assert (str(name), IncrementId.parse(text), name.folder) == (text, name, folder)


@pytest.mark.parametrize(
    "text",
    [
        *("", "2026-1-2", "20260102", "2026-02-30", "2026-01-02T24", "2026-01-02T5", "2026-01-02T", "January"),
        *("2026-01-02P01of01", "2026-01-02P00of04", "2026-01-02P05of04", "2026-01-02P1of4", "2026-01-02P001of004"),
        *(
            "2026-01-02P01of4",
            "2026-01-02P01",
            "2026-01-02P01of04T05",
            " 2026-01-02",
            "2026-01-02\n",
            "\uff12026-01-02",
        ),
    ],
)
def test_what_is_no_name(text: str) -> None:
    """One increment has one name: a second spelling would be trained as another one."""
    with pytest.raises(ValueError, match="YYYY-MM-DD"):
        IncrementId.parse(text)


@given(st.dictionaries(st.tuples(DAYS, HOURS), PARTS, min_size=2, max_size=5), st.randoms())
def test_text_order_is_time_order(cuts: dict[tuple[date, int | None], int], shuffle: random.Random) -> None:
    """Days, hours of several days and parts, each folder cut in one way, and a day either whole or hourly."""
    hourly = {day for day, hour in cuts if hour is not None}
    folders = {key: parts for key, parts in cuts.items() if key[1] is not None or key[0] not in hourly}
    ids = [IncrementId(*key, part, parts) for key, parts in folders.items() for part in range(1, parts + 1)]
    texts = [str(name) for name in ids]
    shuffle.shuffle(texts)
    assert sorted(texts) == [str(name) for name in sorted(ids, key=lambda name: name.start)]


def test_a_mixed_list_comes_in_time_order() -> None:
    in_order = [
        "2025-12-31",
        *("2026-01-01T00P01of02", "2026-01-01T00P02of02", "2026-01-01T09", "2026-01-01T10P01of12"),
        *("2026-01-01T10P10of12", "2026-01-01T23", "2026-01-02P01of24", "2026-01-02P02of24", "2026-01-02P24of24"),
        *("2026-01-03T00", "2026-01-03T13", "2026-01-04P0009of1000", "2026-01-04P0010of1000", "2026-01-05"),
    ]
    texts = in_order[::-1]
    assert sorted(texts) == in_order
    starts = [IncrementId.parse(text).start for text in in_order]
    assert starts == sorted(set(starts))


@given(names())
def test_neighbouring_parts_are_one_place_apart(name: IncrementId) -> None:
    """Also over the edge of a folder, so that the points of a curve are evenly spaced."""
    length = timedelta(hours=1) if name.hour is not None else timedelta(days=1)
    next_start = name.whole.start + length
    following = IncrementId(next_start.date(), None if name.hour is None else next_start.hour, 1, name.parts)
    places = [part.place for part in [*name.whole.cut(name.parts), following]]
    assert places == list(range(places[0], places[0] + name.parts + 1))
    assert name.whole.place == (name.whole.start - datetime(1970, 1, 1, tzinfo=UTC)) // length
    assert name.whole.start <= name.start < next_start


@pytest.mark.parametrize(
    ("earlier", "later", "days"),
    [
        ("2026-01-01", "2026-01-02", 1.0),
        ("2026-02-27", "2026-03-02", 3.0),
        ("2026-01-01T23", "2026-01-02T00", 1 / 24),
        ("2026-01-01T06", "2026-01-02", 0.75),
        ("2026-01-01P01of04", "2026-01-01P04of04", 0.75),
        ("2026-01-01", "2026-01-01", 0.0),
        ("2026-01-05", "2026-01-01", 0.0),
    ],
)
def test_days_between_count_gaps_and_parts_of_days_and_never_go_back(earlier: str, later: str, days: float) -> None:
    assert days_between(earlier, later) == pytest.approx(days)


@pytest.mark.parametrize(
    ("earlier", "later", "between"),
    [
        ("2026-02-28", "2026-03-01", []),
        ("2028-02-28", "2028-03-01", ["2028-02-29"]),
        ("2026-01-01T23P01of02", "2026-01-02T01", ["2026-01-02T00"]),
        ("2026-01-01", "2026-01-03T02", ["2026-01-02", "2026-01-03T00", "2026-01-03T01"]),
        ("2026-01-01T22", "2026-01-03", ["2026-01-01T23", "2026-01-02"]),
        ("2026-01-03", "2026-01-01", []),
        ("2026-03-28T23", "2026-03-29T04", [f"2026-03-29T0{hour}" for hour in range(4)]),
    ],
)
def test_what_is_between_two_folders(earlier: str, later: str, between: list[str]):
    found = folders_between(IncrementId.parse(earlier), IncrementId.parse(later))
    assert [str(name) for name in found] == between
