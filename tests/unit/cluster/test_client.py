"""What a job server, or what is none, answers, as a person is told."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from diurnal.cluster.client import ClusterError, JobLost, JobServer, _Log, address_of
from diurnal.errors import StackError


@pytest.fixture
def answers() -> Iterator[dict[str, tuple[int, str]]]:
    """Answers of a server, by path; "address" has its own."""
    known: dict[str, tuple[int, str]] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, text = known.get(self.path, (404, "nothing here"))
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    known["address"] = (0, f"http://127.0.0.1:{server.server_port}")
    yield known
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("code", "text", "error", "says"),
    [
        (401, "Unauthorized", ClusterError, "token of this cluster"),
        (403, "Forbidden", ClusterError, "RAY_AUTH_TOKEN"),
        (200, "<html>", ClusterError, "none of Ray's"),
        (404, "gone", ClusterError, "refuses"),
        (200, '{"ray_version": "2.40.0"}', StackError, "2.40.0"),
    ],
)
def test_a_server_that_does_not_serve_is_one_clear_fault(
    answers: dict[str, tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    text: str,
    error: type[Exception],
    says: str,
) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://elsewhere:1")
    answers["/api/version"] = (code, text)
    with pytest.raises(error, match=says):
        JobServer(answers["address"][1])


def test_a_job_that_its_head_has_taken_along_is_lost_in_bounded_time(
    answers: dict[str, tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ray-project/kuberay#3903: a new head knows nothing of the job, or none answers any more."""
    import ray

    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")
    monkeypatch.setattr("diurnal.cluster.client.PATIENCE_S", 0.1)
    answers["/api/version"] = (200, json.dumps({"ray_version": ray.__version__}))
    server = JobServer(answers["address"][1])
    assert server.find("job") is None
    with pytest.raises(JobLost, match="head was replaced") as lost:
        server.follow("job", print)
    assert lost.value.exit_code == 1
    answers["/api/jobs/job"] = (500, "trouble")
    with pytest.raises(JobLost, match="no answer about job job"):
        server.follow("job", print)


def test_nobody_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ClusterError, match="no answer"):
            JobServer(f"http://127.0.0.1:{taken.getsockname()[1]}")


def test_the_address_is_as_given_or_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:8265")
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    assert address_of(None) == "http://head:8265"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "https://other/")
    assert address_of(None) == "https://other"
    assert address_of("http://given:1") == "http://given:1"
    for wrong in ("ray://head:10001", "auto"):
        with pytest.raises(ClusterError, match="http"):
            address_of(wrong)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")
    monkeypatch.setenv("RAY_ADDRESS", "")
    with pytest.raises(ClusterError, match="nothing"):
        address_of(None)


def test_a_log_that_begins_anew_is_handed_on_once() -> None:
    taken: list[str] = []
    log = _Log(taken.append)
    for part in ("ab", "cd"):
        log.add(part)
    log.start_anew()
    for part in ("abc", "def", "g"):
        log.add(part)
    assert "".join(taken) == "abcdefg"
