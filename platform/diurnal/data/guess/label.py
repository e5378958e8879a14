"""Which column is the outcome: two values, and a name that sounds like one; asked for where that does not decide."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diurnal.data.guess.names import label_score, names_an_outcome
from diurnal.data.guess.values import Values
from diurnal.errors import DataError, Fault

_SPELLINGS = (
    ("yes", "no"),
    ("true", "false"),
    ("y", "n"),
    ("t", "f"),
    ("1", "0"),
    ("1", "-1"),
    ("pos", "neg"),
    ("positive", "negative"),
    ("click", "noclick"),
    ("click", "no_click"),
    ("clicked", "not_clicked"),
)
"""Positive and negative, in lower case; others are asked for."""

_SHOWN = 8


@dataclass(frozen=True)
class Wish:
    """What a person said of the label."""

    column: str = ""
    positive: str = ""
    at_least: float | None = None


NO_WISH = Wish()


@dataclass(frozen=True, eq=False)
class LabelGuess:
    column: str
    settings: dict[str, Any]
    """The section `[label]`."""
    why: str
    labels: np.ndarray
    """(n,) bool."""
    others: dict[str, str] = field(default_factory=dict)
    """Other columns that sound like an outcome and have its values, and why they were not taken."""
    doubt: str = ""
    """What else may be the label, where nothing but its values speaks for this one."""

    @property
    def rate(self) -> float:
        return float(self.labels.mean())


def guess_label(columns: Mapping[str, Values], wish: Wish = NO_WISH) -> LabelGuess:
    """Takes the column whose name is most telling among those of two values.

    Raises:
        DataError: there is none, there are several and no name tells, or the best one cannot be declared.
    """
    scored = {name: _score(values) for name, values in columns.items() if _may_be_label(values)}
    named = sorted((name for name, score in scored.items() if score > 0), key=lambda name: -scored[name])
    doubt = ""
    if wish.column:
        named = [_asked(columns, wish.column).field.name, *(name for name in named if name != wish.column)]
    elif not named:
        plain = [name for name in scored if _known_positive(_spellings(columns[name])) is not None]
        neutral = [name for name in plain if scored[name] == 0] or plain
        if len(neutral) != 1:
            raise DataError([_cannot_choose(columns, scored, neutral)])
        named = neutral
        doubt = _other_classes(columns, [name for name, score in scored.items() if score == 0 and name != neutral[0]])
    best = _as_label(columns[named[0]], wish)
    why = f"its values are those of a label, and its name sounds like one; it may come before or after {named[0]}"
    others = {name: why for name in named[1:] if _classes(columns[name]) <= {"0", "1"}}
    return LabelGuess(best.column, best.settings, best.why, best.labels, others, doubt)


def _score(values: Values) -> int:
    """How much a column's name sounds like an outcome; a little where one of its two values is called like one."""
    score = label_score(values.field.name)
    return 1 if score == 0 and _outcome(_spellings(values)) is not None else score


def _outcome(spelled: list[str]) -> int | None:
    """Which of two texts is the name of an outcome, as `bought` beside `not`."""
    codes = [code for code, text in enumerate(spelled) if names_an_outcome(text)]
    return codes[0] if len(spelled) == 2 and len(codes) == 1 else None


def _other_classes(columns: Mapping[str, Values], names: list[str]) -> str:
    if not names:
        return ""
    told = ", ".join(f"{name} ({' and '.join(sorted(_classes(columns[name])))})" for name in names[:_SHOWN])
    return f"no name says that it is the outcome; of two values are also: {told}. If it is one of these, give --label"


def _asked(columns: Mapping[str, Values], name: str) -> Values:
    if name in columns:
        return columns[name]
    close = difflib.get_close_matches(name, columns, n=1)
    fix = f"did you mean {close[0]}?" if close else f"one of: {', '.join(list(columns)[:_SHOWN])}"
    raise DataError([Fault("--label", name, "a column of numbers or strings", fix)])


def _may_be_label(values: Values) -> bool:
    """One or two values; one alone only where the name is that of an outcome."""
    if values.field.is_bag or values.field.kind == "time":
        return False
    if len(values.counts) == 1:
        return label_score(values.field.name) > 5 and _classes(values) <= {"0", "1"}
    return len(values.counts) == 2


def _spellings(values: Values) -> list[str]:
    return [values.exact(code) for code in range(min(3, len(values.counts)))]


def _classes(values: Values) -> set[str]:
    return set(_spellings(values))


def _known_positive(spelled: list[str]) -> int | None:
    """Which of one or two spellings is the positive one; None when nobody knows."""
    lower = [text.lower() for text in spelled]
    for positive, negative in _SPELLINGS:
        if set(lower) <= {positive, negative}:
            return lower.index(positive) if positive in lower else 1 - lower.index(negative)
    return _outcome(spelled)


def _cannot_choose(columns: Mapping[str, Values], scored: Mapping[str, int], plain: list[str]) -> Fault:
    must = "one column holds the outcome of a row: 0 or 1 (or two spellings, or a number with a threshold)"
    if plain:
        found = f"{len(plain)} columns of two classes, and no name that tells: {', '.join(plain[:_SHOWN])}"
        return Fault("label", found, must, f"name it, as --label {plain[0]}")
    texts = [f"{name} ({' and '.join(sorted(_classes(columns[name])))})" for name in scored]
    if texts:
        found = f"no column of 0 and 1; of two other values: {', '.join(texts[:_SHOWN])}"
        name = next(iter(scored))
        one = max(_classes(columns[name]))
        return Fault("label", found, must, f"name it and its positive value, as --label {name} --positive {one}")
    found = f"none of {len(columns)} columns has two values"
    fix = "write it as 0 and 1; or take a number with --label COLUMN --at-least NUMBER"
    return Fault("label", found, must, fix)


def _as_label(values: Values, wish: Wish) -> LabelGuess:
    name = values.field.name
    faults = list(_faults(values))
    if faults:
        raise DataError(faults)
    if wish.at_least is not None:
        return _threshold(values, wish.at_least)
    if len(values.counts) > 2:
        found = f"{len(values.counts):,} values, {', '.join(values.spelled(code) for code in range(3))}, ..."
        fix = "say from which number on it is a positive, as --at-least 4; or choose another column"
        raise DataError([Fault(f"label {name}", found, "two values", fix)])
    positive = _positive_code(values, wish)
    labels = np.zeros(values.num_rows, bool)
    labels[values.row_of_code[values.codes == positive]] = True
    if labels.all() or not labels.any():
        fix = "name another column with --label, or look at more days with --days"
        found = f"{values.spelled(0)} in all {values.num_rows:,} rows that were read"
        raise DataError([Fault(f"label {name}", found, "both labels occur: nothing is learned from one", fix)])
    is_plain = _classes(values) == {"0", "1"} and values.field.kind != "text" and values.exact(positive) == "1"
    settings: dict[str, Any] = {"column": name}
    shown = "0 or 1"
    if not is_plain:
        settings |= {"positive": values.exact(positive), "negative": values.exact(1 - positive)}
        shown = f"{values.spelled(positive)} or {values.spelled(1 - positive)}"
    rows = f"{shown} in all {values.num_rows:,} rows"
    return LabelGuess(name, settings, f"{values.field.types}, {rows}: {labels.mean():.2%} positive", labels)


def _faults(values: Values) -> list[Fault]:
    where, faults = f"label {values.field.name}", []
    if values.field.num_missing:
        found = (
            f"missing in {values.field.num_missing:,} of {values.field.num_files + values.field.num_missing:,} files"
        )
        faults.append(Fault(where, found, "every file has it", "write it into all files, or choose another: --label"))
    nulls = int(np.count_nonzero(values.is_null & ~values.is_absent))
    if nulls:
        found = f"no value in {nulls:,} of {values.num_rows:,} rows that were read"
        fix = "leave these rows out, or write what null means as 0; or choose another column with --label"
        faults.append(Fault(where, found, "every row has a label", fix))
    if values.field.is_bag or values.field.kind == "time":
        faults.append(Fault(where, values.field.types, "a number, a bool or a string", "choose another with --label"))
    return faults


def _threshold(values: Values, at_least: float) -> LabelGuess:
    name = values.field.name
    if values.field.kind not in ("int", "float"):
        raise DataError([Fault(f"label {name}", values.field.types, "--at-least takes a number", "use --positive")])
    labels = values.numbers >= at_least
    if labels.all() or not labels.any():
        low, high = values.spelled(0), values.spelled(len(values.counts) - 1)
        raise DataError([Fault(f"label {name}", f"{low} to {high}", "both labels occur", "choose another number")])
    why = f"{values.field.types}: {labels.mean():.2%} of {len(labels):,} rows are {at_least:g} or more"
    return LabelGuess(name, {"column": name, "at_least": at_least}, why, labels)


def _positive_code(values: Values, wish: Wish) -> int:
    spelled = _spellings(values)
    where = f"label {values.field.name}"
    if wish.positive:
        if wish.positive not in spelled:
            raise DataError(
                [Fault(where, wish.positive, f"one of its values: {', '.join(spelled)}", "give one of them")]
            )
        return spelled.index(wish.positive)
    known = _known_positive(spelled)
    if known is not None:
        return known
    found = f"{' and '.join(spelled)} ({values.field.types})"
    fix = f"say which of them is a positive, as --label {values.field.name} --positive {spelled[-1]}"
    raise DataError([Fault(where, found, "0 and 1, or two spellings of which one is known to be positive", fix)])
