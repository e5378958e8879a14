"""The numbers of a binary model, computed once from sums that were merged over ranks and batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

SUMS = (
    "negatives",
    "positives",
    "nonfinite_rows",
    "negative_weight",
    "positive_weight",
    "prediction",
    "log_loss",
)
"""Additive numbers: rows of each class; rows that weigh something but have a logit that is not finite; the weight of
each class; the weighted sums of predictions and of log losses in nats."""


@dataclass(frozen=True)
class Report:
    """Quality over a set of rows. A number that is undefined for these rows is None, and `reason` says why."""

    rows: int
    """Rows with weight and a finite logit: those that all numbers below are about."""
    positives: int
    negatives: int
    nonfinite_rows: int
    """Rows with weight whose logit, label or weight is nan or infinite. They are in no other number, so any of them
    makes this report one about the other rows."""
    weight: float
    base_rate: float | None
    """Mean label."""
    log_loss: float | None
    """Mean binary cross-entropy in nats."""
    ne: float | None
    """Normalized entropy: log loss over the entropy of the base rate (He et al., "Practical Lessons from Predicting
    Clicks on Ads at Facebook", 2014). 1 is what the base rate itself would reach; lower is better."""
    calibration: float | None
    """Mean prediction over mean label."""
    auc: float | None = None
    """Probability that a positive row has a higher logit than a negative one; ties count half."""
    auc_error: float | None = None
    """|auc - exact AUC| is at most this."""
    running_rate_ne: float | None = None
    """NE of predicting, for each global batch, the click rate of all rows before it: what a model has to beat."""
    gauc: float | None = None
    """Mean AUC of the groups that have both classes, each weighted by its rows' weight; see `metrics.groups`. This and
    all numbers of groups are None where the schema declares no group."""
    gauc_error: float | None = None
    """Standard error that leaving groups out adds; 0 when none is, and `gauc` exact."""
    gauc_groups: int | None = None
    """Groups that `gauc` is the mean of."""
    gauc_rows: int | None = None
    """Their rows with weight and finite logit."""
    gauc_share: float | None = None
    """Share of all groups, by a hash, that was looked at; 1 is all of them."""
    one_class_groups: int | None = None
    """Groups that were looked at and have no AUC."""
    rows_without_group: int | None = None
    """Of all rows that were scored, those without weight included."""
    reason: str | None = None

    def to_dict(self) -> dict[str, int | float | str | None]:
        return asdict(self)


def report_from_sums(sums: Sequence[float] | np.ndarray) -> Report:
    """All that does not need the order of the rows, from `SUMS`, or from the difference of two of them: the numbers of
    the rows in between."""
    value = dict(zip(SUMS, map(float, sums), strict=True))
    positives, negatives = round(value["positives"]), round(value["negatives"])
    positive, negative = value["positive_weight"], value["negative_weight"]
    weight = positive + negative
    reason = _why_undefined(positives, negatives, round(value["nonfinite_rows"]))
    log_loss = value["log_loss"] / weight if weight > 0 else None
    entropy = binary_entropy(positive, negative)
    if reason is None and entropy == 0:
        reason = "one class weighs nothing beside the other: NE is undefined"
    return Report(
        rows=positives + negatives,
        positives=positives,
        negatives=negatives,
        nonfinite_rows=round(value["nonfinite_rows"]),
        weight=weight,
        base_rate=positive / weight if weight > 0 else None,
        log_loss=log_loss,
        ne=log_loss / entropy if log_loss is not None and entropy > 0 else None,
        calibration=value["prediction"] / positive if positive > 0 else None,
        reason=reason,
    )


def binary_entropy(positive: float, negative: float) -> float:
    """Entropy in nats of a label that is 1 with weight `positive` and 0 with weight `negative`; 0 if one is 0."""
    weight = positive + negative
    small, large = min(positive, negative) / weight if weight > 0 else 0.0, max(positive, negative)
    return -(small * math.log(small) + large / weight * math.log1p(-small)) if small > 0 else 0.0


def histogram_auc(positive: np.ndarray, negative: np.ndarray) -> tuple[float, float] | None:
    """AUC from the weight of each class per bin of ascending logits, and how far off it can be; None for one class.

    Rows of one bin count as ties. An order inside bins could move the exact value by at most half the share of pairs
    that fall into one bin, which is therefore the bound.
    """
    num_pairs = float(positive.sum() * negative.sum())
    if not num_pairs > 0:
        return None
    below = np.cumsum(negative) - negative
    tied = float(positive @ negative) / num_pairs
    return float(positive @ below) / num_pairs + tied / 2, tied / 2


def running_rate_log_loss(
    positive: np.ndarray, negative: np.ndarray, prior_positive: float = 0.0, prior_weight: float = 0.0
) -> float:
    """Sum of log losses in nats of predicting, for each step, the rate of everything before it.

    The rate is (positive + 1/2) / (weight + 1) (Krichevsky and Trofimov, 1981): 1/2 before anything was seen, and
    never 0 or 1, so that the first click does not cost infinity.

    Args:
        positive: weight of the clicks in each global batch.
        negative: weight of the other rows.
        prior_positive: weight of the clicks before the first batch.
        prior_weight: weight of all rows before it.
    """
    before_positive = prior_positive + np.cumsum(positive) - positive
    before_negative = prior_weight - prior_positive + np.cumsum(negative) - negative
    total = before_positive + before_negative + 1
    costs = positive * np.log((before_positive + 0.5) / total) + negative * np.log((before_negative + 0.5) / total)
    return -float(costs.sum())


def _why_undefined(positives: int, negatives: int, nonfinite_rows: int) -> str | None:
    if positives and negatives:
        return None
    if positives or negatives:
        label = 1 if positives else 0
        return f"one class: all {positives + negatives} rows have label {label}; AUC and NE are undefined"
    if nonfinite_rows:
        return f"no row with a finite logit ({nonfinite_rows} without one)"
    return "no rows"
