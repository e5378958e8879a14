"""What each kind of input costs to encode, against a raw scan of the columns that it reads: rows per CPU-second.

The label is read and encoded beside it in every line, and an integer id beside every number: a model has both.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from diurnal.config import Schema
from diurnal.data.columns import encoded_columns
from diurnal.data.partitions import Increment, read_increment
from diurnal.data.pasts import Pasts
from diurnal.data.read import read_batches
from diurnal.data.streams import plan_increment

ROWS, GROUP_ROWS, ROUNDS = 300_000, 100_000, 5
DAY = "2026-01-01"

ID, TEXT = {"name": "id"}, {"name": "text", "type": "string"}
TAGS = {"name": "tags", "type": "string", "many": True, "max_length": 4}
LIKED = {"name": "liked", "many": True}
HOUR = {"name": "hour", "column": "time", "type": "timestamp", "mapping": "hour"}
NUMBER = {"name": "x"}
KINDS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "number as it is": ([NUMBER], []),
    "clip": ([{**NUMBER, "clip": (0.0, 9.0)}], []),
    "log1p": ([{**NUMBER, "transform": "log1p"}], []),
    "symlog": ([{**NUMBER, "transform": "symlog"}], []),
    "sqrt": ([{**NUMBER, "transform": "sqrt"}], []),
    "power": ([{**NUMBER, "transform": "power", "exponent": 0.25}], []),
    "missing indicator": ([{**NUMBER, "transform": "missing"}], []),
    "hash of an integer": ([], [ID]),
    "identity": ([], [{**ID, "mapping": "identity"}]),
    "hash of a string": ([], [TEXT]),
    "bag of strings": ([], [TAGS]),
    "bag of integers": ([], [LIKED]),
    "bag of integers with weights": ([], [{**LIKED, "weights": "shares"}]),
    "buckets": ([], [{"name": "x", "type": "float", "mapping": "bucketize", "boundaries": (0.5, 1.0, 2.0, 4.0)}]),
    "buckets at quantiles of the past": ([], [{"name": "x", "type": "float", "mapping": "bucketize", "quantiles": 32}]),
    "hour": ([], [HOUR]),
    "weekday": ([], [{**HOUR, "mapping": "weekday"}]),
    "cross of integer and hour": ([], [ID, HOUR, {"name": "cross", "cross": ("id", "hour")}]),
    "cross of string and bag": ([], [TEXT, TAGS, {"name": "cross", "cross": ("text", "tags")}]),
    "effect of an id in the past": ([{"name": "effect", "past": "id"}], [ID]),
    "impressions of a bag in the past": ([{"name": "seen", "past": "tags", "value": "impressions"}], [TAGS]),
}


def schema_of(dense: list[dict[str, Any]], sparse: list[dict[str, Any]]) -> Schema:
    """Also without numbers, which alone is no model: nothing is trained."""
    sparse = sparse or [ID]
    tables = [{"name": one["name"], "rows": 100_000, "dim": 4} for one in sparse]
    schema = Schema.model_validate({"dense": dense or [NUMBER], "sparse": sparse, "tables": tables}, strict=False)
    return schema if dense else schema.model_copy(update={"dense": ()})


def write_day(root: Path) -> None:
    rng = np.random.default_rng(0)
    bags = [[f"tag {tag}" for tag in row] for row in rng.integers(0, 500, (1000, 3)).tolist()]
    liked = rng.integers(0, 99_999, (1000, 3)).tolist()
    columns = {
        "label": (rng.random(ROWS) < 0.2).astype(np.int64),
        "x": pa.array(rng.lognormal(1, 1, ROWS).astype(np.float32), mask=rng.random(ROWS) < 0.1),
        "id": (rng.zipf(1.3, ROWS) % 99_999).astype(np.int64),
        "text": [f"item {i}" for i in (rng.zipf(1.3, ROWS) % 20_000).tolist()],
        "tags": [bags[i] for i in rng.integers(0, 1000, ROWS).tolist()],
        "liked": [liked[i] for i in rng.integers(0, 1000, ROWS).tolist()],
        "shares": [[0.5, 0.25, 0.25]] * ROWS,
        "time": pa.array(1_767_225_600_000_000 + rng.integers(0, 86_400 * 10**6, ROWS), pa.timestamp("us", "UTC")),
    }
    folder = root / f"dt={DAY}"
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "0.parquet", compression="zstd", row_group_size=GROUP_ROWS)


def scan(increment: Increment, schema: Schema) -> None:
    file = pq.ParquetFile(increment.files[0].path)
    for group in range(file.num_row_groups):
        file.read_row_group(group, encoded_columns(schema), use_threads=False)


def encode(increment: Increment, schema: Schema) -> None:
    plan = plan_increment(increment, batch_rows=8192, num_streams=1, seed=0, order="file", task_rows=65536)
    for task in plan.read_tasks(0, 1):
        for _ in read_batches(task, schema, increment.path):
            pass


def rows_per_cpu_s(work: Any, increment: Increment, schema: Schema) -> float:
    before_s = time.process_time()
    work(increment, schema)
    return ROWS / (time.process_time() - before_s)


def bench() -> dict[str, dict[str, float]]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_day(root)
        for kind, (dense, sparse) in KINDS.items():
            schema = schema_of(dense, sparse)
            increment = read_increment(str(root), DAY, schema)
            pasts = Pasts(root / "past", schema)
            past = pasts.path(pasts.after(increment))
            seen = Increment.from_json({**increment.to_json(), "past": past})
            encode(seen, schema)
            both = [(rows_per_cpu_s(scan, seen, schema), rows_per_cpu_s(encode, seen, schema)) for _ in range(ROUNDS)]
            scans, encodes = zip(*both, strict=True)
            found[kind] = {"rows_per_cpu_s": max(encodes), "of_the_scan": max(encodes) / max(scans)}
    return found
