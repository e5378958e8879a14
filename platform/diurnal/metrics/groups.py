"""GAUC: AUC within groups of rows, such as the impressions of one user; exact, or of a sample of whole groups.

The AUC of all rows also rewards telling users apart who click from users who do not. GAUC is about the order within
each user, which is what a ranking can change:

    GAUC = sum over g of w_g * AUC_g / sum over g of w_g

over the groups that have both classes, w_g the weight of a group's rows (Zhou et al., "Deep Interest Network for
Click-Through Rate Prediction", 2018).

A group's AUC needs its rows, so rows are kept: those of the groups whose 64-bit hash is below 2 ** (64 - level). The
level is the lowest one that leaves at most `max_rows` rows, over all ranks, so it follows from the rows alone: neither
their order, nor the world size, nor a restart on the way can change it. At level 0 nothing is left out; above it a
single group of more than `max_rows` rows is left out for certain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from diurnal.data.encoded import NO_GROUP
from diurnal.metrics.report import Report

NUM_LEVELS = 65
"""Level 64 keeps no group at all."""

GROUP_SUMS = ("groups", "rows", "w", "w_auc", "w2", "w2_auc", "w2_auc2", "one_class_groups")
"""Additive numbers: groups with both classes, their rows, and over these groups the sums of w, w * AUC, w^2,
w^2 * AUC and w^2 * AUC^2, w the weight of a group's rows; and groups with rows of one class alone."""

_FIRST_CAPACITY = 4096
_POWERS = np.uint64(1) << np.arange(64, dtype=np.uint64)


class GroupRows:
    """The scored rows of whole groups on one rank, as many as fit: hashes on the host, scores where the logits are.

    `update` never waits for the device.

    Args:
        max_rows: rows that are kept: at most so many on each rank, and in the end over all ranks together; 20 bytes
            each, 8 of them on the host.
        device: where the logits are.
    """

    def __init__(self, max_rows: int, device: torch.device | str = "cpu") -> None:
        assert max_rows > 0, max_rows
        self.max_rows = max_rows
        self.level = 0
        self.rows_without_group = 0
        self._num_rows = 0
        self._hashes = np.empty(0, np.uint64)
        self._scores = torch.empty((0, 3), dtype=torch.float32, device=device)

    @torch.no_grad()
    def update(self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, hashes: np.ndarray) -> None:
        """Adds scored rows, none of them padding: all (n,), labels 0 or 1, `hashes` uint64 or `NO_GROUP`."""
        assert logits.shape == labels.shape == weights.shape == hashes.shape, (logits.shape, hashes.shape)
        self.rows_without_group += int(np.count_nonzero(hashes == NO_GROUP))
        scores = torch.stack([rows.detach().to(self._scores) for rows in (logits, labels, weights)], dim=1)
        self._add(hashes, scores)

    def merge(self, other: GroupRows) -> None:
        """Adds what another rank, or an earlier part of the same pass, has kept."""
        hashes, scores = other.rows()
        self.raise_level(max(self.level, other.level))
        self._add(hashes, scores.to(self._scores))
        self.rows_without_group += other.rows_without_group

    def raise_level(self, level: int) -> None:
        """Leaves out the groups that a level which other ranks have reached leaves out."""
        assert level >= self.level, (level, self.level)
        if level > self.level:
            self.level = level
            self._keep_level()

    def rows_by_level(self) -> np.ndarray:
        """(NUM_LEVELS,) int64 rows that each level would leave; those below `level` are too few."""
        bits = np.searchsorted(_POWERS, self._hashes[: self._num_rows], side="right")
        return np.cumsum(np.bincount(bits, minlength=NUM_LEVELS))[::-1]

    def rows(self) -> tuple[np.ndarray, torch.Tensor]:
        """(n,) uint64 hashes and (n, 3) float32 logits, labels and weights. Views."""
        return self._hashes[: self._num_rows], self._scores[: self._num_rows]

    def to_tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The state for a resume point, neither of them ever empty: int64 (2 + n,), level, rows without a group, then
        the hashes' bits; float32 (1 + n, 3), zeros, then the scores."""
        hashes, scores = self.rows()
        numbers = np.array([self.level, self.rows_without_group], np.int64)
        head = torch.zeros((1, 3), dtype=scores.dtype, device=scores.device)
        return torch.from_numpy(np.concatenate([numbers, hashes.view(np.int64)])), torch.cat([head, scores])

    @classmethod
    def from_tensors(cls, numbers: torch.Tensor, scores: torch.Tensor, max_rows: int) -> GroupRows:
        """The inverse of `to_tensors`, on the device of `scores`."""
        state = cls(max_rows, scores.device)
        values = numbers.cpu().numpy()
        state.level, state.rows_without_group = int(values[0]), int(values[1])
        state._add(values[2:].view(np.uint64), scores[1:])
        return state

    def _add(self, hashes: np.ndarray, scores: torch.Tensor) -> None:
        kept = np.flatnonzero(_are_kept(hashes, self.level))
        if len(kept) < len(hashes):
            hashes, scores = hashes[kept], _taken(scores, kept)
        start, stop = self._num_rows, self._num_rows + len(hashes)
        self._make_room(stop)
        self._hashes[start:stop] = hashes
        self._scores[start:stop] = scores
        self._num_rows = stop
        if stop > self.max_rows:
            self.level = lowest_level(self.rows_by_level(), self.level, self.max_rows)
            self._keep_level()

    def _make_room(self, num_rows: int) -> None:
        if num_rows <= len(self._hashes):
            return
        more = max(num_rows, min(2 * len(self._hashes), self.max_rows), _FIRST_CAPACITY) - len(self._hashes)
        self._hashes = np.concatenate([self._hashes, np.empty(more, np.uint64)])
        self._scores = torch.cat([self._scores, self._scores.new_empty((more, 3))])

    def _keep_level(self) -> None:
        hashes, scores = self.rows()
        kept = np.flatnonzero(_are_kept(hashes, self.level))
        self._num_rows = len(kept)
        self._hashes[: len(kept)] = hashes[kept]
        self._scores[: len(kept)] = _taken(scores, kept)


def lowest_level(rows_by_level: np.ndarray, level: int, max_rows: int) -> int:
    """The lowest level, from `level` on, that leaves at most `max_rows` rows."""
    return level + int(np.argmax(rows_by_level[level:] <= max_rows))


def group_sums(hashes: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """`GROUP_SUMS` of rows that hold each of their groups whole, float64.

    Args:
        hashes: (n,) uint64.
        scores: (n, 3) logits, labels and weights. Rows without weight, and those that are not finite, count nowhere.
    """
    counts = (scores[:, 2] != 0) & np.isfinite(scores).all(axis=1)
    hashes, logits = hashes[counts], scores[counts, 0]
    if not len(hashes):
        return np.zeros(len(GROUP_SUMS))
    order = np.lexsort((logits, hashes))
    hashes, logits = hashes[order], logits[order]
    weight = scores[counts, 2][order].astype(np.float64)
    is_positive = scores[counts, 1][order] > 0.5
    # A tie is a run of rows of one group and one logit.
    ties = _run_starts(hashes) | _run_starts(logits)
    tie_at = np.flatnonzero(ties)
    positive = np.add.reduceat(np.where(is_positive, weight, 0.0), tie_at)
    negative = np.add.reduceat(np.where(is_positive, 0.0, weight), tie_at)
    group_at = np.flatnonzero(_run_starts(hashes[tie_at]))
    num_ties = np.diff(group_at, append=len(tie_at))
    num_rows = np.diff(tie_at[group_at], append=len(hashes))
    below = np.cumsum(negative) - negative
    below -= np.repeat(below[group_at], num_ties)
    won = np.add.reduceat(positive * (below + negative / 2), group_at)
    positive, negative = (np.add.reduceat(sums, group_at) for sums in (positive, negative))
    pairs = positive * negative
    has_both = pairs > 0
    w, auc = (positive + negative)[has_both], won[has_both] / pairs[has_both]
    square = w * w
    sums = [num_rows[has_both], w, w * auc, square, square * auc, square * auc * auc]
    totals = [float(values.sum()) for values in sums]
    return np.array([np.count_nonzero(has_both), *totals, np.count_nonzero(~has_both)], np.float64)


@dataclass(frozen=True)
class Grouped:
    """What the groups of a pass add up to, over all ranks."""

    sums: np.ndarray
    """`GROUP_SUMS`."""
    level: int
    kept_rows: int
    """Rows of groups that were not left out."""
    rows_without_group: int

    def added_to(self, report: Report) -> Report:
        """The report with its numbers of groups."""
        total: dict[str, float] = dict(zip(GROUP_SUMS, self.sums.tolist(), strict=True))
        groups, share = round(total["groups"]), 0.5**self.level
        gauc = total["w_auc"] / total["w"] if groups else None
        reason = report.reason
        if gauc is None and reason is None and self.level and not self.kept_rows:
            reason = "every group has more rows than metrics.group_rows lets be kept: GAUC is undefined"
        elif gauc is None and reason is None:
            reason = "no group has rows of both classes: GAUC is undefined"
        return replace(
            report,
            gauc=gauc,
            gauc_error=None if gauc is None else self._error(total, gauc, share),
            gauc_groups=groups,
            gauc_rows=round(total["rows"]),
            gauc_share=share,
            one_class_groups=round(total["one_class_groups"]),
            rows_without_group=self.rows_without_group,
            reason=reason,
        )

    @staticmethod
    def _error(total: dict[str, float], gauc: float, share: float) -> float | None:
        """Each group was taken by itself with the probability `share`; of the ratio of two totals, linearized
        (Särndal, Swensson and Wretman, "Model Assisted Survey Sampling", 1992, section 5.6)."""
        if share == 1:
            return 0.0
        if total["groups"] < 2:
            return None
        scatter = total["w2_auc2"] - 2 * gauc * total["w2_auc"] + gauc * gauc * total["w2"]
        return float(np.sqrt((1 - share) * max(scatter, 0.0)) / total["w"])


def _are_kept(hashes: np.ndarray, level: int) -> np.ndarray:
    return (hashes != NO_GROUP) & (hashes <= np.uint64(2 ** (64 - level) - 1))


def _taken(scores: torch.Tensor, kept: np.ndarray) -> torch.Tensor:
    return scores[torch.from_numpy(kept).to(scores.device, non_blocking=True)]


def _run_starts(values: np.ndarray) -> np.ndarray:
    """Where a value differs from the one before it; the first one does."""
    starts = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=starts[1:])
    return starts
