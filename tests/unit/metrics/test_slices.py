"""Numbers of the rows of one id against the numbers of just those rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from diurnal.config import Schema
from diurnal.metrics.report import report_from_sums
from diurnal.metrics.segments import Segment, first_ids
from diurnal.metrics.slices import MOST_IDS, Slice, SliceSums, slices_of
from diurnal.metrics.state import BinaryMetrics

SCHEMA = Schema.model_validate_json(
    json.dumps(
        {
            "dense": [{"name": "price"}],
            "sparse": [
                {"name": "site"},
                {"name": "hour", "type": "timestamp", "mapping": "hour"},
                {"name": "age", "type": "float", "mapping": "bucketize", "boundaries": [18, 65.5]},
                {"name": "slot", "mapping": "identity"},
                {"name": "day", "type": "timestamp", "mapping": "weekday"},
            ],
            "tables": [
                {"name": "site", "rows": 20, "dim": 4},
                {"name": "hour", "rows": 1000, "dim": 4},
                {"name": "age", "rows": 3, "dim": 4},
                {"name": "slot", "rows": 4, "dim": 4},
                {"name": "day", "rows": 7, "dim": 4},
            ],
        }
    )
)
NUM_ROWS = 400


def bags(rng: np.random.Generator, num_rows: int) -> KeyedJaggedTensor:
    """An id for most rows; frequent ids are the low ones."""
    num_ids = {"site": 20, "hour": 24, "age": 3, "slot": 4, "day": 7}
    lengths = (rng.random((len(num_ids), num_rows)) < 0.9).astype(np.int32)
    lengths[4] = 0
    values = [rng.integers(0, rng.integers(1, n + 1, k.sum())) for n, k in zip(num_ids.values(), lengths, strict=True)]
    return KeyedJaggedTensor(
        keys=list(num_ids),
        values=torch.from_numpy(np.concatenate(values)),
        lengths=torch.from_numpy(lengths.reshape(-1)),
        stride=num_rows,
    )


def drawn(seed: int, num_rows: int = NUM_ROWS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, KeyedJaggedTensor]:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=num_rows).astype(np.float32))
    labels = torch.from_numpy((rng.random(num_rows) < 0.3).astype(np.float32))
    weights = torch.from_numpy(rng.choice([0.0, 0.5, 1.0], num_rows).astype(np.float32))
    return logits, labels, weights, bags(rng, num_rows)


def of(feature: str, sums: SliceSums, named: tuple[Segment, ...] = ()) -> dict[str, Slice]:
    return {one.id: one for one in slices_of(SCHEMA, feature, sums.sums[feature].numpy(), named)}


def test_a_slice_has_the_numbers_of_its_rows_and_all_slices_those_of_all() -> None:
    logits, labels, weights, sparse = drawn(0)
    sums = SliceSums(SCHEMA, ("site", "slot"))
    sums.update(logits, labels, weights, sparse)
    ids = first_ids(sparse, "site")
    found = of("site", sums)
    assert len(found) == MOST_IDS + 2
    by_rows = [found[f"row {row}"].rows for row in range(3)]
    assert by_rows == [int(((ids == row) & (weights > 0)).sum()) for row in range(3)]
    for name, mask in (("row 0", ids == 0), ("no id", ids == -1)):
        expected = BinaryMetrics(1024)
        expected.update(logits[mask], labels[mask], weights[mask])
        report = expected.compute()
        assert (found[name].rows, found[name].positives) == (report.rows, report.positives)
        assert found[name].ne == pytest.approx(report.ne)
        assert found[name].calibration == pytest.approx(report.calibration)
    tops = [one.rows for one in list(found.values())[:MOST_IDS]]
    assert tops == sorted(tops, reverse=True)
    total = report_from_sums(sums.sums["site"].sum(dim=0).numpy())
    assert sum(one.rows for one in found.values()) == total.rows == int((weights > 0).sum())
    assert {name.isdigit() for name in of("slot", sums)} == {True, False}, "ids, and what has none"
    assert "others" not in of("slot", sums)


def test_ids_are_told_by_the_schema_or_by_segments_that_are_known() -> None:
    sums = SliceSums(SCHEMA, ("site", "hour", "age", "day"))
    sums.update(*drawn(1))
    named = (Segment("site=news.example", "site", 0), Segment("age=0", "age", 0), Segment("hour=x", "site", 1))
    assert next(iter(of("site", sums, named))) == "news.example"
    assert "hour=x" in of("site", sums, named), "what is spelled otherwise stays as it is"
    assert set(of("age", sums, named)) == {"below 18", "18 to 65.5", "from 65.5", "no id"}
    assert sums.sums["hour"].shape == (25, 7)
    assert {"0", "1", "no id", "others"} <= set(of("hour", sums))
    assert set(of("day", sums)) == {"no id"}


def test_ranks_and_earlier_parts_add_up() -> None:
    whole = SliceSums(SCHEMA, ("site",))
    parts = [drawn(seed, 50) for seed in range(4)]
    merged = SliceSums(SCHEMA, ("site",))
    for part in parts:
        whole.update(*part)
        rank = SliceSums(SCHEMA, ("site",))
        rank.update(*part)
        merged.merge(rank.sums)
    torch.testing.assert_close(merged.sums["site"], whole.sums["site"])
    merged.keep_only({"site": torch.zeros(22, 7), "age": torch.zeros(4, 7)})
    assert merged.sums == {}, "of another size"


def test_what_is_undefined_within_a_slice_is_no_number() -> None:
    logits, _, weights, sparse = drawn(2)
    sums = SliceSums(SCHEMA, ("slot",))
    sums.update(logits, torch.zeros(NUM_ROWS), weights, sparse)
    for one in of("slot", sums).values():
        assert (one.ne, one.calibration) == (None, None)
        assert "one class" in str(one.reason)
        assert one.log_loss is not None


def test_a_batch_without_ids_or_rows_is_no_id_throughout() -> None:
    keys = ["site", "hour"]
    no_ids = torch.empty(0, dtype=torch.int64)
    empty = KeyedJaggedTensor(keys=keys, values=no_ids, lengths=torch.zeros(6, dtype=torch.int32), stride=3)
    assert first_ids(empty, "hour").tolist() == [-1, -1, -1]
    sums = SliceSums(SCHEMA, ("hour",))
    sums.update(torch.zeros(3), torch.tensor([1.0, 0.0, 1.0]), torch.tensor([1.0, 1.0, 0.0]), empty)
    assert [(one.id, one.rows) for one in of("hour", sums).values()] == [("no id", 2)]
    nothing = KeyedJaggedTensor(keys=keys, values=no_ids, lengths=torch.zeros(0, dtype=torch.int32), stride=0)
    assert first_ids(nothing, "site").shape == (0,)
    with pytest.raises(KeyError):
        first_ids(empty, "user")
