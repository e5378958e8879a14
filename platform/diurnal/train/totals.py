"""What one pass adds up to over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from diurnal.data.audit import RowAudit
from diurnal.metrics.groups import Grouped, GroupRows, group_sums, lowest_level
from diurnal.metrics.report import Report
from diurnal.metrics.segments import Segment
from diurnal.metrics.slices import Slice, SliceSums, slices_of
from diurnal.metrics.state import BinaryMetrics, Reliability
from diurnal.train.passes import Pass
from diurnal.train.setup import Learner

_NEVER = torch.iinfo(torch.int64).min


@dataclass(frozen=True)
class Totals:
    """A pass over an increment, all ranks together; the same on every rank."""

    report: Report
    tasks: dict[str, Report]
    """Of the outcomes beside the label."""
    slices: tuple[Slice, ...]
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
            "tasks": {name: report.to_dict() for name, report in self.tasks.items()},
            "slices": [one.to_dict() for one in self.slices],
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


def add_up(
    learner: Learner, done: Pass, prior: tuple[float, float] = (0.0, 0.0), named: Sequence[Segment] = ()
) -> Totals:
    """Merges sums and histograms over the ranks, then computes the numbers once: nothing is averaged.

    Args:
        prior: weight of clicks and of all rows that the running-rate baseline knows beforehand.
        named: segments that tell which ids slices are about.
    """
    metrics = _merged(done.metrics)
    rows = torch.tensor([done.num_rows, done.num_skipped_rows, *done.counts.tolist()], dtype=torch.int64)
    num_rows, num_skipped_rows, *counts = reduced(rows.to(learner.device), dist.ReduceOp.SUM).tolist()
    watermark = torch.tensor([_NEVER if done.watermark_us is None else done.watermark_us], dtype=torch.int64)
    (watermark_us,) = reduced(watermark.to(learner.device), dist.ReduceOp.MAX).tolist()
    times = torch.tensor([done.wall_s, done.wait_s / max(done.wall_s, 1e-9)], dtype=torch.float64)
    wall_s, wait_share = reduced(times.to(learner.device), dist.ReduceOp.MAX).tolist()
    report = metrics.compute(*prior)
    if done.groups is not None:
        report = grouped(done.groups, learner.device).added_to(report)
    return Totals(
        report=report,
        tasks={name: _merged(of_task).compute() for name, of_task in done.tasks.items()},
        slices=() if done.slices is None else _slices(learner, done.slices, named),
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


def _merged(metrics: BinaryMetrics) -> BinaryMetrics:
    state = reduced(metrics.to_vector(), dist.ReduceOp.SUM)
    return BinaryMetrics.from_vector(state, metrics.bins, metrics.num_steps)


def grouped(groups: GroupRows, device: torch.device) -> Grouped:
    """The numbers of all groups, each computed by the one rank that gets all of its rows. A collective call; on the
    way, rows of groups that are too many are left out of `groups`."""
    (level,) = reduced(torch.tensor([groups.level], device=device), dist.ReduceOp.MAX).tolist()
    groups.raise_level(level)
    by_level = reduced(torch.from_numpy(groups.rows_by_level().copy()).to(device)).cpu().numpy()
    level = lowest_level(by_level, level, groups.max_rows)
    groups.raise_level(level)
    counts = torch.tensor([groups.rows_without_group], dtype=torch.int64)
    (rows_without_group,) = reduced(counts.to(device)).tolist()
    sums = reduced(torch.from_numpy(group_sums(*_owned(groups, device))).to(device))
    return Grouped(sums.cpu().numpy(), level, int(by_level[level]), rows_without_group)


def _owned(groups: GroupRows, device: torch.device) -> tuple[np.ndarray, np.ndarray]:
    """All rows of the groups that this rank computes: hashes, and scores on the host."""
    hashes, scores = groups.rows()
    world_size = dist.get_world_size()
    if world_size == 1:
        return hashes, scores.cpu().numpy()
    owner = (hashes % np.uint64(world_size)).astype(np.int64)
    order = np.argsort(owner, kind="stable")
    sent = torch.from_numpy(np.bincount(owner, minlength=world_size)).to(device)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    splits: tuple[list[int], list[int]] = received.tolist(), sent.tolist()
    moved = torch.from_numpy(hashes[order].view(np.int64)).to(device)
    num_rows = sum(splits[0])
    mine = moved.new_empty(num_rows)
    dist.all_to_all_single(mine, moved, splits[0], splits[1])
    moved = scores[torch.from_numpy(order).to(device)].contiguous()
    my_scores = moved.new_empty((num_rows, scores.shape[1]))
    dist.all_to_all_single(my_scores, moved, splits[0], splits[1])
    return mine.cpu().numpy().view(np.uint64), my_scores.cpu().numpy()


def _slices(learner: Learner, counted: SliceSums, named: Sequence[Segment]) -> tuple[Slice, ...]:
    schema = learner.config.dataset
    sums = {feature: reduced(sums.clone()).cpu().numpy() for feature, sums in counted.sums.items()}
    return tuple(one for feature, of_ids in sums.items() for one in slices_of(schema, feature, of_ids, named))


def summed(audit: RowAudit, device: torch.device) -> RowAudit:
    """The rows of all ranks."""
    return RowAudit.from_array(reduced(torch.from_numpy(audit.to_array()).to(device)).cpu().numpy())


def reduced(tensor: torch.Tensor, how: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
    """The tensor, in place, combined over all ranks."""
    dist.all_reduce(tensor, op=how)
    return tensor
