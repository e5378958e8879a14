"""Groups whose rows lie on several ranks: GAUC is the same at one, two and three, exact or of a sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diurnal.data.hashing import hash_int64
from diurnal.metrics.exact import exact_gauc
from diurnal.metrics.groups import Grouped, GroupRows
from diurnal.metrics.report import SUMS, Report, report_from_sums
from diurnal.testing import run_world
from diurnal.train.totals import grouped

NUM_ROWS = 3000


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    logits = rng.normal(size=NUM_ROWS).astype(np.float32).round(1)
    labels = (rng.random(NUM_ROWS) < 0.3).astype(np.float32)
    weights = rng.choice([0.0, 0.5, 1.0], NUM_ROWS).astype(np.float32)
    groups = rng.integers(0, 200, NUM_ROWS)
    return logits, labels, weights, np.where(groups == 0, np.uint64(0), hash_int64(groups, 0))


def of_ranks(rank: int, world_size: int, most: list[int]) -> list[Grouped]:
    """A third of the rows, and then what is left, so that ranks have very different numbers of them."""
    found, columns = [], rows()
    for max_rows in most:
        state = GroupRows(max_rows)
        start, stop = rank * NUM_ROWS // 3, (rank + 1) * NUM_ROWS // 3 if rank < world_size - 1 else NUM_ROWS
        for at in range(start, stop, 100):
            logits, labels, weights, hashes = (column[at : min(at + 100, stop)] for column in columns)
            state.update(torch.from_numpy(logits), torch.from_numpy(labels), torch.from_numpy(weights), hashes)
        found.append(grouped(state, torch.device("cpu")))
    return found


def report(found: Grouped) -> Report:
    return found.added_to(report_from_sums([0.0] * len(SUMS)))


def test_every_world_size_says_the_same_of_all_groups_and_of_a_sample() -> None:
    most = [NUM_ROWS, 700, 1]
    (alone,) = run_world(of_ranks, 1, most)
    logits, labels, weights, hashes = rows()
    mine = hashes != 0
    exact = exact_gauc(logits[mine], labels[mine], hashes[mine], weights[mine])
    assert report(alone[0]).gauc == pytest.approx(exact, rel=1e-12)
    assert [one.level for one in alone[:2]] == [0, 2]
    assert 0 < alone[1].kept_rows <= 700
    assert alone[2].kept_rows == 0
    for world_size in (2, 3):
        for ranks in run_world(of_ranks, world_size, most):
            for found, expected in zip(ranks, alone, strict=True):
                np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-12)
                assert (found.level, found.kept_rows) == (expected.level, expected.kept_rows)
                assert found.rows_without_group == int((hashes == 0).sum())
