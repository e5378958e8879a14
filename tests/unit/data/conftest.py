"""Days of Parquet with any defect that a test asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import Schema
from diurnal.data.packed import PackedBatch
from diurnal.data.partitions import Increment, read_increment
from diurnal.data.read import read_batches
from diurnal.data.streams import StreamPlan, plan_increment

MakeSchema = Callable[..., Schema]


@pytest.fixture(scope="session")
def make_schema() -> MakeSchema:
    """Makes a schema from its sections; by default dense `price`, sparse `user`, and a table of 1000 rows each."""

    def make(**sections: Any) -> Schema:
        raw = {"dense": [{"name": "price"}], "sparse": [{"name": "user"}], **sections}
        tables = dict.fromkeys(feature.get("table", feature["name"]) for feature in raw["sparse"])
        raw.setdefault("tables", [{"name": name, "rows": 1000, "dim": 4} for name in tables])
        return Schema.model_validate_json(json.dumps(raw))

    return make


class Days:
    """A dataset folder for one test."""

    def __init__(self, root: Path) -> None:
        self.path = str(root)
        self._root = root

    def folder(self, name: str) -> Path:
        """`dt=2026-01-02` or `dt=2026-01-02/hr=05`, made when it is not there."""
        folder = self._root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write(
        self, files: dict[str, pa.Table | dict[str, Any]], day: str = "2026-01-02", row_group_size: int = 100
    ) -> str:
        """Writes files, given as tables or as columns, and the marker; answers the day."""
        folder = self.folder(f"dt={day}")
        for name, rows in files.items():
            table = rows if isinstance(rows, pa.Table) else pa.table(rows)
            pq.write_table(table, folder / name, row_group_size=row_group_size)
        (folder / "_SUCCESS").touch()
        return day

    def increment(self, schema: Schema, day: str = "2026-01-02", **options: Any) -> Increment:
        return read_increment(self.path, day, schema, **options)

    def plan(self, schema: Schema, day: str = "2026-01-02", **options: Any) -> StreamPlan:
        numbers = {"batch_rows": 4, "num_streams": 1, "seed": 0, "order": "file", "task_rows": 64, **options}
        return plan_increment(self.increment(schema, day), **numbers)

    def batches(self, schema: Schema, day: str = "2026-01-02", **options: Any) -> list[PackedBatch]:
        """All batches of a single rank."""
        return list(read_rank(self.plan(schema, day, **options), schema))


@pytest.fixture
def days(tmp_path: Path) -> Days:
    return Days(tmp_path)


def read_rank(
    plan: StreamPlan, schema: Schema, rank: int = 0, world_size: int = 1, start_step: int = 0
) -> Iterator[PackedBatch]:
    for task in plan.read_tasks(rank, world_size, start_step):
        yield from read_batches(task, schema, plan.increment.path)


@pytest.fixture(scope="session", name="read_rank")
def read_rank_fixture() -> Callable[..., Iterator[PackedBatch]]:
    """Reads what one rank reads, in this process."""
    return read_rank
