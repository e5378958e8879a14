"""Plans that are kept: the same ones, made once for each set of circumstances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diurnal.config import Config
from diurnal.sharding import planned as module
from diurnal.sharding.plan import Plan, make_plan
from diurnal.sharding.planned import from_json, plan_ahead, plan_key, to_json
from diurnal.sharding.topology import Topology
from diurnal.testing import tiny_config

PLACEMENT = {"user": "column_wise", "item": "row_wise", "genres": "data_parallel", "site": "table_wise"}
TOPOLOGIES = [Topology(2), Topology(3), Topology(4), Topology(8, local_world_size=4, device="cuda")]


def configure(**changes: Any) -> Config:
    return tiny_config({"sharding": {"placement": PLACEMENT}, **changes}, dim=16)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_plan_comes_back_as_it_was(topology: Topology) -> None:
    config = configure()
    plan, key = make_plan(config, topology), plan_key(config, topology)
    again = from_json(to_json(plan, key), key)
    assert again == plan
    assert str(again.report) == str(plan.report)


def with_more_rows() -> dict[str, Any]:
    first, *others = json.loads(configure().dataset.model_dump_json())["tables"]
    return {"dataset": {"tables": [{**first, "rows": first["rows"] + 1}, *others]}}


@pytest.mark.parametrize(
    "changes",
    [
        {"sharding": {"default": "row_wise"}},
        {"optim": {"sparse": {"kind": "sgd"}}},
        {"data": {"batch_rows": 24}},
        {"workers": {"max": 2}},
        with_more_rows(),
    ],
)
def test_other_circumstances_have_another_key(changes: dict[str, Any]) -> None:
    assert plan_key(configure(**changes), Topology(2)) != plan_key(configure(), Topology(2))
    assert plan_key(configure(), Topology(3)) != plan_key(configure(), Topology(2))
    assert plan_key(configure(seed=8, optim={"sparse": {"lr": 1.0}}), Topology(2)) == plan_key(configure(), Topology(2))


def test_on_cpu_it_does_not_matter_which_machines_ranks_are_on() -> None:
    assert plan_key(configure(), Topology(4, local_world_size=2)) == plan_key(configure(), Topology(4))
    gpus = [Topology(4, local_world_size=size, device="cuda") for size in (2, 4)]
    assert plan_key(configure(), gpus[0]) != plan_key(configure(), gpus[1])


def count_plans(monkeypatch: pytest.MonkeyPatch) -> list[Topology]:
    made: list[Topology] = []

    def make(config: Config, topology: Topology) -> Plan:
        made.append(topology)
        return make_plan(config, topology)

    monkeypatch.setattr(module, "make_plan", make)
    return made


def test_planning_ahead_makes_each_plan_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = count_plans(monkeypatch)
    assert plan_ahead(configure(), TOPOLOGIES[:2], tmp_path / "plans") == TOPOLOGIES[:2]
    assert plan_ahead(configure(), TOPOLOGIES[:3], tmp_path / "plans") == TOPOLOGIES[:3]
    assert made == TOPOLOGIES[:3]
    files = sorted(path.name for path in (tmp_path / "plans").iterdir())
    assert files == sorted(f"{plan_key(configure(), topology)}.json" for topology in TOPOLOGIES[:3])


def test_too_small_a_world_is_left_out(tmp_path: Path) -> None:
    topologies = [Topology(2, table_bytes_per_rank=100), Topology(2)]
    assert plan_ahead(configure(), topologies, tmp_path) == [Topology(2)]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1, 2]", b'{"key": "k", "tables": {}}', None])
def test_a_broken_or_foreign_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    config, topology = configure(), Topology(2)
    path = tmp_path / f"{plan_key(config, topology)}.json"
    foreign = to_json(make_plan(config, Topology(3)), plan_key(config, Topology(3))).encode()
    path.write_bytes(foreign if content is None else content)
    made = count_plans(monkeypatch)
    plan_ahead(config, [topology, topology], tmp_path)
    assert made == [topology]
    assert from_json(path.read_bytes(), path.stem) == make_plan(config, topology)
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "plans").write_text("a file")
    assert plan_ahead(configure(), [Topology(2)], tmp_path / "plans") == [Topology(2)]
    assert "the plan is not kept" in caplog.text
