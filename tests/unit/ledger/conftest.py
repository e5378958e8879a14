"""A ledger in a file, a clock that is turned by hand, and holders in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diurnal.ledger.claims import Ledger
from diurnal.ledger.records import Commit

CHILD = """
import contextlib, json, sys
from diurnal.errors import DiurnalError
from diurnal.ledger.claims import Ledger
from diurnal.ledger.records import Commit

ledger, lease = Ledger(sys.argv[1]), None
stack = contextlib.ExitStack()

def claim(model, lease_s, beat):
    global lease
    lease = ledger.claim(model, "2026-01-02", lease_s)
    if beat:
        stack.enter_context(lease.heartbeat())
    return lease.token

def publish(**commit):
    lease.publish(Commit(**{**commit, "token": lease.token}))

def lost(timeout_s):
    return lease.lost_reason if lease.lost.wait(timeout_s) else None

def begin(increment):
    return lease.begin_attempt(increment, 1, 2)

print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    name, options = json.loads(line)
    try:
        answer = {"value": globals()[name](**options)}
    except DiurnalError as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps(answer), flush=True)
"""


@dataclass
class Clock:
    """Seconds since the epoch."""

    now_s: float = 1_767_312_000.0

    def __call__(self) -> float:
        return self.now_s


class Child:
    """Another process with the ledger open."""

    def __init__(self, url: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", CHILD, url], stdin=pipe, stdout=pipe, text=True)
        self.pid = self.process.pid

    def ask(self, name: str, **options: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, options]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def call(self, name: str, **options: Any) -> Any:
        self.ask(name, **options)
        return self.answer()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a folder' / 'ledger.db'}"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(url: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def spawn(url: str) -> Iterator[Callable[[], Child]]:
    children: list[Child] = []

    def start() -> Child:
        child = Child(url)
        children.append(child)
        assert child.answer() == "ready"
        return child

    yield start
    for child in children:
        child.process.kill()
        child.process.communicate()


@pytest.fixture
def commit() -> Callable[..., Commit]:
    """`commit(token, steps=20)` -> a commit of the first attempt at a version of 40 steps."""

    def make(token: int, steps: int = 20, **values: Any) -> Commit:
        number, attempt = values.get("number", 1), values.get("attempt", 1)
        step = values.get("global_step", 40 * (number - 1) + steps)
        defaults = {"model": "clicks", "number": number, "increment": f"2026-01-{number:02}", "fingerprint": "f00d"}
        defaults |= {"attempt": attempt, "token": token, "global_step": step, "steps": steps, "num_steps": 40}
        defaults |= {"rows": 100 * steps, "path": f"{number}/{attempt}-{step}", "watermark_us": 1_767_225_600_000_000}
        return Commit(**{**defaults, "created_at": "2026-01-02T00:00:00+00:00", **values})

    return make
