"""Small days of impressions with a real signal, and a configuration that trains on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import Config, load_config

SCHEMA = """
event_time = "ts"
request_id = "request"
group_id = "user"

[[dense]]
name = "price"
transform = "log1p"
{dense_options}

[[sparse]]
name = "user"

[[sparse]]
name = "item"
type = "string"

[[sparse]]
name = "topics"
many = true

[[tables]]
name = "user"
rows = 500
dim = 8

[[tables]]
name = "item"
rows = 300
dim = 8

[[tables]]
name = "topics"
rows = 40
dim = 8
pooling = "mean"
"""

RUN = """
name = "clicks"
storage = "storage"

[data]
path = "days"
schema_file = "schema.toml"
batch_rows = 60
streams = 6

[model]
bottom = [16]
over = [16]

[workers]
max = 2
cpus = 0.5
spares = false

[tracking]
every_steps = 5
"""

FIRST_DAY = date(2026, 1, 1)


class World:
    """A dataset folder and the configuration of a run over it, for tests to write to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dense_options = ""
        (root / "run.toml").write_text(RUN)

    def write_day(self, index: int, num_rows: int, num_files: int = 2, change: Callable | None = None) -> str:
        """Writes day `index` and answers its id; `change` may spoil the columns, a dict of lists."""
        day = FIRST_DAY + timedelta(days=index)
        rng = np.random.default_rng(index + 1)
        user, item = rng.zipf(1.3, num_rows) % 400, rng.integers(0, 60, num_rows)
        price = rng.exponential(20.0, num_rows)
        logit = 1.2 * np.sin(user) + np.cos(item) - 0.03 * price
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        columns = {
            "ts": [midnight + timedelta(seconds=int(s)) for s in rng.integers(0, 86400, num_rows)],
            "request": [index * 1_000_000 + i for i in range(num_rows)],
            "label": (rng.random(num_rows) < 1 / (1 + np.exp(-logit))).astype(int).tolist(),
            "price": price.tolist(),
            "user": (user * 2**40).tolist(),
            "item": [f"item-{i}" for i in item],
            "topics": [rng.integers(0, 30, n).tolist() for n in rng.integers(0, 4, num_rows)],
        }
        if change is not None:
            change(columns)
        types = {"ts": pa.timestamp("us", "UTC"), "topics": pa.list_(pa.int64()), "price": pa.float64()}
        arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
        table = pa.table(arrays)
        folder = self.root / "days" / f"dt={day}"
        folder.mkdir(parents=True)
        bounds = np.linspace(0, num_rows, num_files + 1).astype(int)
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            pq.write_table(table.slice(start, stop - start), folder / f"part-{number}.parquet", row_group_size=70)
        (folder / "_SUCCESS").touch()
        return str(day)

    def config(self, *overrides: str) -> Config:
        (self.root / "schema.toml").write_text(SCHEMA.format(dense_options=self.dense_options))
        own = [f"data.path={str(self.root / 'days')!r}", f"data.schema_file={str(self.root / 'schema.toml')!r}"]
        return load_config([self.root / "run.toml"], [f"storage={str(self.root / 'storage')!r}", *own, *overrides])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(scope="session")
def new_world(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], World]:
    """For worlds that several tests share."""
    return lambda: World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """One local cluster for the tests of a module, with CPUs for three workers and their readers."""
    import ray

    from diurnal.train.resources import start_local

    start_local(num_cpus=6)
    yield
    ray.shutdown()
