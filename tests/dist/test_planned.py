"""One rank plans, or finds a plan, for all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from diurnal.config import Config
from diurnal.errors import ResourceError
from diurnal.sharding import planned as module
from diurnal.sharding.plan import Plan, make_plan
from diurnal.sharding.planned import plan_ahead, planned
from diurnal.sharding.topology import Topology
from diurnal.testing import run_world, tiny_config


def configure() -> Config:
    return tiny_config({"sharding": {"placement": {"user": "column_wise", "item": "row_wise"}}}, dim=8)


def plan(rank: int, world_size: int, folder: Path | None, topologies: list[Topology]) -> tuple[Plan, int]:
    """The plan, and how many this rank made. Each rank has a topology of its own, as on machines of unlike sizes."""
    made = []
    make = module.make_plan
    module.make_plan = lambda *args: made.append(args) or make(*args)
    found = planned(configure(), topologies[rank], folder)
    dist.barrier()
    return found, len(made)


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_first_rank_plans_once_for_all(tmp_path: Path, is_kept: bool) -> None:
    folder = tmp_path if is_kept else None
    topologies = [Topology(3), Topology(3, table_bytes_per_rank=10**6), Topology(3, table_bytes_per_rank=10**7)]
    expected = make_plan(configure(), topologies[0])
    for counts in ([1, 0, 0], [0 if is_kept else 1, 0, 0]):
        by_rank = run_world(plan, 3, folder, topologies)
        assert [made for _, made in by_rank] == counts
        assert all(found == expected for found, _ in by_rank)


def test_a_plan_made_ahead_is_taken(tmp_path: Path) -> None:
    plan_ahead(configure(), [Topology(2)], tmp_path)
    assert [made for _, made in run_world(plan, 2, tmp_path, [Topology(2)] * 2)] == [0, 0]


def fail(rank: int, world_size: int, folder: Path, is_ours: bool) -> str:
    topology = Topology(2, table_bytes_per_rank=100)
    if is_ours:
        topology = Topology(2)
        module.make_plan = lambda *args: 1 // 0
    try:
        planned(configure(), topology, folder)
    except Exception as error:
        dist.barrier()
        return f"{type(error).__name__}: {error}"
    return "planned"


def test_no_plan_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    by_rank = run_world(fail, 2, tmp_path, False)
    assert by_rank[0] == by_rank[1]
    assert by_rank[0].startswith(ResourceError.__name__)
    assert "2 ranks with 100 bytes" in by_rank[0]
    by_rank = run_world(fail, 2, tmp_path, True)
    assert by_rank[0].startswith("ZeroDivisionError")
    assert by_rank[1].startswith("RuntimeError: rank 0 has no plan: ZeroDivisionError")
    assert list(tmp_path.iterdir()) == []
