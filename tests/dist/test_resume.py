"""An increment that is cut off and gone on with: the same rows once each, the same model, at any number of ranks."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from diurnal.checkpoint.history import History
from diurnal.checkpoint.store import Store
from diurnal.config import Config, resolved_json
from diurnal.data.selection import select_increments
from diurnal.errors import LeaseLost
from diurnal.ledger.claims import Ledger
from diurnal.ledger.records import Commit
from diurnal.stack import library_versions
from diurnal.testing import kill_world, run_world, tensors_of, tiny_config
from diurnal.train.desk import TrainingDesk
from diurnal.train.events import Direct
from diurnal.train.orders import Orders
from diurnal.train.passes import Pass
from diurnal.train.pulse import Pulse
from diurnal.train.sequence import WorkerSequence, ask
from diurnal.train.spec import Spec

DAYS = ["2026-01-01", "2026-01-02"]
NUM_FILES, FILE_ROWS = 40, 25


def write_days(root: Path) -> str:
    """Two days of forty files."""
    for number, day in enumerate(DAYS):
        folder = root / f"dt={day}"
        folder.mkdir(parents=True)
        for file in range(NUM_FILES):
            rows = [number * 10_000 + file * FILE_ROWS + i for i in range(FILE_ROWS)]
            columns = {
                "label": [row * 7 % 3 == 0 for row in rows],
                "age": [row % 50 / 10 for row in rows],
                "price": [row % 13 / 10 for row in rows],
                "bought": [None if row % 4 == 1 else row * 5 % 7 == 0 for row in rows],
                "user": rows,
                "liked": [[row % 5, row % 11] for row in rows],
                "item": [row % 97 for row in rows],
                "genres": [[row % 3] * (row % 4) for row in rows],
                "site": [row % 2 for row in rows],
            }
            types = {"liked": pa.list_(pa.int64()), "genres": pa.list_(pa.int64())}
            table = pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})
            pq.write_table(table, folder / f"part-{file:02}.parquet")
        (folder / "_SUCCESS").touch()
    return str(root)


def config_of(days: str, storage: Path) -> Config:
    """A resume point every 240 rows."""
    return tiny_config(
        {
            "data": {"path": days, "batch_rows": 60, "streams": 6, "task_rows": 200},
            "storage": str(storage),
            "checkpoint": {"every_rows": 240, "every_s": 0.0, "keep": 3},
            "metrics": {"auc_bins": 1024, "slices": ["site", "item"]},
            "dataset": {"group_id": "item", "tasks": [{"name": "bought", "missing": "skip"}]},
            "workers": {"max": 3, "min": 1},
            "sharding": {"placement": {"user": "row_wise", "item": "table_wise", "genres": "column_wise"}},
        }
    )


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_days(tmp_path_factory.mktemp("days"))


@pytest.fixture
def config(days: str, tmp_path: Path) -> Config:
    return config_of(days, tmp_path)


@pytest.fixture(scope="module")
def unbroken(days: str, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """What two ranks have learned that nobody has disturbed."""
    config = config_of(days, tmp_path_factory.mktemp("unbroken"))
    run_world(play, 2, config)
    return config


def play(rank: int, world_size: int, config: Config, stop_after: int = 0) -> dict[str, Any]:
    """One life of a world, whose first rank is its own driver; `stop_after` so many steps it is ordered to stop."""
    said: list[str] = []
    if rank == 0:
        ledger = Ledger.of(config)
        lease = ledger.claim(config.name, "test", 30.0)
        history = History(Store(config.storage, config.name), ledger, config.name)
        done = {commit.increment for commit in history.commits() if commit.is_final}
        todo = [i for i in select_increments(config.data.path, config.dataset, DAYS[0], DAYS[1]) if i.id not in done]
        link = Direct(TrainingDesk(config, history, ledger, lease, todo, say=said.append))
    else:
        link = Direct(None)  # pyright: ignore[reportArgumentType]
    spec = Spec("train", resolved_json(config), library_versions(), link, config.storage, 0.0)
    start = ask(link, "start", world_size=world_size)
    pulse = Pulse()
    orders = Orders(link, pulse)
    if stop_after:
        watch_steps(orders, stop_after)
    sequence = WorkerSequence(spec, start, torch.device("cpu"), {}, pulse, orders, lambda *_: None)
    sequence.train()
    if rank == 0:
        lease.release()
    return {"said": said, "learned": [fit.plan["increment"]["id"] for fit in start.fits]}


def watch_steps(orders: Orders, stop_after: int) -> None:
    """Orders a stop once so many rows are learned, as the watchdog's thread would."""
    count = Pass.count

    def counted(self: Pass, *args: Any) -> None:
        count(self, *args)
        if orders.learns and self.num_steps >= stop_after:
            orders._latest = {"stop": "test"}

    mock.patch.object(Pass, "count", counted).start()


def final_commits(config: Config) -> dict[int, Commit]:
    with Ledger.of(config) as ledger:
        return {commit.number: commit for commit in ledger.commits(config.name) if commit.is_final}


def metrics_of(config: Config, number: int) -> dict[str, Any]:
    store = Store(config.storage, config.name)
    return store.at(final_commits(config)[number].path).manifest().lineage.metrics


POINTS = [
    ("learn/6", 1),
    ("checkpoint/before-shards", 0),
    ("checkpoint/before-commit", 1),
    ("checkpoint/committed", 0),
    ("score/3", 0),
]


@pytest.mark.parametrize(("point", "rank"), POINTS)
def test_a_kill_anywhere_changes_not_a_bit_at_the_same_number_of_ranks(
    config: Config, unbroken: Config, point: str, rank: int
) -> None:
    """ray-project/ray#48224 and ray-project/ray#41700: nothing is read again, nothing is mixed."""
    kill_world(play, 2, config, point=point, rank=rank)
    run_world(play, 2, config)
    for number in (1, 2):
        expected, found = tensors_of(unbroken, number), tensors_of(config, number)
        assert expected.keys() == found.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), (number, name)
        for key in ("progressive", "tasks"):
            assert metrics_of(config, number)[key] == metrics_of(unbroken, number)[key]
        assert metrics_of(config, number)["evaluated"] == pytest.approx(metrics_of(unbroken, number)["evaluated"])


def test_two_ranks_then_one_then_three_learn_each_row_once(config: Config, unbroken: Config) -> None:
    """A day of 40 files, cut off at about the 25th."""
    kill_world(play, 2, config, point="learn/10", rank=1)
    assert not final_commits(config)
    (alone,) = run_world(play, 1, config, 12)
    assert re.search("goes on after step (5|10) of 17", "\n".join(alone["said"])), "the newest commit that was whole"
    run_world(play, 3, config)
    commits = final_commits(config)
    assert [commits[number].rows for number in (1, 2)] == [NUM_FILES * FILE_ROWS] * 2
    for number in (1, 2):
        report = metrics_of(config, number)["progressive"]
        assert report["rows"] == NUM_FILES * FILE_ROWS
        undisturbed = metrics_of(unbroken, number)
        for name in ("ne", "gauc"):
            assert report[name] == pytest.approx(undisturbed["progressive"][name], abs=1e-6)
        of_task = metrics_of(config, number)["tasks"]["progressive"]["bought"]
        assert of_task == pytest.approx(undisturbed["tasks"]["progressive"]["bought"], abs=1e-5)
        assert of_task["rows"] == NUM_FILES * FILE_ROWS * 3 // 4
        for found, expected in zip(metrics_of(config, number)["slices"], undisturbed["slices"], strict=True):
            assert found == pytest.approx(expected, abs=1e-6)
        found = tensors_of(config, number)
        for name, tensor in tensors_of(unbroken, number).items():
            torch.testing.assert_close(found[name], tensor, atol=2e-5, rtol=1e-4, msg=f"{number} {name}")
    store = Store(config.storage, config.name)
    kept = {store.root / commit.path for commit in commits.values()}
    assert store.leftovers(kept) == [], "resume points and torn folders go once the version is there"


def test_an_order_to_stop_commits_what_was_learned(config: Config) -> None:
    run_world(play, 2, config, 6)
    with Ledger.of(config) as ledger:
        last = ledger.commits(config.name)[-1]
        assert (last.steps, last.rows, last.is_final) == (7, 412, False)
    (again, _) = run_world(play, 2, config)
    assert any("goes on after step 7" in line for line in again["said"])


def test_another_configuration_goes_on_with_the_steps_as_they_were_dealt(config: Config) -> None:
    """More streams and larger batches from the next increment on: the one that was begun keeps its own."""
    run_world(play, 2, config, 6)
    data = config.data.model_copy(update={"batch_rows": 80, "streams": 4})
    run_world(play, 2, config.model_copy(update={"data": data}))
    commits = final_commits(config)
    assert [(commits[n].num_steps, commits[n].rows) for n in (1, 2)] == [(17, 1000), (13, 1000)]


def test_files_that_changed_since_begin_the_increment_anew(tmp_path: Path) -> None:
    config = config_of(write_days(tmp_path / "days"), tmp_path / "storage")
    run_world(play, 2, config, 6)
    folder = Path(config.data.path, f"dt={DAYS[0]}")
    pq.write_table(pq.read_table(folder / "part-00.parquet").slice(0, 5), folder / "part-00.parquet")
    (again, _) = run_world(play, 2, config, 6)
    assert any("begun anew" in line for line in again["said"])
    (then, _) = run_world(play, 2, config)
    assert any("goes on after step 7" in line for line in then["said"]), "with the files as they are now"
    assert final_commits(config)[1].rows == NUM_FILES * FILE_ROWS - 20


def commit_late(rank: int, world_size: int, config: Config) -> str:
    """Another process takes the model over while this one learns."""
    ledger = Ledger.of(config)
    lease = ledger.claim(config.name, "slow", 1.1)
    history = History(Store(config.storage, config.name), ledger, config.name)
    link = Direct(
        TrainingDesk(
            config, history, ledger, lease, select_increments(config.data.path, config.dataset, DAYS[0], DAYS[1])
        )
    )
    spec = Spec("train", resolved_json(config), library_versions(), link, config.storage, 0.0)
    pulse = Pulse()
    sequence = WorkerSequence(
        spec, ask(link, "start", world_size=1), torch.device("cpu"), {}, pulse, Orders(link, pulse), lambda *_: None
    )
    time.sleep(1.5)
    ledger.claim(config.name, "fast", 30.0)
    try:
        sequence.train()
    except LeaseLost as error:
        return str(error)
    return "went on"


def test_who_lost_the_lease_commits_nothing(config: Config) -> None:
    """HazyResearch/metal#128."""
    (answer,) = run_world(commit_late, 1, config)
    assert "taken over by" in answer
    with Ledger.of(config) as ledger:
        assert ledger.commits(config.name) == []


def test_steps_that_change_nothing_have_resume_points_of_their_own(tmp_path: Path) -> None:
    """Rows of weight 0 move no weight, so that several resume points are after the same step of the model."""
    days = write_days(tmp_path / "days")
    for path in Path(days).rglob("*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.append_column("weight", pa.array([0.0] * table.num_rows)), path)
    config = config_of(days, tmp_path / "storage")
    config = config.model_copy(
        update={
            "dataset": config.dataset.model_copy(update={"weight": "weight"}),
            "checkpoint": config.checkpoint.model_copy(update={"every_rows": 50, "keep": 1}),
        }
    )
    run_world(play, 2, config)
    assert [commit.rows for commit in final_commits(config).values()] == [NUM_FILES * FILE_ROWS] * 2
