from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torchrec import KeyedJaggedTensor

from diurnal.config import Config, Dense, Schema, Sparse, Table
from diurnal.data.batch import Batch

SCHEMA = Schema(
    dense=(Dense(name="age"), Dense(name="price"), Dense(name="hour")),
    sparse=(
        Sparse(name="item"),
        Sparse(name="history", table="item", many=True),
        Sparse(name="genres", many=True),
        Sparse(name="user"),
    ),
    tables=(
        Table(name="user", rows=11, dim=8),
        Table(name="item", rows=7, dim=8),
        Table(name="genres", rows=5, dim=8, pooling="mean"),
    ),
)
"""Features in another order than their tables, one table for two features, both poolings."""


@pytest.fixture
def make_config() -> Callable[..., Config]:
    def make(**sections: object) -> Config:
        given = {
            "name": "test",
            "data": {"path": "unused", "schema_file": "unused"},
            "model": {"bottom": (8,), "over": (8, 4)},
            "dataset": SCHEMA,
        }
        return Config.model_validate(given | sections)

    return make


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    """A batch of `rows` rows for `SCHEMA`, the last two of them padding."""

    def make(seed: int, rows: int = 12) -> Batch:
        rng = np.random.default_rng(seed)
        real = max(rows - 2, 0)
        lengths, values = [], []
        for feature in SCHEMA.sparse:
            longest = 3 if feature.many else 1
            drawn = rng.integers(0, longest + 1, rows) * (np.arange(rows) < real)
            lengths.append(drawn)
            values.append(rng.integers(0, SCHEMA.table(feature.table_name).rows, drawn.sum()))
        is_real = torch.arange(rows) < real
        return Batch(
            dense=torch.from_numpy(rng.normal(size=(rows, 3)).astype(np.float32)) * is_real[:, None],
            sparse=KeyedJaggedTensor(
                keys=[feature.name for feature in SCHEMA.sparse],
                values=torch.from_numpy(np.concatenate(values)),
                lengths=torch.from_numpy(np.concatenate(lengths).astype(np.int32)),
                stride=rows,
            ),
            labels=torch.from_numpy((rng.random(rows) < 0.4).astype(np.float32)) * is_real,
            weights=torch.from_numpy(rng.uniform(0.5, 2, rows).astype(np.float32)) * is_real,
            row_index=torch.where(is_real, torch.arange(rows), -1),
            step=0,
            num_rows=real,
            counts=np.zeros(0, dtype=np.int64),
        )

    return make
