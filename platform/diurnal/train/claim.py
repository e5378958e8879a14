"""One driver trains a model at a time, and each try at an increment has a number."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from diurnal.errors import ConfigError, Fault, LeaseHeld


@contextmanager
def exclusive(storage: str, name: str) -> Iterator[None]:
    """Holds the model's lock, which the operating system takes back when the process ends, however it ends.

    It holds among the processes of one machine, and among machines where the file system locks across them.

    Raises:
        LeaseHeld: another process holds it; says which, and since when.
        ConfigError: the storage cannot be written.
    """
    folder = Path(storage, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
    except OSError as error:
        fix = "correct storage, or its permissions"
        raise ConfigError([Fault("storage", str(error), "a folder that can be written", fix)]) from None
    with open(folder / "lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise LeaseHeld(f"model {name} in {storage} is being trained by {holder}") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {_now()}")
        file.flush()
        yield
        file.truncate(0)


def next_attempt(storage: str, name: str, increment_id: str) -> int:
    """The number of the next try at an increment, from 1."""
    return 1 + max((int(path.stem) for path in _attempts(storage, name, increment_id).glob("*.json")), default=0)


def record_attempt(storage: str, name: str, increment_id: str, attempt: int) -> None:
    """Notes that a try has begun, so that the next one gets another number however this one ends."""
    folder = _attempts(storage, name, increment_id)
    folder.mkdir(parents=True, exist_ok=True)
    record = {"pid": os.getpid(), "host": socket.gethostname(), "started_at": _now()}
    (folder / f"{attempt}.json").write_text(json.dumps(record), encoding="utf-8")


def _attempts(storage: str, name: str, increment_id: str) -> Path:
    return Path(storage, name, "attempts", increment_id)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
