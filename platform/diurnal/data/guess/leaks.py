"""Whether a column is known only after the outcome: it all but tells the label, on rows it was not fitted to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diurnal.data.guess.values import Values

LEAK_AUC = 0.98
CERTAIN = 0.98
"""Share of one class among rows that have some property."""

MIN_CLASS_ROWS = 10
"""Of each label: with fewer nothing is measured."""

_BINS = 64
_EXACT_VALUES = 256
_FOLDS = 5
_MAX_FOLDS = 10
_MAX_BASE = 0.8
"""A class that is more frequent than that is certain everywhere."""
_LOG_CHANCE = math.log(1e-6)
_FEW_IDS = 64
_MIN_COVERED = 0.1
"""Share of a class that ids have to hold before they count as certain."""


@dataclass(frozen=True)
class Association:
    """How much a column alone says of the label."""

    auc: float
    """Of the best measure, at least 0.5."""
    measure: str
    """In words."""
    certain: str = ""
    """What is certain, when something is."""
    doubt: str = ""
    """A property of rows that no positive has, or no negative: an honest column may have one, but it seldom does."""

    @property
    def is_leak(self) -> bool:
        return self.auc >= LEAK_AUC or bool(self.certain)

    @property
    def text(self) -> str:
        return self.certain if self.auc < LEAK_AUC else f"{self.measure} tells the label with AUC {self.auc:.3f}"


def association(values: Values, labels: np.ndarray, day_of_row: np.ndarray) -> Association | None:
    """None when a class has fewer than `MIN_CLASS_ROWS` rows.

    Args:
        labels: (n,) bool.
        day_of_row: (n,) index of the row's day: rates are taken from other days, or, with one day, from other fifths.
    """
    if min(np.count_nonzero(labels), np.count_nonzero(~labels)) < MIN_CLASS_ROWS:
        return None
    folds = _folds(labels, day_of_row)
    empty = _auc(values.is_null.astype(np.float64), labels)
    found = [(max(empty, 1 - empty), "whether it has a value")]
    if values.field.kind in ("int", "float") and not values.is_null.all():
        there = ~values.is_null
        if min(np.count_nonzero(labels[there]), np.count_nonzero(~labels[there])) >= MIN_CLASS_ROWS:
            above = _auc(values.numbers.astype(np.float64), labels[there])
            found.append((max(above, 1 - above), "the number"))
    how = "days" if folds is day_of_row else "rows"
    by_rate = _auc(_rates_elsewhere(values, labels, folds), labels)
    found.append((by_rate, f"the share of positives that its value has on other {how}"))
    auc, measure = max(found, key=lambda pair: pair[0])
    return Association(max(0.5, auc), measure, _certain(values, labels), _doubt(values, labels))


def _auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Probability that a positive has the higher score, ties counted half (Mann-Whitney)."""
    distinct, place = np.unique(scores, return_inverse=True)
    positives = np.bincount(place[labels], minlength=len(distinct)).astype(np.float64)
    negatives = np.bincount(place[~labels], minlength=len(distinct)).astype(np.float64)
    below = np.cumsum(negatives) - negatives / 2
    return float((positives * below).sum() / (positives.sum() * negatives.sum()))


def _rates_elsewhere(values: Values, labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """(n,) share of positives among the rows of other folds with the same value, drawn to the overall share as if one
    more row had it; the mean over a row's values, and a value of its own for rows without any."""
    codes, num_codes = _binned(values)
    none = np.flatnonzero(values.is_null)
    rows, codes = np.concatenate([values.row_of_code, none]), np.concatenate([codes, np.full(len(none), num_codes)])
    hits, counts = _elsewhere(rows, codes, num_codes + 1, labels, folds)
    rates = (hits + labels.mean()) / (counts + 1)
    return np.bincount(rows, rates, len(labels)) / np.bincount(rows, minlength=len(labels))


def past_effects(values: Values, labels: np.ndarray, day_of_row: np.ndarray, prior: float) -> np.ndarray:
    """(n,) what `config.Dense.value` calls an effect, with the sample's other days in the place of the past."""
    hits, counts = _elsewhere(values.row_of_code, values.codes, len(values.counts), labels, _folds(labels, day_of_row))
    effects = (hits - labels.mean() * counts) / (counts + prior)
    sums = np.bincount(values.row_of_code, effects, len(labels))
    return sums / np.maximum(np.bincount(values.row_of_code, minlength=len(labels)), 1)


def _folds(labels: np.ndarray, day_of_row: np.ndarray) -> np.ndarray:
    """Days, or, with one day, fifths of the rows."""
    return day_of_row if day_of_row[0] != day_of_row[-1] else np.arange(len(labels)) * _FOLDS // len(labels)


def _elsewhere(
    rows: np.ndarray, codes: np.ndarray, num_codes: int, labels: np.ndarray, folds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Positives and rows with each code, in the folds that its row is not in."""
    folds = np.unique(folds, return_inverse=True)[1] % _MAX_FOLDS
    size = int(folds.max()) + 1
    cell = codes * size + folds[rows]
    counts = np.bincount(cell, minlength=num_codes * size).reshape(-1, size)
    hits = np.bincount(cell[labels[rows]], minlength=num_codes * size).reshape(-1, size)
    hits, counts = (of.sum(axis=1, keepdims=True) - of for of in (hits, counts))
    return hits[codes, folds[rows]], counts[codes, folds[rows]]


def _binned(values: Values) -> tuple[np.ndarray, int]:
    """Codes of values, or of quantile bins where there are many numbers."""
    if values.field.kind not in ("int", "float") or len(values.counts) <= _EXACT_VALUES:
        return values.codes, len(values.counts)
    if values.field.kind == "int" and values.counts.max() > 1 and len(values.counts) < values.num_rows // 2:
        return values.codes, len(values.counts)
    numbers = values.numbers.astype(np.float64)
    edges = np.unique(np.quantile(numbers, np.arange(1, _BINS) / _BINS))
    return np.searchsorted(edges, numbers, side="right"), len(edges) + 1


def _certain(values: Values, labels: np.ndarray) -> str:
    """A property of many rows that all but proves one of the classes, which is not the usual one anyway."""
    for words, mask in _properties(values).items():
        for label in (True, False):
            if text := _proves(words, mask, labels, label):
                return text
    if not values.field.is_bag and len(values.counts) <= _FEW_IDS:
        return _certain_ids(values, labels)
    return ""


def _doubt(values: Values, labels: np.ndarray) -> str:
    """A property of many rows without which one of the classes, the rare one, does not come."""
    for words, mask in _properties(values).items():
        rows = int(np.count_nonzero(mask))
        for label in (True, False):
            base = float((labels == label).mean())
            if base < 1 - _MAX_BASE and rows * math.log1p(-base) < _LOG_CHANCE and not (labels[mask] == label).any():
                return f"none of the {rows:,} rows with {words} has label {int(label)}"
    return ""


def _properties(values: Values) -> dict[str, np.ndarray]:
    """Which rows, (n,) bool, have what may come of the outcome."""
    masks = {"no value": values.is_null, "a value": ~values.is_null}
    if values.field.kind in ("int", "float"):
        is_zero = np.zeros(values.num_rows, bool)
        is_zero[values.row_of_code[values.numbers == 0]] = True
        masks |= {"the value 0": is_zero, "a value that is not 0": ~is_zero & ~values.is_null}
    return masks


def _proves(words: str, mask: np.ndarray, labels: np.ndarray, label: bool) -> str:
    base, rows = float((labels == label).mean()), int(np.count_nonzero(mask))
    hits = int(np.count_nonzero(labels[mask] == label))
    if not rows or base > _MAX_BASE or hits < CERTAIN * rows or rows * math.log(base) > _LOG_CHANCE:
        return ""
    return f"{hits:,} of the {rows:,} rows with {words} have label {int(label)} ({base:.1%} of all rows have it)"


def _certain_ids(values: Values, labels: np.ndarray) -> str:
    of_code = labels[values.row_of_code]
    hits = np.bincount(values.codes[of_code], minlength=len(values.counts))
    for label, having in ((True, hits), (False, values.counts - hits)):
        total = np.count_nonzero(labels == label)
        base = total / len(labels)
        if base > _MAX_BASE:
            continue
        is_certain = (having >= CERTAIN * values.counts) & (values.counts * math.log(base) < _LOG_CHANCE)
        is_certain &= having >= _MIN_COVERED * total
        if is_certain.any():
            code = int(np.argmax(np.where(is_certain, having, -1)))
            shown = f"{having[code]:,} of the {values.counts[code]:,} rows with the value {values.spelled(code)}"
            return f"{shown} have label {int(label)} ({base:.1%} of all rows have it)"
    return ""
