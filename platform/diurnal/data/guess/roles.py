"""Columns that are no inputs: the event time, the request, the group of a row, its weight; and what cannot be used."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from diurnal.data.guess.inputs import INDICATED, is_quantity, negative_share
from diurnal.data.guess.names import hints_at, is_weight, names_a
from diurnal.data.guess.proposal import Key
from diurnal.data.guess.survey import Survey, window_us
from diurnal.data.guess.values import Values

_INSIDE = 0.99
"""Share of event times that lie in their folder's time, at least."""
_MAX_NULL_TIMES = 0.01
_UNIQUE = 0.999
_NEARLY_UNIQUE = 0.95
_MIN_ROWS = 100
"""Below that, values that occur once each say little."""
_MANY = 100_000
_REQUEST_REPEATS = 0.05
"""A request has at most twenty rows, on average."""
_MAX_NEGATIVE = 0.01
_NEW = 0.98
_ROW_STEP = 8
"""Rows of a sample lie up to four rows of the file apart."""
_EPOCH_UNITS = {"seconds": 10**6, "milliseconds": 10**3, "microseconds": 1, "nanoseconds": 1e-3}
_LOOKED_AT = 200


def guess_keys(survey: Survey, columns: Mapping[str, Values]) -> list[Key]:
    """Roles that columns have beside the label; each role and each column once."""
    everywhere = {name: values for name, values in columns.items() if not values.field.num_missing}
    found = [_event_time(survey, everywhere), _request(everywhere), _group(everywhere), _weight(everywhere)]
    return [key for key in found if key is not None]


def share_inside(survey: Survey, values: Values, unit_us: float = 1) -> float:
    """Share of the values that, as so many microseconds each, lie in the time of their folder."""
    windows = np.array([window_us(folder.increment) for folder in survey.folders], np.float64)
    first, stop = windows[survey.folder_of_row[values.row_of_code]].T
    times = values.numbers.astype(np.float64) * unit_us
    return float(((times >= first) & (times < stop)).mean())


def _event_time(survey: Survey, columns: Mapping[str, Values]) -> Key | None:
    best: tuple[bool, str] | None = None
    for name, values in columns.items():
        if values.field.kind != "time" or values.is_null.mean() > _MAX_NULL_TIMES or not len(values.codes):
            continue
        if share_inside(survey, values) >= _INSIDE and (best is None or hints_at(name, "time") > best[0]):
            best = hints_at(name, "time"), name
    if best is None:
        return None
    values = columns[best[1]]
    why = f"{values.field.types}; {share_inside(survey, values):.2%} of its values lie in the time of their folder, UTC"
    return Key("event_time", best[1], why)


def _request(columns: Mapping[str, Values]) -> Key | None:
    named: list[tuple[float, str]] = []
    unnamed: list[tuple[float, str]] = []
    for name, values in columns.items():
        if values.field.kind not in ("int", "text") or values.is_null.any() or names_a(name, "user"):
            continue
        share = len(values.counts) / values.num_rows
        if names_a(name, "request") and share >= _REQUEST_REPEATS:
            named.append((share, name))
            continue
        is_name = values.field.kind == "text" or hints_at(name, "key")
        if is_name and _is_unique(values, _UNIQUE) and not names_a(name, "item"):
            unnamed.append((share, name))
    for found in (named, unnamed):
        if found:
            name = max(found, key=lambda pair: pair[0])[1]
            values = columns[name]
            why = f"{values.field.types}; {len(values.counts):,} values in {values.num_rows:,} rows"
            return Key("request_id", name, why + (", and its name" if found is named else ""))
    return None


def _group(columns: Mapping[str, Values]) -> Key | None:
    for name, values in columns.items():
        if values.field.kind not in ("int", "text") or values.is_null.mean() > 0.5 or not names_a(name, "user"):
            continue
        if 2 < len(values.counts) < 0.9 * values.num_rows and not is_quantity(values):
            rows = len(values.codes) / len(values.counts)
            why = f"named like a user; {rows:.1f} rows for each of the {len(values.counts):,} values that were read"
            return Key("group_id", name, f"{values.field.types}; {why}")
    return None


def _weight(columns: Mapping[str, Values]) -> Key | None:
    for name, values in columns.items():
        if not is_weight(name) or values.field.kind not in ("int", "float") or values.is_null.any():
            continue
        low, high = float(values.distinct[0]), float(values.distinct[-1])
        if 0 <= low < high <= float(np.finfo(np.float32).max):
            return Key(
                "weight", name, f"{values.field.types}; by its name alone; {low:.4g} to {high:.4g}, none missing"
            )
    return None


def unusable(survey: Survey, values: Values) -> str:
    """Why nothing can be learned from a column, or it cannot be declared as what it is; empty when it can."""
    field, num_values = values.field, len(values.counts)
    if not num_values:
        return f"no value in any of the {values.num_rows:,} rows that were read"
    if field.kind == "time":
        return _unused_time(survey, values)
    if num_values == 1 and values.null_share < INDICATED[0]:
        having = " that have one" if values.is_null.any() else ""
        return f"the value {values.spelled(0)} in all {values.num_rows:,} rows that were read{having}"
    if _is_the_day(survey, values):
        return "one value for each day: it says the day, which never comes again"
    if field.kind in ("int", "float") and (unit := _epoch_unit(survey, values)):
        return f"a time in {unit} since 1970: write it as a timestamp to declare it as event_time"
    if field.kind == "text" and (text := _text_of_another_type(values)):
        return text
    if field.kind == "float" and names_a(field.name, "key") and num_values > 2 and _is_whole(values):
        return "ids as floating point numbers, which are exact to 2^53 only: write them as integers or strings"
    if field.kind == "int" and is_quantity(values):
        return ""
    known = hints_at(field.name, "user") or hints_at(field.name, "item")
    if field.kind == "int" and not known and _is_row_number(survey, values):
        return "it counts the rows of a file: an index, such as pandas writes, names nothing"
    if (share := negative_share(values)) > _MAX_NEGATIVE:
        fix = "write the same 64 bits as uint64, or as text"
        return f"{share:.1%} of its ids are negative, and a negative id is no id: {fix}"
    # Of a large catalogue a small sample has nearly every thing once.
    is_unique = _is_unique(values, _UNIQUE) and num_values >= _MANY if known else _is_unique(values, _NEARLY_UNIQUE)
    if field.kind in ("int", "text") and is_unique:
        return f"{num_values:,} values in {values.num_rows:,} rows: hardly one comes again{_but_for_nulls(values)}"
    return "" if known else _all_new(survey, values)


def _but_for_nulls(values: Values) -> str:
    empty = int(np.count_nonzero(values.is_null))
    is_request = empty and len(values.counts) >= _UNIQUE * (values.num_rows - empty)
    return f"; it would do for request_id, if {empty:,} of the rows did not lack it" if is_request else ""


def _unused_time(survey: Survey, values: Values) -> str:
    share = share_inside(survey, values)
    if share >= _INSIDE:
        empty = values.null_share
        return "a time is no input" + (f", and {empty:.1%} null is too much for an event time" if empty else "")
    shown = f"{share:.1%} of its values lie in the day or hour of their folder, UTC"
    hint = "; folders named in another time zone would look like that" if share > 0.4 else ""
    return f"a time is no input, and for an event time {shown}{hint}: write the time between two events as a number"


def _all_new(survey: Survey, values: Values) -> str:
    """Names of things that live for a day, as visits; seen only where most rows were read."""
    if values.field.kind not in ("int", "text") or len(values.counts) < _MIN_ROWS:
        return ""
    share = values.new_share(survey.day_of_row)
    if share is None or share < _NEW or 2 * survey.num_rows < survey.rows_looked_at:
        return ""
    return f"{share:.1%} of the values of the last day are in no other day that was read: hardly one comes again"


def _is_row_number(survey: Survey, values: Values) -> bool:
    """It rises with every row of a piece, and by little."""
    if values.is_null.any() or values.num_rows < _MIN_ROWS:
        return False
    numbers = values.numbers.astype(np.float64)
    starts = np.cumsum([0, *(piece.num_rows for piece in survey.pieces)])
    steps = np.delete(np.diff(numbers), starts[1:-1] - 1)
    return bool((steps > 0).all()) and bool((steps <= _ROW_STEP).all())


def _is_unique(values: Values, least: float) -> bool:
    return values.num_rows >= _MIN_ROWS and len(values.counts) >= least * values.num_rows


def _is_the_day(survey: Survey, values: Values) -> bool:
    days = survey.day_of_row[values.row_of_code]
    num_days = len(np.unique(days))
    if num_days < 2 or len(values.counts) != num_days or values.is_null.any():
        return False
    return len(np.unique(days * num_days + values.codes)) == num_days


def _epoch_unit(survey: Survey, values: Values) -> str:
    low = float(values.distinct[0])
    if low < 1e8:
        return ""
    return next((u for u, us in _EPOCH_UNITS.items() if share_inside(survey, values, us) >= _INSIDE), "")


def _is_whole(values: Values) -> bool:
    numbers = values.numbers[np.isfinite(values.numbers)]
    return bool(len(numbers)) and bool((numbers == np.floor(numbers)).all())


def _text_of_another_type(values: Values) -> str:
    texts = [values.exact(code) for code in range(min(_LOOKED_AT, len(values.counts)))]
    if len(texts) > 2 and all(re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d", text) for text in texts):
        return "times written as text: write them as timestamps"
    are_numbers = len(texts) > 10 and all(re.fullmatch(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", text) for text in texts)
    if are_numbers and sum("." in text for text in texts) > len(texts) / 10:
        return "numbers written as text: write them as numbers"
    return ""
