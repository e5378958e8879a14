"""What the increments before have left: in how many rows each id has been, how many of these were positives, and which
ids have a row of their own in a table; and how the values of a number are spread, for buckets at its quantiles.

Counts are kept for each row of a feature's table, so that ids that share a row share their past too, and looking one
up costs no second hash. A version's past covers exactly the rows that its lineage has learned, or dropped as negatives:
rows that are held out of an increment come in with the increment that learns them. So no row ever meets its own label
in an input.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from diurnal.config import Dense, Sparse
from diurnal.data.quantiles import boundaries_of

IMPRESSIONS, POSITIVES = 0, 1
"""Rows of what is counted for a feature."""


@dataclass(frozen=True, eq=False)
class Past:
    """Sums over the rows that were learned."""

    increment: str = ""
    """The newest one; empty when nothing was learned."""
    impressions: float = 0.0
    """Rows."""
    positives: float = 0.0
    of_feature: dict[str, np.ndarray] = field(default_factory=dict)
    """By name of a sparse feature (2, table rows) float64: impressions and positives of each row of its table; a
    feature that is not there has no past."""
    vocabulary: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """By name of a feature: (K,) uint64 hashes of ids, ascending, and (K,) int32 their rows, from 1."""
    of_values: dict[str, np.ndarray] = field(default_factory=dict)
    """By name of a feature (65536,) float64: its values by `quantiles.pattern_counts`."""
    _boundaries: dict[str, np.ndarray | None] = field(default_factory=dict, init=False, repr=False)
    """Of the features that were asked for."""

    def boundaries(self, feature: Sparse) -> np.ndarray | None:
        """Those of a feature that is bucketized, ascending; None when they are at quantiles and nothing was learned."""
        if not feature.quantiles:
            return np.array(feature.boundaries)
        if feature.name not in self._boundaries:
            counts = self.of_values.get(feature.name)
            found = None if counts is None else boundaries_of(counts, feature.quantiles)
            self._boundaries[feature.name] = found
        return self._boundaries[feature.name]

    def buckets(self, feature: Sparse, values: np.ndarray) -> np.ndarray | None:
        """(N,) int64: how many boundaries are not greater than each value; None as `boundaries`."""
        boundaries = self.boundaries(feature)
        return None if boundaries is None else np.searchsorted(boundaries, values, side="right")

    def vocabulary_rows(self, feature: str, hashes: np.ndarray) -> np.ndarray:
        """(N,) rows of the ids with these uint64 hashes; 0 for those that have none of their own."""
        known, rows = self.vocabulary.get(feature, (np.empty(0, np.uint64), np.empty(0, np.int32)))
        if not len(known):
            return np.zeros(len(hashes), np.int32)
        places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        return np.where(known[places] == hashes, rows[places], 0)

    @property
    def rate(self) -> float:
        return self.positives / self.impressions if self.impressions else 0.0

    def value(self, feature: Dense, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """What an input is before clip and transform, (n,) float64.

        Args:
            ids: (N,) rows of the table, row by row.
            lengths: (n,) ids per row.
        """
        counts = self.of_feature.get(feature.past)
        if counts is None:
            return np.zeros(len(lengths))
        of_ids = _looked_up(counts[IMPRESSIONS], ids)
        if feature.value == "effect":
            impressions, of_ids = of_ids, _looked_up(counts[POSITIVES], ids)
            of_ids -= self.rate * impressions
            of_ids /= impressions + feature.prior
        if len(ids) == len(lengths) and (lengths == 1).all():
            return of_ids
        row_of_id = np.repeat(np.arange(len(lengths)), lengths)
        return np.bincount(row_of_id, of_ids, minlength=len(lengths)) / np.maximum(lengths, 1)


def _looked_up(counts: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """A copy; 0 for rows that a table has got since it was counted."""
    if ids.max(initial=0) < len(counts):
        return counts.take(ids)
    return np.where(ids < len(counts), counts.take(ids, mode="clip"), 0.0)


NOTHING = Past()
