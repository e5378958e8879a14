"""Additive state behind the numbers: ranks, batches and resumed runs merge by adding vectors.

A metric of a rank is never averaged: the mean of two AUCs is not the AUC of both (facebookresearch/dlrm#324).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from diurnal.errors import CheckpointError, Fault
from diurnal.metrics.report import (
    SUMS,
    Report,
    binary_entropy,
    histogram_auc,
    report_from_sums,
    running_rate_log_loss,
)

LOGIT_SCALE = 4.0
"""Bins are even in x / (LOGIT_SCALE + |x|): with 65536 of them 0.0001 wide at logit 0, 0.0005 at -4, 0.001 at -8."""

_CLASS_WEIGHTS = slice(SUMS.index("negative_weight"), SUMS.index("positive_weight") + 1)


@dataclass(frozen=True)
class Reliability:
    """Groups of rows of about equal weight, by ascending prediction: what was predicted, and what came."""

    prediction: np.ndarray
    """Mean prediction of each group, float64."""
    rate: np.ndarray
    """Mean label of each group."""
    weight: np.ndarray


class BinaryMetrics:
    """Sums and a histogram of logits over the rows that have been scored, in float64, on one device.

    A row of weight 0 (padding) counts nowhere. A row with weight whose logit, label or weight is not finite is
    counted in `nonfinite_rows` alone. `update` never waits for the device.

    Args:
        bins: bins of the histogram.
        num_steps: global batches of the increment, for the running-rate baseline; 0 goes without.
        device: where the logits are.
    """

    def __init__(self, bins: int = 65536, num_steps: int = 0, device: torch.device | str = "cpu") -> None:
        self.bins = bins
        self.num_steps = num_steps
        self._state = torch.zeros(len(SUMS) + 2 * (num_steps + bins), dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(
        self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, step: int | None = None
    ) -> None:
        """Adds scored rows: all (B,), labels 0 or 1; `step` is the index of their global batch."""
        assert logits.dim() == 1, logits.shape
        assert logits.shape == labels.shape == weights.shape, (logits.shape, labels.shape, weights.shape)
        logits, labels, weights = (rows.detach().to(self._state) for rows in (logits, labels, weights))
        of_rows = row_sums(logits, labels, weights)
        added = of_rows.sum(dim=1)
        sums, by_step, histogram = self._parts()
        sums += added
        weights = of_rows[_CLASS_WEIGHTS].sum(dim=0)
        logits = logits.where(weights != 0, 0.0)
        is_positive = labels > 0.5
        histogram.view(-1).index_add_(0, logit_bins(logits, self.bins) + self.bins * is_positive, weights)
        if self.num_steps:
            assert step in range(self.num_steps), (step, self.num_steps)
            by_step[:, step] += added[_CLASS_WEIGHTS]

    def to_vector(self) -> torch.Tensor:
        """A copy of the whole state: float64, (7 + 2 * (num_steps + bins),). Vectors of ranks add up."""
        return self._state.clone()

    @classmethod
    def from_vector(cls, vector: torch.Tensor, bins: int, num_steps: int = 0) -> BinaryMetrics:
        """The state that a vector, or the sum of several, stands for, on the vector's device.

        Raises:
            CheckpointError: when the vector was made with other `bins` or `num_steps`.
        """
        metrics = cls(bins, num_steps, vector.device)
        if vector.shape != metrics._state.shape:
            found, rule = f"{vector.numel()} numbers", f"{metrics._state.numel()} numbers for {bins} bins"
            fix = "set metrics.auc_bins to what the state was written with"
            raise CheckpointError([Fault("metric state", found, rule, fix)])
        metrics._state.copy_(vector)
        return metrics

    def merge(self, other: BinaryMetrics) -> None:
        """Adds what another rank or an earlier part of the same increment has counted."""
        assert (self.bins, self.num_steps) == (other.bins, other.num_steps)
        self._state += other._state.to(self._state.device)

    def sums(self) -> torch.Tensor:
        """A copy of `SUMS`, float64: small enough to add over ranks while training, for `report_from_sums`."""
        return self._parts()[0].clone()

    def compute(self, prior_positive: float = 0.0, prior_weight: float = 0.0) -> Report:
        """All numbers of what has been counted; to be called on merged state.

        Args:
            prior_positive: weight of the clicks that the running-rate baseline knows of before the first batch.
            prior_weight: weight of all rows that it knows of.
        """
        sums, by_step, histogram = (part.cpu().numpy() for part in self._parts())
        report = report_from_sums(sums)
        auc = histogram_auc(positive=histogram[1], negative=histogram[0])
        if auc is not None:
            report = replace(report, auc=auc[0], auc_error=auc[1])
        if report.ne is not None and self.num_steps:
            log_loss = running_rate_log_loss(by_step[1], by_step[0], prior_positive, prior_weight)
            entropy = binary_entropy(positive=by_step[1].sum(), negative=by_step[0].sum())
            report = replace(report, running_rate_ne=log_loss / float(by_step.sum()) / entropy)
        return report

    def reliability(self, groups: int = 20) -> Reliability:
        """At most `groups` points of the calibration curve; predictions are exact to the width of a bin."""
        histogram = self._parts()[2].cpu().numpy()
        weight = histogram.sum(axis=0)
        filled = np.flatnonzero(weight)
        weight, positive = weight[filled], histogram[1][filled]
        prediction = 1 / (1 + np.exp(-bin_logits(filled + 0.5, self.bins)))
        middle = np.cumsum(weight) - weight / 2
        group = np.minimum((middle / max(weight.sum(), 1e-300) * groups).astype(np.int64), groups - 1)
        sums = [np.bincount(group, weights=w, minlength=groups) for w in (weight * prediction, positive, weight)]
        used = sums[2] > 0
        return Reliability(sums[0][used] / sums[2][used], sums[1][used] / sums[2][used], sums[2][used])

    def _parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views: `SUMS`; weight of (negatives, positives) per step; weight of (negatives, positives) per bin."""
        sums, by_step, histogram = self._state.split([len(SUMS), 2 * self.num_steps, 2 * self.bins])
        return sums, by_step.view(2, self.num_steps), histogram.view(2, self.bins)


def row_sums(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """`SUMS` of each row, (7, B): all (B,), float64, labels 0 or 1. A row of weight 0 has nothing but zeros."""
    has_weight = weights != 0
    is_finite = torch.isfinite(logits) & torch.isfinite(labels) & torch.isfinite(weights)
    counts = has_weight & is_finite
    logits = logits.where(counts, 0.0)
    weights = weights.where(counts, 0.0)
    is_positive = labels > 0.5
    positive_weights = weights.where(is_positive, 0.0)
    signed = logits.where(~is_positive, -logits)
    log_losses = signed.clamp_min(0.0) + torch.log1p(torch.exp(-signed.abs()))
    return torch.stack(
        [
            (counts & ~is_positive).to(weights),
            (counts & is_positive).to(weights),
            (has_weight & ~is_finite).to(weights),
            weights - positive_weights,
            positive_weights,
            weights * torch.sigmoid(logits),
            weights * log_losses,
        ]
    )


def logit_bins(logits: torch.Tensor, bins: int) -> torch.Tensor:
    """The bin of each float64 logit, int64, ascending with it.

    Made of operations that IEEE 754 rounds correctly and that are monotonic one by one, so that neither a device nor a
    vector unit can put two logits into bins of the wrong order: the bound of the AUC's error depends on it.
    """
    share = torch.copysign(1.0 - LOGIT_SCALE / (LOGIT_SCALE + logits.abs()), logits)
    return ((share + 1.0) * (bins / 2)).to(torch.int64).clamp_max(bins - 1)


def bin_logits(positions: np.ndarray, bins: int) -> np.ndarray:
    """The inverse: the logit at a position among the bins, where bin b is from position b to b + 1."""
    share = positions * (2 / bins) - 1
    return LOGIT_SCALE * share / (1 - np.abs(share))
