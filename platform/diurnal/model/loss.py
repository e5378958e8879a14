"""The training loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from diurnal.config import Task

if TYPE_CHECKING:
    from diurnal.data.batch import Batch


def weighted_bce(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, kept_negatives: float = 1.0
) -> torch.Tensor:
    """The weighted *sum* of binary cross-entropies in nats, from logits; all (B,), the answer a scalar.

    A rank knows its own rows only, so whoever calls it divides by the weight of the global batch. Rows of weight 0 add
    nothing, except where their logit is not finite: then the sum is not finite either, on purpose, since backward
    would carry 0 * nan into every weight, and the caller has to see that before a table is touched.

    Args:
        kept_negatives: share r of the negatives that is among the rows. The odds among these are 1 / r of the true
            ones, which the model's logits mean, so that the loss is that of `logits - ln r` (King and Zeng, "Logistic
            Regression in Rare Events Data", 2001: prior correction).
    """
    if kept_negatives != 1:
        logits = logits - math.log(kept_negatives)
    return functional.binary_cross_entropy_with_logits(logits, labels, weight=weights, reduction="sum")


def weighted_losses(logits: torch.Tensor, batch: Batch, tasks: Sequence[Task]) -> torch.Tensor:
    """`weighted_bce` of the label, and that of each task times its own weight, over the rows that have its label; all
    in `logits`, (B, 1 + T), the label's first. Where negatives of the label are dropped, those that are kept stand for
    them in the losses of tasks.

    Whoever calls it divides by the weight of the global batch here too: how many of its rows have a task's label does
    not change what each of them is worth.
    """
    total = weighted_bce(logits[:, 0], batch.labels, batch.weights, batch.kept_negatives)
    for index, task in enumerate(tasks):
        of_task = weighted_bce(logits[:, 1 + index], *labelled(batch.task_labels[index], batch.metric_weights))
        total = total + task.weight * of_task
    return total


def labelled(labels: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels and weights in which a row without a label, NaN, has label 0 and weight 0; all (B,)."""
    has_one = ~torch.isnan(labels)
    return torch.where(has_one, labels, 0.0), torch.where(has_one, weights, 0.0)
