"""Proof that rows were learned exactly once each: a fingerprint of a multiset of rows that adds up.

Every row's position i in the increment counts 1, mix64(i ^ A) and mix64(i ^ B), summed modulo 2^64. Sums do not depend
on the order, so those of steps, ranks, attempts and resume points are added, and then compared with the sums over
0 to N - 1. A lost and a doubled row, wherever they are, differ from that unless both sums collide: 2^-128 by chance.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from diurnal.data.hashing import BLOCK_IDS, mix64
from diurnal.data.partitions import JOINED_ROW, Increment
from diurnal.data.streams import ReadTask, Window, permutation

NUM_SUMS = 3
_KEYS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03))


class RowAudit:
    """The sums over a multiset of rows."""

    def __init__(self) -> None:
        self._sums = np.zeros(NUM_SUMS, np.uint64)

    @property
    def count(self) -> int:
        """Rows, each as often as it was added."""
        return int(self._sums[0])

    def add(self, row_index: np.ndarray) -> None:
        """Adds rows, int64 positions in the increment; negative ones are padding and are not counted."""
        is_padded = row_index.min(initial=0) < 0
        rows = (row_index[row_index >= 0] if is_padded else row_index).astype(np.int64, copy=False).view(np.uint64)
        self._sums[:1] += np.uint64(len(rows))
        scratch = np.empty(min(len(rows), BLOCK_IDS), np.uint64)
        for start in range(0, len(rows), BLOCK_IDS):
            block = rows[start : start + BLOCK_IDS]
            mixed = scratch[: len(block)]
            for place, key in enumerate(_KEYS, start=1):
                np.bitwise_xor(block, key, out=mixed)
                self._sums[place : place + 1] += mix64(mixed).sum()

    def merge(self, other: RowAudit) -> None:
        """Adds the rows of another audit: of another rank, or of the steps before."""
        self._sums += other._sums

    def to_array(self) -> np.ndarray:
        """(NUM_SUMS,) int64 with the bits of the sums. Adding such arrays element by element with wraparound, as
        NumPy's `+` and a sum over ranks of torch do, is `merge`."""
        return self._sums.view(np.int64).copy()

    @staticmethod
    def from_array(sums: np.ndarray) -> RowAudit:
        """The audit that `to_array`, or a sum of several, describes."""
        if sums.shape != (NUM_SUMS,) or sums.dtype != np.int64:
            raise ValueError(f"an audit is {NUM_SUMS} int64 sums, not {sums.dtype} of shape {sums.shape}")
        audit = RowAudit()
        audit._sums = sums.copy().view(np.uint64)
        return audit

    @staticmethod
    def expected(num_rows: int, start: int = 0) -> RowAudit:
        """Each of the rows [start, start + num_rows) once. Takes a few nanoseconds a row and a constant memory."""
        audit = RowAudit()
        for first in range(start, start + num_rows, BLOCK_IDS):
            audit.add(np.arange(first, min(first + BLOCK_IDS, start + num_rows), dtype=np.int64))
        return audit

    @staticmethod
    def expected_share(num_rows: int, rank: int, world_size: int) -> RowAudit:
        """One rank's share of the work of `expected(num_rows)`: those of all ranks add up to it."""
        start, stop = (num_rows * r // world_size for r in (rank, rank + 1))
        return RowAudit.expected(stop - start, start)

    @staticmethod
    def expected_of(increment: Increment, rank: int = 0, world_size: int = 1) -> RowAudit:
        """One rank's share of what learning an increment has to come to: its own rows, without those that are held out,
        and the joined ones; of both without the negatives that are dropped."""
        audit = RowAudit.expected_share(increment.num_own_rows, rank, world_size)
        start, stop = (increment.num_joined_rows * r // world_size for r in (rank, rank + 1))
        audit.merge(RowAudit.expected(stop - start, JOINED_ROW + start))
        if increment.held_out is not None and rank == 0:
            audit._sums -= np.array(increment.held_out.audit, np.int64).view(np.uint64)
        if increment.sampled is not None and rank == 0:
            audit._sums -= np.array(increment.sampled.dropped, np.int64).view(np.uint64)
        return audit

    @staticmethod
    def planned(tasks: Iterable[ReadTask]) -> RowAudit:
        """The rows that read tasks read. Where none is held out or dropped, what `StreamPlan.read_tasks` of all ranks
        for the steps [0, s) add up to is what a resume point after step s has learned."""
        audit = RowAudit()
        for task in tasks:
            assert task.sampling is None, "which rows of a row group are learned stands in the file"
            for window in (window for lane in task.lanes for window in lane.windows):
                audit.add(_window_rows(window))
        return audit

    def verdict(self, expected: RowAudit) -> str | None:
        """None when the rows are those expected, each as often; else what is wrong, as far as sums can tell."""
        surplus = self.count - expected.count
        if surplus:
            return f"{abs(surplus)} row{'s' * (abs(surplus) != 1)} {'missing' if surplus < 0 else 'too many'}"
        if np.array_equal(self._sums, expected._sums):
            return None
        return "rows differ from the increment's: as many as it has, but some are missing and others doubled"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowAudit) and np.array_equal(self._sums, other._sums)

    def __repr__(self) -> str:
        return f"RowAudit({self.count} rows, {self._sums[1]:016x}, {self._sums[2]:016x})"


def _window_rows(window: Window) -> np.ndarray:
    rows = np.concatenate([np.arange(r.first_row, r.first_row + r.num_rows) for r in window.ranges])
    if window.shuffle_key is not None and window.num_rows < len(rows):
        rows = rows[permutation(len(rows), window.shuffle_key)]
    return rows[window.skip : window.skip + window.num_rows]
