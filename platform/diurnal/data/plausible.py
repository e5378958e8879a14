"""Whether an increment is plausible beside those before it: its profile against theirs, number by number.

A number is compared with its median over the last increments, and with that of the same weekday, hour or part among
them: the nearer one counts, so that a weekend is no finding. What lies within the limit of `config.Profile`, or within
`spread` times the usual scatter (1.4826 * median absolute deviation), is plausible; the scatter of a number that drifts
slowly grows with the drift.

Flipped labels are a label rate of 1 - r instead of r: near r = 0.5 they cannot be told here, and the champion's NE over
the increment tells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from diurnal.config import Schema
from diurnal.config.daily import Profile as Limits
from diurnal.data.ids import IncrementId
from diurnal.data.profile import QUANTILES, NumberProfile, Profile, SparseProfile

_SCATTER = 1.4826
"""Makes the median absolute deviation that of a normal distribution's standard deviation."""

_MIN_EXPECTED = 30.0
"""Rows with a value that must be expected before their absence means anything."""
_MIN_SKETCHED_IDS = 30
_MOSTLY_NEW = 0.9
"""A feature whose ids are new anyway is not judged by new ids."""
_NEARLY_CONSTANT = 0.99


@dataclass(frozen=True)
class Finding:
    """One number that is implausible."""

    column: str
    """Name of the feature, or the column of the label, the weight or the event time; `rows` for the row count."""
    what: str
    found: float
    usual: float | None
    """None when it is implausible whatever was usual."""
    rule: str
    text: str
    """One line: `price: 95 % quantile 4,210 (usually 42.1 +- 1.3)`."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class _Usual:
    middle: float
    season: float | None
    """Median of the same weekday, hour or part."""
    scatter: float

    @property
    def lowest(self) -> float:
        return self.middle if self.season is None else min(self.middle, self.season)

    @property
    def highest(self) -> float:
        return self.middle if self.season is None else max(self.middle, self.season)

    def off(self, found: float) -> tuple[float, float]:
        """The usual value that is nearer, and how far away it is."""
        nearest = min(
            [self.middle] if self.season is None else [self.middle, self.season], key=lambda u: abs(found - u)
        )
        return nearest, abs(found - nearest)


class _History:
    """The profiles of the increments before, oldest first."""

    def __init__(self, increment: str, earlier: Sequence[Profile], limits: Limits) -> None:
        self.profiles = list(earlier)
        self.min_history = limits.min_history
        season = _season(increment)
        self._same_season = [_season(profile.increment) == season for profile in self.profiles]

    def usual(self, number: Callable[[Profile], float | None]) -> _Usual | None:
        """None with fewer than `min_history` numbers."""
        return self.usual_of([number(profile) for profile in self.profiles])

    def usual_of(self, numbers: list[float | None]) -> _Usual | None:
        there = [value for value in numbers if value is not None]
        if len(there) < self.min_history:
            return None
        same = [v for v, is_same in zip(numbers, self._same_season, strict=True) if is_same and v is not None]
        middle = median(there)
        scatter = _SCATTER * median(abs(value - middle) for value in there)
        return _Usual(middle, median(same) if same else None, scatter)

    def usually(self, has: Callable[[Profile], bool | None]) -> bool | None:
        """Whether it was so in most increments; None with fewer than `min_history` of them."""
        answers = [answer for answer in map(has, self.profiles) if answer is not None]
        return 2 * sum(answers) > len(answers) if len(answers) >= self.min_history else None


def compare(profile: Profile, earlier: Sequence[Profile], limits: Limits, schema: Schema) -> list[Finding]:
    """What is implausible about an increment.

    Args:
        profile: of the increment.
        earlier: profiles of the increments before it that were found plausible, oldest first; the last
            `limits.history` of them are looked at.
        limits: when a number is implausible.
        schema: names the columns.

    Returns:
        Findings in the order rows, label, weight, event time, features; none when it is plausible.
    """
    recent = list(earlier)[-limits.history :]
    findings = list(_rows(profile, _History(profile.increment, recent, limits), limits))
    if not profile.rows:
        return findings
    history = _History(profile.increment, [p for p in recent if p.rows >= limits.min_rows], limits)
    is_small = profile.rows < limits.min_rows
    findings += _label(profile, history, limits, schema, is_small)
    if profile.weight is not None:
        findings += _weight(profile, profile.weight, schema)
    findings += _time(profile, limits, schema)
    for feature in schema.columns_of_numbers:
        findings += _dense(profile, feature.name, feature.required, history, limits, is_small)
    for feature in schema.sparse:
        findings += _sparse(profile, feature.name, feature.required, history, limits, is_small)
    return findings


def _season(increment: str) -> tuple[int | None, int | None, int]:
    """Days repeat weekly; hours and parts daily."""
    name = IncrementId.parse(increment)
    return (name.day.weekday() if name.hour is None and name.parts == 1 else None), name.hour, name.part


def _rows(profile: Profile, history: _History, limits: Limits) -> Iterator[Finding]:
    if not profile.rows:
        yield _plain("rows", "rows", 0, "an increment has rows", "rows: 0")
        return
    usual = history.usual(lambda p: math.log(p.rows) if p.rows else None)
    if usual is None:
        return
    nearest, off = usual.off(math.log(profile.rows))
    if off > max(math.log(limits.rows_factor), limits.spread * usual.scatter):
        rule = f"within {limits.rows_factor:g} times the usual (rows_factor)"
        rows = math.exp(nearest)
        scatter = rows * math.expm1(usual.scatter)
        text = f"rows: {profile.rows:,} (usually {rows:,.0f} +- {scatter:,.0f})"
        yield Finding("rows", "rows", profile.rows, rows, rule, text)


def _label(profile: Profile, history: _History, limits: Limits, schema: Schema, is_small: bool) -> Iterator[Finding]:
    name = schema.label.column
    if profile.bad_labels:
        text = f"{name}: {profile.bad_labels:,} of {profile.rows:,} rows are neither 0 nor 1"
        yield _plain(name, "labels", profile.bad_labels, "every label is 0 or 1", text)
    rate = profile.label_rate
    if rate in (0.0, 1.0):
        usual = history.usual(lambda p: p.label_rate)
        beside = f" (usually {_share(usual.middle)} are 1)" if usual else ""
        text = f"{name}: one class, all {profile.rows:,} labels are {rate:g}{beside}"
        yield Finding(name, "one class", rate, usual and usual.middle, "labels of both classes", text)
    elif rate is not None and not is_small:
        usual = history.usual(_log_odds)
        odds = _log_odds(profile) or 0.0
        chance = math.sqrt(1 / (profile.positives + 0.5) + 1 / (profile.negatives + 0.5))  # Woolf 1955
        if usual is None:
            return
        nearest, off = usual.off(odds)
        if off > max(limits.label_log_odds, limits.spread * max(usual.scatter, chance)):
            rule = f"log odds within {limits.label_log_odds:g} of the usual (label_log_odds)"
            was = 1 / (1 + math.exp(-nearest))
            scatter = usual.scatter * was * (1 - was)
            text = f"{name}: label rate {_share(rate)} (usually {_share(was)} +- {_share(scatter)})"
            yield Finding(name, "label rate", rate, was, rule, text)


def _weight(profile: Profile, weight: NumberProfile, schema: Schema) -> Iterator[Finding]:
    bad = weight.missing + weight.null + weight.nonfinite + weight.negative
    if bad:
        text = f"{schema.weight}: {bad:,} of {profile.rows:,} weights are null, negative or not finite"
        yield _plain(schema.weight, "weights", bad, "every weight is finite and not negative", text)


def _time(profile: Profile, limits: Limits, schema: Schema) -> Iterator[Finding]:
    time, name = profile.time, schema.event_time
    if time is None:
        return
    if time.null == profile.rows:
        yield _plain(name, "null share", 1.0, "rows have an event time", f"{name}: null in all {profile.rows:,} rows")
        return
    share = time.outside / (profile.rows - time.null)
    if share > limits.outside:
        rule = f"at most {_share(limits.outside)} outside the increment's own time, UTC (outside)"
        text = f"{name}: {_share(share)} of the rows outside {profile.increment} UTC (at most {_share(limits.outside)})"
        yield _plain(name, "share outside", share, rule, text)


def _dense(
    profile: Profile, name: str, required: bool, history: _History, limits: Limits, is_small: bool
) -> Iterator[Finding]:
    one = profile.dense[name]
    usual = history.usual(lambda p: _empty_dense(p, name))
    if one.min is None:
        yield from _without_values(profile, name, required and one.missing < profile.rows, usual)
        return
    if is_small:
        return
    varied = history.usually(lambda p: _is_varied(p.dense.get(name)))
    if one.min == one.max and varied and (usual is None or (1 - usual.middle) * profile.rows >= _MIN_EXPECTED):
        text = f"{name}: dead, {_number(one.min)} in all {profile.rows:,} rows (usually it varies)"
        yield Finding(name, "dead", one.min, None, "not one value in all rows", text)
        return
    yield from _share_finding(
        name, "rows without a value", _empty_dense(profile, name), usual, limits.null_share, "null_share", limits
    )
    yield from _shift(one, name, history, limits)


def _shift(one: NumberProfile, name: str, history: _History, limits: Limits) -> Iterator[Finding]:
    """The quantile that is furthest away, or the width of the distribution.

    A quantile may lie anywhere between its two neighbours' usual values: a share that moves by a few per cent makes
    the quantiles of a distribution with gaps jump from one side of the gap to the other.
    """
    unit = history.usual(lambda p: _unit(p.dense.get(name)))
    if unit is None or unit.middle <= 0:
        return
    usual = [history.usual(lambda p, i=i: _quantile(p.dense.get(name), i)) for i in range(len(QUANTILES))]
    worst, finding = 1.0, None
    for place in range(1, len(QUANTILES) - 1):
        found, below, own, above = one.quantiles[place], *usual[place - 1 : place + 2]
        if below is None or own is None or above is None:
            continue
        off = max(below.lowest - found, found - above.highest)
        excess = off / max(limits.dense_shift * unit.middle, limits.spread * own.scatter)
        if excess > worst:
            what = f"{100 * QUANTILES[place]:g} % quantile"
            rule = f"within {limits.dense_shift:g} times the usual width {_number(unit.middle)} (dense_shift)"
            worst, finding = excess, _numbered(name, what, found, own.off(found)[0], own.scatter, rule)
    if finding is not None:
        yield finding
    else:
        yield from _scale(one, name, history, limits)


def _scale(one: NumberProfile, name: str, history: _History, limits: Limits) -> Iterator[Finding]:
    found = _unit(one)
    usual = history.usual(lambda p: math.log(unit) if (unit := _unit(p.dense.get(name))) else None)
    if not found or usual is None:
        return
    nearest, off = usual.off(math.log(found))
    if off > max(math.log(limits.dense_scale), limits.spread * usual.scatter):
        rule = f"within {limits.dense_scale:g} times the usual (dense_scale)"
        was = math.exp(nearest)
        yield _numbered(name, "width", found, was, was * math.expm1(usual.scatter), rule)


def _sparse(
    profile: Profile, name: str, required: bool, history: _History, limits: Limits, is_small: bool
) -> Iterator[Finding]:
    one = profile.sparse[name]
    usual = history.usual(lambda p: _empty_sparse(p, name))
    if not one.ids:
        yield from _without_values(profile, name, required and one.missing < profile.rows, usual)
        return
    if is_small:
        return
    share = history.usual(lambda p: _top_share(p.sparse.get(name)))
    found = _top_share(one)
    if len(one.sketch.hashes) == 1 and share is not None and share.middle < _NEARLY_CONSTANT:
        text = f"{name}: dead, {one.top[0][0]!r} is the only id (usually {_share(share.middle)} of all ids at most)"
        yield Finding(name, "dead", 1.0, share.middle, "more than one id", text)
        return
    found_empty = _empty_sparse(profile, name)
    yield from _share_finding(name, "rows without an id", found_empty, usual, limits.null_share, "null_share", limits)
    what = f"share of the top id {one.top[0][0]!r}" if one.top else "share of the top id"
    yield from _share_finding(name, what, found, share, limits.top_id_share, "top_id_share", limits)
    yield from _new_ids(one, name, history, limits)


def _new_ids(one: SparseProfile, name: str, history: _History, limits: Limits) -> Iterator[Finding]:
    """Compared with what was new in each increment beside those before it."""
    sketches = [p.sparse[name].sketch if name in p.sparse else None for p in history.profiles]
    known = [sketch for sketch in sketches if sketch is not None]
    if len(known) < history.min_history:
        return
    found = one.sketch.new_share(known, _MIN_SKETCHED_IDS)
    earlier = [known[i].new_share(known[:i], _MIN_SKETCHED_IDS) for i in range(1, len(known))]
    was_new = [share for share in earlier if share is not None]
    if found is None or not was_new:
        return
    usual = median(was_new)
    scatter = _SCATTER * median(abs(share - usual) for share in was_new)
    if usual > _MOSTLY_NEW or found - usual <= limits.spread * scatter:
        return
    if found - usual > limits.new_ids * (1 - usual):
        rule = f"at most {_share(limits.new_ids)} of the rows that usually have known ids (new_ids)"
        text = f"{name}: {_share(found)} new ids (usually {_share(usual)} +- {_share(scatter)})"
        yield Finding(name, "new ids", found, usual, rule, text)


def _without_values(profile: Profile, name: str, needs_none: bool, usual: _Usual | None) -> Iterator[Finding]:
    """No row has a value. Without a history only an optional column that is not there is plausible."""
    is_news = needs_none if usual is None else (1 - usual.middle) * profile.rows >= _MIN_EXPECTED
    if is_news:
        beside = "" if usual is None else f" (usually in {_share(1 - usual.middle)})"
        text = f"{name}: dead, no value in any of {profile.rows:,} rows{beside}"
        yield Finding(name, "dead", 1.0, usual and usual.middle, "rows with a value", text)


def _share_finding(
    name: str, what: str, found: float | None, usual: _Usual | None, limit: float, key: str, limits: Limits
) -> Iterator[Finding]:
    if found is None or usual is None:
        return
    nearest, off = usual.off(found)
    if off > max(limit, limits.spread * usual.scatter):
        text = f"{name}: {what} {_share(found)} (usually {_share(nearest)} +- {_share(usual.scatter)})"
        yield Finding(name, what, found, nearest, f"within {_share(limit)} of the usual ({key})", text)


def _numbered(name: str, what: str, found: float, usual: float, scatter: float, rule: str) -> Finding:
    text = f"{name}: {what} {_number(found)} (usually {_number(usual)} +- {_number(scatter)})"
    return Finding(name, what, found, usual, rule, text)


def _plain(name: str, what: str, found: float, rule: str, text: str) -> Finding:
    return Finding(name, what, found, None, rule, text)


def _log_odds(profile: Profile) -> float | None:
    return math.log((profile.positives + 0.5) / (profile.negatives + 0.5)) if profile.rows else None


def _empty_dense(profile: Profile, name: str) -> float | None:
    one = profile.dense.get(name)
    return one and (one.missing + one.null + one.nonfinite + one.fill) / profile.rows


def _empty_sparse(profile: Profile, name: str) -> float | None:
    one = profile.sparse.get(name)
    return one and one.no_id / profile.rows


def _top_share(one: SparseProfile | None) -> float | None:
    return one.top[0][1] if one and one.top else None


def _quantile(one: NumberProfile | None, place: int) -> float | None:
    return one.quantiles[place] if one and one.quantiles else None


def _unit(one: NumberProfile | None) -> float | None:
    """Width of the distribution: from 5 % to 95 %, or half of 1 % to 99 % where most rows have the same value."""
    if one is None or not one.quantiles:
        return None
    first, fifth, *_, last_fifth, last = one.quantiles
    return max(last_fifth - fifth, (last - first) / 2)


def _is_varied(one: NumberProfile | None) -> bool | None:
    return (one.quantiles[0] < one.quantiles[-1]) if one and one.quantiles else None


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _number(value: float) -> str:
    return f"{value:,.4g}"
