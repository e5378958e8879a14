"""Versions in an S3-compatible object store, served by a real process: what a folder holds, bit for bit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import fs

from diurnal.checkpoint.load import load
from diurnal.checkpoint.manifest import Lineage, Position
from diurnal.checkpoint.save import save
from diurnal.checkpoint.state import TrainState
from diurnal.checkpoint.store import Store
from diurnal.data.objects import ObjectPath
from diurnal.errors import CheckpointError
from diurnal.testing import everything, kill_world, run_world, spread, tiny_batch, tiny_config, train_step

MIXED = {"user": "row_wise", "item": "table_wise", "genres": "row_wise", "site": "data_parallel"}
CONFIG = tiny_config({"optim": {"sparse": {"kind": "rowwise_adagrad"}}, "sharding": {"placement": MIXED}})

Values = dict[str, torch.Tensor]


class Server:
    """moto's S3, and what it was asked."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}

    def asked(self) -> list[str]:
        """Method, path and status of all requests so far."""
        plain = re.sub(r"\x1b\[\d+m", "", self._log.read_text())
        return [f"{what} {status}" for what, status in re.findall(r'"([A-Z]+ \S+) HTTP/1.1" (\d+)', plain)]

    @contextmanager
    def asking(self) -> Iterator[list[str]]:
        """The requests of a block, once it is over."""
        found: list[str] = []
        before = len(self.asked())
        yield found
        found += self.asked()[before:]

    def play(self, body: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
        return run_world(body, world_size, *args, env=self.environment)


@pytest.fixture(scope="module")
def server(object_store: Path) -> Server:
    return Server(object_store)


def lineage(number: int) -> Lineage:
    position = Position(steps=3, num_steps=3, rows=36, cursors=(36,))
    increment = f"2026-01-{number:02}"
    return Lineage(number=number, parent=None, increment=increment, fingerprint="", attempt=1, position=position)


def train_and_save(rank: int, world_size: int, storages: list[str]) -> Values:
    state = TrainState(spread(CONFIG))
    for step in range(3):
        train_step(state.parallel, tiny_batch(CONFIG, step, rank, world_size))
        state.global_step += 1
    for storage in storages:
        save(Store(storage, "tiny"), state, lineage(1))
    return everything(state.parallel)


def load_all(rank: int, world_size: int, storages: list[str]) -> list[Values]:
    found = []
    for storage in storages:
        state, store = TrainState(spread(CONFIG)), Store(storage, "tiny")
        load(store, store.version(1), state)
        assert state.global_step == 3
        found.append(everything(state.parallel))
    return found


def same(one: Values, other: Values) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("saved", "loaded"), [(1, 2), (2, 1)])
def test_a_version_is_the_one_of_a_folder_at_any_world_size(
    server: Server, tmp_path: Path, saved: int, loaded: int
) -> None:
    storages = [str(tmp_path), f"s3://log/equal/{saved}"]
    with server.asking() as asked:
        values = server.play(train_and_save, saved, storages)[0]
    assert sum("list-type=2" in request for request in asked) == 1, "to see that all is there as it was sent"
    here, there = (Store(storage, "tiny").version(1) for storage in storages)
    of_tensors = [path for path in here.files() if not path.endswith((".metadata", "manifest.json"))]
    assert here.files().keys() == there.files().keys()
    assert {path: here.files()[path] for path in of_tensors} == {path: there.files()[path] for path in of_tensors}
    with server.asking() as asked:
        answers = server.play(load_all, loaded, storages)
    assert all(same(each, values) for ranks in answers for each in ranks)
    reads = [request for request in asked if request.startswith("GET") and ".distcp" in request]
    assert {request.rpartition(" ")[2] for request in reads} == {"206"}, "by ranges"
    assert len(reads) > 2 * len([path for path in of_tensors if path.endswith(".distcp")])


@pytest.mark.parametrize("killed", [0, 1])
def test_a_kill_before_the_commit_record_leaves_no_version(server: Server, killed: int) -> None:
    storage = f"s3://log/killed/{killed}"
    kill_world(
        train_and_save, 2, [storage], point="checkpoint/before-commit", rank=killed, env=server.environment
    )
    store = Store(storage, "tiny")
    assert store.versions() == []
    assert [left.reason for left in store.leftovers()] == ["never committed"]
    server.play(train_and_save, 2, [storage])
    version = store.version(1)
    assert store.verify(version) == []
    (left,) = store.leftovers()
    assert left.directory != version.directory
    store.remove(left.directory)
    assert store.leftovers() == []
    assert store.verify(version) == []
