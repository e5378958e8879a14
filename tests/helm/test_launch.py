"""What a CronJob's pod runs when each run has a cluster of its own, against a server that answers as told."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "helm" / "diurnal" / "files" / "launch.py"
RUN = {"kind": "RayJob", "metadata": {"name": "clicks-r1", "labels": {"a": "b"}}, "spec": {}}


@pytest.fixture(scope="module")
def launch():
    spec = importlib.util.spec_from_file_location("launch", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["launch"] = module
    spec.loader.exec_module(module)
    return module


class Server(ThreadingHTTPServer):
    """Answers one after the other what is in `answers`, the last one for ever: (code, body)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path, json.loads(body) if body else None))
        code, answer = self.server.answers[0]
        if len(self.server.answers) > 1:
            self.server.answers.pop(0)
        if self.headers["Authorization"] != "Bearer secret":
            code = 401
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def api(launch, server, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    return launch.Api(f"http://127.0.0.1:{server.server_port}/rayjobs", tmp_path / "token")


def state(deployment: str, job: str = "", **more: str) -> tuple[int, Any]:
    return 200, {"status": {"jobDeploymentStatus": deployment, "jobStatus": job, **more}}


def run(launch, api, patience_s: float = 5.0) -> int:
    return launch.launch(api, launch.named(RUN, "clicks-29", "u1"), poll_s=0.01, patience_s=patience_s)


def test_a_run_is_made_and_waited_for(launch, api, server, capsys):
    server.answers = [
        (201, {}),
        (200, {}),
        state("Initializing"),
        state("Running", "RUNNING"),
        state("Complete", "SUCCEEDED"),
    ]
    assert run(launch, api) == 0
    (method, path, body), *polls = server.asked
    assert (method, path) == ("POST", "/rayjobs")
    assert body["metadata"]["name"] == "clicks-29"
    assert body["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "clicks-29", "uid": "u1"}
    ]
    assert {poll[:2] for poll in polls} == {("GET", "/rayjobs/clicks-29")}
    assert "clicks-29: Running RUNNING" in capsys.readouterr().out


def test_a_second_pod_waits_for_the_first_ones_run(launch, api, server, capsys):
    server.answers = [(409, {}), state("Running", "RUNNING"), state("Complete", "SUCCEEDED")]
    assert run(launch, api) == 0
    assert [method for method, _, _ in server.asked].count("POST") == 1
    assert "was there already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        (state("Failed", "FAILED", reason="AppFailed", message="boom"), "AppFailed boom"),
        (state("Failed", "", reason="DeadlineExceeded"), "DeadlineExceeded"),
        (state("Complete", "STOPPED"), "Complete STOPPED"),
        ((404, {}), "was deleted"),
    ],
)
def test_a_run_that_failed(launch, api, server, capsys, ends, says):
    server.answers = [(201, {}), state("Running", "RUNNING"), ends]
    assert run(launch, api) == 1
    assert says in capsys.readouterr().out


@pytest.mark.parametrize("code", [403, 404, 422])
def test_a_run_that_is_refused_is_a_persons_fault(launch, api, server, code):
    server.answers = [(code, {"message": "no such thing"})]
    assert run(launch, api) == 2


def test_a_server_that_is_away_for_a_moment(launch, api, server):
    server.answers = [(503, {}), (201, {}), (500, {}), state("Running"), (429, {}), state("Complete", "SUCCEEDED")]
    assert run(launch, api) == 0


def test_a_server_that_stays_away(launch, api, server, capsys):
    server.answers = [(201, {}), (503, {})]
    assert run(launch, api, patience_s=0.05) == launch.UNKNOWN
    assert "goes on by itself" in capsys.readouterr().out
