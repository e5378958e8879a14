"""Processes that die while they save: a version is there whole, or not at all."""

from __future__ import annotations

import resource
import shutil
import signal
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from diurnal.checkpoint.load import load
from diurnal.checkpoint.manifest import Lineage, Position
from diurnal.checkpoint.save import Saved, Saver, save
from diurnal.checkpoint.state import TrainState
from diurnal.checkpoint.store import Store
from diurnal.errors import CheckpointError
from diurnal.testing import everything, kill_world, run_world, spread, tiny_config

CONFIG = tiny_config({"sharding": {"placement": {"user": "row_wise", "item": "table_wise", "site": "data_parallel"}}})

LARGE = [{"name": name, "rows": 20_000, "dim": 16} for name in ("user", "item", "genres", "site")]


def lineage(number: int) -> Lineage:
    position = Position(steps=1, num_steps=1, rows=12, cursors=(12,))
    increment = f"2026-01-{number:02}"
    return Lineage(number=number, parent=None, increment=increment, fingerprint="", attempt=1, position=position)


@torch.no_grad()
def save_day(rank: int, world_size: int, storage: Path, number: int) -> None:
    """A version of which every value is the day's number."""
    state = TrainState(spread(CONFIG), global_step=number)
    sections = state.sections()
    for tensors in (sections["model"], sections["optimizer"]):
        for tensor in tensors.values():
            for part in tensor.parts:
                part.tensor.fill_(number)
    save(Store(storage, "tiny"), state, lineage(number))


def load_latest(rank: int, world_size: int, storage: Path) -> tuple[int, set[float]]:
    """The number of the latest version, and all values in it."""
    state, store = TrainState(spread(CONFIG)), Store(storage, "tiny")
    version = store.latest()
    assert version is not None
    load(store, version, state)
    assert state.global_step == version.number
    return version.number, {
        value for tensor in everything(state.parallel).values() for value in tensor.unique().tolist()
    }


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize(
    ("point", "number"),
    [("checkpoint/before-shards", 1), ("checkpoint/before-commit", 1), ("checkpoint/committed", 2)],
)
def test_a_kill_while_day_2_is_saved_leaves_day_1_or_day_2(
    tmp_path: Path, point: str, number: int, killed: int
) -> None:
    """KempnerInstitute/KempnerForge#102."""
    run_world(save_day, 2, tmp_path, 1)
    kill_world(save_day, 2, tmp_path, 2, point=point, rank=killed)
    store = Store(tmp_path, "tiny")
    assert [version.number for version in store.versions()] == [1, 2][:number]
    assert [(left.directory.name, left.reason) for left in store.leftovers()] == [("1-1", "never committed")] * (
        2 - number
    )
    assert run_world(load_latest, 2, tmp_path) == [(number, {float(number)})] * 2


def test_an_attempt_that_begins_again_writes_elsewhere(tmp_path: Path) -> None:
    """ray-project/ray#41700."""
    kill_world(save_day, 2, tmp_path, 1, point="checkpoint/before-commit", rank=1)
    run_world(save_day, 2, tmp_path, 1)
    store = Store(tmp_path, "tiny")
    version = store.version(1)
    assert version.directory.name == "1-1.2"
    directory = Path(str(version.directory))
    on_disk = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    assert on_disk == version.files().keys() | {"COMMIT"}
    assert store.verify(version) == []
    assert [left.directory.name for left in store.leftovers()] == ["1-1"]
    assert run_world(load_latest, 1, tmp_path) == [(1, {1.0})]


def save_into_a_full_store(rank: int, world_size: int, storage: Path) -> None:
    store = Store(storage, "tiny")
    store.root.parent.write_text("not a folder")
    save(store, TrainState(spread(CONFIG)), lineage(1))


def test_what_fails_on_the_first_rank_alone_is_raised_on_all(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError) as caught:
        run_world(save_into_a_full_store, 2, tmp_path)
    assert any("on rank" in note for note in caught.value.__notes__)


def fill(rank: int, world_size: int, storage: Path, full_rank: int, is_final: bool) -> dict[str, Any]:
    """Saves in the background while one rank may write no file of more than 2,000 bytes, then once more without."""
    saved: list[tuple[int, Saved]] = []
    state, store = TrainState(spread(CONFIG), global_step=1), Store(storage, "tiny")
    saver = Saver(store, state, retry_s=0.5, on_saved=lambda lineage, outcome: saved.append((lineage.number, outcome)))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if rank == full_rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    position = Position(steps=1, num_steps=1 if is_final else 2, rows=12, cursors=(12,))
    saver.begin(lineage(1).model_copy(update={"position": position}), {"numbers": torch.arange(3)})
    raised = ""
    try:
        saver.settle()
    except CheckpointError as error:
        raised = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    saver.begin(lineage(2))
    saver.settle()
    return {"raised": raised, "saved": saved, "left": [left.directory.name for left in store.leftovers()]}


@pytest.mark.parametrize("full_rank", [0, 1])
def test_a_disk_that_is_full_for_one_rank_leaves_out_a_resume_point_on_all(tmp_path: Path, full_rank: int) -> None:
    first, second = run_world(fill, 2, tmp_path, full_rank, False)
    (number, outcome), (_, whole) = first["saved"]
    assert (number, outcome.version, first["raised"], second["raised"]) == (1, None, "", "")
    assert "File too large" in outcome.reason
    assert whole.version is not None, "the next one is written"
    assert first["left"] == [], "what was half written is gone, so that it takes no room"


def test_a_disk_that_stays_full_ends_a_version_with_what_the_disk_said(tmp_path: Path) -> None:
    answers = run_world(fill, 2, tmp_path, 1, True)
    assert all("File too large" in answer["raised"] and "retry_s = 0.5 s" in answer["raised"] for answer in answers)
    assert [version.number for version in Store(tmp_path, "tiny").versions()] == [2]


def test_a_save_begins_with_a_look_at_the_room_there_is(tmp_path: Path) -> None:
    run_world(save_with_little_room, 1, tmp_path)


def save_with_little_room(rank: int, world_size: int, storage: Path) -> None:
    store = Store(storage, "tiny")
    free = shutil.disk_usage(storage)._replace(free=100)
    with (
        mock.patch("shutil.disk_usage", return_value=free),
        pytest.raises(OSError, match="bytes are to be written, 100"),
    ):
        save(store, TrainState(spread(CONFIG)), lineage(1))
    assert not list(Path(str(store.root)).glob("*/*"))


def stall(rank: int, world_size: int, storage: Path) -> tuple[float, float]:
    """Seconds that training stands still for a background save, and that the same save takes as a whole."""
    config = tiny_config({"dataset": {"tables": LARGE}, "sharding": {"default": "table_wise"}})
    state, store = TrainState(spread(config), global_step=1), Store(storage, "tiny")
    saved: list[Saved] = []
    saver = Saver(store, state, retry_s=0.0, on_saved=lambda _, outcome: saved.append(outcome))
    begun_s = time.perf_counter()
    saver.begin(lineage(1))
    stood_s = time.perf_counter() - begun_s
    before = everything(state.parallel)
    with torch.no_grad():
        for piece in state.parallel.pieces():
            piece.tensor.fill_(7.0)
    saver.settle()
    whole_s = time.perf_counter() - begun_s
    fresh = TrainState(spread(config))
    load(store, store.version(1), fresh)
    for name, tensor in everything(fresh.parallel).items():
        assert torch.equal(tensor, before[name]), "what happens after the copy is not in the commit"
    return stood_s, whole_s


def test_training_stands_still_for_the_copy_alone_and_changes_after_it_are_not_saved(tmp_path: Path) -> None:
    for stood_s, whole_s in run_world(stall, 2, tmp_path):
        assert stood_s < whole_s
