"""Which increments are implausible: each kind of damage is found and named, and ordinary days are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diurnal.config import Schema
from diurnal.config.daily import Profile as Limits
from diurnal.data.partitions import read_increment
from diurnal.data.plausible import compare
from diurnal.data.profile import Profile, profile_increment

MakeSchema = Callable[..., Schema]
Columns = dict[str, Any]
FIRST = date(2026, 1, 5)
LIMITS = Limits()


def make_day(number: int, rows: int = 2000) -> Columns:
    """Some drift and a weekly season in the label rate; new users every day."""
    rng = np.random.default_rng(number)
    day = FIRST + timedelta(days=number)
    midnight = (day - date(1970, 1, 1)).days * 86_400_000_000
    return {
        "label": (rng.random(rows) < 0.2 + 0.03 * np.sin(2 * np.pi * number / 7)).astype(np.int8),
        "price": rng.lognormal(2.0 + 0.01 * number, 1.0, rows),
        "visits": rng.poisson(1.0, rows).astype(np.float64),
        "user": (rng.zipf(1.3, rows) % 3000) + 5 * number,
        "device": rng.choice(["phone", "tv", "tablet"], rows, p=[0.6, 0.3, 0.1]),
        "at": pa.array(midnight + rng.integers(0, 86_400_000_000, rows), pa.timestamp("us")),
    }


@pytest.fixture(scope="module")
def schema(make_schema: MakeSchema) -> Schema:
    dense = [{"name": "price"}, {"name": "visits"}]
    return make_schema(dense=dense, sparse=[{"name": "user"}, {"name": "device", "type": "string"}], event_time="at")


Take = Callable[[int, Columns], Profile]


@pytest.fixture(scope="module")
def take(tmp_path_factory: pytest.TempPathFactory, schema: Schema) -> Take:
    def profile(number: int, columns: Columns) -> Profile:
        import pyarrow.parquet as pq

        root, day = tmp_path_factory.mktemp("days"), (FIRST + timedelta(days=number)).isoformat()
        (root / f"dt={day}").mkdir()
        pq.write_table(pa.table(columns), root / f"dt={day}" / "a.parquet")
        return profile_increment(read_increment(str(root), day, schema), schema, threads=1)

    return profile


@pytest.fixture(scope="module")
def history(take: Take) -> list[Profile]:
    return [take(number, make_day(number, 1400 if number % 7 > 4 else 2000)) for number in range(22)]


def test_ordinary_days_are_plausible(history: list[Profile], schema: Schema) -> None:
    found = [compare(history[i], history[:i], LIMITS, schema) for i in range(len(history))]
    assert found == [[]] * 22


HALF = slice(0, 1000)
DAMAGE: dict[str, tuple[str, str, Callable[[Columns], Columns]]] = {
    "flipped labels": ("label", "label rate", lambda c: {**c, "label": 1 - c["label"]}),
    "one class": ("label", "one class", lambda c: {**c, "label": 0 * c["label"]}),
    "bad labels": ("label", "labels", lambda c: {**c, "label": c["label"] * 2}),
    "cents": ("price", "95 % quantile", lambda c: {**c, "price": c["price"] * 100}),
    "tenth": ("price", "width", lambda c: {**c, "price": c["price"] / 10}),
    "all fill": ("visits", "dead", lambda c: {**c, "visits": 0 * c["visits"]}),
    "all null": ("price", "dead", lambda c: {**c, "price": pa.nulls(2000, pa.float64())}),
    "half fill": ("price", "rows without a value", lambda c: {**c, "price": c["price"] * (np.arange(2000) % 2)}),
    "no ids": ("user", "dead", lambda c: {**c, "user": pa.nulls(2000, pa.int64())}),
    "one id": ("device", "dead", lambda c: {**c, "device": ["tv"] * 2000}),
    "new ids": ("user", "new ids", lambda c: {**c, "user": c["user"] + 10**9}),
    "truncated": ("rows", "rows", lambda c: {name: values[HALF] for name, values in c.items()}),
    "empty": ("rows", "rows", lambda c: {name: values[:0] for name, values in c.items()}),
    "day before": ("at", "share outside", lambda c: {**c, "at": make_day(4)["at"]}),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("number", [5, 21])
def test_damage_is_found_and_named(
    damage: str, number: int, history: list[Profile], take: Take, schema: Schema
) -> None:
    column, what, change = DAMAGE[damage]
    columns = make_day(number)
    found = compare(take(number, change(columns)), history[:number], LIMITS, schema)
    assert (column, what) in [(finding.column, finding.what) for finding in found]
    assert all(finding.text.startswith(f"{finding.column}: ") for finding in found)


def test_the_line_names_the_column_and_both_values(history: list[Profile], take: Take, schema: Schema) -> None:
    columns = make_day(5)
    columns["price"] = columns["price"] * 100
    (finding,) = compare(take(5, columns), history[:5], LIMITS, schema)
    assert finding.usual is not None
    assert finding.found == pytest.approx(100 * finding.usual, rel=0.3)
    assert str(finding).startswith(f"price: 95 % quantile {finding.found:,.4g} (usually {finding.usual:,.4g} +- ")


def test_without_a_history_only_what_is_certain_is_found(take: Take, schema: Schema) -> None:
    constant = {**make_day(0), "price": np.full(2000, 7.0), "device": ["tv"] * 2000}
    assert compare(take(0, constant), [], LIMITS, schema) == []
    dead = {**make_day(0), "price": pa.nulls(2000, pa.float64())}
    assert [(f.column, f.what) for f in compare(take(0, dead), [], LIMITS, schema)] == [("price", "dead")]


def test_small_increments_are_compared_by_their_rows_alone(history: list[Profile], take: Take, schema: Schema) -> None:
    small = make_day(5, 900)
    small["price"] = small["price"] * 100
    loose = LIMITS.model_copy(update={"rows_factor": 10.0})
    assert compare(take(5, small), history[:5], loose, schema) == []
    assert compare(take(5, small), history[:5], LIMITS.model_copy(update={"min_rows": 500}), schema) != []


def test_a_feature_that_always_was_dead_is_no_news(history: list[Profile], take: Take, schema: Schema) -> None:
    dead = take(5, {**make_day(5), "price": pa.nulls(2000, pa.float64())})
    before = [replace(profile, dense={**profile.dense, "price": dead.dense["price"]}) for profile in history[:5]]
    assert compare(dead, before, LIMITS, schema) == []
