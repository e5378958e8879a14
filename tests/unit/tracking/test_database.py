from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from diurnal.tracking.database import ensure_database, exclusive

CREATE_AND_USE = """
import os, sys
from pathlib import Path
from diurnal.tracking.database import ensure_database
from diurnal.tracking.store import connect
import mlflow.store.tracking.sqlalchemy_store
print("ready", flush=True)
sys.stdin.readline()
file = Path(sys.argv[1])
ensure_database(file, str(file.parent))
connect(f"sqlite:///{file}").create_experiment(f"of-{os.getpid()}")
"""


HOLD = """
import sys, time
from pathlib import Path
from diurnal.tracking.database import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_processes_at_once_on_a_fresh_file_leave_a_sound_database(tmp_path: Path) -> None:
    """hydraflow#245: racing migrations break the file for good."""
    file = tmp_path / "new folder" / "mlflow.db"
    command = [sys.executable, "-c", CREATE_AND_USE, str(file)]
    with ExitStack() as stack:
        pipes = [os.pipe() for _ in range(2)]
        processes = [
            stack.enter_context(subprocess.Popen(command, stdin=read, stdout=subprocess.PIPE)) for read, _ in pipes
        ]
        assert [process.stdout and process.stdout.readline() for process in processes] == [b"ready\n"] * 2
        for _, write in pipes:
            os.write(write, b"go\n")
        assert [process.wait(100) for process in processes] == [0, 0]
    with sqlite3.connect(file) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        assert database.execute("select count(*) from experiments").fetchone() == (3,)
    assert sorted(path.name for path in file.parent.iterdir()) == ["mlflow.db", "mlflow.db.lock"]


def test_a_process_that_dies_lets_go_of_the_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "mlflow.db")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.kill()
        with exclusive(tmp_path / "mlflow.db"):
            pass


def test_a_database_that_is_there_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    file.write_text("somebody's")
    ensure_database(file, str(tmp_path))
    assert file.read_text() == "somebody's"


def test_a_creation_that_fails_leaves_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half_way(uri: str, _: str) -> None:
        Path(uri.removeprefix("sqlite:///")).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("mlflow.store.tracking.sqlalchemy_store.SqlAlchemyStore", half_way)
    with pytest.raises(OSError, match="disk full"):
        ensure_database(tmp_path / "mlflow.db", str(tmp_path))
    assert not (tmp_path / "mlflow.db").exists()
