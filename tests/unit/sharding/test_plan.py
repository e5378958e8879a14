"""Plans: who gets which rows, without a process group."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from diurnal.config import Config
from diurnal.errors import ResourceError
from diurnal.sharding.plan import make_plan
from diurnal.sharding.report import PlanReport
from diurnal.sharding.topology import Topology
from diurnal.testing import tiny_config

ROWS = {"tiny": 3, "small": 1_000, "middle": 100_000, "large": 5_000_000}


def configure(**changes: Any) -> Config:
    dataset = {
        "sparse": [{"name": name} for name in ROWS],
        "tables": [{"name": name, "rows": rows, "dim": 16} for name, rows in ROWS.items()],
    }
    return tiny_config({"dataset": dataset, **changes})


def report(world_size: int, **changes: Any) -> PlanReport:
    return make_plan(configure(**changes), Topology(world_size)).report


def test_auto_on_cpu_goes_by_size() -> None:
    found = report(2)
    assert found.placement() == {
        "tiny": "data_parallel",
        "small": "data_parallel",
        "middle": "table_wise",
        "large": "row_wise",
    }
    assert {table.chosen_by for table in found.tables} == {"size"}
    assert report(1).placement()["large"] == "table_wise"


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_every_row_is_on_some_rank_and_replicas_are_on_all(world_size: int) -> None:
    for table in report(world_size, sharding={"placement": {"middle": "row_wise"}}).tables:
        copies = world_size if table.placement == "data_parallel" else 1
        assert sum(table.rows_by_rank) == copies * table.rows
        assert sum(table.bytes_by_rank()) == copies * (table.weight_bytes + table.moment_bytes)


@pytest.mark.parametrize("placement", ["table_wise", "row_wise", "column_wise", "data_parallel"])
def test_what_the_configuration_says_is_done(placement: str) -> None:
    found = report(3, sharding={"default": placement, "placement": {"small": "table_wise"}})
    expected = dict.fromkeys(ROWS, placement) | {"small": "table_wise"}
    assert found.placement() == expected
    assert {table.chosen_by for table in found.tables} == {"config"}


@pytest.mark.parametrize(
    ("rows", "world_size", "is_cut"), [(1, 2, False), (5, 4, False), (6, 4, False), (7, 4, True), (3, 3, True)]
)
def test_row_wise_needs_a_row_on_every_rank(rows: int, world_size: int, is_cut: bool) -> None:
    """FBGEMM's CPU kernels fail on a shard without rows; TorchRec gives each rank but the last ceil(rows / W)."""
    dataset = {"sparse": [{"name": "t"}], "tables": [{"name": "t", "rows": rows, "dim": 4}]}
    config = tiny_config({"dataset": dataset, "sharding": {"default": "row_wise"}})
    (table,) = make_plan(config, Topology(world_size)).report.tables
    assert table.placement == ("row_wise" if is_cut else "table_wise")
    assert bool(table.note) is not is_cut


@pytest.mark.parametrize(
    ("dim", "world_size", "max_workers", "num_ranges"),
    [(16, 2, 1, 2), (16, 4, 1, 4), (16, 3, 1, 2), (24, 3, 1, 3), (24, 8, 1, 6), (16, 1, 4, 4), (16, 2, 4, 4)],
)
def test_columns_are_cut_for_the_largest_world(dim: int, world_size: int, max_workers: int, num_ranges: int) -> None:
    """The cut is the same at every world size that a run may have; widths are multiples of 4."""
    dataset = {"sparse": [{"name": "t"}], "tables": [{"name": "t", "rows": 5, "dim": dim}]}
    settings = {"sharding": {"default": "column_wise"}, "workers": {"max": max_workers}}
    plan = make_plan(tiny_config({"dataset": dataset, **settings}), Topology(world_size))
    (table,) = plan.report.tables
    assert (table.placement, table.note) == ("column_wise", f"{num_ranges} ranges of {dim // num_ranges} columns")
    assert plan.num_column_ranges("t") == num_ranges
    assert sum(table.columns_by_rank) == dim
    assert set(table.rows_by_rank) <= {0, 5}
    assert sum(table.bytes_by_rank()) == table.weight_bytes + table.moment_bytes == 4 * 5 * (dim + num_ranges)


@pytest.mark.parametrize(("dim", "world_size"), [(4, 2), (8, 1), (12, 2), (20, 3)])
def test_columns_that_cannot_be_cut_stay_together(dim: int, world_size: int) -> None:
    dataset = {"sparse": [{"name": "t"}], "tables": [{"name": "t", "rows": 5, "dim": dim}]}
    plan = make_plan(tiny_config({"dataset": dataset, "sharding": {"default": "column_wise"}}), Topology(world_size))
    (table,) = plan.report.tables
    assert table.placement == "table_wise"
    assert table.note.startswith(f"not column_wise: {dim} columns, {world_size} ranks")
    assert plan.num_column_ranges("t") == 1


@pytest.mark.parametrize(("kind", "moments"), [("sgd", 0), ("adagrad", 16), ("rowwise_adagrad", 1)])
def test_moments_are_counted(kind: str, moments: int) -> None:
    middle = report(2, optim={"sparse": {"kind": kind}}).tables[2]
    assert middle.weight_bytes == 4 * 16 * 100_000
    assert middle.moment_bytes == 4 * moments * 100_000


def test_tables_that_do_not_fit_are_refused_with_both_numbers() -> None:
    topology = Topology(2, table_bytes_per_rank=10_000_000)
    with pytest.raises(ResourceError, match=r"346,868,204 bytes(?s:.*)2 ranks with 10,000,000 bytes for them"):
        make_plan(configure(), topology)


def test_the_planner_chooses_for_gpus_that_are_not_there() -> None:
    found = make_plan(configure(), Topology(8, local_world_size=4, device="cuda")).report
    assert {table.chosen_by for table in found.tables} == {"planner"}
    assert "column_wise" not in found.placement().values()
    assert found.placement()["tiny"] != "row_wise"


def test_a_report_is_a_table_and_a_record() -> None:
    found = report(2)
    lines = str(found).splitlines()
    assert lines[0].split() == ["table", "rows", "dim", "placement", "chosen", "by", "ranks", "weights", "moments"]
    assert lines[4].split() == ["large", "5,000,000", "16", "row_wise", "size", "0-1", "305.2", "MiB", "19.1", "MiB"]
    assert lines[5].startswith("2 cpu ranks, each with")
    record = json.loads(json.dumps(found.to_dict()))
    assert record["tables"][3]["ranks"] == [0, 1]
    assert record["bytes_by_rank"] == list(found.bytes_by_rank())


def test_planning_says_nothing_and_leaves_logging_alone(capfd: pytest.CaptureFixture[str]) -> None:
    handlers = list(logging.getLogger().handlers)
    report(2)
    assert logging.getLogger().handlers == handlers
    assert "Sharding spec not found" not in "".join(capfd.readouterr())


def test_another_process_comes_to_the_same_plan() -> None:
    """A plan that was kept is the one that would be made, so nothing in it may depend on the order of a set."""
    source = (
        "import sys; from diurnal.config import from_resolved; from diurnal.sharding.plan import make_plan; "
        "from diurnal.sharding.topology import Topology; "
        "print(make_plan(from_resolved(sys.stdin.read()), Topology(3)).torchrec)"
    )
    config = configure(sharding={"default": "table_wise"})
    there = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        input=config.model_dump_json(),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
    )
    assert there.stdout.strip() == str(make_plan(config, Topology(3)).torchrec).strip()
