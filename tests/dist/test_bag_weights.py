"""Weights of the ids of bags under every placement, at one, two and three ranks: the twin's model, and the documented
meaning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from torchrec import KeyedJaggedTensor

from diurnal.config import Config
from diurnal.data.batch import Batch
from diurnal.data.encode import encode
from diurnal.data.packed import PackedBatch
from diurnal.model.twin import Twin
from diurnal.testing import everything, run_world, spread, tiny_batch, tiny_config, train_step

DEFAULTS = ("table_wise", "row_wise", "data_parallel", "column_wise")
MIXED = {"user": "row_wise", "item": "table_wise", "genres": "row_wise", "site": "data_parallel"}
STEPS = 3


def config_of(sharding: dict) -> Config:
    """`liked` is a sum that shares its table with a feature that has no weights, `genres` a mean."""
    sparse = [
        {"name": "user"},
        {"name": "liked", "many": True, "table": "item", "mapping": "identity", "weights": "liked_by"},
        {"name": "item", "mapping": "identity"},
        {"name": "genres", "many": True, "mapping": "identity", "weights": "genre_shares"},
        {"name": "site", "mapping": "identity"},
    ]
    optim = {"sparse": {"kind": "adagrad", "lr": 0.05}}
    changes = {"dataset": {"sparse": sparse}, "optim": optim, "sharding": sharding, "workers": {"max": 2}}
    return tiny_config(changes, dim=8)


CONFIGS = [*(config_of({"default": default}) for default in DEFAULTS), config_of({"placement": MIXED})]


def weighted(config: Config, step: int, rank: int = 0, world_size: int = 1) -> Batch:
    """A share of a random global batch whose weights depend on the row, not on the rank that has it."""
    batch = tiny_batch(config, step, rank, world_size)
    lengths = batch.sparse.lengths().view(len(config.dataset.sparse), -1)
    weights = []
    for feature, of_feature in zip(config.dataset.sparse, lengths.tolist(), strict=True):
        for row, length in zip(batch.row_index.tolist(), of_feature, strict=True):
            drawn = [0.25 * ((row * 7 + place * 3 + step) % 6) for place in range(length)]
            drawn = drawn if feature.weights else [1.0] * length
            is_mean = config.dataset.table(feature.table_name).pooling == "mean"
            weights += [w / (sum(drawn) or 1.0) for w in drawn] if is_mean else drawn
    sparse = KeyedJaggedTensor(
        keys=batch.sparse.keys(),
        values=batch.sparse.values(),
        weights=torch.tensor(weights),
        lengths=batch.sparse.lengths(),
        stride=batch.batch_rows,
    )
    return replace(batch, sparse=sparse)


Answer = tuple[list[torch.Tensor], dict[str, torch.Tensor]]


def train(rank: int, world_size: int) -> list[Answer]:
    answers = []
    for config in CONFIGS:
        parallel = spread(config)
        batches = [weighted(config, step, rank, world_size) for step in range(STEPS)]
        answers.append(([train_step(parallel, batch) for batch in batches], everything(parallel)))
    return answers


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_placement_trains_the_twins_model(world_size: int) -> None:
    twin = Twin(CONFIGS[0])
    logits = [twin.train_step(weighted(CONFIGS[0], step)) for step in range(STEPS)]
    assert_weights_matter(logits[0])
    by_rank = run_world(train, world_size)
    for index, config in enumerate(CONFIGS):
        for step in range(STEPS):
            found = torch.stack([answers[index][0][step] for answers in by_rank], dim=1).flatten()
            torch.testing.assert_close(found, logits[step][:, 0], rtol=1e-5, atol=1e-6, msg=str(config.sharding))
        for answers in by_rank:
            for name, value in twin.values().items():
                torch.testing.assert_close(answers[index][1][name], value, rtol=1e-5, atol=1e-6, msg=name)


def assert_weights_matter(logits: torch.Tensor) -> None:
    batch = tiny_batch(CONFIGS[0], 0)
    without = Twin(CONFIGS[0]).logits(batch.dense, batch.sparse)
    assert (without - logits).abs().max() > 1e-4


LIKED, LIKED_BY = [[1, 2, None], [3], [], [7, 7]], [[0.5, -2.0, 9.0], [0.25], [], [1.0, 3.0]]
GENRES, SHARES = [[1, 2], [3, 99, 4], [5, 6], []], [[0.5, 1.5], [1.0, 8.0, 3.0], [0.0, 0.0], []]


def pooled(rank: int, world_size: int) -> list[dict[str, torch.Tensor]]:
    """The pooled vectors of rows that were encoded, under every placement, beside the tables that they come from."""
    rows = pa.table(
        {
            "label": [0] * 4,
            **{name: [1.0] * 4 for name in ("age", "price")},
            **{name: [0] * 4 for name in ("user", "item", "site")},
            "liked": pa.array(LIKED),
            "liked_by": LIKED_BY,
            "genres": pa.array(GENRES),
            "genre_shares": SHARES,
        }
    )
    found = []
    for config in CONFIGS:
        encoded = encode(rows, config.dataset)
        mine = encoded.take(np.arange(rank, 4, world_size))
        packed = PackedBatch.pack([(mine, np.arange(mine.num_rows))], 0, -(-4 // world_size))
        batch = Batch.from_packed(packed, [feature.name for feature in config.dataset.sparse])
        parallel = spread(config)
        vectors = parallel.module.module.get_submodule("tables")(batch.sparse).to_dict()
        tables = {f"table {name}": parallel.gather_table(name) for name in ("item", "genres")}
        found.append({name: vectors[name].detach() for name in ("liked", "genres")} | tables)
    return found


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_sum_is_weighted_and_a_mean_is_the_weighted_mean(world_size: int) -> None:
    by_rank = run_world(pooled, world_size)
    for index in range(len(CONFIGS)):
        liked, genres = (
            torch.stack([answers[index][name] for answers in by_rank], dim=1).flatten(0, 1)
            for name in ("liked", "genres")
        )
        item, genre = by_rank[0][index]["table item"], by_rank[0][index]["table genres"]
        zero = torch.zeros(8)
        sums = [0.5 * item[1] - 2.0 * item[2], 0.25 * item[3], zero, 4.0 * item[7]]
        means = [0.25 * genre[1] + 0.75 * genre[2], 0.25 * genre[3] + 0.75 * genre[4], zero, zero]
        torch.testing.assert_close(liked, torch.stack(sums), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(genres, torch.stack(means), rtol=1e-5, atol=1e-6)
