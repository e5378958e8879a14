"""Buckets at quantiles of the past: against exact quantiles, over files, held-out rows, parts and days."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import Schema, Sparse
from diurnal.daily.segments import segments_of
from diurnal.data.encode import count_names, encode
from diurnal.data.holdout import write_slice
from diurnal.data.partitions import Increment, read_increment
from diurnal.data.past import NOTHING, Past
from diurnal.data.past_files import open_past
from diurnal.data.pasts import Pasts
from diurnal.data.profile import profile_increment
from diurnal.data.quantiles import NUM_PATTERNS, boundaries_of, lowest_values, pattern_counts
from diurnal.metrics.report import SUMS
from diurnal.metrics.slices import slices_of

SCHEMA: dict[str, Any] = {
    "dense": [{"name": "bucket_effect", "past": "price", "prior": 1.0}],
    "sparse": [
        {"name": "price", "type": "float", "mapping": "bucketize", "quantiles": 8},
        {"name": "item"},
        {"name": "both", "cross": ["price", "item"]},
    ],
    "tables": [{"name": "price", "rows": 8, "dim": 4}, *({"name": n, "rows": 97, "dim": 4} for n in ("item", "both"))],
}
OF = Schema.model_validate(SCHEMA, strict=False)
MIXED = np.concatenate(
    [np.random.default_rng(5).standard_cauchy(4000) * 10.0 ** np.arange(-4, 4).repeat(500), np.zeros(500)]
)


class Days:
    def __init__(self, root: Path) -> None:
        self.root, rng = root, np.random.default_rng(1)
        self.prices = [rng.lognormal(0, 2, 300) * sign for sign in (1, -1, 1)]
        for index, prices in enumerate(self.prices):
            folder = root / "days" / f"dt=2026-01-0{index + 1}"
            folder.mkdir(parents=True)
            table = pa.table({"label": np.arange(300) % 3 == 0, "price": prices, "item": np.arange(300) % 7})
            pq.write_table(table[:170], folder / "a.parquet", row_group_size=50)
            pq.write_table(table[170:], folder / "b.parquet")
        self.pasts = Pasts(root / "past", OF)

    def increment(self, index: int, past: str = "", **more: Any) -> Increment:
        whole = read_increment(str(self.root / "days"), f"2026-01-0{index + 1}", OF)
        return replace(whole, past=self.pasts.path(past), **more)

    def past_after(self, increment: Increment) -> Past:
        return open_past(self.pasts.path(self.pasts.after(increment)))


@pytest.fixture
def days(tmp_path: Path) -> Days:
    return Days(tmp_path)


def encoded(prices: Any, past: Past, of: Schema = OF) -> tuple[list[int], list[int], dict[str, int]]:
    """Bucket of each row, -1 for none; ids of the cross; what was counted."""
    prices = pa.array(prices, pa.float64())
    rows = pa.record_batch({"label": np.zeros(len(prices)), "price": prices, "item": np.arange(len(prices))})
    found = encode(rows, of, past)
    ids = iter(found.ids[0].tolist())
    buckets = [next(ids) if length else -1 for length in found.lengths[0].tolist()]
    return buckets, found.ids[2].tolist(), dict(zip(count_names(of), found.counts.tolist(), strict=True))


@pytest.mark.parametrize(
    "values", [MIXED, np.abs(MIXED) + 1e-3, np.arange(200.0), np.array([-0.0, 0, 1e-42, np.inf], np.float32)]
)
@pytest.mark.parametrize("num_buckets", [2, 10, 100])
def test_boundaries_are_the_quantiles_to_a_pattern(values: np.ndarray, num_buckets: int) -> None:
    found = boundaries_of(pattern_counts(values), num_buckets)
    assert found is not None
    ordered = np.sort(values)
    exact = ordered[np.arange(1, num_buckets) * len(values) // num_buckets].astype(np.float64)
    finite = np.isfinite(exact)
    off = exact[finite] - found[finite]
    assert (found[~finite] == exact[~finite]).all()
    assert (off >= 0).all()
    assert (off <= np.abs(found[finite]) / 128 + 9.2e-41).all()
    assert len(found) == num_buckets - 1
    assert (np.diff(found[finite]) >= 0).all()


def test_a_pattern_is_known_by_its_lowest_number() -> None:
    lowest = lowest_values()
    assert np.array_equal(lowest, np.sort(lowest))
    finite = np.flatnonzero(np.isfinite(lowest) & (lowest != 0))
    assert len(finite) > 65_000
    counts = pattern_counts(lowest[finite].astype(np.float32))
    assert np.array_equal(np.flatnonzero(counts), finite)
    assert counts.max() == 1
    assert pattern_counts(np.array([1e300, np.inf])).max() == 2
    assert boundaries_of(np.zeros(NUM_PATTERNS), 4) is None


def test_whole_numbers_have_exact_boundaries_and_equal_values_one_bucket() -> None:
    counts = pattern_counts(np.array([0] * 60 + [1] * 20 + [200] * 20))
    found = boundaries_of(counts, 10)
    assert found is not None
    assert found.tolist() == [0, 0, 0, 0, 0, 1, 1, 200, 200]
    past = Past(of_values={"price": counts.astype(np.float64)})
    of_ten = OF.sparse[0].model_copy(update={"quantiles": 10})
    found = past.buckets(of_ten, np.array([-1.0, 0, 0.5, 1, 199, 200, 1e9]))
    assert found is not None
    assert found.tolist() == [0, 5, 5, 7, 7, 9, 9]


def test_a_value_falls_between_the_quantiles_of_what_was_learned_before(days: Days) -> None:
    first = days.pasts.after(days.increment(0))
    past = days.past_after(days.increment(1, first))
    before = np.sort(np.concatenate(days.prices[:2]))
    buckets, pairs, counts = encoded([*days.prices[2], None, np.nan], past)
    assert buckets[-2:] == [-1, -1]
    assert counts["sparse/price/null"] == 2
    assert counts["sparse/price/unknown"] == 0
    assert len(pairs) == 300
    for value, bucket in zip(days.prices[2], buckets, strict=False):
        shares = [np.count_nonzero(before <= value * factor) / 600 for factor in (1 - 1 / 120, 1, 1 + 1 / 120)]
        assert min(shares) * 8 - 1e-9 <= bucket + 1
        assert bucket <= max(shares) * 8 + 1e-9
    full = np.bincount(encoded(before, past)[0], minlength=8)
    assert full.sum() == 600
    assert np.abs(full - 75).max() <= 6


def test_before_anything_was_learned_no_value_has_a_bucket(days: Days) -> None:
    buckets, pairs, counts = encoded([1.0, None, -3.0], NOTHING)
    assert buckets == [-1, -1, -1]
    assert pairs == []
    assert (counts["sparse/price/null"], counts["sparse/price/unknown"]) == (1, 2)


def test_counts_of_buckets_are_those_of_the_boundaries_after_the_increment(days: Days) -> None:
    past = days.past_after(days.increment(0))
    buckets = np.array(encoded(days.prices[0], past)[0])
    assert past.of_feature["price"][0].tolist() == np.bincount(buckets, minlength=8).tolist()


def test_neither_files_nor_parts_nor_held_out_rows_move_a_boundary(days: Days, tmp_path: Path) -> None:
    whole = days.past_after(days.increment(0)).of_values["price"]
    name = ""
    for part in days.increment(0).cut(3):
        name = days.pasts.after(replace(part, past=days.pasts.path(name)))
    assert np.array_equal(open_past(days.pasts.path(name)).of_values["price"], whole)
    held_out = write_slice(days.increment(0), OF, 0.3, 0, str(tmp_path / "slice.parquet"))
    without = days.pasts.after(days.increment(0, held_out=held_out))
    assert open_past(days.pasts.path(without)).of_values["price"].sum() == 300 - held_out.num_rows
    both = days.past_after(days.increment(1, without, joined=held_out.files)).of_values["price"]
    assert np.array_equal(both, pattern_counts(np.concatenate(days.prices[:2])))


def test_what_is_old_moves_boundaries_less(days: Days) -> None:
    aged = OF.model_copy(update={"past_half_life_days": 1.0})
    pasts = Pasts(days.root / "aged", aged)
    first = pasts.after(days.increment(0))
    past = open_past(pasts.path(pasts.after(replace(days.increment(2), past=pasts.path(first)))))
    expected = pattern_counts(days.prices[0]) * 0.25 + pattern_counts(days.prices[2])
    assert np.array_equal(past.of_values["price"], expected)
    assert len({first, days.pasts.after(days.increment(0))}) == 2


def test_a_profile_looks_at_powers_of_two_and_segments_are_buckets(days: Days) -> None:
    increment = days.increment(0)
    profile = profile_increment(increment, OF)
    assert profile.sparse["price"].no_id == profile.sparse["both"].no_id == 0
    powers = np.floor(np.log2(days.prices[0]))
    assert profile.sparse["price"].top[0][1] == pytest.approx(np.unique(powers, return_counts=True)[1].max() / 300)
    assert [segment.table_row for segment in segments_of(profile, OF, ["price"])] == list(range(8))


def test_a_slice_says_between_which_quantiles_it_lies() -> None:
    sums = np.zeros((9, len(SUMS)))
    sums[[2, 7], SUMS.index("negatives")] = 5, 4
    assert [one.id for one in slices_of(OF, "price", sums)] == ["quantile 0.25 to 0.375", "quantile 0.875 to 1"]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"boundaries": (1.0, 2.0)}, "in the place of boundaries"),
        ({"mapping": "hash", "type": "int64"}, 'quantiles belong to mapping = "bucketize" alone'),
        ({"quantiles": None}, "which may have quantiles instead"),
        ({"quantiles": 1}, "greater than or equal to 2"),
    ],
)
def test_buckets_are_either_fixed_or_at_quantiles(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Sparse.model_validate({**SCHEMA["sparse"][0], **change})


def test_a_table_has_a_row_for_each_bucket() -> None:
    with pytest.raises(ValueError, match="for each of the 9 values of price"):
        Schema.model_validate({**SCHEMA, "sparse": [{**SCHEMA["sparse"][0], "quantiles": 9}]}, strict=False)
