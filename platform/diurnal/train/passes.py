"""What one pass over an increment adds up on one rank, and how that goes on after a restart at another world size."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from diurnal.data.audit import RowAudit
from diurnal.data.batch import Batch
from diurnal.metrics.state import BinaryMetrics
from diurnal.train.setup import Learner
from diurnal.train.trial import TrialSums

_NEVER = torch.iinfo(torch.int64).min


@dataclass
class Pass:
    """One pass on this rank, attempts before this one included."""

    metrics: BinaryMetrics
    counts: np.ndarray
    """int64, in the order of `data.encode.count_names`."""
    audit: RowAudit = field(default_factory=RowAudit)
    """Which rows were read: a checksum of their positions."""
    num_steps: int = 0
    """Steps that changed the model."""
    num_skipped_steps: int = 0
    num_rows: int = 0
    """Real rows of this rank."""
    num_skipped_rows: int = 0
    watermark_us: int | None = None
    """Newest event time, microseconds since the epoch, UTC."""
    wait_s: float = 0.0
    """Waiting for data, in attempts before this one."""
    feed_wait_s: float = 0.0
    """The same, in this attempt."""
    wall_s: float = 0.0
    """Of attempts before this one, until the pass is finished."""
    started_s: float = field(default_factory=time.perf_counter)
    blocks: TrialSums | None = None
    """Sums that versions are compared by; only where one is judged."""

    @staticmethod
    def new(learner: Learner, num_steps: int) -> Pass:
        metrics = BinaryMetrics(learner.config.metrics.auc_bins, num_steps, learner.device)
        return Pass(metrics, np.zeros(len(learner.count_names), np.int64))

    def add_scores(self, logits: torch.Tensor, batch: Batch) -> None:
        """Adds what the model answered to a batch: (B,) logits."""
        self.metrics.update(logits, batch.labels, batch.weights, step=batch.step)
        if self.blocks is not None:
            self.blocks.update(logits, batch)

    def count(self, batch: Batch, feed_wait_s: float) -> None:
        self.feed_wait_s = feed_wait_s
        self.num_rows += batch.num_rows
        self.counts += batch.counts
        self.audit.add(batch.row_index.numpy())
        if batch.watermark_us is not None:
            self.watermark_us = max(batch.watermark_us, self.watermark_us or batch.watermark_us)

    def to_tensors(self) -> dict[str, torch.Tensor]:
        """The pass so far, for a resume point."""
        numbers = [self.num_steps, self.num_skipped_steps, self.num_rows, self.num_skipped_rows]
        watermark = _NEVER if self.watermark_us is None else self.watermark_us
        wall_s = self.wall_s + time.perf_counter() - self.started_s
        return {
            "metrics": self.metrics.to_vector(),
            "counts": torch.from_numpy(self.counts.copy()),
            "audit": torch.from_numpy(self.audit.to_array().copy()),
            "numbers": torch.tensor([*numbers, watermark], dtype=torch.int64),
            "seconds": torch.tensor([self.wait_s + self.feed_wait_s, wall_s], dtype=torch.float64),
        }

    def go_on(self, first: dict[str, torch.Tensor], shares: list[dict[str, torch.Tensor]]) -> None:
        """Makes a new pass continue one that was saved.

        Args:
            first: of rank 0 of then; steps are counted alike on all ranks.
            shares: of the ranks of then that this one stands for; none when there are more ranks now.
        """
        self.num_steps, self.num_skipped_steps = first["numbers"][:2].tolist()
        self.wait_s, self.wall_s = first["seconds"].tolist()
        for share in shares:
            self.metrics.merge(BinaryMetrics.from_vector(share["metrics"], self.metrics.bins, self.metrics.num_steps))
            self.counts += share["counts"].numpy()
            self.audit.merge(RowAudit.from_array(share["audit"].numpy()))
            _, _, num_rows, num_skipped_rows, watermark = share["numbers"].tolist()
            self.num_rows += num_rows
            self.num_skipped_rows += num_skipped_rows
            if watermark != _NEVER:
                self.watermark_us = max(watermark, self.watermark_us or watermark)

    def finish(self) -> Pass:
        self.wait_s += self.feed_wait_s
        self.wall_s += time.perf_counter() - self.started_s
        return self
