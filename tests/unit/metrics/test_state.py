from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diurnal.errors import CheckpointError
from diurnal.metrics.exact import exact_auc, exact_calibration, exact_log_loss, exact_ne
from diurnal.metrics.report import SUMS, Report, report_from_sums
from diurnal.metrics.state import BinaryMetrics, bin_logits, logit_bins

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
LOGITS = st.one_of(st.floats(-10, 10, width=32), FINITE, st.sampled_from([0.0, -0.0, 1e-30, -1e-30, 0.1, 0.1000001]))
ROW = st.tuples(LOGITS, st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
BUSY_MACHINE = settings(deadline=None)
Rows = list[tuple[float, float, float]]


def tensors(rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits, labels, weights = torch.tensor(rows, dtype=torch.float32).view(-1, 3).unbind(1)
    return logits, labels, weights


def measured(rows: Rows, bins: int = 1024) -> BinaryMetrics:
    metrics = BinaryMetrics(bins)
    metrics.update(*tensors(rows))
    return metrics


def drawn(
    rows: int, center: float, spread: float, signal: float = 1.0, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits around a center, and labels that have something to do with them."""
    rng = np.random.default_rng(seed)
    standard = rng.normal(size=rows)
    chances = 1 / (1 + np.exp(-(center + signal * standard)))
    logits = torch.from_numpy((center + spread * standard).astype(np.float32))
    return logits, torch.from_numpy((rng.random(rows) < chances).astype(np.float32)), torch.ones(rows)


def auc_of(report: Report) -> tuple[float, float]:
    assert report.auc is not None
    assert report.auc_error is not None
    return report.auc, report.auc_error


@BUSY_MACHINE
@given(st.lists(ROW, max_size=30))
def test_numbers_are_the_exact_ones(rows: Rows) -> None:
    report = measured(rows).compute()
    arrays = [tensor.double().numpy() for tensor in tensors(rows)]
    counted = [row for row in rows if row[2] > 0]
    assert report.rows == len(counted)
    assert report.positives == sum(label == 1 for _, label, _ in counted)
    assert report.negatives == report.rows - report.positives
    assert report.weight == sum(weight for _, _, weight in counted)
    for found, expected in (
        (report.log_loss, exact_log_loss(*arrays)),
        (report.ne, exact_ne(*arrays)),
        (report.calibration, exact_calibration(*arrays)),
    ):
        assert found == (None if expected is None else pytest.approx(expected, rel=1e-12, abs=1e-300))


@BUSY_MACHINE
@given(st.lists(ROW, max_size=60), st.sampled_from([2, 64, 1024, 65536]))
def test_the_bound_of_the_histogram_auc_is_true(rows: Rows, bins: int) -> None:
    report = measured(rows, bins).compute()
    expected = exact_auc(*(tensor.double().numpy() for tensor in tensors(rows)))
    if expected is None:
        assert report.auc is None
    else:
        auc, error = auc_of(report)
        assert abs(auc - expected) <= error + 1e-12


@pytest.mark.parametrize("center", [-6.0, -3.0, 0.0, 1.0])
@pytest.mark.parametrize("spread", [0.01, 0.1, 1.0, 3.0])
def test_the_histogram_auc_is_within_1e_4_of_the_exact_one(center: float, spread: float) -> None:
    logits, labels, weights = drawn(100_000, center, spread)
    metrics = BinaryMetrics()
    metrics.update(logits, labels, weights)
    auc, error = auc_of(metrics.compute())
    assert abs(auc - (exact_auc(logits.numpy(), labels.numpy()) or 0)) < 1e-4
    if spread >= 1:
        assert error < 1e-4


@BUSY_MACHINE
@given(st.lists(FINITE, min_size=2, max_size=20), st.sampled_from([1024, 65536, 2**20]))
def test_bins_ascend_with_logits(logits: list[float], bins: int) -> None:
    ordered = torch.tensor(sorted(logits), dtype=torch.float64)
    found = logit_bins(ordered, bins)
    assert (found.diff() >= 0).all()
    assert found.min() >= 0
    assert found.max() < bins


def test_neighbouring_logits_stay_in_order_and_in_their_bin() -> None:
    edges = torch.from_numpy(bin_logits(np.arange(1, 65536), 65536)).float()
    around = torch.stack(
        [torch.nextafter(edges, torch.tensor(-math.inf)), edges, torch.nextafter(edges, torch.tensor(math.inf))]
    )
    found = logit_bins(around.T.reshape(-1).double(), 65536)
    assert (found.diff() >= 0).all()
    assert (logit_bins(torch.from_numpy(bin_logits(np.arange(1024) + 0.5, 1024)), 1024) == torch.arange(1024)).all()


@BUSY_MACHINE
@given(st.lists(st.tuples(ROW, st.integers(0, 3), st.integers(0, 4)), max_size=40))
def test_merged_ranks_and_batches_are_the_whole(rows: list[tuple[tuple[float, float, float], int, int]]) -> None:
    """Each row goes to one of 4 ranks and 5 steps; the sum of the ranks' vectors is one process's state."""
    whole = BinaryMetrics(1024, num_steps=5)
    ranks = [BinaryMetrics(1024, num_steps=5) for _ in range(4)]
    for step in range(5):
        whole.update(*tensors([row for row, _, s in rows if s == step]), step=step)
        for rank, metrics in enumerate(ranks):
            metrics.update(*tensors([row for row, r, s in rows if (r, s) == (rank, step)]), step=step)
    summed = torch.stack([metrics.to_vector() for metrics in ranks]).sum(dim=0)
    torch.testing.assert_close(summed, whole.to_vector(), rtol=1e-12, atol=0)
    merged = ranks[0]
    for other in ranks[1:]:
        merged.merge(other)
    assert torch.equal(merged.to_vector(), BinaryMetrics.from_vector(merged.to_vector(), 1024, 5).to_vector())
    assert_same_report(BinaryMetrics.from_vector(summed, 1024, 5).compute(), whole.compute())
    assert_same_report(merged.compute(), whole.compute())


def assert_same_report(one: Report, other: Report) -> None:
    for name, value in one.to_dict().items():
        assert value == (
            pytest.approx(getattr(other, name), rel=1e-9) if isinstance(value, float) else getattr(other, name)
        )


def test_the_mean_of_two_ranks_is_not_the_auc() -> None:
    """Rank AUCs were averaged (facebookresearch/dlrm#324): here a feature that shifts the scores splits the rows."""
    rows, rng = 100, np.random.default_rng(0)
    shifted = np.arange(rows) % 2
    labels = (rng.random(rows) < 0.3 + 0.4 * (1 - shifted)).astype(np.float32)
    logits = torch.from_numpy((labels + rng.normal(size=rows) + 2 * shifted).astype(np.float32))
    weights = torch.ones(rows)
    expected = exact_auc(logits.numpy(), labels)
    assert expected is not None
    mean_of_ranks = np.mean([exact_auc(logits[shifted == s].numpy(), labels[shifted == s]) or 0 for s in (0, 1)])
    assert abs(mean_of_ranks - expected) > 0.1
    for num_ranks in (1, 2, 4):
        for batch_rows in (7, 50):
            ranks = [BinaryMetrics() for _ in range(num_ranks)]
            for rank, metrics in enumerate(ranks):
                mine = torch.arange(rank, rows, num_ranks)
                for chosen in mine.split(batch_rows):
                    metrics.update(logits[chosen], torch.from_numpy(labels)[chosen], weights[chosen])
            for other in ranks[1:]:
                ranks[0].merge(other)
            auc, error = auc_of(ranks[0].compute())
            assert abs(auc - expected) <= error + 1e-12
            assert error < 1e-3


@pytest.mark.parametrize(
    ("labels", "reason"),
    [([0.0] * 50, "all 50 rows have label 0"), ([1.0] * 50, "all 50 rows have label 1"), ([], "no rows")],
)
def test_one_class_is_undefined_and_never_a_number(labels: list[float], reason: str) -> None:
    """AUC was reported as 0, average precision as nan or 1 (Lightning-AI/torchmetrics#2494)."""
    metrics = BinaryMetrics(num_steps=1)
    metrics.update(torch.linspace(-1, 1, len(labels)), torch.tensor(labels), torch.ones(len(labels)), step=0)
    report = metrics.compute()
    assert (report.auc, report.auc_error, report.ne, report.running_rate_ne) == (None, None, None, None)
    assert report.reason is not None
    assert reason in report.reason
    assert (report.positives, report.negatives) == (labels.count(1.0), labels.count(0.0))
    assert (report.calibration is None) == (1.0 not in labels)
    assert (report.log_loss is None) == (report.base_rate is None) == (not labels)


def test_padding_rows_count_nowhere() -> None:
    """Repeated rows made shares equal, and changed the metric with the world size (Lightning-AI/torchmetrics#1297)."""
    rows = [(0.5 * i - 2, float(i % 3 == 0), 1.0) for i in range(11)]
    for num_ranks in (1, 2, 3):
        ranks = []
        for rank in range(num_ranks):
            mine = rows[rank::num_ranks]
            padding = [(7.0, 1.0, 0.0), (math.nan, 0.0, 0.0)] * (5 - len(mine))
            ranks.append(measured(mine + padding))
        for other in ranks[1:]:
            ranks[0].merge(other)
        assert_same_report(ranks[0].compute(), measured(rows).compute())
    assert measured(rows).compute().rows == 11


def test_rows_that_are_not_finite_are_counted_and_left_out() -> None:
    """One nan prediction gave an AUC of 0.75 elsewhere, without a word."""
    sound = [(0.5, 1.0, 1.0), (-0.5, 0.0, 2.0), (0.7, 0.0, 1.0)]
    broken = [
        (math.nan, 1.0, 1.0),
        (math.inf, 0.0, 1.0),
        (-math.inf, 1.0, 0.5),
        (0.1, math.nan, 1.0),
        (0.1, 1.0, math.nan),
    ]
    report = measured(sound + broken).compute()
    assert report.nonfinite_rows == 5
    expected = measured(sound).compute().to_dict()
    assert {**report.to_dict(), "nonfinite_rows": 0} == expected
    nothing = measured(broken).compute()
    assert (nothing.rows, nothing.log_loss, nothing.ne, nothing.auc) == (0, None, None, None)
    assert nothing.reason is not None
    assert "5" in nothing.reason


def test_huge_logits_lose_exactly_what_they_must() -> None:
    report = measured([(1e30, 0.0, 1.0), (-1e30, 0.0, 1.0), (1e30, 1.0, 2.0)]).compute()
    assert report.log_loss == pytest.approx(1e30 / 4, rel=1e-6)
    assert report.auc == pytest.approx(0.75)


def test_weights_count_like_repeated_rows() -> None:
    once = [(0.3, 1.0, 3.0), (-0.2, 0.0, 2.0), (0.4, 0.0, 1.0)]
    repeated = [(logit, label, 1.0) for logit, label, weight in once for _ in range(int(weight))]
    names = ("weight", "base_rate", "log_loss", "ne", "calibration", "auc")
    one, other = measured(once).compute(), measured(repeated).compute()
    for name in names:
        assert getattr(one, name) == pytest.approx(getattr(other, name))
    assert (one.rows, other.rows) == (3, 6)


def test_a_class_that_weighs_next_to_nothing_is_no_infinity() -> None:
    report = measured([(0.0, 1.0, 1e-30), (0.0, 0.0, 1.0)]).compute()
    assert report.ne is None or math.isfinite(report.ne)
    lighter = BinaryMetrics()
    lighter.update(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.tensor([1e-308, 1e300], dtype=torch.float64))
    assert lighter.compute().ne is None
    assert lighter.compute().reason is not None


def test_the_sums_of_a_window_are_a_difference() -> None:
    metrics = measured([(0.5, 1.0, 1.0), (0.1, 0.0, 1.0)])
    before = metrics.sums()
    window = [(-0.4, 1.0, 2.0), (0.9, 0.0, 1.0), (0.2, 0.0, 1.0)]
    metrics.update(*tensors(window))
    report = report_from_sums((metrics.sums() - before).numpy())
    expected = measured(window).compute()
    assert report.auc is None
    assert (report.rows, report.ne, report.calibration) == (
        3,
        pytest.approx(expected.ne),
        pytest.approx(expected.calibration),
    )


def test_vectors_are_copies_and_small_enough_to_send() -> None:
    metrics = BinaryMetrics(65536, num_steps=1000)
    vector = metrics.to_vector()
    assert vector.dtype == torch.float64
    assert vector.nbytes < 1.1e6
    assert metrics.sums().shape == (len(SUMS),)
    vector += 1
    metrics.sums().add_(1)
    assert not metrics.to_vector().any()


def test_state_of_other_bins_is_refused() -> None:
    with pytest.raises(CheckpointError, match="auc_bins"):
        BinaryMetrics.from_vector(BinaryMetrics(1024).to_vector(), 2048)


def test_a_report_is_json() -> None:
    metrics = BinaryMetrics(num_steps=2)
    metrics.update(*drawn(100, 0.0, 1.0), step=1)
    assert json.loads(json.dumps(metrics.compute().to_dict())) == metrics.compute().to_dict()


def test_the_running_rate_is_a_loop_over_batches() -> None:
    batches = [drawn(50, -1.0, 1.0, seed=seed) for seed in range(6)]
    metrics = BinaryMetrics(1024, num_steps=6)
    clicks = rows = loss = 0.0
    for step, (logits, labels, weights) in enumerate(batches):
        metrics.update(logits, labels, weights, step=step)
        rate = (clicks + 0.5) / (rows + 1)
        loss -= sum(math.log(rate if label else 1 - rate) for label in labels.tolist())
        clicks, rows = clicks + labels.sum().item(), rows + 50
    labels = torch.cat([labels for _, labels, _ in batches]).numpy()
    entropy = exact_log_loss(np.full(300, math.log(labels.mean() / (1 - labels.mean()))), labels) or 0
    assert metrics.compute().running_rate_ne == pytest.approx(loss / 300 / entropy)


def test_the_running_rate_starts_from_what_the_parent_saw() -> None:
    metrics = BinaryMetrics(1024, num_steps=1)
    labels = torch.tensor([1.0, 0, 0, 0])
    metrics.update(torch.zeros(4), labels, torch.ones(4), step=0)
    assert metrics.compute(250_000, 1_000_000).running_rate_ne == pytest.approx(1.0, abs=1e-6)
    assert metrics.compute().running_rate_ne == pytest.approx(math.log(2) / 0.5623351446188083)


def test_the_running_rate_does_not_break_on_a_first_click() -> None:
    metrics = BinaryMetrics(1024, num_steps=2)
    metrics.update(torch.zeros(3), torch.zeros(3), torch.ones(3), step=0)
    metrics.update(torch.zeros(1), torch.ones(1), torch.ones(1), step=1)
    found = metrics.compute().running_rate_ne
    assert found is not None
    assert math.isfinite(found)


def test_reliability_has_groups_of_equal_weight_that_agree_with_the_rows() -> None:
    logits, labels, weights = drawn(40_000, -3.0, 1.0)
    metrics = BinaryMetrics()
    metrics.update(logits, labels, weights)
    curve = metrics.reliability()
    order = torch.argsort(logits)
    predictions, rates = torch.sigmoid(logits[order]).view(20, -1).mean(1), labels[order].view(20, -1).mean(1)
    assert len(curve.prediction) == 20
    assert curve.weight.sum() == 40_000
    np.testing.assert_allclose(curve.weight, 2000, rtol=0.03)
    np.testing.assert_allclose(curve.prediction, predictions, rtol=0.01)
    np.testing.assert_allclose(curve.rate, rates, atol=0.005)


def test_reliability_of_nothing_or_of_one_score_is_short() -> None:
    assert len(BinaryMetrics(1024).reliability().rate) == 0
    curve = measured([(0.0, 1.0, 1.0), (0.0, 0.0, 3.0)], 65536).reliability()
    assert curve.rate.tolist() == [0.25]
    assert curve.prediction.tolist() == [pytest.approx(0.5, abs=1e-4)]
