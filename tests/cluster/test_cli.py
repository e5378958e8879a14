"""The command line as a person and a scheduler use it: real processes, real signals, real exit codes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from diurnal.checkpoint.store import Store
from diurnal.errors import LeaseHeld
from diurnal.ledger.claims import Ledger
from diurnal.ledger.database import default_url
from diurnal.ledger.lease import Lease
from diurnal.ledger.records import Attempt, Commit

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

DIURNAL = [sys.executable, "-m", "diurnal.cli.main"]


def arguments(world: Any, command: str, *more: str) -> list[str]:
    config = world.config()
    own = {"data.path": config.data.path, "data.schema_file": config.data.schema_file, "storage": config.storage}
    sets = [part for key, value in own.items() for part in ("--set", f"{key}={value!r}")]
    return [*DIURNAL, command, "--config", str(world.root / "run.toml"), *sets, *more]


def run(*command: str, timeout: float = 180) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def statuses(world: Any) -> dict[str, str]:
    from mlflow.tracking import MlflowClient

    from diurnal.tracking import names
    from diurnal.tracking.location import tracking_uri

    config = world.config()
    client = MlflowClient(tracking_uri(config))
    experiment = client.get_experiment_by_name(config.name)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    return {run.data.tags.get(names.TAG_INCREMENT, "lineage"): run.info.status for run in runs}


def commits_of(world: Any) -> list[Commit]:
    config = world.config()
    with Ledger.of(config) as ledger:
        return ledger.commits(config.name)


def attempts_of(world: Any) -> list[Attempt]:
    config = world.config()
    with Ledger.of(config) as ledger:
        return ledger.attempts(config.name)


def wait_for_commits(world: Any, process: subprocess.Popen[str], count: int) -> Commit:
    """The newest commit, once there are so many resume points in a row."""
    seen: set[str] = set()
    deadline = time.monotonic() + 300
    while len(seen) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, seen
        seen |= {commit.path for commit in commits_of(world)}
        time.sleep(0.1)
    return commits_of(world)[-1]


def freeze(world: Any, process: subprocess.Popen[str]) -> None:
    """Stops a process, though not while it writes: who sleeps then keeps SQLite's lock, and nobody else gets on."""
    url = default_url(world.config().storage).removeprefix("sqlite:///")
    while True:
        process.send_signal(signal.SIGSTOP)
        with closing(sqlite3.connect(url, timeout=0.5, isolation_level=None)) as database, suppress(sqlite3.Error):
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
            return
        process.send_signal(signal.SIGCONT)
        time.sleep(0.05)


def claim_from(ledger: Ledger, world: Any, process: subprocess.Popen[str]) -> Lease:
    """Takes the model, for a minute, from a process that has it and is frozen."""
    deadline = time.monotonic() + 120
    while True:
        with suppress(LeaseHeld):
            return ledger.claim(world.config().name, "take over", lease_s=60)
        assert f"process {process.pid} " in str(ledger.held(world.config().name))
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes_of(root: Path, title: str = "") -> list[int]:
    """Live processes of what `started` started for this folder, whose command begins with `title`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                environment, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"DIURNAL_TEST={root}".encode() in environment + command and command.startswith(title.encode()):
                found.append(int(entry.name))
    return found


@pytest.fixture
def started(world: Any) -> Iterator[Any]:
    """Starts commands in the background, marked so that what they leave behind is found."""
    processes: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        env = {**os.environ, "DIURNAL_TEST": str(world.root)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
    for pid in processes_of(world.root):
        os.kill(pid, signal.SIGKILL)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Lines of stderr up to the first that has `text`."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"{text!r} did not come:\n{''.join(lines)}")


def test_the_commands_are_these() -> None:
    out = run(*DIURNAL, "--help").stdout
    listed = out.partition("Commands:")[2].split("\n")
    found = [line.split()[0] for line in listed if line.startswith("  ") and line[2:3].strip()]
    commands = ["backfill", "daily", "doctor", "evaluate", "init", "ledger", "promote", "replay", "rollback"]
    assert found == [*commands, "schedule", "status", "stop", "submit", "train", "validate", "watch"]
    without = ("doctor", "init", "ledger", "stop", "submit", "watch")
    for command in [name for name in [*found, "ledger events", "ledger rebuild"] if name not in without]:
        text = run(*DIURNAL, *command.split(), "--help").stdout
        assert all(option in text for option in ("--config", "--set", "--json"))


def test_validate_reads_every_footer_and_tells_all_faults_with_exit_code_2(world) -> None:
    """ray-project/ray#57704: markers are no data, and a truncated file is named before anything starts."""
    day = world.write_day(0, 60)
    answer = run(*arguments(world, "validate", "--json"))
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["increments"] == [{"increment": day, "rows": 60, "files": 2}]
    cut = world.root / "days" / f"dt={day}" / "part-1.parquet"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    answer = run(*arguments(world, "validate", "--json"))
    assert answer.returncode == 2
    (fault,) = json.loads(answer.stdout)["error"]["faults"]
    assert fault["where"].endswith("part-1.parquet")
    assert run(*arguments(world, "train", "--day", day)).returncode == 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--day", "yesterday"], "YYYY-MM-DD"),
        (["--day", "2020-01-01"], "2026-01-01 to 2026-01-01"),
        (["--day", "2026-01-01", "--set", "workers.max='many'"], "workers.max"),
        (["--day", "2026-01-01", "--config", "nowhere.toml"], "nowhere.toml"),
        (["--day", "2026-01-01", "--set", "workers.max=600", "--set", "data.batch_rows=600"], "600 workers x 0.5 CPUs"),
        ([], "--day"),
    ],
)
def test_what_a_person_got_wrong_is_one_message_and_exit_code_2(world, more: list[str], words: str) -> None:
    world.write_day(0, 60)
    answer = run(*arguments(world, "train", *more))
    assert answer.returncode == 2
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not list((world.root / "storage").glob("*/versions")), "nothing is half written"


def test_a_killed_and_a_stopped_driver_leave_the_truth_and_the_same_command_goes_on(world, started) -> None:
    """mlflow/mlflow#5963: SIGTERM ends as KILLED, and FINISHED comes with a commit alone. A second driver is told who
    trains; after each end the same command just works."""
    days = [world.write_day(0, 100), world.write_day(1, 40_000)]
    more = ("--set", "workers.max=1", "--set", "workers.grace_s=30")
    command = arguments(world, "train", "--day", days[0], "--to", days[1], *more)
    first = started(*command)
    said = read_until(first, f"{days[1]} learning")
    # However fast the machine is: the day does not end before the signal comes.
    (worker,) = processes_of(world.root, "ray::RayTrainWorker")
    os.kill(worker, signal.SIGSTOP)
    assert f"{days[0]} " in said, "a row of the table for the day that was committed"
    other = run(*command)
    assert other.returncode == 4
    assert f"process {first.pid}" in other.stderr
    first.send_signal(signal.SIGTERM)
    os.kill(worker, signal.SIGCONT)
    assert first.wait(120) == 1
    assert statuses(world) == {days[0]: "FINISHED", days[1]: "KILLED", "lineage": "KILLED"}
    deadline = time.monotonic() + 30
    while processes_of(world.root) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_of(world.root) == [], "nothing goes on in the background"
    kept = commits_of(world)[-1]
    assert (kept.increment, kept.is_final) == (days[1], False), "a last commit fits into the time of grace"

    second = started(*command)
    assert f"goes on after step {kept.steps} of" in read_until(second, f"{days[1]} learning")
    second.kill()
    second.wait()
    assert [commit.number for commit in commits_of(world) if commit.is_final] == [1]

    final = run(*command, "--json")
    assert final.returncode == 0, final.stderr
    result = json.loads(final.stdout)
    assert (result["already"], [d["version"] for d in result["days"]]) == ([days[0]], [2])
    assert statuses(world) == {days[0]: "FINISHED", days[1]: "FINISHED", "lineage": "FINISHED"}


def test_a_frozen_driver_loses_the_model_and_cannot_commit_any_more(world, started) -> None:
    """ray-project/kuberay#2155 and HazyResearch/metal#128: who wakes up too late changes nothing, and the same command
    goes on from the newest commit."""
    day = world.write_day(0, 40_000)
    more = ("workers.max=1", "checkpoint.every_s=1", "ledger.lease_s=4", "tracking.every_steps=50")
    command = arguments(world, "train", "--day", day, "--json", *(part for key in more for part in ("--set", key)))
    first = started(*command)
    wait_for_commits(world, first, 2)
    freeze(world, first)
    with Ledger.of(world.config()) as ledger:
        lease = claim_from(ledger, world, first)
        # Not later than that: who sleeps for long is given up by Ray, and may crash when it wakes up.
        first.send_signal(signal.SIGCONT)
        _, said = first.communicate(timeout=120)
        lease.release()
    assert first.returncode == 4, said
    assert f"taken over by process {os.getpid()}" in said

    second = started(*command)
    assert "goes on after step" in read_until(second, "learning")
    out, said = second.communicate(timeout=400)
    assert second.returncode == 0, said
    (outcome,) = json.loads(out)["days"]
    assert outcome["learned"]["report"]["rows"] == 40_000
    (version,) = commits_of(world)
    assert (version.is_final, version.token) == (True, 3)
    ends = [attempt.outcome for attempt in attempts_of(world)]
    assert ends == ["killed", "committed"]
    assert statuses(world) == {day: "FINISHED", "lineage": "FINISHED"}


def test_a_worker_that_dies_again_and_again_ends_the_run_with_the_first_real_error(world) -> None:
    """ray-project/ray#41973: in bounded time, and never more often than is allowed without a commit between."""
    day = world.write_day(0, 600)
    command = arguments(
        world, "train", "--day", day, "--set", "workers.max_failures=1", "--set", "tracking.enabled=false"
    )
    env = {**os.environ, "DIURNAL_KILL_AT": "learn/3@1"}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=env)
    assert answer.returncode == 1
    assert "rank 1" in answer.stderr
    assert [attempt.outcome for attempt in attempts_of(world)] == ["failed", "failed"]
    assert commits_of(world) == []


def test_a_worker_that_dies_between_its_files_and_the_commit_leaves_nothing_in_the_next_one(world) -> None:
    """ray-project/ray#41700: the version has the files of its manifest, all of one attempt."""
    day = world.write_day(0, 600)
    command = arguments(world, "train", "--day", day, "--json", "--set", "tracking.enabled=false")
    once = {"DIURNAL_KILL_AT": "checkpoint/before-commit@1", "DIURNAL_KILL_ONCE": str(world.root / "killed")}
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=400, check=False, env={**os.environ, **once}
    )
    assert answer.returncode == 0, answer.stderr
    assert (world.root / "killed").exists()
    (version,) = commits_of(world)
    store = Store(world.config().storage, world.config().name)
    directory = Path(str(store.at(version.path).directory))
    on_disk = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    assert on_disk == store.at(version.path).files().keys() | {"COMMIT"}
    assert store.leftovers({directory}) == []
    assert json.loads(answer.stdout)["restarts"][0]["new"] == 2


def test_a_version_that_nobody_could_tell_of_is_not_learned_again(world) -> None:
    """The first rank dies right after its commit record: the next group finds the version and goes on behind it."""
    days = [world.write_day(0, 600), world.write_day(1, 300)]
    command = arguments(world, "train", "--day", days[0], "--to", days[1], "--json", "--set", "workers.max=1")
    once = {"DIURNAL_KILL_AT": "checkpoint/committed@0", "DIURNAL_KILL_ONCE": str(world.root / "killed")}
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=400, check=False, env={**os.environ, **once}
    )
    assert answer.returncode == 0, answer.stderr
    assert [(commit.number, commit.increment) for commit in commits_of(world)] == [(1, days[0]), (2, days[1])]
    assert [day["version"] for day in json.loads(answer.stdout)["days"]] == [1, 2]
    assert {a.increment: a.outcome for a in attempts_of(world)} == dict.fromkeys(days, "committed")
    assert set(statuses(world).values()) == {"FINISHED"}
