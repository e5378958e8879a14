"""Sums over rows: equal for every way to add the same rows up, different for every other multiset."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diurnal.data.audit import RowAudit
from diurnal.data.hashing import BLOCK_IDS
from diurnal.data.partitions import Increment, ParquetFile
from diurnal.data.streams import plan_increment

ROWS = st.lists(st.integers(0, 2**40), max_size=50)


def audit_of(rows: list[int] | np.ndarray) -> RowAudit:
    audit = RowAudit()
    audit.add(np.asarray(rows, np.int64))
    return audit


def slow_sums(rows: list[int]) -> list[int]:
    def mix(z: int) -> int:
        for constant in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            z = ((z ^ z >> 33) * constant) % 2**64
        return z ^ z >> 33

    keys = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
    return [len(rows), *(sum(mix(row ^ key) for row in rows) % 2**64 for key in keys)]


@given(ROWS)
def test_the_sums_are_those_of_plain_integers(rows: list[int]) -> None:
    assert audit_of(rows).to_array().view(np.uint64).tolist() == slow_sums(rows)


@given(ROWS, st.integers(1, 5), st.randoms())
def test_order_and_split_do_not_matter(rows: list[int], num_shares: int, shuffle: Any) -> None:
    """Ranks add up their steps, then the vectors are added as a sum over ranks does."""
    dealt = list(rows)
    shuffle.shuffle(dealt)
    shares = [audit_of([*dealt[i::num_shares], -1]) for i in range(num_shares)]
    merged = RowAudit()
    for share in shares:
        merged.merge(share)
    summed = RowAudit.from_array(np.stack([share.to_array() for share in shares]).sum(axis=0))
    assert merged == summed == audit_of(rows)
    assert merged.count == len(rows)
    assert merged.verdict(audit_of(rows)) is None


def test_a_sum_of_torch_wraps_likewise() -> None:
    """What gloo and NCCL add are int64 tensors: element by element, modulo 2^64."""
    import torch

    rows = np.arange(100_000)
    shares = [audit_of(rows[i::4]).to_array() for i in range(4)]
    assert any(sum(int(share[place]) for share in shares) not in range(-(2**63), 2**63) for place in (1, 2))
    total = torch.from_numpy(shares[0])
    for share in shares[1:]:
        total += torch.from_numpy(share)
    assert RowAudit.from_array(total.numpy()) == RowAudit.expected(100_000)


@pytest.mark.parametrize("num_rows", [0, 1, 100, BLOCK_IDS, 2 * BLOCK_IDS + 1])
def test_what_is_expected_can_be_shared_by_ranks(num_rows: int) -> None:
    whole = audit_of(np.arange(num_rows))
    assert RowAudit.expected(num_rows) == whole
    for world_size in (1, 3):
        total = RowAudit()
        for rank in range(world_size):
            total.merge(RowAudit.expected_share(num_rows, rank, world_size))
        assert total == whole
    rest = RowAudit.expected(num_rows // 3)
    rest.merge(RowAudit.expected(num_rows - num_rows // 3, start=num_rows // 3))
    assert rest == whole


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([0, 1, 2, 3], None),
        ([3, 1, 0, 2], None),
        ([0, 1, 2], "1 row missing"),
        ([], "4 rows missing"),
        ([0, 1, 2, 3, 3], "1 row too many"),
        ([0, 1, 2, 2], "rows differ"),
        ([0, 1, 2, 4], "rows differ"),
        ([1, 1, 2, 2], "rows differ"),
    ],
)
def test_a_verdict_says_what_is_wrong(rows: list[int], words: str | None) -> None:
    verdict = audit_of(rows).verdict(RowAudit.expected(4))
    assert verdict is None if words is None else words in str(verdict)


@given(st.integers(2, 2000), st.data())
def test_a_row_in_the_place_of_another_is_noticed(num_rows: int, data: Any) -> None:
    rows = np.arange(num_rows)
    lost = data.draw(st.integers(0, num_rows - 1))
    rows[lost] = data.draw(st.integers(0, num_rows - 1).filter(lambda row: row != lost))
    assert audit_of(rows).verdict(RowAudit.expected(num_rows)) is not None


def test_an_array_is_plain_and_independent() -> None:
    audit = audit_of([1, 2])
    array = audit.to_array()
    again = RowAudit.from_array(np.array(json.loads(json.dumps(array.tolist())), np.int64))
    audit.add(np.array([3]))
    assert (again.count, audit.count, array[0]) == (2, 3, 2)
    assert repr(again) != repr(audit)
    for wrong in (np.zeros(2, np.int64), np.zeros(3)):
        with pytest.raises(ValueError, match="int64 sums"):
            RowAudit.from_array(wrong)


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 5), st.sampled_from(["file", "shuffled"]), st.data())
def test_a_resume_point_can_be_compared_with_its_plan(groups: list[int], parts: int, order: Any, data: Any) -> None:
    """The rows of the steps [0, s) at one world size are those that the plan gives at another one."""
    day = Increment("2026-01-02", "days", (ParquetFile("a", 1, tuple(groups)),), "0" * 32)
    for increment in day.cut(parts):
        plan = plan_increment(increment, batch_rows=6, num_streams=3, seed=1, order=order, task_rows=18)
        step = data.draw(st.integers(0, plan.num_steps))
        learned, rest = RowAudit(), RowAudit.planned(plan.read_tasks(0, 1, step))
        for rank in range(2):
            learned.merge(RowAudit.planned(plan.read_tasks(rank, 2, 0, step)))
        assert learned == RowAudit.planned(plan.read_tasks(0, 1, 0, step))
        assert learned.count == plan.rows_before(step)
        learned.merge(rest)
        assert learned.verdict(RowAudit.expected(plan.num_rows)) is None
