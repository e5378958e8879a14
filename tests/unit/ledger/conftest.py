"""A ledger in a file or on a PostgreSQL server, a clock that is turned by hand, and holders in other processes."""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

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

def judge(**options):
    return lease.judge(**{"verdict": "promote", "reason": "", "evidence": {}, "rejected": False, **options})

def promote(**options):
    return ledger.promote("clicks", **options)

def rollback():
    return ledger.rollback("clicks")

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


class Server:
    """A PostgreSQL server of the tests' own, reached through a socket in its folder; nobody else's is touched.

    It refuses to run as root, and is `nobody` then. It ends with this process, however that ends.
    """

    DATABASES = "postgresql+psycopg://postgres@/{name}?host={folder}"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.binaries = self._binaries()
        self.user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self.user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        self.log = folder / "log"
        self.process = self._start()
        self.admin = self._connect()
        self.count = 0

    def url(self) -> str:
        """Of a fresh database."""
        self.count += 1
        name = f"ledger{self.count}"
        self.admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.DATABASES.format(name=name, folder=self.folder)

    def drop(self, url: str) -> None:
        self.admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(_name(url))))

    @contextmanager
    def away(self, url: str) -> Iterator[None]:
        """The database ends all connections and takes no new ones."""
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        self.admin.execute(allow.format(sql.Identifier(_name(url)), sql.SQL("false")))
        self.admin.execute(ended, [_name(url)])
        yield
        self.admin.execute(allow.format(sql.Identifier(_name(url)), sql.SQL("true")))

    def stop(self) -> None:
        self.admin.close()
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(30)

    @staticmethod
    def _binaries() -> Path:
        on_path = shutil.which("initdb")
        folders = [Path(on_path).resolve().parent] if on_path else []
        folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
        for folder in folders:
            if (folder / "initdb").exists() and (folder / "postgres").exists():
                return folder
        raise RuntimeError("these tests start a PostgreSQL server of their own: apt-get install postgresql")

    def _start(self) -> subprocess.Popen[str]:
        data = self.folder / "data"
        options: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL, **self.user}
        make = [self.binaries / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8"]
        done = subprocess.run(make, capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, done.stderr
        settings = {"unix_socket_directories": self.folder, "listen_addresses": "", "shared_buffers": "16MB"}
        # What a crash of the machine would cost is nothing here.
        settings |= {"fsync": "off", "full_page_writes": "off"}
        serve = [self.binaries / "postgres", "-D", data, *(f"--{name}={value}" for name, value in settings.items())]
        with self.log.open("w") as log:
            return subprocess.Popen(serve, stdout=log, stderr=log, text=True, preexec_fn=_end_with_parent, **options)

    def _connect(self) -> psycopg.Connection:
        until_s = time.monotonic() + 60
        while True:
            try:
                return psycopg.connect(f"host={self.folder} user=postgres dbname=postgres", autocommit=True)
            except psycopg.OperationalError as error:
                over = self.process.poll() is not None or time.monotonic() > until_s
                if over:
                    self.process.kill()
                    raise RuntimeError(f"{error}\n{self.log.read_text(errors='replace')}") from None
            time.sleep(0.05)


def _name(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


def _end_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGQUIT)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    # A short name, since that of a socket may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        started = Server(Path(folder))
        yield started
        started.stop()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a folder' / 'ledger.db'}"


@pytest.fixture
def postgresql_url(server: Server) -> Iterator[str]:
    url = server.url()
    yield url
    server.drop(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_url")


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
