"""What a pass adds up beside its histogram, cut off and gone on with by another number of ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from diurnal.config import Config
from diurnal.data.batch import Batch
from diurnal.data.hashing import hash_int64
from diurnal.metrics.exact import exact_auc, exact_gauc
from diurnal.metrics.groups import group_sums
from diurnal.testing import tiny_batch, tiny_config
from diurnal.train.passes import Pass
from diurnal.train.setup import Learner

STEPS = 8


@pytest.fixture(scope="module")
def config() -> Config:
    dataset = {"group_id": "g", "tasks": [{"name": "bought"}, {"name": "kept"}]}
    return tiny_config({"dataset": dataset, "metrics": {"slices": ["site", "item"], "auc_bins": 1024}})


def learner_of(config: Config) -> Learner:
    """As much of one as a pass needs."""
    return cast(Learner, SimpleNamespace(config=config, device=torch.device("cpu"), count_names=()))


def scored(config: Config, step: int, rank: int, world_size: int) -> tuple[torch.Tensor, Batch]:
    batch = tiny_batch(config, step, rank, world_size, 11)
    batch.groups = np.where(batch.row_index >= 0, hash_int64(batch.row_index.numpy() % 4, 0), np.uint64(0))
    return batch.dense.sum(dim=1, keepdim=True) * torch.arange(1, 2 + len(batch.task_labels)), batch


def pass_of(config: Config, rank: int, world_size: int, steps: range, done: Pass | None = None) -> Pass:
    done = done or Pass.new(learner_of(config), STEPS)
    for step in steps:
        logits, batch = scored(config, step, rank, world_size)
        done.add_scores(logits, batch)
        done.count(batch, 0.0)
    return done


def numbers_of(ranks: list[Pass]) -> dict[str, Any]:
    """Over all ranks, as `train.totals` adds up."""
    first, *others = ranks
    assert first.groups is not None
    assert first.slices is not None
    for other in others:
        assert other.groups is not None
        assert other.slices is not None
        first.groups.merge(other.groups)
        first.slices.merge(other.slices.sums)
        for name, of_task in first.tasks.items():
            of_task.merge(other.tasks[name])
    hashes, scores = first.groups.rows()
    return {
        "groups": group_sums(hashes, scores.numpy()),
        "without": first.groups.rows_without_group,
        **first.slices.sums,
        **{name: of_task.to_vector().numpy() for name, of_task in first.tasks.items()},
    }


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 3), (3, 2)])
def test_groups_slices_and_tasks_go_on_at_any_number_of_ranks(config: Config, before: int, after: int) -> None:
    whole = numbers_of([pass_of(config, 0, 1, range(STEPS))])
    saved = [pass_of(config, rank, before, range(3)).to_tensors() for rank in range(before)]
    ranks = []
    for rank in range(after):
        done = Pass.new(learner_of(config), STEPS)
        done.go_on(saved[0], [saved[old] for old in range(before) if old % after == rank])
        ranks.append(pass_of(config, rank, after, range(3, STEPS), done))
    found = numbers_of(ranks)
    assert found.keys() == whole.keys()
    for name, expected in whole.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-9, err_msg=name)


def test_gauc_is_that_of_the_rows_and_padding_is_in_no_group(config: Config) -> None:
    done = pass_of(config, 0, 1, range(STEPS))
    assert done.groups is not None
    hashes, scores = done.groups.rows()
    assert len(hashes) == 11 * STEPS
    total = group_sums(hashes, scores.numpy())
    logits, labels, weights = scores.double().numpy().T
    assert total[3] / total[2] == pytest.approx(exact_gauc(logits, labels, hashes, weights))


def test_a_task_is_measured_over_the_rows_that_have_it(config: Config) -> None:
    done = pass_of(config, 0, 1, range(STEPS))
    for index, found in enumerate(done.tasks.values()):
        scores, labels, weights = [], [], []
        for step in range(STEPS):
            logits, batch = scored(config, step, 0, 1)
            has_one = ~batch.task_labels[index].isnan()
            scores += logits[has_one, 1 + index].tolist()
            labels += batch.task_labels[index][has_one].tolist()
            weights += batch.weights[has_one].tolist()
        report = found.compute()
        assert report.rows == len(labels) < 11 * STEPS
        assert report.auc == pytest.approx(exact_auc(*map(np.array, (scores, labels, weights))), abs=1e-3)
        assert report.base_rate == pytest.approx(np.average(labels, weights=weights))


def test_what_a_resume_point_has_not_counted_is_not_counted(config: Config) -> None:
    """Of an earlier release, or with other features: half an increment would pass for all of it."""
    saved = pass_of(config, 0, 1, range(3)).to_tensors()
    old = {name: tensor for name, tensor in saved.items() if not name.startswith(("group", "slice/item", "task/kept"))}
    done = Pass.new(learner_of(config), STEPS)
    done.go_on(old, [old])
    assert done.groups is None
    assert done.slices is not None
    assert list(done.slices.sums) == ["site"]
    assert list(done.tasks) == ["bought"]
    pass_of(config, 0, 1, range(3, STEPS), done)
    assert done.num_rows == 11 * STEPS


def test_nothing_is_carried_where_nothing_is_asked_for() -> None:
    done = Pass.new(learner_of(tiny_config()), STEPS)
    assert (done.groups, done.slices) == (None, None)
    assert set(done.to_tensors()) == {"metrics", "counts", "audit", "numbers", "seconds"}
