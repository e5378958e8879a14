"""Encoded rows that can be cut, reordered and joined: what lies between a piece of a file and a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diurnal.config import Schema

DENSE_COUNTS = ("null", "nonfinite", "missing_column_rows")
SPARSE_COUNTS = ("null", "negative", "unknown", "truncated", "ids", "missing_column_rows")
TASK_COUNTS = ("null", "missing_column_rows")

NO_TIME = np.iinfo(np.int64).min
"""Stands for a null event time: older than all others."""

NO_GROUP = 0
"""Stands for the hash of a row that belongs to no group."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """n rows. Legend: D dense features, F sparse features, N ids, T tasks, C = 3 D + 6 F + 2 T counts, E counts that
    happened."""

    dense: np.ndarray
    """(n, D) float32."""
    ids: tuple[np.ndarray, ...]
    """For each sparse feature its table rows, int32, row by row."""
    lengths: np.ndarray
    """(F, n) ids per row: uint8, or int32 if a row has more than 255."""
    id_weights: tuple[np.ndarray, ...]
    """For each sparse feature the weights of its ids, float32, by which a bag's vectors are added up, be it a sum or a
    mean; none at all where no feature has weights."""
    labels: np.ndarray
    """(n,) float32: 0 or 1."""
    task_labels: np.ndarray
    """(T, n) float32: 0, 1, or NaN where a row lacks the outcome."""
    weights: np.ndarray
    """(n,) float32."""
    times_us: np.ndarray | None
    """(n,) int64 event times, microseconds since 1970 UTC, or `NO_TIME`; None when the schema declares none."""
    groups: np.ndarray | None
    """(n,) uint64 hashes of the groups that GAUC is about, or `NO_GROUP`; None when the schema declares none."""
    events: np.ndarray
    """(E,) int64 positions, among the C counts, of those that happened in some row."""
    event_rows: np.ndarray
    """(E, n) int32: how often, in each row."""

    @staticmethod
    def empty(schema: Schema) -> Encoded:
        """No rows."""
        none = np.empty(0, np.float32)
        return Encoded(
            dense=np.empty((0, len(schema.dense)), np.float32),
            ids=(np.empty(0, np.int32),) * len(schema.sparse),
            lengths=np.empty((len(schema.sparse), 0), np.uint8),
            id_weights=(none,) * len(schema.sparse) if schema.has_bag_weights else (),
            labels=none,
            task_labels=np.empty((len(schema.tasks), 0), np.float32),
            weights=none,
            times_us=None,
            groups=None,
            events=np.empty(0, np.int64),
            event_rows=np.empty((0, 0), np.int32),
        )

    @property
    def num_rows(self) -> int:
        return len(self.labels)

    @property
    def values(self) -> np.ndarray:
        """(N,) int64 table rows: all ids of the first feature, row by row, then those of the next."""
        return np.concatenate(self.ids, dtype=np.int64)

    @property
    def counts(self) -> np.ndarray:
        """(C,) int64, in the order of `encode.count_names`."""
        first_sparse = len(DENSE_COUNTS) * self.dense.shape[1]
        first_task = first_sparse + len(SPARSE_COUNTS) * len(self.ids)
        counts = np.zeros(first_task + len(TASK_COUNTS) * len(self.task_labels), np.int64)
        looked_up = slice(first_sparse + SPARSE_COUNTS.index("ids"), first_task, len(SPARSE_COUNTS))
        counts[looked_up] = [len(ids) for ids in self.ids]
        counts[self.events] = self.event_rows.sum(axis=1, dtype=np.int64)
        return counts

    @property
    def watermark_us(self) -> int | None:
        """The newest event time."""
        if self.times_us is None or not len(self.times_us):
            return None
        newest = int(self.times_us.max())
        return None if newest == NO_TIME else newest

    def split(self, num_rows: int) -> tuple[Encoded, Encoded]:
        """The first `num_rows` rows, and the others; both are views."""
        num_ids = self.lengths[:, :num_rows].sum(axis=1, dtype=np.int32).tolist()
        heads, tails = [slice(None, k) for k in num_ids], [slice(k, None) for k in num_ids]
        return (
            self._with_rows(slice(None, num_rows), heads),
            self._with_rows(slice(num_rows, None), tails),
        )

    def take(self, rows: np.ndarray) -> Encoded:
        """The rows at these positions, in this order."""
        places = [_bag_places(len(i), lengths, rows) for i, lengths in zip(self.ids, self.lengths, strict=True)]
        return self._with_rows(rows, places)

    @staticmethod
    def concat(parts: Sequence[Encoded]) -> Encoded:
        """All rows of one or more parts of one schema."""
        if len(parts) == 1:
            return parts[0]
        events = np.unique(np.concatenate([part.events for part in parts]))
        event_rows = np.zeros((len(events), sum(part.num_rows for part in parts)), np.int32)
        stop = 0
        for part in parts:
            start, stop = stop, stop + part.num_rows
            event_rows[np.searchsorted(events, part.events), start:stop] = part.event_rows
        times = [part.times_us for part in parts if part.times_us is not None]
        groups = [part.groups for part in parts if part.groups is not None]
        return Encoded(
            dense=np.concatenate([part.dense for part in parts]),
            ids=tuple(np.concatenate(ids) for ids in zip(*(part.ids for part in parts), strict=True)),
            lengths=np.concatenate([part.lengths for part in parts], axis=1),
            id_weights=tuple(np.concatenate(w) for w in zip(*(part.id_weights for part in parts), strict=True)),
            labels=np.concatenate([part.labels for part in parts]),
            task_labels=np.concatenate([part.task_labels for part in parts], axis=1),
            weights=np.concatenate([part.weights for part in parts]),
            times_us=np.concatenate(times) if times else None,
            groups=np.concatenate(groups) if groups else None,
            events=events,
            event_rows=event_rows,
        )

    def _with_rows(self, rows: slice | np.ndarray, places: Sequence[slice | np.ndarray]) -> Encoded:
        """The rows; their ids of each feature are at `places`."""
        return Encoded(
            dense=self.dense[rows],
            ids=tuple(ids[place] for ids, place in zip(self.ids, places, strict=True)),
            lengths=self.lengths[:, rows],
            id_weights=tuple(weights[place] for weights, place in zip(self.id_weights, places, strict=False)),
            labels=self.labels[rows],
            task_labels=self.task_labels[:, rows],
            weights=self.weights[rows],
            times_us=None if self.times_us is None else self.times_us[rows],
            groups=None if self.groups is None else self.groups[rows],
            events=self.events,
            event_rows=self.event_rows[:, rows],
        )


def _bag_places(num_ids: int, lengths: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Where the ids of the rows are."""
    if num_ids == len(lengths) and (lengths == 1).all():
        return rows
    lengths = lengths.astype(np.int64)
    taken = lengths[rows]
    starts = (np.cumsum(lengths) - lengths)[rows] - (np.cumsum(taken) - taken)
    return np.repeat(starts, taken) + np.arange(taken.sum())
