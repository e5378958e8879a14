"""The training loss."""

from __future__ import annotations

import math

import torch
from torch.nn import functional


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
