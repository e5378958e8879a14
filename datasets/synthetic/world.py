"""A world of impressions whose click probabilities are known.

Everything about a day follows from (seed, day number): no day needs another one to be generated first. Ids are indices
into populations that grow day by day; what an index is like (taste, popularity, price) is drawn once, in the order of
the indices, so that it never changes as the population grows. The click probability of an impression is the sigmoid of

    bias(day, hour) + device + user + item + shop + <user taste + mean topic taste, item taste(day)> + f(dense inputs)

which a model with one vector per id, dot products between them and a network over dense inputs can represent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

TASTE_DIM = 4
NUM_TOPICS = 60
NUM_SHOPS = 300
MAX_TOPICS = 5
DEVICES = ("phone", "tablet", "desktop", "tv")
DEVICE_SHARE = (0.6, 0.1, 0.25, 0.05)
DEVICE_EFFECT = (0.1, 0.0, -0.1, -0.4)
HOUR_SHARE = 1.0 + 0.7 * np.sin((np.arange(24) - 9.0) * np.pi / 12.0)
ROTATION = 0.02
"""Radians by which every item's taste turns in a day: the drift that a model has to follow."""
OWN_TASTE = 0.2
"""Share of taste that a single user or item has for itself."""
TASTE_EFFECT = 0.5


@dataclass(frozen=True)
class Size:
    """How many ids there are on day 0, and how many join each day."""

    users: int = 5000
    new_users: int = 120
    items: int = 2000
    new_items: int = 40


@dataclass(frozen=True)
class Day:
    """One day's impressions, in order of time. Indices, not ids; -1 is an unknown user."""

    seconds: Doubles
    user: Ints
    item: Ints
    shop: Ints
    device: Ints
    topics: Ints
    """Topics of each row, one after the other."""
    num_topics: Ints
    price: Floats
    item_age_days: Floats
    user_visits: Floats
    probability: Doubles
    click: npt.NDArray[np.int8]


class World:
    def __init__(self, seed: int, size: Size | None = None) -> None:
        self._seed, self._size = seed, size or Size()

    def day(self, number: int, num_rows: int) -> Day:
        """Draws day `number` (from 0)."""
        num_users = self._size.users + number * self._size.new_users
        num_items = self._size.items + number * self._size.new_items
        rng = np.random.default_rng((self._seed, 1, number))
        seconds = _times(rng, num_rows)
        user = _draw(rng, self._popularity("user", num_users), num_rows)
        item = _draw(rng, self._item_popularity(number, num_items), num_rows)
        device = _draw(rng, np.array(DEVICE_SHARE), num_rows)
        user[rng.random(num_rows, dtype=np.float32) < 0.02] = -1
        num_topics, topics = self._topics(rng, user, num_users)
        born = np.maximum(0, np.arange(num_items) - self._size.items) // self._size.new_items
        age = (number - born + 30 * (np.arange(num_items) < self._size.items)).astype(np.float32)[item]
        visits = rng.gamma(2.0, 4.0, num_rows).astype(np.float32).round()
        shop = self._integers("shop", num_items, NUM_SHOPS)[item]
        price = np.exp(3.0 + self._normal("price", num_items, 1)[:, 0])[item] * rng.choice(
            np.array([1.0, 1.0, 1.0, 0.8, 0.5], dtype=np.float32), num_rows
        )
        logit = self._bias(number, seconds) + np.array(DEVICE_EFFECT, dtype=np.float32)[device]
        logit += _dense_effect(price, age, visits)
        logit += self._id_effects(user, item, shop, num_users, num_items)
        logit += self._taste_effect(number, user, item, shop, topics, num_topics)
        probability = 1.0 / (1.0 + np.exp(-logit.astype(np.float64)))
        click = (rng.random(num_rows) < probability).astype(np.int8)
        return Day(seconds, user, item, shop, device, topics, num_topics, price, age, visits, probability, click)

    def _rng(self, what: str) -> np.random.Generator:
        return np.random.default_rng((self._seed, 0, *what.encode()))

    def _normal(self, what: str, rows: int, dim: int) -> Floats:
        """The same first rows for any number of rows."""
        return self._rng(what).standard_normal((rows, dim), dtype=np.float32)

    def _integers(self, what: str, rows: int, below: int) -> Ints:
        return (self._rng(what).random(rows) * below).astype(np.int64)

    def _popularity(self, what: str, rows: int) -> Doubles:
        """Zipf's law with exponent 1: weight 1 / rank, each index at a rank of its own."""
        return 1.0 / (self._rng(f"{what} popularity").random(rows) + 0.002)

    def _item_popularity(self, number: int, rows: int) -> Doubles:
        """New items start with a burst, and every item's share wanders."""
        age = number - np.maximum(0, np.arange(rows) - self._size.items) // self._size.new_items
        fresh = np.where(np.arange(rows) >= self._size.items, 1.0 + 2.0 * np.exp(-age / 3.0), 1.0)
        phase = 2 * np.pi * self._rng("item season").random(rows)
        return self._popularity("item", rows) * fresh * np.exp(0.5 * np.sin(number / 5.0 + phase))

    def _topics(self, rng: np.random.Generator, user: Ints, num_users: int) -> tuple[Ints, Ints]:
        """Topics that the user looked at: 0 to MAX_TOPICS of the user's own eight favourites."""
        favourites = (self._rng("favourites").random((num_users, 8)) ** 2 * NUM_TOPICS).astype(np.int64)
        num = rng.integers(0, MAX_TOPICS + 1, len(user))
        row = np.repeat(np.arange(len(user)), num)
        chosen = favourites[user[row], rng.integers(0, 8, len(row))]
        anyone = rng.integers(0, NUM_TOPICS, len(row))
        return num, np.where(user[row] < 0, anyone, chosen)

    def _bias(self, number: int, seconds: Doubles) -> Floats:
        hour = seconds / 3600.0
        level = -1.4 + 0.03 * np.sin(2 * np.pi * number / 7.0) + 0.005 * number
        return (level + 0.15 * np.sin(hour * np.pi / 12.0)).astype(np.float32)

    def _id_effects(self, user: Ints, item: Ints, shop: Ints, num_users: int, num_items: int) -> Floats:
        known = (user >= 0).astype(np.float32)
        of_user = 0.2 * self._normal("user bias", num_users, 1)[:, 0]
        of_item = 0.3 * self._normal("item bias", num_items, 1)[:, 0]
        of_shop = 0.4 * self._normal("shop bias", NUM_SHOPS, 1)[:, 0]
        return (of_user[user] * known + of_item[item] + of_shop[shop]).astype(np.float32)

    def _taste_effect(self, number: int, user: Ints, item: Ints, shop: Ints, topics: Ints, num_topics: Ints) -> Floats:
        """Most of an item's taste is its shop's, and most of a visitor's the topics': ids alone would see too few rows
        to be learned, as in life."""
        turn = ROTATION * number
        tastes = []
        for when in ("", " later"):
            of_shop = self._normal(f"shop taste{when}", NUM_SHOPS, TASTE_DIM)
            of_item = self._normal(f"item taste{when}", int(item.max(initial=0)) + 1, TASTE_DIM)
            tastes.append(0.9 * of_shop[shop] + OWN_TASTE * of_item[item])
        item_taste = np.cos(turn) * tastes[0] + np.sin(turn) * tastes[1]
        of_user = OWN_TASTE * self._normal("user taste", int(user.max(initial=0)) + 1, TASTE_DIM)
        of_topic = self._normal("topic taste", NUM_TOPICS, TASTE_DIM)
        visitor_taste = of_user[user] * (user >= 0).astype(np.float32)[:, None]
        row = np.repeat(np.arange(len(user)), num_topics)
        share = 1.0 / np.maximum(num_topics, 1)
        for column in range(TASTE_DIM):
            summed = np.bincount(row, weights=of_topic[topics, column], minlength=len(user))
            visitor_taste[:, column] += summed * share
        return (TASTE_EFFECT * np.einsum("rd,rd->r", visitor_taste, item_taste)).astype(np.float32)


def _times(rng: np.random.Generator, num_rows: int) -> Doubles:
    """Seconds after midnight, ascending, more in the evening than at night."""
    edges = np.concatenate([[0.0], np.cumsum(HOUR_SHARE) / HOUR_SHARE.sum()])
    return np.interp(np.sort(rng.random(num_rows)), edges, np.arange(25) * 3600.0).clip(0, 86399.999)


def _draw(rng: np.random.Generator, weights: Doubles, num_rows: int) -> Ints:
    cumulative = np.cumsum(weights)
    return np.searchsorted(cumulative, rng.random(num_rows) * cumulative[-1], side="right").astype(np.int64)


def _dense_effect(price: Floats, age: Floats, visits: Floats) -> Floats:
    effect = -0.3 * (np.log1p(price) - 3.0) + 0.4 * np.exp(-age / 5.0) - 0.05 * np.abs(visits - 8.0)
    return effect.astype(np.float32)
