"""The tracker against a real server that is down, killed, silent, or loses an answer."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from diurnal.config import Config
from diurnal.tracking.mlflow import Dataset, IncrementRun, Tracker, TrackingError

STEP_LIMIT_S = 1.0
"""No call of the tracker takes longer than that, whatever the server does."""


def begin(config: Config, dataset: Dataset) -> tuple[Tracker, IncrementRun]:
    tracker = Tracker(config)
    return tracker, tracker.begin_increment("2026-01-02", attempt=1, parent_version=None, dataset=dataset)


def log_steps(run: IncrementRun, steps: range) -> float:
    """Seconds of the slowest step."""
    slowest = 0.0
    for step in steps:
        before = time.monotonic()
        run.log({"progressive/ne": 1 - step / 100, "lr/dense": 0.01}, step * 8)
        slowest = max(slowest, time.monotonic() - before)
    return slowest


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Connections are accepted by the kernel and never answered."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_link(run: IncrementRun) -> None:
    deadline = time.monotonic() + 60
    while not run.link() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert run.link()


def test_a_server_that_is_killed_or_down_and_comes_back_costs_nothing(
    server, make_config, dataset, runs_of, points_of
) -> None:
    """miles#2571: an outage takes the training with it, and the relaunch dies for the same reason."""
    config = make_config("killed", server.address)
    tracker, run = begin(config, dataset)
    slowest = log_steps(run, range(1, 6))
    wait_for_link(run)
    server.kill()
    started_down, other = begin(make_config("down", server.address), dataset)
    slowest = max(slowest, log_steps(run, range(6, 15)), log_steps(other, range(1, 11)))
    server.start()
    slowest = max(slowest, log_steps(run, range(15, 21)), log_steps(other, range(11, 21)))
    for one in (run, other):
        one.artifact_text("plan.txt", "user: rank 0")
        one.finish("FINISHED", version=1, summary={"progressive/auc": 0.7}, step_rows=160)
    assert slowest < STEP_LIMIT_S
    for name, one in (("killed", tracker), ("down", started_down)):
        assert one.close(60).dropped == 0
        tracked = runs_of(server.address, name)["daily-2026-01-02"]
        points = points_of(server.address, tracked)
        assert [step for key, step, _ in points if key == "progressive/ne"] == [8 * step for step in range(1, 21)]
        assert len({(key, step) for key, step, _ in points}) == len(points) == 41
        assert tracked.info.status == "FINISHED"
        assert one.link().startswith(f"{server.address}/#/experiments/")


def test_a_server_that_stays_down_costs_the_telemetry_and_is_reported(make_config, closed_port, dataset) -> None:
    tracker, run = begin(make_config(uri=f"http://127.0.0.1:{closed_port}"), dataset)
    assert log_steps(run, range(20)) < STEP_LIMIT_S
    run.finish("FINISHED", version=1)
    before = time.monotonic()
    report = tracker.close(3)
    assert time.monotonic() - before < 4
    num_points, num_others = 40, len(("lineage", "run", "config", "version", "run's end", "lineage's end"))
    assert (report.sent, report.dropped) == (0, num_points + num_others)
    assert "not taken within 3 s" in str(report)


def test_a_strict_tracker_refuses_to_begin_without_a_server(make_config, closed_port, dataset) -> None:
    config = make_config(uri=f"http://127.0.0.1:{closed_port}")
    config = config.model_copy(update={"tracking": config.tracking.model_copy(update={"timeout_s": 0.5})})
    tracker = Tracker(config, strict=True)
    with pytest.raises(TrackingError, match="did not take everything"):
        tracker.begin_increment("2026-01-02", attempt=1, parent_version=None, dataset=dataset)
    with pytest.raises(TrackingError):
        tracker.close(0)


SILENT_RUN = """
import sys, time
from diurnal.config import from_resolved
from diurnal.tracking.mlflow import Dataset, Tracker
config = from_resolved(sys.stdin.read())
tracker = Tracker(config)
run = tracker.begin_increment("2026-01-02", attempt=1, parent_version=None, dataset=Dataset("d", "/d", "ab", 160))
for step in range(20):
    run.log({"progressive/ne": 0.9}, step * 8)
time.sleep(3)  # long enough to import the client and to wait in the socket
run.finish("FINISHED", version=1)
before = time.monotonic()
report = tracker.close(1)
assert time.monotonic() - before < 2
print(report.sent, report.dropped)
"""


def test_a_server_that_accepts_and_never_answers_holds_nobody(make_config, silent_port) -> None:
    config = make_config(uri=f"http://127.0.0.1:{silent_port}")
    before = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SILENT_RUN],
        input=config.model_dump_json(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["0", "26"]
    assert time.monotonic() - before < 30


@pytest.mark.parametrize("fault", ["lose_answer", "arrive_late"])
def test_a_run_that_was_created_without_an_answer_is_not_created_twice(
    server, proxy, make_config, dataset, runs_of, fault
) -> None:
    """mlflow#8238: ghost runs after connection retries."""
    name = f"ghost_{fault}"
    tracker, run = begin(make_config(name, proxy("/runs/create", fault).address), dataset)
    run.log({"progressive/ne": 0.9}, 8)
    run.finish("FINISHED", version=1)
    assert tracker.close(60).dropped == 0
    runs = runs_of(server.address, name)
    assert set(runs) == {f"lineage {name}", "daily-2026-01-02"}
    assert runs["daily-2026-01-02"].data.metrics == {"progressive/ne": 0.9}


def test_points_that_were_taken_without_an_answer_are_not_doubled(
    server, proxy, make_config, dataset, runs_of, points_of
) -> None:
    address = proxy("/runs/log-batch", "lose_answer").address
    tracker = Tracker(make_config("resent", address))
    tracker.begin_lineage()
    run = tracker.begin_increment("2026-01-02", attempt=1, parent_version=None, dataset=dataset)
    log_steps(run, range(1, 11))
    run.finish("FINISHED", version=1)
    assert tracker.close(60).dropped == 0
    points = points_of(server.address, runs_of(server.address, "resent")["daily-2026-01-02"])
    assert len({(key, step) for key, step, _ in points}) == len(points) == 20
