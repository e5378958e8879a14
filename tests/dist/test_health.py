"""Health of tables is counted alike at every world size and under every placement."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from diurnal.config import Config
from diurnal.metrics.health import TableHealth
from diurnal.sharding.parallel import Parallel
from diurnal.testing import everything, run_world, spread, tiny_batch, tiny_config, train_step
from diurnal.train import health

PLACEMENTS = {
    "table_wise": {"default": "table_wise"},
    "row_wise": {"default": "row_wise"},
    "column_wise": {"default": "column_wise"},
    "data_parallel": {"default": "data_parallel"},
    "mixed": {
        "placement": {"user": "column_wise", "item": "row_wise", "genres": "data_parallel", "site": "table_wise"}
    },
}
DIM = 16
ROW_OF_USER = {"zero": 3, "almost_zero": 5, "half_zero": 7, "nan": 11, "infinite": 13, "unlearned": 17}


def configure(placement: str, sparse: str, max_workers: int = 4) -> Config:
    optim = {"sparse": {"kind": sparse, "lr": 0.1}, "dense": {"kind": "sgd" if sparse == "sgd" else "adagrad"}}
    workers = {"max": max_workers}
    return tiny_config({"optim": optim, "sharding": PLACEMENTS[placement], "workers": workers}, dim=DIM)


def spoil(parallel: Parallel) -> None:
    """Puts values of `user` into a known state, wherever they are."""
    for piece in parallel.pieces():
        if piece.table != "user":
            continue
        for what, row in ROW_OF_USER.items():
            local = row - piece.offsets[0]
            if not 0 <= local < len(piece.tensor):
                continue
            if piece.slot == "moment":
                piece.tensor[local] = 0.0 if what == "unlearned" else 2.0
                if what == "infinite":
                    piece.tensor[local] = math.inf
                continue
            first = piece.offsets[1]
            values = torch.arange(1.0, DIM + 1)
            if what in ("zero", "almost_zero", "unlearned"):
                values.fill_(1e-9 if what == "almost_zero" else 0.0)
            if what == "half_zero":
                values[: DIM // 2] = 0.0
            if what == "nan":
                values[0] = math.nan
            piece.tensor[local] = values[first : first + piece.tensor.shape[1]]


def measure(rank: int, world_size: int, config: Config) -> tuple[list[TableHealth], dict[str, torch.Tensor]]:
    parallel = spread(config)
    for step in range(2):
        train_step(parallel, tiny_batch(config, step, rank, world_size))
    spoil(parallel)
    health.EXCHANGED_ROWS, health.BLOCK_VALUES = 13, {"cpu": 5 * DIM}
    return health.table_health(parallel), everything(parallel)


def by_hand(state: dict[str, torch.Tensor], name: str, start: torch.Tensor | None = None) -> dict[str, Any]:
    values, moment = state[name].double(), state.get(f"{name}/moment", torch.zeros(0))
    rows = range(len(values))
    by_row = moment.double().reshape(len(values), -1) if start is None else values - start.double()
    learned = [row for row in rows if any(value != 0 for value in by_row[row].tolist())]
    numbers = [v for row in learned for v in values[row].tolist() if math.isfinite(v)]
    everything = values.flatten().tolist() + moment.flatten().tolist()
    return {
        "rows": len(values),
        "learned_rows": len(learned),
        "dead_rows": sum(all(abs(value) <= 1e-8 for value in values[row].tolist()) for row in learned),
        "nonfinite": sum(not math.isfinite(value) for value in everything),
        "max_abs": max(abs(value) for value in everything if math.isfinite(value)),
        "rms_learned": math.sqrt(sum(v * v for v in numbers) / len(numbers)),
    }


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_health_is_what_a_count_by_hand_gives(placement: str, world_size: int) -> None:
    config = configure(placement, "rowwise_adagrad")
    answers = run_world(measure, world_size, config)
    for found, state in answers:
        assert found == answers[0][0]
        for table in config.dataset.tables:
            (one,) = [health for health in found if health.name == table.name]
            expected = by_hand(state, table.name)
            if table.name == "user":
                # An infinite moment counts once for each range of columns.
                assert (one.dead_rows, one.nonfinite) == (2, 1 + state["user/moment"][0].numel())
            rms = expected.pop("rms_learned")
            assert {name: getattr(one, name) for name in expected} == expected
            assert one.rms_learned == pytest.approx(rms, rel=1e-12)


@pytest.mark.parametrize("sparse", ["adagrad", "sgd"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_health_with_moments_per_value_and_without_moments(placement: str, sparse: str) -> None:
    from diurnal.model.tables import initial_rows

    config = configure(placement, sparse)
    (found, state), *_ = run_world(measure, 2, config)
    for one, table in zip(found, config.dataset.tables, strict=False):
        start = initial_rows(config.seed, table, 0, table.rows, 1.0) if sparse == "sgd" else None
        expected = by_hand(state, table.name, start)
        rms = expected.pop("rms_learned")
        assert {name: getattr(one, name) for name in expected} == expected, table.name
        assert one.rms_learned == pytest.approx(rms, rel=1e-12)


def test_counts_do_not_depend_on_world_or_placement() -> None:
    """Of tables whose rows have one moment, whatever is cut."""
    counts = set()
    for placement in ("table_wise", "row_wise", "data_parallel"):
        for world_size in (1, 3):
            found = run_world(measure, world_size, configure(placement, "rowwise_adagrad"))[0][0]
            counts.add(tuple((h.name, h.rows, h.learned_rows, h.dead_rows, h.nonfinite) for h in found))
    assert len(counts) == 1, counts


def measure_mlps(rank: int, world_size: int, config: Config, dense: str) -> list[list[TableHealth]]:
    parallel = spread(config)
    begin = health.table_health(parallel)[-2:]
    train_step(parallel, tiny_batch(config, 0, rank, world_size))
    after = health.table_health(parallel)[-2:]
    with torch.no_grad():
        parallel.dense_params["bottom.0.weight"][0] = 0.0
        parallel.dense_params["bottom.0.bias"][0] = 0.0
        parallel.dense_params["over.2.bias"][0] = math.nan
        if dense != "sgd":
            parallel.dense_optimizer.state[parallel.dense_params["over.0.bias"]]["sum"][0] = 123.0
    return [begin, after, health.table_health(parallel)[-2:]]


@pytest.mark.parametrize("dense", ["adagrad", "sgd"])
def test_the_mlps_stand_beside_the_tables(dense: str) -> None:
    config = tiny_config({"optim": {"dense": {"kind": dense}}})
    for begin, after, spoiled in run_world(measure_mlps, 2, config, dense):
        assert [(h.name, h.rows) for h in after] == [("bottom", 6 + 4), ("over", 5 + 1)]
        assert [h.learned_rows for h in begin] == ([10, 6] if dense == "sgd" else [0, 0])
        assert all(0 < h.learned_rows <= h.rows and h.rms_learned > 0 for h in after)
        bottom, over = spoiled
        assert (over.nonfinite, bottom.nonfinite) == (1, 0)
        # Unit 0 is dead if the step had reached it: a unit that ReLU silences for all rows has no moment.
        assert bottom.dead_rows <= 1
        assert dense == "adagrad" or bottom.dead_rows == 1
        assert over.max_abs == 123.0 or dense == "sgd"
