"""Dense inputs that look at the past: every value of a day is made from the rows of earlier days alone.

`inputs_of_day` gets the earlier days with their labels, and the day's own rows without: a row's outcome, or that of
another row of the same day, cannot reach an input. What it returns are counters and *effects*: how much more often than
expected somebody likes something, shrunk towards zero while there are few rows, `sum of residuals / (rows + strength)`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

RECENT_DAYS = 14.0
"""Half-life of an item's recent share."""
MAIN_STRENGTH = 5.0
"""Rows without effect that every user and item starts with."""
GROUP_STRENGTH = 20.0
"""The same for groups, such as a genre among women."""
SWEEPS = 2


@dataclass(frozen=True)
class Rows:
    """Ratings in order of time, without their outcome. Codes are dense, from 0."""

    day: Ints
    user: Ints
    item: Ints
    age: Ints
    age_bucket: Ints
    gender: Ints
    occupation: Ints
    genre_row: Ints
    """With `genre_code`: one entry per row and genre, in order of the rows."""
    genre_code: Ints

    def __len__(self) -> int:
        return len(self.day)

    def part(self, start: int, stop: int) -> Rows:
        low, high = np.searchsorted(self.genre_row, (start, stop))
        parts = {f.name: getattr(self, f.name)[start:stop] for f in fields(self) if not f.name.startswith("genre_")}
        return Rows(genre_row=self.genre_row[low:high] - start, genre_code=self.genre_code[low:high], **parts)


def past_only_inputs(rows: Rows, label: Floats) -> dict[str, npt.NDArray[np.float32]]:
    """The inputs of all days, one float32 column each, in the order of the rows."""
    _, starts = np.unique(rows.day, return_index=True)
    edges = [*starts.tolist(), len(rows)]
    days = [
        inputs_of_day(rows.part(0, start), label[:start], rows.part(start, stop)) for start, stop in pairwise(edges)
    ]
    return {name: np.concatenate([day[name] for day in days]).astype(np.float32) for name in days[0]}


def inputs_of_day(past: Rows, past_label: Floats, today: Rows) -> dict[str, Floats]:
    """Inputs of one day's rows.

    `user_effect` and `item_effect` are a two-way fit, `label = rate + user + item`, by a few sweeps of ridge
    regression; the other effects are made of what it leaves unexplained.
    """
    rate = (past_label.sum() + 5.0) / (len(past) + 10.0)
    user_effect = item_effect = np.zeros(1)
    for _ in range(SWEEPS):
        left = past_label - rate - _look_up(user_effect, past.user)
        item_effect = _shrunk_means(past.item, left, MAIN_STRENGTH)
        left = past_label - rate - _look_up(item_effect, past.item)
        user_effect = _shrunk_means(past.user, left, MAIN_STRENGTH)
    residual = past_label - rate - _look_up(user_effect, past.user) - _look_up(item_effect, past.item)
    return {
        "user_rows": _look_up(np.bincount(past.user, minlength=1), today.user),
        "item_rows": _look_up(np.bincount(past.item, minlength=1), today.item),
        "item_recent_share": _recent_share(past, today),
        "user_effect": _look_up(user_effect, today.user),
        "item_effect": _look_up(item_effect, today.item),
        "alike_item_effect": _effect_among_alike(past, residual, today),
        **_genre_effects(past, residual, today),
    }


def _look_up(values: npt.NDArray[np.generic], keys: Ints) -> Floats:
    """`values[keys]`; zero where there is no value yet."""
    known = keys < len(values)
    return np.where(known, values[np.where(known, keys, 0)], 0.0).astype(np.float64)


def _shrunk_means(keys: Ints, values: Floats, strength: float) -> Floats:
    rows = np.bincount(keys, minlength=1)
    return np.bincount(keys, weights=values, minlength=1) / (rows + strength)


def _recent_share(past: Rows, today: Rows) -> Floats:
    """Log of an item's share of the recent rows, against an equal share: stationary, unlike a count."""
    age_days = float(today.day[0]) - past.day
    recent = np.bincount(past.item, weights=0.5 ** (age_days / RECENT_DAYS), minlength=1)
    num_items = max(1, int(np.count_nonzero(recent)))
    return np.log((_look_up(recent, today.item) + 0.5) / (recent.sum() / num_items + 0.5))


def _first_rows(users: Ints) -> tuple[Ints, Ints]:
    """The first row of each user that has one, and for each row the position of its user among them."""
    first = np.full(int(users.max(initial=-1)) + 1, -1, dtype=np.int64)
    first[users[::-1]] = np.arange(len(users))[::-1]
    has_rows = first >= 0
    return first[has_rows], (np.cumsum(has_rows) - 1)[users]


def _genre_effects(past: Rows, residual: Floats, today: Rows) -> dict[str, Floats]:
    """Of a row's genres, averaged: over everybody, for this user, and for people of this gender, of this age.

    Summed per user and genre first: gender and age are facts about a user.
    """
    num_genres = 1 + max(int(rows.genre_code.max(initial=0)) for rows in (past, today))
    someone, who = _first_rows(past.user)
    keys = (who * num_genres)[past.genre_row] + past.genre_code
    shape = (len(someone), num_genres)
    liked = np.bincount(keys, weights=residual[past.genre_row], minlength=shape[0] * shape[1]).reshape(shape)
    rated = np.bincount(keys, minlength=shape[0] * shape[1]).reshape(shape)
    num_of_row = np.bincount(today.genre_row, minlength=len(today))
    effects = {}
    for name, then, now in (
        ("genre", np.zeros_like(past.user), np.zeros_like(today.user)),
        ("user_genre", past.user, today.user),
        ("gender_genre", past.gender, today.gender),
        ("age_genre", past.age_bucket, today.age_bucket),
    ):
        group = then[someone]
        num_groups = 1 + max(int(group.max(initial=0)), int(now.max(initial=0)))
        liked_of_group, rated_of_group = np.zeros((num_groups, num_genres)), np.zeros((num_groups, num_genres))
        np.add.at(liked_of_group, group, liked)
        np.add.at(rated_of_group, group, rated)
        effect = liked_of_group / (rated_of_group + GROUP_STRENGTH)
        of_pair = effect[now[today.genre_row], today.genre_code]
        total = np.bincount(today.genre_row, weights=of_pair, minlength=len(today))
        effects[f"{name}_effect"] = total / np.maximum(num_of_row, 1)
    return effects


def _effect_among_alike(past: Rows, residual: Floats, today: Rows) -> Floats:
    """How the item pleases people like this one: past users weigh more the nearer they are in age, three times when of
    the same gender and twice when of the same occupation."""
    if not len(past):
        return np.zeros(len(today))
    someone, who_then = _first_rows(past.user)
    visitor, who_now = _first_rows(today.user)
    near = np.exp(-np.abs(today.age[visitor][:, None] - past.age[someone][None]) / 10.0)
    near *= np.where(today.gender[visitor][:, None] == past.gender[someone][None], 3.0, 1.0)
    near *= np.where(today.occupation[visitor][:, None] == past.occupation[someone][None], 2.0, 1.0)
    wanted = np.zeros(1 + max(int(past.item.max()), int(today.item.max())), dtype=bool)
    wanted[today.item] = True
    column = np.cumsum(wanted) - 1
    rows = np.flatnonzero(wanted[past.item])
    shape = (len(someone), int(wanted.sum()))
    cell = who_then[rows] * shape[1] + column[past.item[rows]]
    liked = np.bincount(cell, weights=residual[rows], minlength=shape[0] * shape[1]).reshape(shape)
    rated = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    effect = (near @ liked) / (near @ rated + GROUP_STRENGTH * near.mean(axis=1, keepdims=True))
    return effect[who_now, column[today.item]]
