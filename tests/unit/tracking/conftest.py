from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow.entities import Run

from diurnal.config import Config, Dense, Schema, Sparse, Table
from diurnal.config.run import Data, Tracking
from diurnal.tracking.database import ensure_database
from diurnal.tracking.mlflow import Dataset
from diurnal.tracking.store import connect
from diurnal.tracking.ui import serving

MakeConfig = Callable[..., Config]


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An initialised database without runs, to be copied."""
    folder = tmp_path_factory.mktemp("database")
    ensure_database(folder / "mlflow.db", str(folder))
    return folder / "mlflow.db"


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    def make(name: str = "ctr", uri: str = "", **fields: object) -> Config:
        schema = Schema(
            dense=(Dense(name="age"),),
            sparse=(Sparse(name="user"), Sparse(name="genres", type="string", many=True, required=False)),
            tables=(Table(name="user", rows=100, dim=4), Table(name="genres", rows=20, dim=4)),
        )
        return Config(
            name=name,
            storage=str(tmp_path / "storage"),
            data=Data(path="/data", schema_file="/data/schema.toml", batch_rows=8),
            tracking=Tracking(uri=uri),
            dataset=schema,
        ).model_copy(update=fields)

    return make


@pytest.fixture
def sqlite_config(make_config: MakeConfig, database: Path) -> Config:
    """A configuration whose SQLite database is there already."""
    config = make_config()
    Path(config.storage).mkdir()
    shutil.copy(database, Path(config.storage) / "mlflow.db")
    return config


@pytest.fixture
def dataset() -> Dataset:
    return Dataset(name="movielens", path="/data/dt=2026-01-02", fingerprint="0123456789abcdef" * 2, rows=160)


class Server:
    """A real MLflow server on a port of its own that can be killed and brought back."""

    def __init__(self, folder: Path, database: Path) -> None:
        shutil.copy(database, folder / "mlflow.db")
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        self.artifacts = str(folder / "artifacts")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._stack = ExitStack()
        self._log = self._stack.enter_context((folder / "server.log").open("wb"))

    def start(self) -> None:
        running = serving(self.uri, self.artifacts, "127.0.0.1", self.port, log=self._log)
        self._process, _ = self._stack.enter_context(running)

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, database: Path) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"), database)
    server.start()
    yield server
    server.close()


@pytest.fixture
def runs_of():
    """The runs of an experiment, by name; two of one name fail the test."""

    def runs_of(uri: str, experiment: str = "ctr") -> dict[str, Run]:
        client = connect(uri)
        found = client.get_experiment_by_name(experiment)
        assert found is not None
        runs = list(client.search_runs([found.experiment_id]))
        by_name = {str(run.info.run_name): run for run in runs}
        assert len(by_name) == len(runs)
        return by_name

    return runs_of


@pytest.fixture
def points_of():
    """Every point of a run, as (key, step, value)."""

    def points_of(uri: str, run: Run) -> list[tuple[str, int, float]]:
        client = connect(uri)
        history = [m for key in run.data.metrics for m in client.get_metric_history(run.info.run_id, key)]
        return sorted((m.key, m.step, m.value) for m in history)

    return points_of


class Proxy:
    """Forwards to the server, but the first request to `path` goes wrong.

    `lose_answer`: it arrives, and the client never learns. `arrive_late`: it arrives after the client has tried again.
    """

    def __init__(self, port: int, path: str, fault: str) -> None:
        tripped, second = threading.Event(), threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                hit = path in self.path
                is_first = hit and not tripped.is_set()
                if is_first:
                    tripped.set()
                    self.close_connection = True
                    if fault == "arrive_late":
                        self.connection.shutdown(socket.SHUT_RDWR)
                        second.wait(30)
                upstream = HTTPConnection("127.0.0.1", port, timeout=30)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
                upstream.request(self.command, self.path, body, headers)
                answer = upstream.getresponse()
                content = answer.read()
                upstream.close()
                if hit and not is_first:
                    second.set()
                if not is_first:
                    self.send_response(answer.status)
                    self.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            do_GET = do_POST = do_PUT = _forward

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def proxy(server: Server) -> Iterator[Callable[[str, str], Proxy]]:
    opened: list[Proxy] = []

    def make(path: str, fault: str) -> Proxy:
        opened.append(Proxy(server.port, path, fault))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
