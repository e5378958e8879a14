"""Versions in an S3-compatible object store, served by a real process: what a folder holds, bit for bit."""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diurnal.checkpoint import tensors
from diurnal.checkpoint.load import load
from diurnal.checkpoint.manifest import Lineage, Position
from diurnal.checkpoint.points import KILL_AT
from diurnal.checkpoint.save import save
from diurnal.checkpoint.state import TrainState
from diurnal.checkpoint.store import FileRecord, Store
from diurnal.checkpoint.tensors import Folder, Named, Part
from diurnal.data import objects
from diurnal.data.objects import ObjectPath
from diurnal.data.past_files import COPIES, FACTS, open_past
from diurnal.errors import CheckpointError
from diurnal.testing import WorldError, everything, run_world, spread, tiny_batch, tiny_config, train_step
from diurnal.testing_nodes import free_port

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

    def play(self, body: Callable[..., Any], world_size: int, *args: Any, **environment: str) -> list[Any]:
        return run_world(body, world_size, *args, env={**self.environment, **environment})


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


def test_a_rank_fetches_the_chunks_of_its_rows_and_no_others(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAX_CHUNK_BYTES", 4_000)
    table, folder = torch.arange(8_000.0).reshape(1_000, 8), ObjectPath.of("s3://log/chunks")
    sent = tensors.write(folder, {"table": Named.whole(table).share(0, 1)})
    assert sent == {path: FileRecord.of(folder / path) for path in folder.files()}
    mine = torch.zeros(200, 8)
    with server.asking() as asked:
        Folder(folder).read({"table": Named((1_000, 8), [Part((250, 0), mine)])})
    assert torch.equal(mine, table[250:450])
    reads = [request for request in asked if request.startswith("GET") and ".distcp" in request]
    assert reads == ["GET /log/chunks/__0_0.distcp 206"] * 2, "rows 250 to 499, in two of eight chunks"


def test_a_kill_before_the_commit_record_leaves_no_version(server: Server) -> None:
    storage = "s3://log/killed"
    with pytest.raises(WorldError, match="exit code -9"):
        server.play(train_and_save, 2, [storage], **{KILL_AT: "checkpoint/before-commit@0"})
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


@pytest.fixture(scope="module")
def stores(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    """The same version in a folder and in a bucket."""
    storages = [str(tmp_path_factory.mktemp("folder")), "s3://log/damaged"]
    server.play(train_and_save, 1, storages)
    here, there = (Store(storage, "tiny") for storage in storages)
    return here, there


@pytest.mark.parametrize("damage", ["another checksum", "bytes instead of", "no such file"])
def test_a_damaged_object_is_refused_as_a_file_is(stores: tuple[Store, Store], damage: str) -> None:
    told = []
    for store in stores:
        version = store.version(1)
        assert store.verify(version) == []
        path = version.directory / "model" / "__0_0.distcp"
        content = path.read_bytes()
        if damage == "no such file":
            path.unlink()
        else:
            path.write_bytes(content[:-1] + (b"" if damage == "bytes instead of" else bytes([content[-1] ^ 1])))
        (fault,) = store.verify(version)
        path.write_bytes(content)
        assert fault.where == str(path)
        told.append((fault.found, fault.rule, fault.fix))
    assert told[0] == told[1]
    assert damage in told[0][0]


def test_a_commit_that_did_not_come_to_lie_there_as_sent_is_none(stores: tuple[Store, Store]) -> None:
    _, store = stores
    directory, whole = store.begin(2, 1, 3), store.version(1)
    (directory / "data").write_text("1")
    with pytest.raises(OSError, match="data has 1 bytes instead of 2"):
        store.commit(directory, whole.manifest(), {"data": FileRecord(2, "")})
    store.discard(directory)
    assert [version.number for version in store.versions()] == [1]
    assert store.begin(2, 1, 3) != directory, "no name is used again"


def test_a_bucket_that_is_not_there_is_one_fault_of_the_storage(server: Server) -> None:
    store = Store("s3://no-bucket/models", "tiny")
    for action in (store.versions, store.at("1/1-1.1").manifest, store.at("1/1-1.1").files):
        with pytest.raises(CheckpointError, match=r"storage\n  found: s3://no-bucket/models/.*is no bucket no-bucket"):
            action()


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(403)
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("case", ["another key", "no network"])
def test_a_store_that_refuses_or_is_away_is_one_fault_of_the_storage(
    server: Server, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        port = refusing.server_port if case == "another key" else free_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        begun_s = time.monotonic()
        store = Store("s3://log/models", "tiny")
        for action in (store.versions, store.at("1/1-1.1").manifest):
            with pytest.raises(CheckpointError, match="storage\n  found: s3://log/models/tiny") as refused:
                action()
            assert "of-the-tests" not in str(refused.value)
            assert "AWS_ENDPOINT_URL" in str(refused.value)
        refusing.shutdown()
    assert time.monotonic() - begun_s < 60


def test_a_past_is_copied_once_whole_and_few_are_kept(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (copies,) = [tmp_path / f"diurnal-pasts-{os.getuid()}"]
    names = [f"s3://log/pasts/{index}" for index in range(COPIES + 2)]
    for index, name in enumerate(names):
        facts = {"increment": "", "impressions": index, "positives": 0, "counted": ["user"], "known": []}
        values = io.BytesIO()
        np.save(values, np.full((2, 5), index))
        (ObjectPath.of(name) / "0.npy").write_bytes(values.getvalue())
        (ObjectPath.of(name) / FACTS).write_text(json.dumps(facts))
    kept = [open_past(name) for name in names]
    assert [past.of_feature["user"].sum() for past in kept] == [10 * index for index in range(len(names))]
    assert len([entry for entry in copies.iterdir() if entry.is_dir()]) == COPIES
    open_past.cache_clear()
    with server.asking() as asked:
        assert open_past(names[-1]).impressions == COPIES + 1
    assert asked == [], "its copy is there"
    (copies / "lock").unlink()
    (ObjectPath.of(names[0]) / FACTS).unlink()
    with pytest.raises(FileNotFoundError, match=r"s3://log/pasts/0/past.json is not there"):
        open_past(names[0])


def test_what_is_large_goes_up_in_parts_and_does_not_pile_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_WAITING_BYTES", 12 << 20)
    path, block = ObjectPath.of("s3://log/large"), os.urandom(1 << 20)
    with server.asking() as asked, path.writing() as stream:
        for count in range(25):
            stream.write(block)
            if count == 12:
                assert any("partNumber=1" in request for request in server.asked()), "it was waited for"
    assert path.read_bytes() == block * 25
    assert sum("partNumber" in request for request in asked) == 3
