from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchrec import EmbeddingBagCollection, PoolingType

from diurnal.config import Dense, Schema, Sparse, Table
from diurnal.config.features import TORCH_MODULE_NAMES
from diurnal.model.seeding import philox, random_words
from diurnal.model.tables import embedding_bag_configs, initial_rows


def test_words_are_the_raw_words_of_philox() -> None:
    raw = philox(3, "a", 5).random_raw(16).astype("<u8")
    assert (random_words(philox(3, "a", 5), 32) == raw.view("<u4")).all()


def test_the_counter_skips_eight_words() -> None:
    assert (random_words(philox(3, "a"), 32)[16:] == random_words(philox(3, "a", 2), 16)).all()


def test_starting_values_never_change() -> None:
    table = Table(name="user", rows=100, dim=4)
    rows = initial_rows(7, table, 98, 100, 1.0)[:, :3]
    golden = [[-0.057250626, -0.032205455, 0.044705328], [0.017969802, 0.0627304, 0.066592984]]
    np.testing.assert_allclose(rows.numpy(), golden, rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 40_000), st.integers(0, 40_000), st.sampled_from([4, 8, 12, 20]))
def test_rows_do_not_depend_on_where_a_shard_starts(first: int, second: int, dim: int) -> None:
    start, stop = sorted((first, second))
    table = Table(name="item", rows=40_000, dim=dim)
    whole = initial_rows(0, table, 0, table.rows, 1.0)
    assert torch.equal(initial_rows(0, table, start, stop, 1.0), whole[start:stop])


def test_no_two_rows_are_equal_and_values_are_uniform_within_the_bound() -> None:
    """The same seed on every rank made row-wise shards copies of each other (meta-pytorch/torchrec#1739)."""
    table = Table(name="item", rows=10_000, dim=4)
    rows = initial_rows(0, table, 0, table.rows, 0.5)
    bound = 0.5 / 100
    assert len(torch.unique(rows, dim=0)) == table.rows
    assert rows.abs().max() <= bound * (1 + 1e-6)
    assert rows.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert abs(rows.mean().item()) < bound * 0.02


def test_seed_and_name_make_other_tables() -> None:
    one, other = Table(name="a", rows=50, dim=4), Table(name="b", rows=50, dim=4)
    drawn = [initial_rows(0, one, 0, 50, 1.0), initial_rows(1, one, 0, 50, 1.0), initial_rows(0, other, 0, 50, 1.0)]
    assert len(torch.unique(torch.cat(drawn), dim=0)) == 150


def test_configs_follow_the_schema() -> None:
    schema = _schema(Table(name="t", rows=9, dim=4, pooling="mean"), ("b", "a"))
    (config,) = embedding_bag_configs(schema)
    assert (config.name, config.num_embeddings, config.embedding_dim) == ("t", 9, 4)
    assert config.feature_names == ["b", "a"]
    assert config.pooling == PoolingType.MEAN


def test_the_names_that_tables_cannot_have_are_those_of_torch_modules() -> None:
    assert {name for name in dir(nn.ModuleDict()) if not name.startswith("_")} == TORCH_MODULE_NAMES


def test_every_other_name_becomes_a_table() -> None:
    names = ["t-1", "weight", "bias", "user_id"]
    assert not any(hasattr(nn.ModuleDict(), name) for name in names)
    for name in names:
        configs = embedding_bag_configs(_schema(Table(name=name, rows=9, dim=4), ("f",)))
        EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def _schema(table: Table, features: tuple[str, ...]) -> Schema:
    sparse = tuple(Sparse(name=name, table=table.name) for name in features)
    return Schema(dense=(Dense(name="d"),), sparse=sparse, tables=(table,))
