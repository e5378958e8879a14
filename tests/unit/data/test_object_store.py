"""Days in an S3-compatible object store, served by a real process: the same rows as from a folder, by ranged reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from diurnal.config import Schema, load_config
from diurnal.data.partitions import is_ready, list_increments, read_increment
from diurnal.data.profile import profile_increment
from diurnal.data.read import read_batches
from diurnal.data.selection import select_increments
from diurnal.data.streams import plan_increment
from diurnal.errors import ConfigError, DataError

DAYS, ROWS = ("2026-01-01", "2026-01-02"), 6_000
SECRET = "of-the-tests"
PATH = "s3://log/clicks"
ROOT = Path(__file__).parents[3]


class Server:
    """moto's S3, and what it was asked."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def asked(self) -> list[str]:
        """Method, path and status of all requests so far."""
        plain = re.sub(r"\x1b\[\d+m", "", self._log.read_text())
        return re.findall(r'"([A-Z]+ \S+) HTTP/1.1" \d+', plain)


@pytest.fixture(scope="module")
def server(object_store: Path) -> Server:
    remote, _ = fs.FileSystem.from_uri("s3://log")
    for index, day in enumerate(DAYS):
        for part in range(2):
            half = table(index).slice(part * ROWS // 2, ROWS // 2)
            pq.write_table(half, f"log/clicks/dt={day}/part-{part}.parquet", filesystem=remote, row_group_size=500)
    with remote.open_output_stream(f"log/clicks/dt={DAYS[0]}/_SUCCESS"):
        pass
    return Server(object_store)


def table(index: int) -> pa.Table:
    rows = np.arange(ROWS)
    bags = [[f"tag {row % 7}"] * (row % 3) for row in rows]
    return pa.table({"label": rows % 2, "price": rows + index * 1e5, "user": rows % 90, "tags": bags, "not_read": bags})


@pytest.fixture(scope="module")
def schema() -> Schema:
    tags = {"name": "tags", "type": "string", "many": True}
    tables = [{"name": name, "rows": 50, "dim": 4} for name in ("user", "tags")]
    content = {"dense": [{"name": "price"}], "sparse": [{"name": "user"}, tags], "tables": tables}
    return Schema.model_validate(content, strict=False)


def rows_of(path: str, schema: Schema) -> list[Any]:
    plan = plan_increment(
        read_increment(path, DAYS[0], schema), batch_rows=600, num_streams=2, seed=0, order="file", task_rows=1000
    )
    batches = [batch for task in plan.read_tasks(0, 1) for batch in read_batches(task, schema, path)]
    return [(b.row_index.tolist(), b.dense.tolist(), b.values.tolist(), b.lengths.tolist()) for b in batches]


def test_rows_are_those_of_the_same_files_in_a_folder(server: Server, schema: Schema, tmp_path: Path) -> None:
    folder = tmp_path / f"dt={DAYS[0]}"
    folder.mkdir()
    for part in range(2):
        pq.write_table(table(0).slice(part * ROWS // 2, ROWS // 2), folder / f"part-{part}.parquet", row_group_size=500)
    assert rows_of(PATH, schema) == rows_of(str(tmp_path), schema)


def test_which_days_there_are_and_which_is_complete_takes_few_listings(server: Server, schema: Schema) -> None:
    before = len(server.asked())
    assert list_increments(PATH, schema) == list(DAYS)
    assert [is_ready(PATH, day, schema)[0] for day in DAYS] == [True, False]
    with pytest.raises(DataError, match="_SUCCESS is not there yet"):
        select_increments(PATH, schema, DAYS[1], None)
    asked = server.asked()[before:]
    listings = [request for request in asked if "list-type=2" in request]
    assert 0 < len(listings) <= 20
    assert not [request for request in asked if "part-" in request], "no file was opened"


def test_a_profile_is_read_by_ranges(server: Server, schema: Schema) -> None:
    before = len(server.asked())
    profile = profile_increment(read_increment(PATH, DAYS[0], schema), schema)
    assert (profile.rows, profile.positives) == (ROWS, ROWS // 2)
    reads = [request for request in server.asked()[before:] if request.startswith("GET") and "part-" in request]
    assert len(reads) > 4


def test_a_bucket_that_is_not_there_is_one_fault_that_tells_no_secret(server: Server, schema: Schema) -> None:
    with pytest.raises(DataError) as refused:
        list_increments("s3://no-such-bucket/clicks", schema)
    assert "s3://no-such-bucket/clicks" in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("setting", ["data.path", "storage"])
def test_a_login_in_the_url_is_refused_and_not_repeated(setting: str) -> None:
    with pytest.raises(ConfigError, match="credentials come from the environment") as refused:
        load_config([ROOT / "jobs/configs/synthetic.toml"], [f"{setting}='s3://tester:{SECRET}@log/clicks'"])
    assert SECRET not in str(refused.value)
    assert setting in str(refused.value)


@pytest.mark.parametrize(
    "url", ["gs://log/models", "s3://log/models?region=x", "s3://", "s3://log/a/../b", "s3://log//a"]
)
def test_a_storage_is_a_folder_or_a_plain_url_of_an_object_store(url: str) -> None:
    with pytest.raises(ConfigError, match=r"storage\n.*\n.*a folder, or s3://BUCKET/PREFIX"):
        load_config([ROOT / "jobs/configs/synthetic.toml"], [f"storage='{url}'"])
