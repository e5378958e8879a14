"""What one pass adds up to over all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from diurnal.data.audit import RowAudit
from diurnal.metrics.report import Report
from diurnal.metrics.state import BinaryMetrics, Reliability
from diurnal.train.passes import Pass
from diurnal.train.setup import Learner

_NEVER = torch.iinfo(torch.int64).min


@dataclass(frozen=True)
class Totals:
    """A pass over an increment, all ranks together; the same on every rank."""

    report: Report
    reliability: Reliability
    rows: int
    """Real rows that were read: all of the increment's."""
    counts: dict[str, int]
    watermark_us: int | None
    audit: RowAudit
    """Which rows they were."""
    num_steps: int
    num_skipped_steps: int
    num_skipped_rows: int
    wall_s: float
    """Of the slowest rank, from the start of reading to the last step."""
    wait_share: float
    """Part of the wall time in which the model waited for data, of the rank that waited longest."""

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.wall_s if self.wall_s > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "report": self.report.to_dict(),
            "rows": self.rows,
            "counts": self.counts,
            "watermark_us": self.watermark_us,
            "num_steps": self.num_steps,
            "num_skipped_steps": self.num_skipped_steps,
            "num_skipped_rows": self.num_skipped_rows,
            "wall_s": self.wall_s,
            "rows_per_s": self.rows_per_s,
            "wait_share": self.wait_share,
        }


def add_up(learner: Learner, done: Pass, prior: tuple[float, float] = (0.0, 0.0)) -> Totals:
    """Merges sums and histograms over the ranks, then computes the numbers once: nothing is averaged.

    Args:
        prior: weight of clicks and of all rows that the running-rate baseline knows beforehand.
    """
    state = reduced(done.metrics.to_vector(), dist.ReduceOp.SUM)
    metrics = BinaryMetrics.from_vector(state, done.metrics.bins, done.metrics.num_steps)
    rows = torch.tensor([done.num_rows, done.num_skipped_rows, *done.counts.tolist()], dtype=torch.int64)
    num_rows, num_skipped_rows, *counts = reduced(rows.to(learner.device), dist.ReduceOp.SUM).tolist()
    watermark = torch.tensor([_NEVER if done.watermark_us is None else done.watermark_us], dtype=torch.int64)
    (watermark_us,) = reduced(watermark.to(learner.device), dist.ReduceOp.MAX).tolist()
    times = torch.tensor([done.wall_s, done.wait_s / max(done.wall_s, 1e-9)], dtype=torch.float64)
    wall_s, wait_share = reduced(times.to(learner.device), dist.ReduceOp.MAX).tolist()
    return Totals(
        report=metrics.compute(*prior),
        reliability=metrics.reliability(),
        rows=num_rows,
        counts=dict(zip(learner.count_names, counts, strict=True)),
        watermark_us=None if watermark_us == _NEVER else watermark_us,
        audit=summed(done.audit, learner.device),
        num_steps=done.num_steps,
        num_skipped_steps=done.num_skipped_steps,
        num_skipped_rows=num_skipped_rows,
        wall_s=wall_s,
        wait_share=wait_share,
    )


def summed(audit: RowAudit, device: torch.device) -> RowAudit:
    """The rows of all ranks."""
    return RowAudit.from_array(reduced(torch.from_numpy(audit.to_array()).to(device)).cpu().numpy())


def reduced(tensor: torch.Tensor, how: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
    """The tensor, in place, combined over all ranks."""
    dist.all_reduce(tensor, op=how)
    return tensor
