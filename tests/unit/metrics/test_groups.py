"""GAUC against a loop over groups, however rows are dealt; and what a sample of groups says of all."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diurnal.data.encoded import NO_GROUP
from diurnal.data.hashing import hash_int64
from diurnal.metrics.exact import exact_gauc
from diurnal.metrics.groups import NUM_LEVELS, Grouped, GroupRows, group_sums, lowest_level
from diurnal.metrics.report import SUMS, Report, report_from_sums

BUSY_MACHINE = settings(deadline=None)
ROW = st.tuples(
    st.integers(-4, 4).map(lambda n: n / 4),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    st.integers(0, 5),
)
"""Logit, label, weight, group; group 0 is none."""
Rows = list[tuple[float, float, float, int]]


def hashes_of(groups: np.ndarray) -> np.ndarray:
    return np.where(groups == 0, np.uint64(NO_GROUP), hash_int64(groups.astype(np.int64), 3))


def kept(rows: Rows | np.ndarray, max_rows: int = 1000) -> GroupRows:
    columns = np.array(rows, np.float32).reshape(-1, 4)
    logits, labels, weights = torch.from_numpy(columns[:, :3]).unbind(1)
    state = GroupRows(max_rows)
    state.update(logits, labels, weights, hashes_of(columns[:, 3]))
    return state


def finished(state: GroupRows) -> Grouped:
    """What one rank that has seen all rows says."""
    hashes, scores = state.rows()
    return Grouped(group_sums(hashes, scores.numpy()), state.level, len(hashes), state.rows_without_group)


def reported(state: GroupRows) -> Report:
    return finished(state).added_to(report_from_sums([0.0] * len(SUMS)))


def drawn(num_groups: int, seed: int) -> np.ndarray:
    """Rows of groups of different size and difficulty."""
    rng = np.random.default_rng(seed)
    sizes = rng.geometric(0.05, num_groups)
    group = np.repeat(np.arange(1, num_groups + 1), sizes)
    clarity = np.repeat(rng.uniform(0, 3, num_groups), sizes)
    logits = rng.normal(size=len(group))
    labels = rng.random(len(group)) < 1 / (1 + np.exp(-clarity * logits))
    weights = rng.choice([0.5, 1.0, 2.0], len(group))
    return np.stack([logits, labels, weights, group], axis=1)


@BUSY_MACHINE
@given(st.lists(ROW, max_size=40))
def test_numbers_are_those_of_a_loop_over_groups(rows: Rows) -> None:
    report = reported(kept(rows))
    of_groups = [row for row in rows if row[3]]
    logits, labels, weights, groups = np.array(of_groups, np.float64).reshape(-1, 4).T
    expected = exact_gauc(logits, labels, groups, weights)
    classes = {g: {y for _, y, w, other in of_groups if other == g and w} for *_, g in of_groups}
    both = {group for group, labels in classes.items() if len(labels) == 2}
    assert report.gauc == (None if expected is None else pytest.approx(expected, rel=1e-12))
    assert report.gauc_groups == len(both)
    assert report.gauc_rows == sum(1 for _, _, w, g in of_groups if g in both and w)
    assert report.one_class_groups == sum(len(labels) == 1 for labels in classes.values())
    assert report.rows_without_group == len(rows) - len(of_groups)
    assert (report.gauc_share, report.gauc_error) == (1.0, None if expected is None else 0.0)
    assert report.reason


@BUSY_MACHINE
@given(st.lists(ROW, max_size=60), st.integers(1, 70), st.integers(1, 4), st.randoms(use_true_random=False))
def test_order_batches_ranks_and_restarts_change_nothing(rows: Rows, max_rows: int, world: int, random: Random) -> None:
    """Also when groups are left out: which ones follows from the rows alone."""
    whole = finished(kept(rows, max_rows))
    shuffled = random.sample(rows, len(rows))
    ranks = []
    for rank in range(world):
        mine, state = shuffled[rank::world], GroupRows(max_rows)
        for start in range(0, len(mine), 7):
            state.merge(kept(mine[start : start + 7], max_rows))
            state = GroupRows.from_tensors(*state.to_tensors(), max_rows)
        ranks.append(state)
    merged = GroupRows(max_rows)
    for state in random.sample(ranks, world):
        merged.merge(state)
    assert len(merged.rows()[0]) <= max_rows
    found = finished(merged)
    np.testing.assert_allclose(found.sums, whole.sums, rtol=1e-12)
    assert (found.level, found.kept_rows) == (whole.level, whole.kept_rows)
    assert found.rows_without_group == whole.rows_without_group


@BUSY_MACHINE
@given(st.lists(st.integers(1, 2**64 - 1), max_size=20), st.integers(0, 63))
def test_a_level_leaves_the_hashes_below_a_power_of_two(hashes: list[int], level: int) -> None:
    state = GroupRows(100)
    nothing = torch.zeros(len(hashes))
    state.update(nothing, nothing, nothing, np.array(hashes, np.uint64))
    by_level = state.rows_by_level()
    assert by_level.tolist() == [sum(h < 2 ** (64 - k) for h in hashes) for k in range(64)] + [0]
    assert lowest_level(by_level, 0, 3) == next(k for k in range(NUM_LEVELS) if by_level[k] <= 3)
    state.raise_level(level)
    assert sorted(state.rows()[0].tolist()) == sorted(h for h in hashes if h < 2 ** (64 - level))


def test_a_sample_is_of_whole_groups_and_within_what_it_says_of_itself() -> None:
    """Over twelve worlds: the share of rows kept, and the distance from the exact number in standard errors."""
    distances = []
    for seed in range(12):
        rows = drawn(800, seed)
        exact, sampled = reported(kept(rows, 10**6)), reported(kept(rows, 2000))
        assert exact.gauc_error == 0.0
        assert sampled.gauc_share in (0.125, 0.0625)
        assert exact.gauc
        assert sampled.gauc
        assert sampled.gauc_error
        distances.append((sampled.gauc - exact.gauc) / sampled.gauc_error)
    assert 0.6 < math.sqrt(sum(d * d for d in distances) / len(distances)) < 1.5
    all_rows, sample = (Counter(kept(drawn(800, 0), most).rows()[0].tolist()) for most in (10**6, 2000))
    assert sample.items() <= all_rows.items()
    assert max(sample) < min(all_rows.keys() - sample.keys())


def test_a_group_of_more_rows_than_may_be_kept_is_left_out_and_said() -> None:
    report = reported(kept([(x / 10, x % 2, 1.0, 1) for x in range(20)], 10))
    assert (report.gauc, report.gauc_error, report.gauc_groups) == (None, None, 0)
    assert report.gauc_share in [0.5**level for level in range(1, 65)]
    two_classes = report_from_sums([10, 10, 0, 10.0, 10.0, 10.0, 15.0])
    told = finished(kept([(0.0, 1.0, 1.0, 1)] * 20, 10)).added_to(two_classes)
    assert "metrics.group_rows" in str(told.reason)


def test_groups_of_one_class_alone_have_a_reason_of_their_own() -> None:
    two_classes = report_from_sums([10, 10, 0, 10.0, 10.0, 10.0, 15.0])
    rows: Rows = [(0.0, 1.0, 1.0, 1), (1.0, 1.0, 1.0, 1), (0.5, 0.0, 1.0, 2), (0.1, 0.0, 0.0, 1)]
    report = finished(kept(rows)).added_to(two_classes)
    assert (report.gauc, report.gauc_groups, report.one_class_groups) == (None, 0, 2)
    assert report.reason == "no group has rows of both classes: GAUC is undefined"
    assert report.ne == two_classes.ne


def test_rows_that_are_not_finite_or_weigh_nothing_do_not_count() -> None:
    sound: Rows = [(0.3, 1.0, 1.0, 1), (0.1, 0.0, 2.0, 1)]
    broken: Rows = [(math.nan, 1.0, 1.0, 1), (math.inf, 0.0, 1.0, 1), (9.0, 0.0, 0.0, 1), (0.0, 1.0, math.nan, 2)]
    report = reported(kept(sound + broken))
    assert (report.gauc, report.gauc_rows, report.one_class_groups) == (1.0, 2, 0)


def test_room_grows_with_the_rows_and_no_further_than_they_may() -> None:
    state = GroupRows(10_000)
    for start in range(0, 40_000, 1000):
        groups = np.arange(start + 1, start + 1001)
        scores = torch.ones(1000)
        state.update(scores, scores, scores, hashes_of(groups))
    assert len(state.rows()[0]) <= 10_000
    assert len(state._hashes) <= 11_000
    numbers, scores = state.to_tensors()
    assert len(numbers) == len(state.rows()[0]) + 2
    empty = GroupRows(10).to_tensors()
    assert [len(tensor) for tensor in empty] == [2, 1], "what is empty is not written"
