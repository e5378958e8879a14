"""Where the quantiles of numbers lie: from counts that add up, so that neither order nor pieces can move them.

A number is counted by the upper 16 bits of its float32: sign, exponent and 7 bits of the mantissa, in an order that is
that of the numbers. A pattern is at most 1/128 of its lowest magnitude wide (0.8 %), below 1.2e-38 at most 9.2e-41, and
whole numbers up to 256 have a pattern each.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from diurnal.config import Schema

NUM_PATTERNS = 1 << 16
_SIGN = np.uint32(1 << 31)

_POWERS_OF_TWO = tuple(2.0**power for power in range(-30, 31))
_BY_MAGNITUDE = (*(-x for x in reversed(_POWERS_OF_TWO)), 0.0, *_POWERS_OF_TWO)


def pattern_counts(values: np.ndarray) -> np.ndarray:
    """(NUM_PATTERNS,) int64: how many of the values, none of which is NaN, have each pattern."""
    with np.errstate(over="ignore"):  # what is too large for float32 counts as infinite
        bits = (values.astype(np.float32) + np.float32(0)).view(np.uint32)  # -0 becomes 0
    ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return np.bincount(ordered >> 16, minlength=NUM_PATTERNS)


@cache
def lowest_values() -> np.ndarray:
    """(NUM_PATTERNS,) float64, ascending: the lowest number of each pattern, infinite beyond the finite ones."""
    ordered = np.arange(NUM_PATTERNS, dtype=np.uint32) << 16
    lowest = np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered).view(np.float32)
    beyond = np.where(ordered & _SIGN, np.float32(np.inf), np.float32(-np.inf))
    return np.where(np.isnan(lowest), beyond, lowest).astype(np.float64)


def boundaries_of(counts: np.ndarray, num_buckets: int) -> np.ndarray | None:
    """(num_buckets - 1,) float64, ascending: between buckets of equally many values; None when none was counted.

    Boundary k is the lowest number of the pattern that has the (k / num_buckets)-quantile. With many equal values some
    boundaries are equal: then no value lies between them, and the buckets there stay empty.

    Args:
        counts: (NUM_PATTERNS,) sums of `pattern_counts`, aged or not.
    """
    below_or_in = np.cumsum(counts, dtype=np.float64)
    if not below_or_in[-1] > 0:
        return None
    ranks = below_or_in[-1] * np.arange(1, num_buckets) / num_buckets
    return lowest_values()[np.searchsorted(below_or_in, ranks, side="right")]


def by_magnitude(schema: Schema) -> Schema:
    """The schema with fixed buckets, powers of two, in place of those at quantiles: for whoever looks at an increment
    by itself, without what others have left."""
    if not any(feature.quantiles for feature in schema.sparse):
        return schema
    fixed = {"quantiles": None, "boundaries": _BY_MAGNITUDE}
    sparse = tuple(f.model_copy(update=fixed) if f.quantiles else f for f in schema.sparse)
    return schema.model_copy(update={"sparse": sparse})
