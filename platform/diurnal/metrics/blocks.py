"""Sums per block of neighbouring rows, for each segment: how certain a number is can be seen from how blocks differ.

Rows near in time, or of one request, are alike. So a block is a contiguous range of positions: rows that depend on each
other stay together, and what differs from block to block is the scatter that a new day would have too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from diurnal.errors import CheckpointError, Fault
from diurnal.metrics.evidence import ALL, COLUMNS, Evidence

MAX_BLOCKS = 32
"""With 31 degrees of freedom a one-sided 95 % interval is 3 % wider than with infinitely many; more blocks would only
be shorter, and so more alike each other's neighbours."""

MIN_BLOCK_ROWS = 25


def num_blocks(num_rows: int) -> int:
    """Blocks of so many rows: 1 to `MAX_BLOCKS`, the same for any world size and batch size."""
    return max(1, min(MAX_BLOCKS, num_rows // MIN_BLOCK_ROWS))


class BlockSums:
    """`COLUMNS` per segment and block over the rows that were scored, in float64, on one device; ranks add up.

    A row of weight 0 or row index -1 (padding) counts nowhere. `update` never waits for the device.

    Args:
        num_rows: positions of the whole pass; row indices are from 0 to num_rows - 1.
        segments: names of segments beside all rows.
        device: where the logits are.
    """

    def __init__(self, num_rows: int, segments: Sequence[str] = (), device: torch.device | str = "cpu") -> None:
        assert num_rows >= 0, num_rows
        self.num_rows = num_rows
        self.segments = (ALL, *segments)
        self.num_blocks = num_blocks(num_rows)
        shape = (len(self.segments), self.num_blocks, len(COLUMNS))
        self._sums = torch.zeros(shape, dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor,
        row_index: torch.Tensor,
        segment_rows: torch.Tensor | None = None,
    ) -> None:
        """Adds scored rows: all (B,), labels 0 or 1, `row_index` int64, best on the host.

        Args:
            segment_rows: (S, B) bool, which rows are in each segment beside all rows; None without segments.
        """
        assert logits.dim() == 1, logits.shape
        assert logits.shape == labels.shape == weights.shape == row_index.shape, (logits.shape, row_index.shape)
        num_segments = 0 if segment_rows is None else segment_rows.shape[0]
        assert num_segments == len(self.segments) - 1, (num_segments, self.segments)
        if row_index.device.type == "cpu" and len(row_index):
            assert -1 <= int(row_index.min()) <= int(row_index.max()) < self.num_rows, self.num_rows
        device = self._sums.device
        block = (row_index.clamp_min(0) * self.num_blocks // max(self.num_rows, 1)).to(device)
        logits, labels, weights = (rows.detach().to(self._sums) for rows in (logits, labels, weights))
        columns = _columns(logits, labels, weights, row_index.to(device) >= 0)
        self._sums[0].index_add_(0, block, columns)
        for segment in range(num_segments):
            assert segment_rows is not None
            mine = segment_rows[segment].to(device)[:, None]
            self._sums[segment + 1].index_add_(0, block, columns.where(mine, 0.0))

    def to_vector(self) -> torch.Tensor:
        """A copy of the whole state: float64, (segments * blocks * len(COLUMNS),). Vectors of ranks add up."""
        return self._sums.flatten().clone()

    @classmethod
    def from_vector(cls, vector: torch.Tensor, num_rows: int, segments: Sequence[str] = ()) -> BlockSums:
        """The state that a vector, or the sum of several, stands for, on the vector's device.

        Raises:
            CheckpointError: when the vector was made for other `num_rows` or `segments`.
        """
        state = cls(num_rows, segments, vector.device)
        if vector.shape != (state._sums.numel(),):
            found, rule = f"{vector.numel()} numbers", f"{state._sums.numel()} numbers for {num_rows} rows"
            raise CheckpointError([Fault("sums per block", found, rule, "score these rows again")])
        state._sums.copy_(vector.view_as(state._sums))
        return state

    def merge(self, other: BlockSums) -> None:
        """Adds what another rank has counted in the same pass."""
        assert (self.num_rows, self.segments) == (other.num_rows, other.segments)
        self._sums += other._sums.to(self._sums.device)

    def evidence(self) -> Evidence:
        """What has been counted; to be called on merged state."""
        return Evidence(self.num_rows, self.segments, self._sums.cpu().numpy().copy())


def _columns(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, is_row: torch.Tensor) -> torch.Tensor:
    """`COLUMNS` of each row: (B, len(COLUMNS))."""
    has_weight = is_row & (weights != 0)
    is_known = has_weight & torch.isfinite(labels) & torch.isfinite(weights)
    is_scored = is_known & torch.isfinite(logits)
    is_positive = is_known & (labels > 0.5)
    logits = logits.where(is_scored, 0.0)
    scored_weights = weights.where(is_scored, 0.0)
    signed = logits.where(~is_positive, -logits)
    log_losses = signed.clamp_min(0.0) + torch.log1p(torch.exp(-signed.abs()))
    return torch.stack(
        [
            is_known.to(weights),
            is_positive.to(weights),
            weights.where(is_known, 0.0),
            weights.where(is_positive, 0.0),
            scored_weights * torch.sigmoid(logits),
            scored_weights * log_losses,
            (has_weight & ~is_scored).to(weights),
        ],
        dim=1,
    )
