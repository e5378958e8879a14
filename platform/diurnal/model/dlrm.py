"""The DLRM: dense inputs through a bottom MLP, ids through pooled embedding tables, dot products between all of
these vectors, and an over arch that ends in one logit (Naumov et al., 2019), or in one more for each other task, all
from the same last hidden layer (a shared bottom: Caruana, "Multitask Learning", 1997).

Shapes: B rows, N dense inputs, F sparse features, D width of every vector, T tasks beside the label.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor, KeyedTensor

from diurnal.config.run import Config, Model
from diurnal.config.schema import Schema
from diurnal.model.interactions import DotInteraction
from diurnal.model.seeding import philox
from diurnal.model.tables import embedding_bag_configs, initial_rows


class PooledVectors(nn.Module):
    """Takes one vector per sparse feature out of what the tables answer, by name, in the order of `features`."""

    def __init__(self, features: Sequence[str], keys: Sequence[str], dim: int) -> None:
        super().__init__()
        self.keys = list(keys)
        self.dim = dim
        self.in_order = list(features) == self.keys
        order = torch.tensor([self.keys.index(name) for name in features], device="cpu")
        self.register_buffer("order", order, persistent=False)

    def forward(self, pooled: KeyedTensor) -> torch.Tensor:
        """A KeyedTensor of F keys to (B, F, D)."""
        assert pooled.keys() == self.keys, (pooled.keys(), self.keys)
        vectors_BFD = pooled.values().unflatten(1, (len(self.keys), self.dim))
        return vectors_BFD if self.in_order else vectors_BFD.index_select(1, self.get_buffer("order"))


class Dlrm(nn.Module):
    """Parameters are on the meta device: `build_dlrm` gives them values.

    `forward` holds no Python control flow on its inputs, so that TorchRec's pipelines can trace it and start the
    exchange of ids early.
    """

    def __init__(self, schema: Schema, model: Model) -> None:
        super().__init__()
        configs = embedding_bag_configs(schema)
        features = [feature.name for feature in schema.sparse]
        dim = schema.tables[0].dim
        self.bottom = mlp([len(schema.dense), *model.bottom, dim])
        self.tables = EmbeddingBagCollection(configs, schema.has_bag_weights, torch.device("meta"))
        self.pooled = PooledVectors(features, [name for config in configs for name in config.feature_names], dim)
        self.interaction = DotInteraction(1 + len(features), dim, model.self_interaction, model.concat)
        widths = [self.interaction.out_dim, *model.over]
        self.over = mlp(widths, ends_in_logit=True)
        self.tasks = nn.ModuleDict({task.name: nn.Linear(widths[-1], 1, device="meta") for task in schema.tasks})

    def forward(self, dense: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        """Dense inputs (B, N) and the bags of F features to logits (B, 1 + T): of the label, then of each task."""
        dense_BD = self.bottom(dense)
        pooled_BFD = self.pooled(self.tables(sparse))
        *layers, to_label = self.over
        hidden = self.interaction(dense_BD, pooled_BFD)
        for layer in layers:
            hidden = layer(hidden)
        return torch.cat([to_label(hidden), *(to_task(hidden) for to_task in self.tasks.values())], dim=1)


def mlp(widths: Sequence[int], ends_in_logit: bool = False) -> nn.Sequential:
    """Linear layers between `widths`, each with a ReLU; then, for a logit, one more layer to width 1 without."""
    layers: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise(widths):
        layers += [nn.Linear(width_in, width_out, device="meta"), nn.ReLU()]
    if ends_in_logit:
        layers.append(nn.Linear(widths[-1], 1, device="meta"))
    return nn.Sequential(*layers)


def build_dlrm(
    config: Config, device: torch.device | str = "cpu", *, tables_device: torch.device | str = "meta"
) -> Dlrm:
    """A model with its starting values, which depend on `config` alone.

    Args:
        config: the run.
        device: where everything but the tables is.
        tables_device: where whole tables are; on "meta" they have no values yet, and sharding fills its shards from
            `initial_rows`.
    """
    model = Dlrm(config.dataset, config.model)
    for name in ("bottom", "over", "tasks"):
        part = model.get_submodule(name).to_empty(device=device)
        init_linear_layers(part, config.seed, name)
    for part in (model.pooled, model.interaction):
        part.to(device)
    if torch.device(tables_device).type != "meta":
        model.tables.to_empty(device=tables_device)
        with torch.no_grad():
            for table in config.dataset.tables:
                weight = model.tables.get_parameter(f"embedding_bags.{table.name}.weight")
                weight.copy_(initial_rows(config.seed, table, 0, table.rows, config.model.init_scale))
    return model


@torch.no_grad()
def init_linear_layers(module: nn.Module, seed: int, prefix: str) -> None:
    """Normal values as the DLRM's authors use: weights with standard deviation sqrt(2 / (in + out)), biases with
    sqrt(1 / out). Each parameter has a stream of its own, named by its path."""
    for name, layer in module.named_modules(prefix=prefix):
        if isinstance(layer, nn.Linear):
            stds = {
                "weight": math.sqrt(2 / (layer.in_features + layer.out_features)),
                "bias": math.sqrt(1 / layer.out_features),
            }
            for kind, std in stds.items():
                parameter = layer.get_parameter(kind)
                parameter.copy_(_normal(seed, f"dense/{name}.{kind}", parameter.shape, std))


def _normal(seed: int, name: str, shape: torch.Size, std: float) -> torch.Tensor:
    values = np.random.Generator(philox(seed, name)).standard_normal(tuple(shape), dtype=np.float32)
    return torch.from_numpy(values * np.float32(std))
