"""What runs on the head: a command that is watched, swept up after when it was killed, and told of in one last line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diurnal.cluster import job
from diurnal.cluster.client import Job
from diurnal.cluster.report import MARK, End, end_in, end_of, first_error
from diurnal.cluster.ship import CONFIG_FILE, VERSIONS_FILE, comparable
from diurnal.cluster.watch import Ended, _Lines, ended
from diurnal.stack import library_versions

ROOT = Path(__file__).parents[3]
TRACEBACK = """2026-01-02 INFO something of Ray's
Traceback (most recent call last):
  File "x.py", line 1, in <module>
diurnal.train.interrupt.WorkerFailed: rank 1 failed first (of 2):
Traceback (most recent call last):
  File "y.py", line 3, in step
ValueError: boom
"""
FAULTS = """some line before
configuration: 1 fault
run.toml: workers.max
  found: 0
  rule:  greater than or equal to 1
  fix:   change the value
"""
COMMAND = """
import os, signal, sys, time
if sys.argv[1] == "status":
    open(sys.argv[0] + ".swept", "w").write(" ".join(sys.argv[1:]))
elif sys.argv[1] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[1] == "sleeps":
    if sys.argv[2] == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("asleep", file=sys.stderr, flush=True)
    time.sleep(60)
else:
    sys.stderr.write("it went wrong\\n")
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the command line of diurnal."""
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    monkeypatch.setattr(job, "_CLI", (sys.executable, str(script)))
    return script


@pytest.mark.parametrize(
    ("code", "to_ray", "told", "error"),
    [
        (0, 0, 0, ""),
        (3, 0, 3, ""),
        (2, 2, 2, "it went wrong"),
        (4, 4, 4, "it went wrong"),
        (1, 1, 1, "it went wrong"),
        (15, 1, 1, "it went wrong"),
    ],
)
def test_a_held_day_is_a_success_to_ray_and_the_true_code_is_told(
    command: Path, capfd: pytest.CaptureFixture[str], code: int, to_ray: int, told: int, error: str
) -> None:
    assert job.main([str(code), "--config", "run.toml"]) == to_ray
    assert end_of(capfd.readouterr().err) == End(told, error)
    assert not command.with_suffix(".py.swept").exists()


def test_what_a_killed_command_left_open_is_closed(command: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["dies", "--config", "a.toml", "--day", "2026-01-01", "--set=seed=3", "--set", "workers.max=2"]
    assert job.main(words) == 1
    end = end_of(capfd.readouterr().err)
    assert end is not None
    assert "SIGKILL" in end.error
    swept = command.with_suffix(".py.swept").read_text()
    assert swept == "status --sweep --config a.toml --set=seed=3 --set workers.max=2"


@pytest.mark.parametrize("how", ["hears", "deaf"])
def test_a_command_that_does_not_end_when_asked_is_killed_in_time_to_sweep(command: Path, how: str) -> None:
    """As Ray does it: SIGTERM to all processes of the job at once."""
    code = (
        "import sys; from diurnal.cluster import job\n"
        f"job._CLI, job.SWEEP_S = (sys.executable, {str(command)!r}), 1\n"
        f"sys.exit(job.main(['sleeps', {how!r}, '--config', 'run.toml']))"
    )
    env = {**os.environ, job.STOP_WAIT: "2"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=env, process_group=0
    )
    assert process.stderr is not None
    assert "asleep" in process.stderr.readline()
    begun_s = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM)
    log = process.stderr.read()
    assert process.wait(20) == 1
    assert time.monotonic() - begun_s < 10
    end = end_of(log)
    assert end is not None
    assert end.error.startswith("stopped by SIGTERM")
    assert command.with_suffix(".py.swept").exists(), "who died of the signal has let nothing go"


def test_a_command_does_not_outlive_who_watches_it(command: Path) -> None:
    code = (
        "import sys; from diurnal.cluster import job\n"
        f"job._CLI = (sys.executable, {str(command)!r})\n"
        "sys.exit(job.main(['sleeps', 'deaf', '--config', 'run.toml']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "asleep" in process.stderr.readline()
    process.kill()
    assert process.stderr.read() == "", "its end is the end of all that could write here"


def test_other_versions_than_the_submitters_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: Path
) -> None:
    """ray-project/kuberay#4140: what runs is not what was meant to run."""
    monkeypatch.chdir(tmp_path)
    here = comparable(library_versions())
    Path(VERSIONS_FILE).write_text(json.dumps({**here, "diurnal": "0.0.0"}))
    assert job.main([job.SHIPPED, "0"]) == 2
    end = end_of(capfd.readouterr().err)
    assert end is not None
    assert "cluster: diurnal" in end.error
    assert "0.0.0" in end.error
    Path(VERSIONS_FILE).write_text(json.dumps(here))
    Path(CONFIG_FILE).write_text("{}")
    assert job.main([job.SHIPPED, "0"]) == 0


def test_the_first_real_error_is_told_and_no_traceback() -> None:
    assert first_error(TRACEBACK.splitlines(), 1) == "rank 1 failed first (of 2): ValueError: boom"
    assert first_error(FAULTS.splitlines(), 2).splitlines()[0] == "configuration: 1 fault"
    assert len(first_error(FAULTS.splitlines(), 2).splitlines()) == 5
    assert first_error(["Usage: x", "Error: Missing option '--day'."], 2) == "Error: Missing option '--day'."
    assert first_error(["model clicks is being trained by process 7 on h"], 4).startswith("model clicks")
    assert first_error([], 1) == first_error(TRACEBACK.splitlines(), 0) == ""


@pytest.mark.parametrize(
    ("status", "code", "last", "expected"),
    [
        ("SUCCEEDED", 0, End(0), (0, "")),
        ("SUCCEEDED", 0, End(3), (3, "")),
        ("SUCCEEDED", 0, None, (0, "")),
        ("FAILED", 2, End(2, "a fault"), (2, "a fault")),
        ("FAILED", 137, None, (1, "Job supervisor actor died")),
        ("FAILED", None, End(0), (1, "Job supervisor actor died")),
        ("STOPPED", None, End(1, "stopped by SIGTERM"), (1, "stopped by SIGTERM")),
        ("STOPPED", None, None, (1, "stopped")),
    ],
)
def test_rays_status_and_the_last_line_are_one_answer(
    status: str, code: int | None, last: End | None, expected: tuple[int, str]
) -> None:
    found = ended(Job("id", status, "Job supervisor actor died\nmore", code, {}), last)
    assert (found.exit_code, found.error) == expected
    assert Ended("id", "FAILED", 2, "a fault").text() == "id ended with exit code 2: a fault"


def test_a_log_is_cut_into_lines_and_its_last_word_is_kept_back() -> None:
    seen: list[str] = []
    lines = _Lines(seen.append)
    for text in ("Running entrypoint for job x: y\none\ntw", "o\n", End(3).line()[:9], End(3).line()[9:] + "\nrest"):
        lines.add(text)
    lines.close()
    assert seen == ["one", "two", "rest"]
    assert lines.end == End(3)
    assert end_in(MARK + "{nonsense") is None


@pytest.mark.parametrize("name", ["train", "daily", "backfill"])
def test_entry_points_are_the_same_commands(name: str) -> None:
    script = ROOT / "jobs" / f"{name}.py"
    assert len(script.read_text().splitlines()) <= 40
    answer = subprocess.run(
        [sys.executable, str(script), "--nonsense"], capture_output=True, text=True, timeout=60, check=False
    )
    end = end_of(answer.stderr)
    assert (answer.returncode, end and end.exit_code) == (2, 2), answer.stderr
    assert f"{name} --help" in answer.stderr
    assert "--nonsense" in answer.stderr
