"""The exact functions against loops over rows and pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diurnal.metrics.exact import exact_auc, exact_calibration, exact_gauc, exact_log_loss, exact_ne

ROWS = st.lists(
    st.tuples(st.integers(-8, 8).map(lambda n: n / 4), st.booleans(), st.sampled_from([0.0, 0.5, 1.0, 3.0])),
    max_size=12,
)
BUSY_MACHINE = settings(deadline=None)
Rows = list[tuple[float, bool, float]]


def columns(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    logits, labels, weights = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    return logits, labels, weights


@BUSY_MACHINE
@given(ROWS.filter(bool))
def test_auc_is_a_loop_over_pairs(rows: Rows) -> None:
    won = pairs = 0.0
    for logit, label, weight in rows:
        for other_logit, other_label, other_weight in rows:
            if label and not other_label:
                pairs += weight * other_weight
                won += weight * other_weight * (1 if logit > other_logit else 0.5 if logit == other_logit else 0)
    expected = None if pairs == 0 else pytest.approx(won / pairs)
    assert exact_auc(*columns(rows)) == expected


@BUSY_MACHINE
@given(ROWS.filter(bool))
def test_log_loss_ne_and_calibration_are_loops_over_rows(rows: Rows) -> None:
    total = sum(weight for _, _, weight in rows)
    clicks = sum(weight for _, label, weight in rows if label)
    chances = [1 / (1 + math.exp(-logit)) for logit, _, _ in rows]
    loss = sum(w * -math.log(p if y else 1 - p) for p, (_, y, w) in zip(chances, rows, strict=True))
    predicted = sum(w * p for p, (_, _, w) in zip(chances, rows, strict=True))
    assert exact_log_loss(*columns(rows)) == (pytest.approx(loss / total) if total else None)
    assert exact_calibration(*columns(rows)) == (pytest.approx(predicted / clicks) if clicks else None)
    if 0 < clicks < total:
        rate = clicks / total
        entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
        assert exact_ne(*columns(rows)) == pytest.approx(loss / total / entropy)
    else:
        assert exact_ne(*columns(rows)) is None


@BUSY_MACHINE
@given(ROWS.filter(bool), st.lists(st.sampled_from("abc"), min_size=12, max_size=12))
def test_gauc_is_a_loop_over_pairs_within_groups(rows: Rows, names: list[str]) -> None:
    total = gained = 0.0
    for name in "abc":
        mine = [row for row, group in zip(rows, names, strict=False) if group == name]
        pairs = won = 0.0
        for logit, label, weight in mine:
            for other_logit, other_label, other_weight in mine:
                if label and not other_label:
                    pairs += weight * other_weight
                    won += weight * other_weight * (1 if logit > other_logit else 0.5 if logit == other_logit else 0)
        if pairs:
            size = sum(weight for _, _, weight in mine)
            total += size
            gained += size * won / pairs
    logits, labels, weights = columns(rows)
    found = exact_gauc(logits, labels, np.array(names[: len(rows)]), weights)
    assert found == (None if total == 0 else pytest.approx(gained / total))


def test_predicting_the_base_rate_has_ne_1() -> None:
    labels = np.array([1.0, 0, 0, 0])
    assert exact_ne(np.full(4, math.log(1 / 3)), labels) == pytest.approx(1.0)
