"""Summaries of many values that add up: the same whatever the order, and however the values were cut into pieces."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from diurnal.data.hashing import mix64

HASH_BITS = 40
"""Bits of an id's hash that a finished sketch keeps: with 10^9 distinct ids one of a thousand new ids looks known."""

_SAMPLE_KEY = np.uint64(0xA0761D6478BD642F)


def sampled_rows(first_row: int, num_rows: int, total_rows: int, size: int) -> np.ndarray:
    """Which of the rows [first_row, first_row + num_rows) belong to a sample of about `size` of `total_rows` rows.

    A row is in the sample by a hash of its position, so that the sample does not depend on who reads which row.

    Returns:
        (s,) int64 indices into the rows asked for; all of them when `total_rows` is not above `size`.
    """
    if total_rows <= size:
        return np.arange(num_rows)
    hashes = mix64(np.arange(first_row, first_row + num_rows).view(np.uint64) ^ _SAMPLE_KEY)
    return np.flatnonzero(hashes < np.uint64(size * 2**64 // total_rows))


@dataclass
class Moments:
    """Count, mean, standard deviation and range of finite values.

    The sums over a block are floats about the block's first value c, and are then added up as exact fractions:
    sum x = n c + d1 and sum x^2 = n c^2 + 2 c d1 + d2 with d1 = sum (x - c), d2 = sum (x - c)^2. So nothing cancels
    when the mean is large beside the deviation, and the order of blocks does not matter.
    """

    count: int = 0
    total: Fraction = field(default_factory=Fraction)
    total_square: Fraction | None = field(default_factory=Fraction)
    """None when squares overflowed."""
    lowest: float = math.inf
    highest: float = -math.inf

    def add(self, values: np.ndarray) -> None:
        """Adds a block of float values."""
        if not len(values):
            return
        about = float(values[0])
        with np.errstate(over="ignore"):
            away = values.astype(np.float64) - about
            first, second = float(away.sum()), float(np.square(away).sum())
        self.count += len(values)
        self.lowest = min(self.lowest, float(values.min()))
        self.highest = max(self.highest, float(values.max()))
        if self.total_square is None or not math.isfinite(second):
            self.total_square = None
            return
        exact, shift = Fraction(about), Fraction(first)
        self.total += len(values) * exact + shift
        self.total_square += exact * (len(values) * exact + 2 * shift) + Fraction(second)

    def merge(self, other: Moments) -> None:
        self.count += other.count
        self.lowest, self.highest = min(self.lowest, other.lowest), max(self.highest, other.highest)
        self.total += other.total
        if self.total_square is None or other.total_square is None:
            self.total_square = None
        else:
            self.total_square += other.total_square

    def mean_and_std(self) -> tuple[float, float] | None:
        """Of the population; None without a value, or when it does not fit into a float."""
        if not self.count or self.total_square is None:
            return None
        mean = self.total / self.count
        variance = max(Fraction(0), self.total_square / self.count - mean * mean)
        return float(mean), math.sqrt(variance)


class IdCounts:
    """How often each of the `size` ids with the smallest hashes occurs.

    An id that is among the smallest of all is among the smallest of every piece that has it, so its count is exact.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.hashes = np.empty(0, np.uint64)
        """(k,) ascending."""
        self.counts = np.empty(0, np.int64)

    @property
    def is_full(self) -> bool:
        return len(self.hashes) == self.size

    def add(self, hashes: np.ndarray) -> None:
        """Adds the uint64 hashes of ids, each as often as it occurs."""
        if self.is_full:
            hashes = hashes[hashes <= self.hashes[-1]]
        if len(hashes):
            self.add_counted(*np.unique(hashes, return_counts=True))

    def add_counted(self, hashes: np.ndarray, counts: np.ndarray) -> None:
        """Adds hashes that occur so often."""
        joined, place = np.unique(np.concatenate([self.hashes, hashes]), return_inverse=True)
        totals = np.zeros(len(joined), np.int64)
        np.add.at(totals, place, np.concatenate([self.counts, counts]))
        self.hashes, self.counts = joined[: self.size], totals[: self.size]

    def merge(self, other: IdCounts) -> None:
        self.add_counted(other.hashes, other.counts)

    def finish(self) -> IdSketch:
        if not self.is_full:
            return IdSketch(_kept_bits(self.hashes), self.counts, 1 << HASH_BITS)
        return IdSketch(_kept_bits(self.hashes[:-1]), self.counts[:-1], int(_kept_bits(self.hashes[-1:])[0]))


@dataclass(frozen=True, eq=False)
class IdSketch:
    """The ids of a feature whose hash is below `bound`: a sample of the distinct ids, the same one in each increment.

    Bottom-k sketches, coordinated by one hash (E. Cohen, H. Kaplan, "Summarizing data using bottom-k sketches", 2007).
    """

    hashes: np.ndarray
    """(k,) uint64 below 2^HASH_BITS, ascending."""
    counts: np.ndarray
    """(k,) int64 occurrences."""
    bound: int
    """2^HASH_BITS when every id is in the sketch."""

    @property
    def distinct(self) -> float:
        """Estimated number of distinct ids; its relative error is about 1 / sqrt(k), and 0 for a whole sketch."""
        return len(self.hashes) * (1 << HASH_BITS) / max(1, self.bound)

    def new_share(self, earlier: list[IdSketch], min_ids: int) -> float | None:
        """Estimated share of occurrences whose id is in none of the earlier sketches.

        Only ids are looked at that each sketch would have kept. None when those are fewer than `min_ids` and the
        sketches are not whole.
        """
        bound = min([self.bound, *(sketch.bound for sketch in earlier)])
        inside = self.hashes < bound
        if not inside.any() or (bound < 1 << HASH_BITS and np.count_nonzero(inside) < min_ids):
            return None
        known = np.isin(self.hashes, np.concatenate([sketch.hashes for sketch in earlier] or [self.hashes[:0]]))
        return float(self.counts[inside & ~known].sum() / self.counts[inside].sum())

    def to_json(self) -> dict[str, Any]:
        octets = self.hashes.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : HASH_BITS // 8]
        narrow = next(
            kind for kind in (np.uint16, np.uint32, np.uint64) if self.counts.max(initial=0) <= np.iinfo(kind).max
        )
        counts = self.counts.astype(np.dtype(narrow).newbyteorder("<"))
        return {"bound": self.bound, "hashes": _text(octets), "counts": _text(counts), "count_bytes": counts.itemsize}

    @staticmethod
    def from_json(data: dict[str, Any]) -> IdSketch:
        octets = np.frombuffer(base64.b64decode(data["hashes"]), np.uint8).reshape(-1, HASH_BITS // 8)
        hashes = np.zeros((len(octets), 8), np.uint8)
        hashes[:, : HASH_BITS // 8] = octets
        counts = np.frombuffer(base64.b64decode(data["counts"]), f"<u{data['count_bytes']}").astype(np.int64)
        return IdSketch(hashes.reshape(-1).view("<u8").astype(np.uint64), counts, data["bound"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdSketch) and self.to_json() == other.to_json()


def _kept_bits(hashes: np.ndarray) -> np.ndarray:
    return hashes >> np.uint64(64 - HASH_BITS)


def _text(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
