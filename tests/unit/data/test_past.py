"""What the past says of ids: against plain Python, over files, held-out rows, parts, days; and never the day itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import Schema
from diurnal.data import past_counts
from diurnal.data.encode import count_names, encode
from diurnal.data.holdout import write_slice
from diurnal.data.partitions import Increment, read_increment
from diurnal.data.past import NOTHING, Past
from diurnal.data.past_files import open_past
from diurnal.data.pasts import Pasts
from diurnal.errors import CheckpointError

SCHEMA: dict[str, Any] = {
    "request_id": "request",
    "dense": [
        {"name": "item_effect", "past": "item", "prior": 2.0},
        {"name": "item_seen", "past": "item", "value": "impressions", "transform": "log1p"},
        {"name": "tag_effect", "past": "tags", "prior": 2.0, "scale": 10.0},
    ],
    "sparse": [
        {"name": "item", "mapping": "identity", "table": "item"},
        {"name": "tags", "type": "string", "many": True, "table": "tags"},
        {"name": "user"},
    ],
    "tables": [{"name": name, "rows": 50, "dim": 4} for name in ("item", "tags", "user")],
}


def schema(**more: Any) -> Schema:
    return Schema.model_validate({**SCHEMA, **more}, strict=False)


def day_rows(rng: np.random.Generator, n: int) -> dict[str, list[Any]]:
    bags = [[f"t{t}" for t in rng.integers(0, 6, size)] for size in rng.integers(0, 4, n)]
    items = [None if i > 45 else int(i) for i in rng.integers(0, 48, n)]
    return {
        "label": rng.integers(0, 2, n).tolist(),
        "request": [f"r{i}" for i in rng.integers(0, n, n)],
        "item": items,
        "tags": bags,
        "user": rng.integers(0, 9, n).tolist(),
    }


TYPES = pa.schema(
    [("label", pa.int8()), ("request", pa.string()), ("item", pa.int64()), ("tags", pa.list_(pa.string()))]
)


class Days:
    """Days of rows, on disk and in memory."""

    def __init__(self, root: Path, num_days: int = 3, rows: int = 200) -> None:
        self.root, rng = root, np.random.default_rng(7)
        self.rows: list[dict[str, list[Any]]] = []
        for index in range(num_days):
            folder = root / "days" / f"dt=2026-01-0{index + 1}"
            folder.mkdir(parents=True)
            self.rows.append(day_rows(rng, rows))
            table = pa.Table.from_pydict(self.rows[-1], schema=TYPES.append(pa.field("user", pa.int64())))
            pq.write_table(table[:120], folder / "a.parquet", row_group_size=50)
            pq.write_table(table[120:], folder / "b.parquet")

    def increment(self, index: int, of: Schema) -> Increment:
        return read_increment(str(self.root / "days"), f"2026-01-0{index + 1}", of)

    def pasts(self, of: Schema) -> Pasts:
        return Pasts(self.root / "past", of)


@pytest.fixture
def days(tmp_path: Path) -> Days:
    return Days(tmp_path)


def plain(rows: list[dict[str, Any]], weights: list[float], prior: float = 2.0) -> Any:
    """(effect of an item, impressions of an item) from rows, each with its weight."""
    total = sum(weights)
    rate = sum(w * row["label"] for w, row in zip(weights, rows, strict=True)) / total

    def of(item: int | None) -> tuple[float, float]:
        mine = [(w, row["label"]) for w, row in zip(weights, rows, strict=True) if row["item"] == item]
        seen, positive = sum(w for w, _ in mine), sum(w * y for w, y in mine)
        return ((positive - rate * seen) / (seen + prior), seen) if item is not None else (0.0, 0.0)

    return of


def listed(rows: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]


def dense_of(rows: dict[str, list[Any]], of: Schema, past: Past) -> np.ndarray:
    return encode(pa.Table.from_pydict(rows, schema=TYPES.append(pa.field("user", pa.int64()))), of, past).dense


def test_an_input_is_what_the_days_before_say_of_its_ids(days: Days) -> None:
    of = schema()
    pasts = days.pasts(of)
    first = pasts.after(days.increment(0, of))
    second = pasts.after(replace(days.increment(1, of), past=pasts.path(first)))
    before = listed(days.rows[0]) + listed(days.rows[1])
    expected = plain(before, [1.0] * len(before))
    dense = dense_of(days.rows[2], of, open_past(pasts.path(second)))
    for row, item in zip(dense, days.rows[2]["item"], strict=True):
        effect, seen = expected(item)
        assert row[0] == pytest.approx(effect, abs=1e-6)
        assert row[1] == pytest.approx(np.log1p(seen), abs=1e-6)


def test_a_bag_has_the_mean_over_its_ids_and_none_without(days: Days) -> None:
    of = schema()
    pasts = days.pasts(of)
    past = open_past(pasts.path(pasts.after(days.increment(0, of))))
    rows = days.rows[1]
    dense = dense_of(rows, of, past)[:, 2]
    alone = {
        tag: dense_of({**{k: v[:1] for k, v in rows.items()}, "tags": [[tag]]}, of, past)[0, 2]
        for tag in [f"t{i}" for i in range(6)]
    }
    expected = [np.mean([alone[tag] for tag in tags]) if tags else 0.0 for tags in rows["tags"]]
    assert np.abs(dense).max() > 0.1
    assert dense.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_new_model_and_an_unknown_feature_have_no_past(days: Days) -> None:
    of = schema()
    assert not dense_of(days.rows[0], of, NOTHING).any()
    only_item = schema(dense=SCHEMA["dense"][:1])
    pasts = days.pasts(only_item)
    past = open_past(pasts.path(pasts.after(days.increment(0, only_item))))
    dense = dense_of(days.rows[1], of, past)
    assert dense[:, 0].any()
    assert not dense[:, 2].any()


def test_rows_that_are_held_out_come_in_with_the_increment_that_learns_them(days: Days) -> None:
    of = schema()
    pasts = days.pasts(of)
    whole = days.increment(0, of)
    held_out = write_slice(whole, of, 0.3, 0, str(days.root / "slice.parquet"))
    assert 20 < held_out.num_rows < 120
    without = pasts.after(replace(whole, held_out=held_out))
    assert open_past(pasts.path(without)).impressions == 200 - held_out.num_rows
    second = replace(days.increment(1, of), joined=held_out.files, past=pasts.path(without))
    with_them = open_past(pasts.path(pasts.after(second)))
    plain_order = open_past(
        pasts.path(pasts.after(replace(days.increment(1, of), past=pasts.path(pasts.after(whole)))))
    )
    assert with_them.impressions == plain_order.impressions == 400
    assert with_them.positives == plain_order.positives
    for name, counts in with_them.of_feature.items():
        assert np.array_equal(counts, plain_order.of_feature[name])


def test_parts_of_a_day_add_up_to_it(days: Days) -> None:
    of = schema()
    pasts = days.pasts(of)
    name = ""
    for part in days.increment(0, of).cut(3):
        name = pasts.after(replace(part, past=pasts.path(name)))
    past, whole = (open_past(pasts.path(n)) for n in (name, pasts.after(days.increment(0, of))))
    assert past.impressions == whole.impressions == 200
    for feature in ("item", "tags"):
        assert np.array_equal(past.of_feature[feature], whole.of_feature[feature])


def test_what_is_old_counts_less(days: Days) -> None:
    of = schema(past_half_life_days=1.0)
    pasts = days.pasts(of)
    first = pasts.after(days.increment(0, of))
    past = open_past(pasts.path(pasts.after(replace(days.increment(2, of), past=pasts.path(first)))))
    before = listed(days.rows[0]) + listed(days.rows[2])
    expected = plain(before, [0.25] * 200 + [1.0] * 200)
    assert past.impressions == 250.0
    for row, item in zip(dense_of(days.rows[1], of, past), days.rows[1]["item"], strict=True):
        assert row[0] == pytest.approx(expected(item)[0], abs=1e-6)


def test_the_same_rows_have_the_same_name_and_others_another(days: Days) -> None:
    of, pasts = schema(), days.pasts(schema())
    first = pasts.after(days.increment(0, of))
    path = Path(pasts.path(first))
    written_ns = path.stat().st_mtime_ns
    assert pasts.after(days.increment(0, of)) == first
    assert path.stat().st_mtime_ns == written_ns
    moved = Pasts(days.root / "elsewhere", of)
    assert moved.after(days.increment(0, of)) == first
    others = [
        days.pasts(schema(hash_seed=1)).after(days.increment(0, of)),
        days.pasts(schema(past_half_life_days=3.0)).after(days.increment(0, of)),
        days.pasts(schema(label={"positive": "0", "negative": "1"})).after(days.increment(0, of)),
        pasts.after(replace(days.increment(0, of), past=pasts.path(first))),
        pasts.after(days.increment(0, of).cut(2)[0]),
    ]
    assert len({first, *others}) == 6
    assert days.pasts(schema(dense=[{"name": "x"}])).after(days.increment(0, of)) == ""


def test_a_table_that_has_grown_keeps_its_past(days: Days) -> None:
    of = schema()
    larger = [{**table, "rows": 60} if table["name"] == "item" else table for table in SCHEMA["tables"]]
    grown = schema(tables=larger)
    pasts = days.pasts(of)
    first = pasts.after(days.increment(0, of))
    rows = {**days.rows[1], "item": [55, 3] * 100}
    dense = dense_of(rows, grown, open_past(pasts.path(first)))
    assert dense[0, 0] == 0.0
    assert dense[1, 0] == dense_of(rows, of, open_past(pasts.path(first)))[1, 0] != 0.0
    second = replace(days.increment(1, grown), past=pasts.path(first))
    assert open_past(days.pasts(grown).path(days.pasts(grown).after(second))).of_feature["item"].shape == (2, 60)


def test_a_past_that_is_gone_is_said_and_a_sweep_spares_what_is_named_or_at_work(days: Days) -> None:
    of, pasts = schema(), days.pasts(schema())
    first = pasts.after(days.increment(0, of))
    second = pasts.after(replace(days.increment(1, of), past=pasts.path(first)))
    third = pasts.after(replace(days.increment(2, of), past=pasts.path(second)))
    assert pasts.sweep({second}, ["2026-01-03"]) == 1
    left = {entry.name for entry in (days.root / "past").iterdir()}
    assert left == {second, third}
    with pytest.raises(CheckpointError, match="no such folder"):
        pasts.path(first)


VOCAB: dict[str, Any] = {
    "request_id": "request",
    "dense": [{"name": "item_seen", "past": "item", "value": "impressions"}],
    "sparse": [
        {"name": "item", "mapping": "vocab", "min_count": 3, "table": "item"},
        {"name": "tags", "type": "string", "many": True, "mapping": "vocab", "min_count": 1, "table": "tags"},
    ],
    "tables": [{"name": "item", "rows": 60, "dim": 4}, {"name": "tags", "rows": 4, "dim": 4}],
}


def of_items(rows: dict[str, list[Any]], of: Schema, past: Past) -> list[int]:
    """Table row of each row's item, -1 without one."""
    encoded = encode(pa.Table.from_pydict(rows, schema=TYPES.append(pa.field("user", pa.int64()))), of, past)
    ids = iter(encoded.ids[0].tolist())
    return [next(ids) if length else -1 for length in encoded.lengths[0].tolist()]


def test_a_vocabulary_gives_a_row_to_each_id_that_was_there_often_enough_before(days: Days) -> None:
    of = Schema.model_validate(VOCAB, strict=False)
    pasts = days.pasts(of)
    first = pasts.after(days.increment(0, of))
    second = pasts.after(replace(days.increment(1, of), past=pasts.path(first)))
    row_of: dict[int, int] = {}
    for rows, name in ((days.rows[0], first), (days.rows[1], second)):
        counts = {item: rows["item"].count(item) for item in rows["item"] if item is not None}
        new = {item for item, count in counts.items() if count >= 3 and item not in row_of}
        found = of_items(days.rows[2], of, open_past(pasts.path(name)))
        by_item = dict(zip(days.rows[2]["item"], found, strict=True))
        assert by_item.pop(None) == -1
        expected_rows = set(range(len(row_of) + 1, len(row_of) + 1 + len(new)))
        assert {by_item[item] for item in by_item if item in new} <= expected_rows
        often = sorted((item for item in new if item in by_item), key=lambda item: -counts[item])
        assert [counts[i] for i in sorted(often, key=by_item.__getitem__)] == [counts[i] for i in often]
        for item, row in by_item.items():
            assert (row > 0) == (item in row_of or item in new)
            assert row == row_of.get(item, row), "a row stays an id's own"
        row_of |= {item: by_item.get(item, -1) for item in new}
    assert of_items(days.rows[2], of, NOTHING) == [-1 if item is None else 0 for item in days.rows[2]["item"]]


def test_a_full_vocabulary_takes_no_more_and_what_is_in_none_is_counted(days: Days) -> None:
    of = Schema.model_validate(VOCAB, strict=False)
    pasts = days.pasts(of)
    past = open_past(pasts.path(pasts.after(days.increment(0, of))))
    known, rows = past.vocabulary["tags"]
    assert sorted(rows.tolist()) == [1, 2, 3]
    assert (np.diff(known.astype(np.float64)) > 0).all()
    batch = pa.RecordBatch.from_pylist(
        [{"label": 1, "item": 10**6, "tags": ["t0", "never", "never"]}], schema=TYPES.remove(1)
    )
    counts = dict(zip(count_names(of), encode(batch, of, past).counts.tolist(), strict=True))
    assert counts["sparse/item/unknown"] == 1
    assert counts["sparse/tags/unknown"] in (2, 3)
    assert counts["sparse/tags/ids"] == 3


def test_a_vocabulary_is_the_same_in_little_memory_after_a_kill(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    of = Schema.model_validate(VOCAB, strict=False)
    plenty = days.pasts(of)
    name = plenty.after(days.increment(0, of))
    monkeypatch.setattr(past_counts, "_MOST_WAITING", 10)
    little = Pasts(days.root / "little", of)
    left = days.root / "little" / f".{name}.killed"
    left.mkdir(parents=True)
    assert little.after(days.increment(0, of)) == name
    assert not left.exists()
    one, other = (open_past(pasts.path(name)).vocabulary for pasts in (plenty, little))
    for feature, (hashes, rows) in one.items():
        assert np.array_equal(other[feature][0], hashes)
        assert np.array_equal(other[feature][1], rows)


def test_counts_of_a_vocabulary_are_those_of_the_rows_that_ids_have_after_the_increment(days: Days) -> None:
    of = Schema.model_validate(VOCAB, strict=False)
    pasts = days.pasts(of)
    past = open_past(pasts.path(pasts.after(days.increment(0, of))))
    dense = dense_of(days.rows[1], of, past)[:, 0]
    rows = of_items(days.rows[1], of, past)
    for item, row, seen in zip(days.rows[1]["item"], rows, dense, strict=True):
        if row > 0:
            assert seen == days.rows[0]["item"].count(item)
