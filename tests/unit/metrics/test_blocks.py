from __future__ import annotations

import json
import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from diurnal.errors import CheckpointError
from diurnal.metrics.blocks import MAX_BLOCKS, BlockSums, num_blocks
from diurnal.metrics.evidence import COLUMNS, Evidence
from diurnal.metrics.segments import Segment, segment_rows
from diurnal.metrics.state import BinaryMetrics

BUSY_MACHINE = settings(deadline=None)


def drawn(num_rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, labels, weights (some 0) and two segments' masks."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=num_rows).astype(np.float32))
    labels = torch.from_numpy((rng.random(num_rows) < 0.3).astype(np.float32))
    weights = torch.from_numpy(rng.choice([0.0, 0.5, 1.0, 3.0], num_rows).astype(np.float32))
    return logits, labels, weights, torch.from_numpy(rng.random((2, num_rows)) < 0.4)


def scored(num_rows: int, seed: int = 0) -> Evidence:
    logits, labels, weights, masks = drawn(num_rows, seed)
    sums = BlockSums(num_rows, ("a", "b"))
    sums.update(logits, labels, weights, torch.arange(num_rows), masks)
    return sums.evidence()


@pytest.mark.parametrize(
    ("rows", "blocks"), [(0, 1), (1, 1), (49, 1), (50, 2), (799, 31), (800, 32), (10**12, MAX_BLOCKS)]
)
def test_the_number_of_blocks_depends_on_the_rows_alone(rows: int, blocks: int) -> None:
    assert num_blocks(rows) == blocks


def test_the_sums_are_those_of_loops_over_rows() -> None:
    logits, labels, weights, masks = drawn(130)
    expected = np.zeros((3, 5, len(COLUMNS)))
    for i, (x, y, w) in enumerate(zip(logits.tolist(), labels.tolist(), weights.tolist(), strict=True)):
        chance = 1 / (1 + math.exp(-x))
        loss = -math.log(chance if y else 1 - chance)
        row = np.array([w != 0, y * (w != 0), w, w * y, w * chance, w * loss, 0.0])
        for segment in [0] + [s + 1 for s in range(2) if masks[s, i]]:
            expected[segment, i * 5 // 130] += row
    np.testing.assert_allclose(scored(130).sums, expected, rtol=1e-12)


@BUSY_MACHINE
@given(st.integers(0, 200), st.integers(1, 4), st.integers(1, 40), st.randoms(use_true_random=False))
def test_ranks_batches_and_padding_change_nothing(rows: int, world: int, batch: int, random: Random) -> None:
    """Rows dealt to 1-4 ranks in any order and padded give the sums of one process."""
    logits, labels, weights, masks = drawn(rows)
    ranks = [BlockSums(rows, ("a", "b")) for _ in range(world)]
    order = list(range(rows))
    random.shuffle(order)
    for rank, sums in enumerate(ranks):
        mine = torch.tensor(order[rank::world], dtype=torch.int64)
        for chosen in mine.split(batch):
            pad = torch.tensor([-1] * (batch - len(chosen)), dtype=torch.int64)
            nan, zero = torch.full((len(pad),), math.nan), torch.zeros(len(pad))
            sums.update(
                torch.cat([logits[chosen], nan]),
                torch.cat([labels[chosen], zero]),
                torch.cat([weights[chosen], zero + 1]),
                torch.cat([chosen, pad]),
                torch.cat([masks[:, chosen], torch.ones(2, len(pad), dtype=torch.bool)], dim=1),
            )
    summed = torch.stack([sums.to_vector() for sums in ranks]).sum(dim=0)
    for other in ranks[1:]:
        ranks[0].merge(other)
    whole = scored(rows)
    for merged in (ranks[0].evidence(), BlockSums.from_vector(summed, rows, ("a", "b")).evidence()):
        np.testing.assert_allclose(merged.sums, whole.sums, rtol=1e-12)
        merged.check_same_rows(whole)


def test_the_report_is_that_of_the_metrics_state() -> None:
    logits, labels, weights, _ = drawn(500)
    metrics = BinaryMetrics(bins=64)
    metrics.update(logits, labels, weights)
    expected, found = metrics.compute(), scored(500)
    assert (found.rows, found.positives) == (expected.rows, expected.positives)
    assert found.ne == pytest.approx(expected.ne, rel=1e-12)
    assert found.calibration == pytest.approx(expected.calibration, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_without_a_finite_logit_is_a_row_but_in_no_number(bad: float) -> None:
    logits, labels, weights, masks = drawn(130)
    weights[:] = 1
    logits[7] = bad
    sums = BlockSums(130, ("a", "b"))
    sums.update(logits, labels, weights, torch.arange(130), masks)
    found = sums.evidence()
    assert (found.nonfinite_rows, found.rows) == (1, 130)
    assert (found.ne, found.calibration, found.report().log_loss) == (None, None, None)
    assert np.isfinite(found.sums).all()
    sound = BlockSums(130, ("a", "b"))
    sound.update(torch.zeros(130), labels, weights, torch.arange(130), masks)
    found.check_same_rows(sound.evidence())


def test_labels_and_weights_that_are_not_finite_are_counted_apart() -> None:
    sums = BlockSums(3)
    sums.update(torch.zeros(3), torch.tensor([math.nan, 1.0, 0.0]), torch.tensor([1.0, math.inf, 2.0]), torch.arange(3))
    assert sums.evidence().sums[0, 0].tolist() == pytest.approx([1, 0, 2, 0, 1, 2 * math.log(2), 2])


def test_evidence_is_the_same_after_json() -> None:
    found = scored(300)
    again = Evidence.from_json(json.loads(json.dumps(found.to_json())))
    assert np.array_equal(again.sums, found.sums)
    assert (again.num_rows, again.segments) == (found.num_rows, found.segments) == (300, ("all", "a", "b"))
    empty = BlockSums(0).evidence()
    assert np.array_equal(Evidence.from_json(json.loads(json.dumps(empty.to_json()))).sums, empty.sums)
    with pytest.raises(ValueError, match="columns"):
        Evidence.from_json({**found.to_json(), "columns": ["rows"]})


def test_other_rows_are_told() -> None:
    found = scored(300)
    with pytest.raises(ValueError, match=r"champion and challenger .* of block \d+ of segment all"):
        found.check_same_rows(scored(300, seed=1), "champion", "challenger")
    with pytest.raises(ValueError, match="champion was scored on 300 rows"):
        found.check_same_rows(scored(301), "champion", "challenger")


def test_a_vector_of_another_pass_and_a_row_beyond_the_pass_are_refused() -> None:
    with pytest.raises(CheckpointError, match="sums per block"):
        BlockSums.from_vector(BlockSums(100).to_vector(), 1000)
    one = torch.ones(1)
    with pytest.raises(AssertionError):
        BlockSums(5).update(one, one, one, torch.tensor([5]))


def test_segments_are_rows_with_an_id() -> None:
    """Feature f of 4 rows: 5, none, 5 and 7, 3; feature g: none, 5, none, 5."""
    lengths = torch.tensor([1, 0, 2, 1, 0, 1, 0, 1], dtype=torch.int32)
    sparse = KeyedJaggedTensor(keys=["f", "g"], values=torch.tensor([5, 5, 7, 3, 5, 5]), lengths=lengths, stride=4)
    segments = [Segment("f=five", "f", 5), Segment("g=five", "g", 5), Segment("f=seven", "f", 7)]
    assert segment_rows(sparse, segments).int().tolist() == [[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]]
    empty = KeyedJaggedTensor(keys=["f"], values=torch.tensor([], dtype=torch.int64), lengths=torch.zeros(2).int())
    assert segment_rows(empty, segments[:1]).tolist() == [[False, False]]
    assert segment_rows(sparse, []).shape == (0, 4)
    with pytest.raises(KeyError):
        segment_rows(sparse, [Segment("h", "h", 1)])
