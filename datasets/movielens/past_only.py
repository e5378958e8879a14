"""Dense inputs that look at the past: every value of a day is made from the rows of earlier days alone.

`past_only_features` walks over the days once. For each day it first reads the counters as the day before left them,
for all rows of the day, and only then counts the day in; so neither a row's own outcome nor a row of the same day
reaches an input. Rates are smoothed: `(positives + strength * prior) / (rows + strength)`, where the prior is the
rate of a coarser group, such as the item's rate for item x gender.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

AGE_BUCKETS = (18, 25, 30, 35, 45, 55)
RECENT_DAYS = 14.0
"""Half-life of the counters of what happened recently."""

LIFT_ROWS = 5.0
"""Rows at zero lift that a user or an item starts with."""


@dataclass(frozen=True)
class Log:
    """Ratings in order of time. Codes are dense, from 0; `genre_row` and `genre_code` list each row's genres."""

    day: Ints
    user: Ints
    item: Ints
    age: Ints
    gender: Ints
    occupation: Ints
    zip_prefix: Ints
    year: Ints
    genre_row: Ints
    genre_code: Ints
    label: Floats


class Counter:
    """Rows and positives per key, over the days that were counted in."""

    def __init__(self, keys: Ints, label: Floats) -> None:
        self._keys, self._label = keys, label
        size = int(keys.max(initial=0)) + 1
        self._rows, self._positives = np.zeros(size), np.zeros(size)

    def rows(self, part: slice | Ints) -> Floats:
        return self._rows[self._keys[part]]

    def rate(self, part: slice | Ints, prior: Floats | float, strength: float) -> Floats:
        keys = self._keys[part]
        return (self._positives[keys] + strength * prior) / (self._rows[keys] + strength)

    def count_in(self, part: slice | Ints) -> None:
        np.add.at(self._rows, self._keys[part], 1.0)
        np.add.at(self._positives, self._keys[part], self._label[part])

    def fade(self, factor: float) -> None:
        self._rows *= factor
        self._positives *= factor


def past_only_features(log: Log) -> dict[str, npt.NDArray[np.float32]]:
    """One float32 column per input, in the order of the log's rows."""
    return _Past(log).walk()


class _Past:
    def __init__(self, log: Log) -> None:
        self._log = log
        num_genres = int(log.genre_code.max(initial=0)) + 1
        bucket = np.searchsorted(np.array(AGE_BUCKETS), log.age, side="right").astype(np.int64)
        of_row = {"user": log.user, "gender": log.gender, "age": bucket, "occupation": log.occupation}
        self._counters = {name: Counter(key, log.label) for name, key in of_row.items()}
        self._counters["all"] = Counter(np.zeros_like(log.item), log.label)
        self._counters["item"] = Counter(log.item, log.label)
        self._counters["zip"] = Counter(log.zip_prefix, log.label)
        self._counters["year"] = Counter(log.year, log.label)
        self._recent = Counter(log.item, log.label)
        for name in ("gender", "age", "occupation"):
            key = log.item * (int(of_row[name].max(initial=0)) + 1) + of_row[name]
            self._counters[f"item_{name}"] = Counter(key, log.label)
        pair_label = log.label[log.genre_row]
        self._genres = {"all": Counter(log.genre_code, pair_label)}
        for name, key in of_row.items():
            self._genres[name] = Counter(key[log.genre_row] * num_genres + log.genre_code, pair_label)
        self._user_lift = np.zeros(int(log.user.max(initial=0)) + 1)
        self._item_lift = np.zeros(int(log.item.max(initial=0)) + 1)
        self._first_day = np.full(int(log.item.max(initial=0)) + 1, np.inf)
        self._last_day = np.full(int(log.user.max(initial=0)) + 1, np.nan)

    def walk(self) -> dict[str, npt.NDArray[np.float32]]:
        days, starts = np.unique(self._log.day, return_index=True)
        edges = [*starts.tolist(), len(self._log.day)]
        parts: list[dict[str, Floats]] = []
        previous = float(days[0]) if len(days) else 0.0
        for day, start, stop in zip(days.tolist(), edges[:-1], edges[1:], strict=True):
            self._recent.fade(0.5 ** ((day - previous) / RECENT_DAYS))
            previous = float(day)
            rows = slice(start, stop)
            pairs = slice(*np.searchsorted(self._log.genre_row, (start, stop)).tolist())
            parts.append(self._read(float(day), rows) | self._read_genres(rows, pairs))
            self._count_in(float(day), rows, pairs)
        return {name: np.concatenate([p[name] for p in parts]).astype(np.float32) for name in parts[0]}

    def _read(self, day: float, rows: slice) -> dict[str, Floats]:
        log, of = self._log, self._counters
        overall = of["all"].rate(rows, 0.5, 10.0)
        item = of["item"].rate(rows, overall, 5.0)
        first = self._first_day[log.item[rows]]
        away = day - self._last_day[log.user[rows]]
        columns = {
            "user_rows": of["user"].rows(rows),
            "user_rate": of["user"].rate(rows, overall, 5.0),
            "user_days_away": np.nan_to_num(away, nan=0.0),
            "item_rows": of["item"].rows(rows),
            "item_rate": item,
            "item_recent_rows": self._recent.rows(rows),
            "item_recent_rate": self._recent.rate(rows, item, 5.0),
            "item_age_days": np.where(np.isfinite(first), day - first, 0.0),
            "overall_rate": overall,
            "user_lift": self._user_lift[log.user[rows]] / (of["user"].rows(rows) + LIFT_ROWS),
            "item_lift": self._item_lift[log.item[rows]] / (of["item"].rows(rows) + LIFT_ROWS),
        }
        for name in ("gender", "age", "occupation", "zip", "year"):
            columns[f"{name}_rate"] = of[name].rate(rows, overall, 20.0)
        for name in ("gender", "age", "occupation"):
            columns[f"item_{name}_rate"] = of[f"item_{name}"].rate(rows, item, 5.0)
        return columns

    def _read_genres(self, rows: slice, pairs: slice) -> dict[str, Floats]:
        """Rates of the row's genres, averaged over them."""
        num_rows = rows.stop - rows.start
        row = self._log.genre_row[pairs] - rows.start
        num = np.maximum(np.bincount(row, minlength=num_rows), 1)
        overall = self._counters["all"].rate(rows, 0.5, 10.0)[:1]
        base = self._genres["all"].rate(pairs, overall, 20.0)
        columns = {"genre_rate": base}
        for name in ("user", "gender", "age", "occupation"):
            columns[f"{name}_genre_rate"] = self._genres[name].rate(pairs, base, 5.0)
        columns["user_genre_rows"] = self._genres["user"].rows(pairs)
        return {name: np.bincount(row, weights=v, minlength=num_rows) / num for name, v in columns.items()}

    def _count_in(self, day: float, rows: slice, pairs: slice) -> None:
        items, users = self._log.item[rows], self._log.user[rows]
        self._count_lifts(rows, items, users)
        for counter in (*self._counters.values(), self._recent):
            counter.count_in(rows)
        for counter in self._genres.values():
            counter.count_in(pairs)
        self._first_day[items] = np.minimum(self._first_day[items], day)
        self._last_day[users] = day

    def _count_lifts(self, rows: slice, items: Ints, users: Ints) -> None:
        """How much more the user likes than others do of the same films, and the film than others please its users."""
        overall = self._counters["all"].rate(rows, 0.5, 10.0)
        expected_of_item = self._counters["item"].rate(rows, overall, LIFT_ROWS)
        expected_of_user = overall + self._user_lift[users] / (self._counters["user"].rows(rows) + LIFT_ROWS)
        np.add.at(self._user_lift, users, self._log.label[rows] - expected_of_item)
        np.add.at(self._item_lift, items, self._log.label[rows] - expected_of_user)
