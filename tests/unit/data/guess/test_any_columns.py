"""Whatever columns there are: what is proposed loads, its days fit it, and all their rows encode to finite numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import load_config
from diurnal.data.encode import encode
from diurnal.data.guess.propose import propose
from diurnal.data.guess.text import run_text, schema_text
from diurnal.data.partitions import read_increment

Make = Callable[[np.random.Generator, int], Any]

NAMES = [
    "a",
    "b.c",
    "x y",
    "type",
    "ü",
    "user_id",
    "item",
    "count",
    "weight",
    "2nd",
    "ts",
    "price",
    "zip",
    "日",
    "_",
    "hour",
]

COLUMNS: tuple[Make, ...] = (
    lambda rng, n: rng.normal(size=n),
    lambda rng, n: pa.array(rng.lognormal(0, 3, n).astype(np.float32), mask=rng.random(n) < 0.5),
    lambda rng, n: rng.integers(-5, 5, n).astype(np.int8),
    lambda rng, n: rng.integers(0, 2**64, n, dtype=np.uint64),
    lambda rng, n: rng.integers(-(2**63), 2**63 - 1, n),
    lambda rng, n: pa.array([f"s{i}" for i in rng.integers(0, 30, n)], mask=rng.random(n) < 0.02),
    lambda rng, n: pa.array([f"s{i}" for i in rng.integers(0, 30, n)]).dictionary_encode(),
    lambda rng, n: rng.random(n) < 0.3,
    lambda rng, n: pa.array([None if k > 6 else list(range(k)) for k in rng.integers(0, 9, n)], pa.list_(pa.int32())),
    lambda rng, n: pa.array([["t"] * (k % 4) for k in rng.integers(0, 9, n)], pa.large_list(pa.string())),
    lambda rng, n: rng.choice([np.nan, np.inf, -np.inf, 1.0, 2.0], n),
    lambda rng, n: 1e300 * rng.random(n),
    lambda rng, n: pa.array(rng.integers(0, 3, n)).cast(pa.decimal128(20, 0)),
    lambda rng, n: pa.array([b"\xff\x00" + bytes([i]) for i in rng.integers(0, 9, n)]),
    lambda rng, n: pa.array(rng.integers(0, 10**9, n), pa.timestamp("ns")),
    lambda rng, n: np.where(rng.random(n) < 0.001, 1.0, 0.0),
    lambda rng, n: rng.random(n).astype(np.float16),
    lambda rng, n: rng.zipf(1.1, n) % 10**12,
    lambda rng, n: pa.array([[1, 2]] * n, pa.list_(pa.int64(), 2)),
    lambda rng, n: -rng.lognormal(0, 4, n),
    lambda rng, n: pa.array([{"x": [1]}] * n),
    lambda rng, n: pa.nulls(n),
)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_columns_there_are_what_is_proposed_holds(invented: Any, tmp_path: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = rng.permutation(NAMES)[: rng.integers(3, 12)]
    made = [COLUMNS[kind] for kind in rng.integers(0, len(COLUMNS), len(names))]
    for day in range(2):
        rows = int(rng.integers(20, 300))
        columns: dict[str, Any] = {"label": np.arange(rows) % 3 == 0, "sure": rng.integers(0, 7, rows)}
        for name, make in zip(names, made, strict=True):
            if rng.random() > 0.05:  # else this day's file lacks it
                columns[str(name)] = make(rng, rows)
        invented.write(columns, day)
    proposal = propose(invented.path)
    json.dumps(proposal.to_dict(), allow_nan=False)
    assert proposal.table()
    (tmp_path / "schema.toml").write_text(schema_text(proposal), encoding="utf-8")
    (tmp_path / "run.toml").write_text(run_text(proposal, str(tmp_path / "schema.toml")), encoding="utf-8")
    schema = load_config([tmp_path / "run.toml"]).dataset
    for increment in ("2026-01-01", "2026-01-02"):
        for file in read_increment(invented.path, increment, schema).files:
            dense = encode(pq.read_table(file.path), schema).dense
            assert np.isfinite(dense).all()
            assert np.abs(dense).max() < 1e3
