"""Processes that die while they save: a version is there whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from diurnal.checkpoint.load import load
from diurnal.checkpoint.manifest import Lineage, Position
from diurnal.checkpoint.save import save
from diurnal.checkpoint.state import TrainState
from diurnal.checkpoint.store import Store
from diurnal.testing import everything, kill_world, run_world, spread, tiny_config

CONFIG = tiny_config({"sharding": {"placement": {"user": "row_wise", "item": "table_wise", "site": "data_parallel"}}})


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
    assert [(left.directory.name, left.reason) for left in store.leftovers()] == [("1-2", "never committed")] * (
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
    on_disk = {
        path.relative_to(version.directory).as_posix() for path in version.directory.rglob("*") if path.is_file()
    }
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
