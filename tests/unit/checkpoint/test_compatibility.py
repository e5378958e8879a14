"""What becomes of a version under another configuration, from its manifest alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diurnal.checkpoint.compatibility import Compatibility, compare, resets_optimizer
from diurnal.checkpoint.manifest import Contract, Lineage, Manifest, Position, Provenance
from diurnal.config import Config
from diurnal.errors import CheckpointError
from diurnal.testing import tiny_config


def dataset(**changes: dict[str, Any] | None) -> dict[str, Any]:
    """Two tables: `user` by hash, `slot` by row; changes by table name, None removes it."""
    tables: dict[str, Any] = {"user": {"rows": 10}, "slot": {"rows": 10, "mapping": "identity"}}
    for name, change in changes.items():
        tables[name] = {**tables.get(name, {}), **change} if change is not None else None
    kept = {name: table for name, table in tables.items() if table is not None}
    of_feature = ("mapping", "type", "many")
    return {
        "sparse": [{"name": n, **{k: t[k] for k in of_feature if k in t}} for n, t in kept.items()],
        "tables": [{"name": n, "dim": 4, **{k: t[k] for k in t if k not in of_feature}} for n, t in kept.items()],
    }


def manifest_of(config: Config) -> Manifest:
    position = Position(steps=1, num_steps=1, rows=1, cursors=(1,))
    made = Provenance(
        schema_hash="",
        config_hash="",
        config={},
        libraries={},
        world_size=1,
        device="cpu",
        placement={},
        hyperparameters={},
    )
    manifest = Manifest(
        model="tiny",
        lineage=Lineage(number=4, parent=3, increment="2026-01-04", fingerprint="", attempt=1, position=position),
        global_step=1,
        contract=Contract.of(config),
        provenance=made,
        created_at="2026-01-05T00:00:00+00:00",
    )
    return Manifest.from_json(manifest.to_json())


def compared(changed: dict[str, Any], *, reset_optimizer: bool = False, **base: Any) -> Compatibility:
    saved = tiny_config({"dataset": dataset(), **base})
    return compare(manifest_of(saved), tiny_config({"dataset": dataset(), **changed}), reset_optimizer=reset_optimizer)


def refusal(changed: dict[str, Any], **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        compared(changed, **options).refuse_if_broken()
    return str(caught.value)


def test_the_same_configuration_loads_everything() -> None:
    found = compared({})
    found.refuse_if_broken()
    assert {line.outcome for line in found.lines} == {"loaded"}
    assert found.of("loaded")[:2] == ["table user", "table slot"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user": {"rows": 12}}, "table user\n  found: 10 rows in version 4, 12 rows configured"),
        ({"user": {"rows": 8}}, "table user\n  found: 10 rows in version 4, 8 rows configured"),
        ({"slot": {"rows": 8}}, "table slot\n  found: 10 rows in version 4, 8 rows configured"),
        ({"user": {"dim": 8}, "slot": {"dim": 8}}, "table user\n  found: dim 4 in version 4, dim 8 configured"),
        ({"user": {"pooling": "mean"}}, "table user\n  found: pooling sum in version 4, pooling mean configured"),
        ({"slot": None}, "table slot\n  found: there in version 4, not there configured"),
        ({"slot": None, "box": {"rows": 10}}, "table slot\n  found: there in version 4, not there configured"),
        ({"user": {"mapping": "identity"}}, "feature user\n  found: mapping hash in version 4, mapping identity conf"),
        ({"user": {"type": "string"}}, "feature user\n  found: type int64 in version 4, type string configured"),
    ],
)
def test_a_change_that_cannot_be_loaded_is_refused_with_both_values(changes: dict[str, Any], message: str) -> None:
    """alibaba/TorchEasyRec#600."""
    assert message in refusal({"dataset": dataset(**changes)})


def test_a_table_that_is_read_by_row_may_grow_and_a_new_one_may_come() -> None:
    changed = {"dataset": dataset(slot={"rows": 12}, hour={"rows": 24})}
    found = compared(changed)
    found.refuse_if_broken()
    assert found.of("grown") == ["table slot"]
    assert found.of("new") == ["table hour", "feature hour"]
    report = str(found)
    assert "grown   table slot: 10 rows -> 12 rows (new rows start as in a new table)" in report
    assert "new     table hour: not there -> there" in report


def test_every_fault_is_said_at_once() -> None:
    text = refusal({"dataset": dataset(user={"rows": 12}, slot=None), "optim": {"dense": {"kind": "sgd"}}})
    assert text.startswith("checkpoint: 4 faults")
    assert all(what in text for what in ("table user", "table slot", "feature slot", "optim.dense"))


BOUGHT = {"name": "bought", "column": "b"}


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ({"at_least": 4.0}, "label\n  found: at_least None in version 4, at_least 4.0 configured"),
        ({"column": "bought"}, "label\n  found: column label in version 4, column bought configured"),
        ({"positive": "y", "negative": "n"}, "positive , negative  in version 4, positive y, negative n configured"),
    ],
)
def test_another_label_is_another_model(label: dict[str, Any], message: str) -> None:
    assert message in refusal({"dataset": {**dataset(), "label": label}})


def test_a_version_of_an_earlier_release_does_not_say_what_its_label_was() -> None:
    raw = json.loads(manifest_of(tiny_config({"dataset": dataset()})).to_json())
    del raw["contract"]["label"], raw["contract"]["tasks"]
    old = Manifest.from_json(json.dumps(raw))
    changed = tiny_config({"dataset": {**dataset(), "label": {"at_least": 4.0}, "tasks": [BOUGHT]}})
    found = compare(old, changed)
    found.refuse_if_broken()
    assert found.of("new") == ["task bought"]
    assert "label" not in found.of("loaded")


def test_tasks_come_and_go_by_name_and_keep_what_they_mean() -> None:
    base = {"dataset": {**dataset(), "tasks": [BOUGHT, {"name": "kept"}]}}
    saved = manifest_of(tiny_config(base))
    now = tiny_config({"dataset": {**dataset(), "tasks": [{"name": "shared"}, BOUGHT | {"weight": 9.0}]}})
    found = compare(saved, now)
    found.refuse_if_broken()
    assert (found.of("new"), found.of("dropped")) == (["task shared"], ["task kept"])
    assert "task bought" in found.of("loaded"), "the weight of its loss is no part of what it means"
    other = tiny_config({"dataset": {**dataset(), "tasks": [BOUGHT | {"at_least": 2.0}, {"name": "kept"}]}})
    with pytest.raises(CheckpointError, match="give the task another name"):
        compare(saved, other).refuse_if_broken()


@pytest.mark.parametrize("part", ["sparse", "dense"])
def test_another_kind_of_optimizer_needs_a_reset(part: str) -> None:
    changed = {"optim": {part: {"kind": "sgd"}}}
    text = refusal(changed)
    assert f"optim.{part}" in text
    assert "sgd configured" in text
    assert "checkpoint.reset_optimizer = true" in text
    found = compared(changed, reset_optimizer=True)
    found.refuse_if_broken()
    assert found.of("dropped") == ["optim.sparse", "optim.dense"]


def test_optimizers_do_not_start_anew_at_every_restart_inside_an_increment() -> None:
    reset = {"checkpoint": {"reset_optimizer": True}}
    asked = tiny_config({"dataset": dataset(), **reset})
    other = tiny_config({"dataset": dataset(), "optim": {"sparse": {"kind": "sgd"}}, **reset})
    version = manifest_of(tiny_config({"dataset": dataset()}))
    halfway = version.lineage.position.model_copy(update={"num_steps": version.lineage.position.steps + 1})
    point = version.model_copy(update={"lineage": version.lineage.model_copy(update={"position": halfway})})
    assert [resets_optimizer(saved, asked) for saved in (version, point)] == [True, False]
    assert resets_optimizer(point, other), "another kind cannot go on"


def test_learning_rates_may_change() -> None:
    compared({"optim": {"sparse": {"lr": 1.0}, "dense": {"eps": 1e-3}}}).refuse_if_broken()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"bottom": [7]}, "model.bottom\n  found: (6,) in version 4, (7,) configured"),
        ({"over": [5, 5]}, "model.over\n  found: (5,) in version 4, (5, 5) configured"),
        ({"concat": "all"}, "model.concat\n  found: dense in version 4, all configured"),
        ({"self_interaction": True}, "model.self_interaction\n  found: False in version 4, True configured"),
    ],
)
def test_another_shape_of_the_mlps_is_refused(model: dict[str, Any], message: str) -> None:
    assert message in refusal({"model": model})


def test_another_hash_seed_is_refused_where_something_is_hashed() -> None:
    assert "hash_seed\n  found: 0 in version 4, 5 configured" in refusal({"dataset": {**dataset(), "hash_seed": 5}})
    by_row = dataset(user={"mapping": "identity"})
    saved, now = tiny_config({"dataset": by_row}), tiny_config({"dataset": {**by_row, "hash_seed": 5}})
    compare(manifest_of(saved), now).refuse_if_broken()


def test_dense_inputs_may_come_and_be_scaled_otherwise_but_not_go() -> None:
    dense = [{"name": "age", "transform": "log1p"}, {"name": "price"}, {"name": "length"}]
    found = compared({"dataset": {**dataset(), "dense": dense}})
    found.refuse_if_broken()
    assert found.of("new") == ["dense length"]
    assert "changed dense age: transform none -> transform log1p" in str(found)
    assert "dense price\n  found: there in version 4" in refusal({"dataset": {**dataset(), "dense": dense[:1]}})


def test_inputs_of_first_layers_have_names() -> None:
    inputs = Contract.of(tiny_config({"dataset": dataset()})).inputs()
    assert inputs["dense/bottom.0.weight"] == ["age", "price"]
    assert inputs["dense/over.0.weight"] == [f"(dense)[{i}]" for i in range(4)] + [
        "(dense)*user",
        "(dense)*slot",
        "slot*user",
    ]
    everything = {"self_interaction": True, "concat": "all"}
    inputs = Contract.of(tiny_config({"dataset": dataset(), "model": everything})).inputs()
    assert inputs["dense/over.0.weight"][4:5] == ["user[0]"]
    assert inputs["dense/over.0.weight"][12:] == [
        "(dense)*(dense)",
        "(dense)*user",
        "user*user",
        "(dense)*slot",
        "slot*user",
        "slot*slot",
    ]


def test_a_manifest_survives_its_json() -> None:
    manifest = manifest_of(tiny_config())
    assert json.loads(manifest.to_json())["contract"]["tables"]["item"] == {"rows": 10, "dim": 4, "pooling": "sum"}
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_another_number_of_buckets_at_quantiles_is_refused() -> None:
    def config(quantiles: int) -> Config:
        feature = {"name": "price", "type": "float", "mapping": "bucketize", "quantiles": quantiles}
        return tiny_config({"dataset": {"sparse": [feature], "tables": [{"name": "price", "rows": 9, "dim": 4}]}})

    assert not compare(manifest_of(config(8)), config(8)).of("refused")
    found = compare(manifest_of(config(8)), config(4))
    assert found.of("refused") == ["feature price"]
    with pytest.raises(CheckpointError, match="quantiles 8 in version 4, quantiles 4 configured"):
        found.refuse_if_broken()
