"""What one pass over an increment adds up on one rank, and how that goes on after a restart at another world size."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from diurnal.data.audit import RowAudit
from diurnal.data.batch import Batch
from diurnal.metrics.groups import GroupRows
from diurnal.metrics.slices import SliceSums
from diurnal.metrics.state import BinaryMetrics
from diurnal.model.loss import labelled
from diurnal.train.setup import Learner
from diurnal.train.trial import TrialSums

_NEVER = torch.iinfo(torch.int64).min
_GROUPS = ("groups", "group_scores")
_SLICE, _TASK = "slice/", "task/"
"""Names, and the beginning of names, among the tensors of a resume point."""


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
    groups: GroupRows | None = None
    """Rows that GAUC is computed from; only where the schema has groups."""
    slices: SliceSums | None = None
    """Sums for each id of the features that `metrics.slices` names, if it names some."""
    tasks: dict[str, BinaryMetrics] = field(default_factory=dict)
    """Of the outcomes beside the label, each over the rows that have it."""

    @staticmethod
    def new(learner: Learner, num_steps: int) -> Pass:
        """One that is shown; versions are judged without its groups, slices and tasks."""
        settings, schema, device = learner.config.metrics, learner.config.dataset, learner.device
        done = Pass.bare(learner, num_steps)
        done.groups = GroupRows(settings.group_rows, device) if schema.group_id else None
        done.slices = SliceSums(schema, settings.slices, device) if settings.slices else None
        done.tasks = {task.name: BinaryMetrics(settings.auc_bins, 0, device) for task in schema.tasks}
        return done

    @staticmethod
    def bare(learner: Learner, num_steps: int) -> Pass:
        """One of the label alone, without groups and slices."""
        metrics = BinaryMetrics(learner.config.metrics.auc_bins, num_steps, learner.device)
        return Pass(metrics, np.zeros(len(learner.count_names), np.int64))

    def add_scores(self, logits: torch.Tensor, batch: Batch) -> None:
        """Adds what the model answered to a batch: (B, 1 + T) logits. Negatives stand for those that are dropped."""
        weights = batch.metric_weights
        for index, of_task in enumerate(self.tasks.values()):
            of_task.update(logits[:, 1 + index], *labelled(batch.task_labels[index], weights))
        logits = logits[:, 0]
        self.metrics.update(logits, batch.labels, weights, step=batch.step)
        if self.groups is not None and batch.groups is not None:
            real = slice(batch.num_rows)
            self.groups.update(logits[real], batch.labels[real], weights[real], batch.groups[real])
        if self.slices is not None:
            self.slices.update(logits, batch.labels, weights, batch.sparse)
        if self.blocks is not None:
            self.blocks.update(logits, batch)

    def sums(self) -> torch.Tensor:
        """`SUMS` of the label, then of each task: (1 + T, 7) float64."""
        return torch.stack([metrics.sums() for metrics in (self.metrics, *self.tasks.values())])

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
        numbers_of_groups = {} if self.groups is None else dict(zip(_GROUPS, self.groups.to_tensors(), strict=True))
        slices = {} if self.slices is None else self.slices.sums
        return {
            "metrics": self.metrics.to_vector(),
            "counts": torch.from_numpy(self.counts.copy()),
            "audit": torch.from_numpy(self.audit.to_array().copy()),
            "numbers": torch.tensor([*numbers, watermark], dtype=torch.int64),
            "seconds": torch.tensor([self.wait_s + self.feed_wait_s, wall_s], dtype=torch.float64),
            **numbers_of_groups,
            **{f"{_SLICE}{feature}": sums for feature, sums in slices.items()},
            **{f"{_TASK}{name}": of_task.to_vector() for name, of_task in self.tasks.items()},
        }

    def go_on(self, first: dict[str, torch.Tensor], shares: list[dict[str, torch.Tensor]]) -> None:
        """Makes a new pass continue one that was saved. Groups, slices and tasks that were not counted from its
        beginning on are not counted.

        Args:
            first: of rank 0 of then; steps are counted alike on all ranks.
            shares: of the ranks of then that this one stands for; none when there are more ranks now.
        """
        self.num_steps, self.num_skipped_steps = first["numbers"][:2].tolist()
        self.wait_s, self.wall_s = first["seconds"].tolist()
        if _GROUPS[0] not in first:
            self.groups = None
        if self.slices is not None:
            self.slices.keep_only(_slices_in(first))
        self.tasks = {name: of_task for name, of_task in self.tasks.items() if f"{_TASK}{name}" in first}
        for share in shares:
            for name, of_task in self.tasks.items():
                of_task.merge(BinaryMetrics.from_vector(share[f"{_TASK}{name}"], of_task.bins))
            self.metrics.merge(BinaryMetrics.from_vector(share["metrics"], self.metrics.bins, self.metrics.num_steps))
            self.counts += share["counts"].numpy()
            self.audit.merge(RowAudit.from_array(share["audit"].numpy()))
            if self.groups is not None:
                numbers, scores = (share[name] for name in _GROUPS)
                self.groups.merge(GroupRows.from_tensors(numbers, scores, self.groups.max_rows))
            if self.slices is not None:
                self.slices.merge(_slices_in(share))
            _, _, num_rows, num_skipped_rows, watermark = share["numbers"].tolist()
            self.num_rows += num_rows
            self.num_skipped_rows += num_skipped_rows
            if watermark != _NEVER:
                self.watermark_us = max(watermark, self.watermark_us or watermark)

    def finish(self) -> Pass:
        self.wait_s += self.feed_wait_s
        self.wall_s += time.perf_counter() - self.started_s
        return self


def _slices_in(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By feature."""
    return {name.removeprefix(_SLICE): sums for name, sums in tensors.items() if name.startswith(_SLICE)}
