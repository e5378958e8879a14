from __future__ import annotations

import numpy as np
import pytest
import torch

from diurnal.metrics.across_days import across_days
from diurnal.metrics.exact import exact_auc, exact_calibration, exact_ne
from diurnal.metrics.state import BinaryMetrics


def test_the_pooled_ne_is_that_of_all_rows_and_the_auc_the_mean_of_days() -> None:
    rng = np.random.default_rng(0)
    days = [(rng.normal(size=n), rng.integers(0, 2, n)) for n in (60, 300, 80)]
    reports = []
    for logits, labels in days:
        metrics = BinaryMetrics()
        metrics.update(torch.tensor(logits), torch.tensor(labels, dtype=torch.float64), torch.ones(len(labels)))
        reports.append(metrics.compute().to_dict())
    total = across_days(reports)
    logits, labels = (np.concatenate(parts) for parts in zip(*days, strict=True))
    assert total.pooled_ne == pytest.approx(exact_ne(logits, labels), abs=1e-9)
    assert total.calibration == pytest.approx(exact_calibration(logits, labels), abs=1e-9)
    assert total.mean_day_auc == pytest.approx(np.mean([exact_auc(*day) or 0 for day in days]), abs=1e-4)
    assert (total.num_auc_days, total.num_days, total.rows) == (3, 3, 440)


def test_days_too_small_for_an_auc_still_count_in_the_ne_and_undefined_stays_undefined() -> None:
    empty = BinaryMetrics().compute().to_dict()
    one_class = BinaryMetrics()
    one_class.update(torch.zeros(60), torch.zeros(60), torch.ones(60))
    total = across_days([empty, one_class.compute().to_dict()])
    assert (total.mean_day_auc, total.pooled_ne, total.calibration) == (None, None, None)
    assert (total.num_days, total.rows) == (2, 60)
