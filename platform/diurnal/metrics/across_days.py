"""Quality over many increments, from one report each: days weigh the same in one number, rows in the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diurnal.metrics.report import binary_entropy


@dataclass(frozen=True)
class AcrossDays:
    """What is undefined is None."""

    mean_day_auc: float | None
    """Mean AUC of the days that have rows and classes enough."""
    num_auc_days: int
    pooled_ne: float | None
    """Log loss of all rows over the entropy of the base rate of all rows."""
    calibration: float | None
    """Sum of predictions over sum of labels, of the days that have a positive."""
    num_days: int
    rows: int


def across_days(reports: Iterable[Mapping[str, Any]], *, min_rows: int = 50, min_class_rows: int = 5) -> AcrossDays:
    """Summarises reports (`Report.to_dict()`), one for each increment.

    Args:
        min_rows: rows that a day needs to count in the mean AUC.
        min_class_rows: rows of each class that it needs.
    """
    reports = list(reports)
    aucs = [
        r["auc"]
        for r in reports
        if r["auc"] is not None and r["rows"] >= min_rows and min(r["positives"], r["negatives"]) >= min_class_rows
    ]
    scored = [r for r in reports if r["weight"] > 0]
    weight = sum(r["weight"] for r in scored)
    positive = sum(r["weight"] * r["base_rate"] for r in scored)
    entropy = binary_entropy(positive, weight - positive)
    rated = [(r["weight"] * r["base_rate"], r["calibration"]) for r in scored if r["calibration"] is not None]
    predicted, observed = sum(label * ratio for label, ratio in rated), sum(label for label, _ in rated)
    log_loss = sum(r["weight"] * r["log_loss"] for r in scored)
    return AcrossDays(
        mean_day_auc=sum(aucs) / len(aucs) if aucs else None,
        num_auc_days=len(aucs),
        pooled_ne=log_loss / weight / entropy if entropy > 0 else None,
        calibration=predicted / observed if observed > 0 else None,
        num_days=len(reports),
        rows=sum(r["rows"] for r in reports),
    )
