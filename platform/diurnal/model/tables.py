"""Embedding tables: how TorchRec is told about them, and the values that their rows start with."""

from __future__ import annotations

import math

import numpy as np
import torch
from torchrec import EmbeddingBagConfig, PoolingType

from diurnal.config.features import Table
from diurnal.config.schema import Schema
from diurnal.model.seeding import WORDS_PER_COUNT, philox, random_words

_POOLING = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN}
_CHUNK_WORDS = 1 << 16


def embedding_bag_configs(schema: Schema) -> list[EmbeddingBagConfig]:
    """One float32 table each, in the schema's order; a table's features in the order of `schema.sparse`.

    Where ids have weights every bag is a sum to the kernels, and encoding makes weights of a mean's shares. With mean
    pooling, FBGEMM 1.8 divides a weighted bag by its number of ids, in backward by nothing; and TorchRec 1.8, where a
    table is cut by rows, by the sum of the weights.
    """
    return [
        EmbeddingBagConfig(
            name=table.name,
            num_embeddings=table.rows,
            embedding_dim=table.dim,
            feature_names=[feature.name for feature in schema.table_features(table.name)],
            pooling=_POOLING["sum" if schema.has_bag_weights else table.pooling],
        )
        for table in schema.tables
    ]


def initial_rows(seed: int, table: Table, start: int, stop: int, init_scale: float) -> torch.Tensor:
    """The starting values of rows `start` to `stop` of a table: (stop - start, dim) float32 on the CPU.

    Uniform within +-init_scale / sqrt(rows). Each value depends on (seed, table name, row, column) and that bound
    alone, so that a table starts the same under every sharding plan and world size, and no two shards are alike.
    """
    assert 0 <= start <= stop <= table.rows, (start, stop, table.rows)
    counts = -(-table.dim // WORDS_PER_COUNT)
    words = counts * WORDS_PER_COUNT
    unit = np.float32(init_scale / math.sqrt(table.rows) / 2**31)
    values = np.empty((stop - start, table.dim), dtype=np.float32)
    step = max(1, _CHUNK_WORDS // words)
    for first in range(start, stop, step):
        chunk = values[first - start : first - start + step]
        bits = random_words(philox(seed, f"tables/{table.name}", first * counts), len(chunk) * words)
        chunk[...] = bits.view("<i4").reshape(len(chunk), words)[:, : table.dim]
        chunk *= unit
    return torch.from_numpy(values)
