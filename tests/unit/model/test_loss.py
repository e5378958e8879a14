from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torchrec import KeyedJaggedTensor

from diurnal.config import Task
from diurnal.data.batch import Batch
from diurnal.model.loss import weighted_bce, weighted_losses


def test_it_is_the_weighted_sum_of_log_losses() -> None:
    logits, labels, weights = torch.tensor([0.3, -2.0, 1.5]), torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 2, 0.5])
    expected = sum(
        w * -math.log(1 / (1 + math.exp(-z)) if y else 1 - 1 / (1 + math.exp(-z)))
        for z, y, w in zip(logits.tolist(), labels.tolist(), weights.tolist(), strict=True)
    )
    assert weighted_bce(logits, labels, weights).item() == pytest.approx(expected, rel=1e-6)


def test_it_is_exact_where_a_probability_would_be_0_or_1() -> None:
    logits = torch.tensor([200.0, -200.0])
    assert weighted_bce(logits, torch.tensor([0.0, 1.0]), torch.ones(2)).item() == 400.0


def test_padding_adds_nothing_to_loss_and_gradient() -> None:
    logits = torch.tensor([0.5, 3.0, -4.0], requires_grad=True)
    weights = torch.tensor([1.0, 0.0, 0.0])
    weighted_bce(logits, torch.tensor([1.0, 0.0, 1.0]), weights).backward()
    assert logits.grad is not None
    assert logits.grad[1:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.01])
def test_the_true_logit_is_best_for_the_negatives_that_are_kept(rate: float) -> None:
    """20 positives among 1000 rows, of whose negatives a share is there; the slope at the logit of 2 % is 0."""
    true = torch.tensor(math.log(20 / 980), dtype=torch.float64, requires_grad=True)
    labels, weights = (torch.tensor(rows, dtype=torch.float64) for rows in ([1.0, 0.0], [20.0, 980 * rate]))
    weighted_bce(true.expand(2), labels, weights, rate).backward()
    assert true.grad is not None
    assert abs(true.grad.item()) < 1e-9
    odds = 20 / (980 * rate)
    expected = 20 * math.log(1 + 1 / odds) + 980 * rate * math.log(1 + odds)
    assert weighted_bce(true.expand(2), labels, weights, rate).item() == pytest.approx(expected)


def test_with_all_negatives_it_is_the_same_to_the_bit() -> None:
    logits, labels, weights = torch.tensor([-0.0, -2.0, 1.5]), torch.tensor([1.0, 0.0, 0.0]), torch.ones(3)
    assert torch.equal(weighted_bce(logits, labels, weights, 1.0), weighted_bce(logits, labels, weights))


def test_no_rows_lose_nothing() -> None:
    assert weighted_bce(torch.zeros(0), torch.zeros(0), torch.zeros(0)).item() == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_logit_that_is_not_finite_shows_whatever_it_weighs(bad: float, label: float, weight: float) -> None:
    """With weight 0 its gradient would still be 0 * nan somewhere below (facebookresearch/dlrm#363)."""
    loss = weighted_bce(torch.tensor([0.1, bad]), torch.tensor([1.0, label]), torch.tensor([1.0, weight]))
    assert not math.isfinite(loss.item())


def batch_of(
    labels: list[float], *task_labels: list[float], weights: list[float], kept_negatives: float = 1.0
) -> Batch:
    num_rows = len(labels)
    return Batch(
        dense=torch.zeros(num_rows, 1),
        sparse=KeyedJaggedTensor.empty(),
        labels=torch.tensor(labels),
        weights=torch.tensor(weights),
        row_index=torch.arange(num_rows),
        step=0,
        num_rows=num_rows,
        counts=np.zeros(0, np.int64),
        task_labels=torch.tensor(task_labels),
        kept_negatives=kept_negatives,
    )


def test_losses_of_tasks_are_those_of_the_rows_that_have_them() -> None:
    nan = math.nan
    batch = batch_of([1.0, 0.0, 0.0, 1.0], [nan, 1.0, nan, 0.0], [nan, nan, nan, nan], weights=[1.0, 2.0, 3.0, 0.5])
    logits = torch.tensor([[0.3, 1.0, 2.0], [-2.0, 0.7, 1.0], [1.5, -3.0, 0.1], [0.2, -0.4, 5.0]], requires_grad=True)
    tasks = [Task(name="bought", weight=0.25), Task(name="kept", weight=7.0)]
    loss = weighted_losses(logits, batch, tasks)
    z = logits.detach()
    alone = weighted_bce(z[:, 0], batch.labels, batch.weights)
    of_task = weighted_bce(z[[1, 3], 1], torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.5]))
    assert loss.item() == pytest.approx((alone + 0.25 * of_task).item(), rel=1e-6)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[:, 2].tolist() == [0.0] * 4
    assert logits.grad[[0, 2], 1].tolist() == [0.0, 0.0]
    assert logits.grad[1, 1].item() == pytest.approx(0.25 * 2.0 * (1 / (1 + math.exp(-0.7)) - 1), rel=1e-6)


def test_negatives_that_are_kept_stand_for_others_in_the_losses_of_tasks() -> None:
    labels, of_task, weights = [1.0, 0.0, 0.0], [0.0, 1.0, math.nan], [1.0, 2.0, 3.0]
    logits = torch.tensor([[0.3, 1.0], [-2.0, 0.7], [1.5, -3.0]])
    loss = weighted_losses(logits, batch_of(labels, of_task, weights=weights, kept_negatives=0.25), [Task(name="kept")])
    alone = weighted_bce(logits[:, 0] - math.log(0.25), torch.tensor(labels), torch.tensor(weights))
    others = weighted_bce(logits[:2, 1], torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0 / 0.25]))
    assert loss.item() == pytest.approx((alone + others).item(), rel=1e-6)


def test_a_logit_of_a_task_that_is_not_finite_is_seen_in_rows_without_its_label() -> None:
    batch = batch_of([1.0], [math.nan], weights=[1.0])
    assert not torch.isfinite(weighted_losses(torch.tensor([[0.0, math.nan]]), batch, [Task(name="bought")]))


def test_without_tasks_the_loss_is_the_labels_bit_for_bit() -> None:
    logits = torch.randn(1000, 1)
    batch = batch_of((torch.rand(1000) < 0.3).float().tolist(), weights=torch.rand(1000).tolist())
    assert torch.equal(weighted_losses(logits, batch, ()), weighted_bce(logits[:, 0], batch.labels, batch.weights))
