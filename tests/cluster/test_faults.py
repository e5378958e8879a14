"""Workers that die, freeze or cannot write, on a real local Ray cluster: the run goes on as if nothing had happened."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from diurnal.checkpoint.store import Store
from diurnal.config import Config
from diurnal.ledger.claims import Ledger
from diurnal.ledger.records import Commit
from diurnal.testing import tensors_of
from diurnal.testing_runs import runs_of
from diurnal.train.progress import Progress
from diurnal.train.run import Result, train

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("ray_cluster"),
]

ROWS = 9000
POINTS = ["checkpoint.every_rows=600", "checkpoint.every_s=0.0", "workers.spares=true"]


def commits_of(config: Config) -> list[Commit]:
    with Ledger.of(config) as ledger:
        return ledger.commits(config.name)


@contextmanager
def meanwhile(config: Config, act: Callable[[list[Commit]], None], commits: int = 2) -> Iterator[None]:
    """Acts once there are so many commits of the model."""
    ended = threading.Event()
    errors: list[BaseException] = []

    def wait_and_act() -> None:
        try:
            while not ended.wait(0.05):
                found = commits_of(config)
                if len(found) >= commits:
                    return act(found)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait_and_act, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)
    assert not errors, errors


def workers() -> list[psutil.Process]:
    """Train workers of this test's cluster, the newest last."""
    mine = psutil.Process().children(recursive=True)
    return sorted((p for p in mine if "RayTrainWorker" in "".join(p.cmdline())), key=lambda p: p.create_time())


def run_it(config: Config, day: str, last: str | None = None) -> Result:
    return train(config, day, last, Progress(table=False))


@pytest.fixture(scope="module")
def unbroken(ray_cluster: None, new_world: Callable[[], Any]) -> tuple[Any, str, Config, dict[str, torch.Tensor]]:
    """A day that was learned by two workers without a fault."""
    world = new_world()
    day = world.write_day(0, ROWS)
    config = world.config("name='unbroken'", *POINTS)
    result = run_it(config, day)
    assert result.outcomes[0].resume_points == 14
    return world, day, config, tensors_of(config)


def check(config: Config, result: Result, expected: dict[str, torch.Tensor]) -> None:
    """The same bits as without a fault; nothing is left open or lies about."""
    (outcome,) = result.outcomes
    assert outcome.learned is not None
    assert outcome.learned["report"]["rows"] == ROWS
    found = tensors_of(config)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    store = Store(config.storage, config.name)
    (version,) = commits_of(config)
    assert store.verify(store.at(version.path)) == []
    assert store.leftovers({store.root / version.path}) == []
    with Ledger.of(config) as ledger:
        attempts = ledger.attempts(config.name)
        assert ledger.held(config.name) is None
    assert [a.outcome for a in attempts] == ["failed"] * len(result.restarts) + ["committed"]
    assert sum(a.replayed_rows for a in attempts) == outcome.replayed_rows
    assert {run.info.status for run in runs_of(config).values()} == {"FINISHED"}
    assert len(runs_of(config)) == 2, "one for the lineage, one for the day"


def test_a_worker_that_is_killed_costs_what_came_after_the_last_commit(unbroken) -> None:
    """ray-project/ray#48224: nothing is read twice into what is committed, nothing is lost."""
    world, day, _, expected = unbroken
    config = world.config("name='killed'", *POINTS)
    with meanwhile(config, lambda _: workers()[-1].kill()):
        result = run_it(config, day)
    (restart,) = result.restarts
    assert (restart.kind, restart.old, restart.new) == ("restart", 2, 2)
    assert restart.recovery_s is not None
    assert 0 <= restart.replayed_rows <= ROWS
    check(config, result, expected)


def test_a_frozen_worker_is_named_and_replaced(unbroken) -> None:
    """meta-pytorch/torchrec#1014: a rank that sleeps past the limit does not hang the others."""
    world, day, _, expected = unbroken
    config = world.config("name='frozen'", "workers.stall_s=6.0", *POINTS)
    frozen: list[int] = []

    def freeze(_: list[Commit]) -> None:
        process = workers()[-1]
        frozen.append(process.pid)
        process.send_signal(signal.SIGSTOP)

    with meanwhile(config, freeze):
        result = run_it(config, day)
    (restart,) = result.restarts
    assert "stall" in restart.reason, restart.reason
    with Ledger.of(config) as ledger:
        (stalled, *_) = [event for event in ledger.events(config.name) if event.kind == "stalled"]
    assert "thread" in stalled.data["stacks"], "the stacks of who could still speak"
    assert not psutil.pid_exists(frozen[0]), "it does not wake up beside its successor"
    check(config, result, expected)


def test_a_frozen_worker_that_is_alone_is_ended_by_the_driver(unbroken) -> None:
    world, day, _, _ = unbroken
    config = world.config("name='alone'", "workers.max=1", "workers.stall_s=6.0", *POINTS)
    with meanwhile(config, lambda _: workers()[-1].send_signal(signal.SIGSTOP)):
        result = run_it(config, day)
    (restart,) = result.restarts
    assert "rank 0 stalls: no sign of life" in restart.reason
    assert result.outcomes[0].learned is not None
    assert result.outcomes[0].learned["report"]["rows"] == ROWS


def test_a_storage_that_fails_for_a_while_costs_resume_points_alone(unbroken) -> None:
    world, day, _, expected = unbroken
    config = world.config("name='away'", *POINTS)

    def fail(found: list[Commit]) -> None:
        versions = Path(config.storage, config.name, "versions")
        versions.rename(versions.with_name("aside"))
        versions.write_text("in the way")
        while not any(event.kind == "save_failed" for event in events_of(config)):
            time.sleep(0.05)
        versions.unlink()
        shutil.move(versions.with_name("aside"), versions)

    with meanwhile(config, fail):
        result = run_it(config, day)
    assert result.restarts == ()
    check(config, result, expected)


def events_of(config: Config) -> list[Any]:
    with Ledger.of(config) as ledger:
        return ledger.events(config.name)


def test_hours_are_learned_as_they_come_by_workers_that_stay(world) -> None:
    """Near-online: a version an hour, and how old its newest row was when it was committed."""
    now = datetime.now(UTC)
    start = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    hours = [start + timedelta(hours=i) for i in range(3)]

    def write(hour: datetime) -> str:
        day = world.write_day(hour.hour, 300, change=lambda c: c.update(ts=[hour + timedelta(minutes=59)] * 300))
        folder = world.root / "days" / f"dt={hour:%Y-%m-%d}" / f"hr={hour:%H}"
        folder.parent.mkdir(exist_ok=True)
        shutil.move(world.root / "days" / f"dt={day}", folder)
        return f"{hour:%Y-%m-%dT%H}"

    first = write(hours[0])
    config = world.config("workers.keep_alive=60", "workers.max=1")

    def write_next(found: list[Commit]) -> None:
        for count, hour in enumerate(hours[1:], start=1):
            while len(commits_of(config)) < count:
                time.sleep(0.05)
            write(hour)

    with meanwhile(config, write_next, commits=1):
        result = run_it(config, first, f"{hours[2]:%Y-%m-%dT%H}")
    assert [o.version for o in result.outcomes] == [1, 2, 3]
    assert result.restarts == ()
    lag_s = [(now - hour - timedelta(minutes=59)).total_seconds() for hour in hours]
    for outcome, least_s in zip(result.outcomes, lag_s, strict=True):
        assert outcome.freshness_s is not None
        assert least_s <= outcome.freshness_s <= least_s + 300
    metrics = [run.data.metrics for run in runs_of(config).values()]
    assert sum("data/freshness_s" in m for m in metrics) == 4, "three hours and their lineage"


def test_a_day_in_parts_is_a_version_a_part_and_each_row_once(world) -> None:
    day = world.write_day(0, 1001)
    config = world.config("data.parts=4", "workers.max=1", "tracking.enabled=false")
    result = run_it(config, day)
    assert [(o.increment, o.rows, o.version) for o in result.outcomes] == [
        (f"{day}P0{part}of04", 251 if part == 1 else 250, part) for part in (1, 2, 3, 4)
    ]
    assert all(o.evaluated["report"]["rows"] == o.rows for o in result.outcomes[1:] if o.evaluated)
