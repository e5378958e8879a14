"""The same numbers from all rows at once, in NumPy: slow, readable, exact. What tests compare with."""

from __future__ import annotations

import numpy as np


def exact_auc(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    """Share of the (positive, negative) pairs, by weight, whose positive has the higher logit; ties count half.

    None without both classes.
    """
    logits, labels, weights = _counted(logits, labels, weights)
    _, rank = np.unique(logits, return_inverse=True)
    positive = np.bincount(rank, weights=weights * labels)
    negative = np.bincount(rank, weights=weights * (1 - labels))
    num_pairs = positive.sum() * negative.sum()
    if not num_pairs > 0:
        return None
    below = np.cumsum(negative) - negative
    return float(positive @ (below + negative / 2) / num_pairs)


def exact_log_loss(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    """Weighted mean of the binary cross-entropies in nats; None without rows."""
    logits, labels, weights = _counted(logits, labels, weights)
    if not weights.sum() > 0:
        return None
    return float(weights @ np.logaddexp(0, np.where(labels == 1, -logits, logits)) / weights.sum())


def exact_ne(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    """Log loss over the entropy of the mean label; None without both classes."""
    log_loss = exact_log_loss(logits, labels, weights)
    _, labels, weights = _counted(logits, labels, weights)
    rate = float(weights @ labels / weights.sum()) if log_loss is not None else 0.0
    if log_loss is None or rate in (0.0, 1.0):
        return None
    return log_loss / -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))


def exact_calibration(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float | None:
    """Mean prediction over mean label; None without a positive row."""
    logits, labels, weights = _counted(logits, labels, weights)
    positive = float(weights @ labels)
    return float(weights @ np.exp(-np.logaddexp(0, -logits))) / positive if positive > 0 else None


def exact_gauc(
    logits: np.ndarray, labels: np.ndarray, groups: np.ndarray, weights: np.ndarray | None = None
) -> float | None:
    """Mean of the groups' AUCs, each weighted by its rows' weight, over the groups with both classes; None without
    any. `groups` are any values that compare."""
    weights = np.ones(len(logits)) if weights is None else np.asarray(weights, dtype=np.float64)
    total = won = 0.0
    for group in np.unique(groups):
        mine = groups == group
        auc = exact_auc(logits[mine], labels[mine], weights[mine])
        if auc is not None:
            total += float(weights[mine].sum())
            won += float(weights[mine].sum()) * auc
    return won / total if total > 0 else None


def _counted(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float64 copies of the rows that weigh something."""
    weights = np.ones(len(logits)) if weights is None else np.asarray(weights, dtype=np.float64)
    counts = weights != 0
    return np.asarray(logits, np.float64)[counts], np.asarray(labels, np.float64)[counts], weights[counts]
