from __future__ import annotations

import queue
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.request import urlopen

import pytest

from diurnal.config import Config
from diurnal.tracking import ui
from diurnal.tracking.mlflow import Tracker

SCHEMA = """
[[dense]]
name = "age"

[[sparse]]
name = "user"

[[tables]]
name = "user"
rows = 100
dim = 4
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    file = tmp_path / "run.toml"
    file.write_text(
        f'name = "ctr"\nstorage = "{tmp_path}/storage"\n'
        f'[data]\npath = "{tmp_path}"\nschema_file = "{tmp_path}/schema.toml"\n'
    )
    return file


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_it_serves_the_store_and_prints_the_link(config_file: Path, sqlite_config: Config, dataset) -> None:
    tracker = Tracker(sqlite_config)
    run = tracker.begin_increment("2026-01-02", attempt=1, parent_version=None, dataset=dataset)
    run.artifact_text("plan.txt", "user: rank 0")
    run.finish("FINISHED", version=1)
    assert tracker.close().dropped == 0
    port = free_port()
    command = [sys.executable, "-m", "diurnal.tracking.ui", "--config", str(config_file), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as process:
        lines: queue.Queue[str] = queue.Queue()
        assert process.stdout is not None
        threading.Thread(target=lambda: lines.put(process.stdout.readline()), daemon=True).start()  # pyright: ignore
        try:
            link = lines.get(timeout=120).strip()
            assert link == f"http://127.0.0.1:{port}/{tracker.link()}"
            run_id = re.search(r"/runs/([0-9a-f]+)/", run.link())
            assert run_id is not None
            address = f"http://127.0.0.1:{port}/get-artifact?path=plan.txt&run_uuid={run_id[1]}"
            assert urlopen(address, timeout=30).read() == b"user: rank 0"
        finally:
            process.terminate()
        assert process.wait(30) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_port_that_is_taken_is_a_clear_fault(config_file: Path, sqlite_config: Config, capsys) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert ui.main(["--config", str(config_file), "--port", str(port)]) == 2
    assert re.search(rf"--port\n  found: 127.0.0.1:{port}.*in use", capsys.readouterr().err)


def test_a_store_that_is_not_there_yet_is_a_clear_fault(config_file: Path, tmp_path: Path, capsys) -> None:
    assert ui.main(["--config", str(config_file), "--port", str(free_port())]) == 2
    assert f"no file {tmp_path}/storage/mlflow.db" in capsys.readouterr().err


def test_a_configuration_that_is_wrong_is_a_clear_fault(config_file: Path, capsys) -> None:
    assert ui.main(["--config", str(config_file), "--set", "tracking.uris=http://x"]) == 2
    assert "did you mean uri?" in capsys.readouterr().err


def test_of_a_server_only_the_link_is_printed(config_file: Path, server, capsys) -> None:
    setting = f"tracking.uri={server.address}"
    assert ui.main(["--config", str(config_file), "--set", setting, "--set", "name=untracked"]) == 0
    assert capsys.readouterr().out == (
        f"{server.address}/#/experiments?workflowType=machine_learning (no experiment untracked yet)\n"
    )


def test_a_server_that_is_down_is_an_error_of_one_line(config_file: Path, capsys) -> None:
    setting = f"tracking.uri=http://user:secret@127.0.0.1:{free_port()}"
    assert ui.main(["--config", str(config_file), "--set", setting]) == 1
    told = capsys.readouterr().err
    assert "failed with exception" in told
    assert told.count("\n") == 1
    assert "secret" not in told


def test_a_password_is_not_an_argument_of_the_server() -> None:
    command, environment = ui.server_command("postgresql://u:secret@db/mlflow", "/artifacts", "127.0.0.1", 5000)
    assert "secret" not in " ".join(command)
    assert environment["MLFLOW_BACKEND_STORE_URI"] == "postgresql://u:secret@db/mlflow"


def test_a_server_that_ends_while_it_starts_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "server_command", lambda *_: ([sys.executable, "-c", "exit(3)"], {}))
    with pytest.raises(ui.ServerError, match="ended with code 3"), ui.serving("", None, "127.0.0.1", free_port()):
        pass
