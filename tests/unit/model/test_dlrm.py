from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torchrec import KeyedJaggedTensor, KeyedTensor
from torchrec.distributed.train_pipeline.tracing import Tracer

from diurnal.config import Config, Model
from diurnal.data.batch import Batch
from diurnal.model.dlrm import Dlrm, PooledVectors, build_dlrm
from diurnal.model.tables import initial_rows

MakeConfig = Callable[..., Config]
MakeBatch = Callable[..., Batch]


@pytest.fixture
def model(make_config: MakeConfig) -> Dlrm:
    return build_dlrm(make_config(), tables_device="cpu")


def test_one_logit_per_row_and_outcome(model: Dlrm, make_batch: MakeBatch) -> None:
    for rows in (12, 3, 1):
        batch = make_batch(0, rows)
        assert model(batch.dense, batch.sparse).shape == (rows, 3)


def test_vectors_are_taken_by_name() -> None:
    pooled = KeyedTensor(keys=["a", "b", "c"], length_per_key=[2, 2, 2], values=torch.arange(6.0).view(1, 6))
    assert PooledVectors(["a", "b", "c"], ["a", "b", "c"], 2)(pooled).tolist() == [[[0, 1], [2, 3], [4, 5]]]
    assert PooledVectors(["c", "a", "b"], ["a", "b", "c"], 2)(pooled).tolist() == [[[4, 5], [0, 1], [2, 3]]]


def test_the_order_of_features_in_a_batch_does_not_matter(model: Dlrm, make_batch: MakeBatch) -> None:
    batch = make_batch(0)
    order = [2, 0, 3, 1]
    expected = model(batch.dense, batch.sparse)
    assert torch.equal(model(batch.dense, batch.sparse.permute(order)), expected)


def test_features_that_share_a_table_have_a_vector_each(model: Dlrm) -> None:
    assert model.interaction.out_dim == 8 + 5 * 4 // 2
    assert list(model.tables.embedding_bags) == ["user", "item", "genres"]


def test_an_empty_bag_is_a_zero_vector(model: Dlrm) -> None:
    sparse = KeyedJaggedTensor(
        keys=["item", "history", "genres", "user"],
        values=torch.zeros(0, dtype=torch.int64),
        lengths=torch.zeros(8, dtype=torch.int32),
    )
    assert torch.equal(model.pooled(model.tables(sparse)), torch.zeros(2, 4, 8))


def test_starting_values_depend_on_the_config_alone(make_config: MakeConfig) -> None:
    torch.manual_seed(1)
    one = build_dlrm(make_config(seed=5), tables_device="cpu").state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    two = build_dlrm(make_config(seed=5), tables_device="cpu").state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = build_dlrm(make_config(seed=6), tables_device="cpu").state_dict()
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_tables_start_from_initial_rows(make_config: MakeConfig) -> None:
    config = make_config(seed=5)
    model = build_dlrm(config, tables_device="cpu")
    for table in config.dataset.tables:
        weight = model.tables.get_parameter(f"embedding_bags.{table.name}.weight")
        assert torch.equal(weight, initial_rows(5, table, 0, table.rows, config.model.init_scale))


def test_tables_stay_on_meta_for_sharding(make_config: MakeConfig) -> None:
    model = build_dlrm(make_config())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        assert tensor.device.type == ("meta" if name.startswith("tables.") else "cpu"), name


def test_linear_layers_start_as_the_authors_start_them(make_config: MakeConfig) -> None:
    model = build_dlrm(make_config(model=Model(bottom=(400,), over=(300,))))
    layer = model.bottom.get_submodule("0")
    assert isinstance(layer, nn.Linear)
    assert layer.weight.std().item() == pytest.approx((2 / 403) ** 0.5, rel=0.1)
    assert layer.bias.std().item() == pytest.approx((1 / 400) ** 0.5, rel=0.15)


def test_another_width_leaves_the_other_layers_as_they_were(make_config: MakeConfig) -> None:
    one = build_dlrm(make_config(model=Model(bottom=(8,), over=(8,)))).state_dict()
    two = build_dlrm(make_config(model=Model(bottom=(8, 8), over=(8,)))).state_dict()
    assert torch.equal(one["bottom.0.weight"], two["bottom.0.weight"])
    assert torch.equal(one["over.0.weight"], two["over.0.weight"])


def test_no_hidden_layers_are_fine(make_config: MakeConfig, make_batch: MakeBatch) -> None:
    model = build_dlrm(make_config(model=Model(bottom=(), over=())), tables_device="cpu")
    batch = make_batch(0)
    assert model(batch.dense, batch.sparse).shape == (12, 3)


def test_other_tasks_change_nothing_of_the_label_at_first(make_config: MakeConfig, make_batch: MakeBatch) -> None:
    config, batch = make_config(), make_batch(0)
    alone = make_config(dataset=config.dataset.model_copy(update={"tasks": ()}))
    one, two = (build_dlrm(each, tables_device="cpu") for each in (config, alone))
    values, label_values = one.state_dict(), two.state_dict()
    others = {f"tasks.{name}.{kind}" for name in ("bought", "returned") for kind in ("weight", "bias")}
    assert values.keys() - label_values.keys() == others
    assert all(torch.equal(values[name], value) for name, value in label_values.items())
    logits = one(batch.dense, batch.sparse)
    assert torch.equal(logits[:, :1], two(batch.dense, batch.sparse))
    assert not torch.equal(logits[:, 1], logits[:, 2])
    assert not torch.equal(values["tasks.bought.weight"], values["tasks.returned.weight"])


def test_pipelines_can_trace_it_down_to_the_lookup(model: Dlrm) -> None:
    """TorchRec's pipelines find the sharded tables in an FX trace, and start their input exchange early."""
    graph = Tracer(leaf_modules=["bottom", "tables", "pooled", "interaction", "over"]).trace(model)
    (lookup,) = [node for node in graph.nodes if node.target == "tables"]
    assert [argument.name for argument in lookup.args] == ["sparse"]
