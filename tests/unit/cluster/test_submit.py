"""Who asks for the same gets the same job: decisions about attempts, over a server that only remembers."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from diurnal.cluster.client import Job
from diurnal.cluster.report import End
from diurnal.cluster.request import Request
from diurnal.cluster.stop import stop
from diurnal.cluster.submit import submit
from diurnal.testing import tiny_config

REQUEST = Request(tiny_config(), "daily", ("--until", "2026-01-03"), "2026-01-03", True)


class Remembering:
    """A job server that starts nothing."""

    address = "http://head:8265"

    def __init__(self) -> None:
        self.kept: dict[str, Job] = {}
        self.logs: dict[str, str] = {}
        self.entrypoints: list[str] = []
        self._lock = threading.Lock()
        self.both_looked = threading.Barrier(1)

    def jobs(self) -> list[Job]:
        found = list(self.kept.values())
        self.both_looked.wait(10)
        return found

    def find(self, id: str) -> Job | None:
        return self.kept.get(id)

    def log(self, id: str) -> str:
        return self.logs.get(id, "")

    def submit(self, id: str, entrypoint: str, folder: Path | None, env: Any, metadata: dict[str, str]) -> bool:
        with self._lock:
            if id in self.kept:
                return False
            self.kept[id] = Job(id, "RUNNING", "", None, metadata)
            self.entrypoints.append(entrypoint)
            return True

    def stop(self, id: str) -> None:
        self.end(id, "STOPPED")

    def end(self, id: str, status: str, end: End | None = None) -> None:
        self.kept[id] = dataclasses.replace(self.kept[id], status=status)
        if end is not None:
            self.logs[id] = f"work\n{end.line()}\n"


@pytest.fixture
def server() -> Any:
    return Remembering()


def ask(server: Any, request: Request = REQUEST, **more: Any) -> tuple[int, str, str]:
    said: list[str] = []
    done = submit(request, server, said.append, **more)
    return done.attempt, done.how, "\n".join(said)


def test_who_comes_second_attaches_and_hears_of_another_configuration(server: Any) -> None:
    assert ask(server)[:2] == (1, "started")
    attempt, how, said = ask(server)
    assert (attempt, how) == (1, "attached")
    assert "another configuration" not in said
    other = dataclasses.replace(REQUEST, config=tiny_config({"seed": 9}))
    assert other.config_hash in ask(server, other)[2]
    assert len(server.kept) == 1
    (entrypoint,) = server.entrypoints
    assert entrypoint == "python -P -m diurnal.cluster.job --shipped daily --until 2026-01-03"


def test_two_in_the_same_moment_are_one_job(server: Any) -> None:
    """ray-project/ray#31356: both look, neither finds anything, both submit the same id."""
    server.both_looked = threading.Barrier(2)
    answers: list[tuple[int, str, str]] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(server))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(answer[:2] for answer in answers) == [(1, "attached"), (1, "started")]
    assert len(server.kept) == 1


def test_what_is_done_stays_done_unless_asked_for_again(server: Any) -> None:
    ask(server)
    server.end(REQUEST.id(1), "SUCCEEDED", End(0))
    attempt, how, said = ask(server)
    assert (attempt, how) == (1, "done")
    assert "done already" in said
    assert ask(server, again=True)[:2] == (2, "started")


@pytest.mark.parametrize(
    ("status", "end", "says"),
    [
        ("FAILED", End(1, "rank 1 failed first (of 2): ValueError: boom"), "ValueError: boom"),
        ("STOPPED", None, "was stopped"),
        ("SUCCEEDED", End(3), "exit code 3"),
    ],
)
def test_what_did_not_succeed_is_tried_again_and_the_reason_is_told(
    server: Any, status: str, end: End | None, says: str
) -> None:
    ask(server)
    server.end(REQUEST.id(1), status, end)
    attempt, how, said = ask(server)
    assert (attempt, how) == (2, "started")
    assert says in said


def test_without_an_end_there_is_always_a_next_attempt(server: Any) -> None:
    ready = dataclasses.replace(REQUEST, words=(), what="ready", is_bounded=False)
    for attempt in (1, 2, 3):
        assert ask(server, ready)[:2] == (attempt, "started")
        assert ask(server, ready)[:2] == (attempt, "attached")
        server.end(ready.id(attempt), "SUCCEEDED", End(0))


def test_stopping_what_has_ended_does_nothing(server: Any) -> None:
    ask(server)
    said: list[str] = []
    assert stop(server, REQUEST.id(1), 5.0, said.append).status == "STOPPED"
    server.stop = None
    stop(server, REQUEST.id(1), 5.0, said.append)
    assert "nothing to stop" in said[-1]
