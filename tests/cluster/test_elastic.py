"""Groups that grow, shrink and start again, on clusters of several nodes; and what that assumes of Ray's internals."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diurnal.config import Config
from diurnal.errors import DataError, ResourceError
from diurnal.testing import by_value, tiny_config
from diurnal.testing_nodes import Nodes, nodes

pytestmark = pytest.mark.ray

NEVER = 10**6


class Mailbox:
    """A driver that makes every commit visible at once."""

    def __init__(self) -> None:
        self.orders: list[Any] = []
        self.notes: list[tuple[str, dict[str, Any]]] = []
        self.starts: list[tuple[int, int]] = []
        self._step = self._num_commits = 0
        self._is_ordered = self._is_held = self._is_over = False

    def start(self, world_size: int) -> int:
        self.starts.append((world_size, self._step))
        self._is_held = False
        return self._step

    def commit(self, step: int, is_held: bool) -> None:
        self._step, self._is_held = step, is_held
        self._num_commits += 1

    def is_ordered(self) -> bool:
        return self._is_ordered

    def end(self) -> None:
        self._is_over = True

    def wishes(self) -> tuple[int, int]:
        return self._is_ordered, self._is_over

    def order(self, name: str, on: bool, reason: str) -> None:
        self._is_ordered = on
        self.orders.append((name, on, reason))

    def note(self, kind: str, data: dict[str, Any]) -> None:
        self.notes.append((kind, data))

    def status(self) -> dict[str, Any]:
        held, commits = self._is_held, self._num_commits
        return {"share": 0.5, "learning": True, "held": held, "commits": commits, "increment": "2026-01-01"}

    def seen(self) -> dict[str, Any]:
        return {"orders": self.orders, "notes": self.notes, "starts": self.starts, "commits": self._num_commits}


def work(task: dict[str, Any]) -> None:
    """Counts, all ranks together, until `num_steps` or the end is said; commits every `every` steps and for a hold."""
    import ray
    import ray.train
    import torch
    import torch.distributed as dist

    context, box = ray.train.get_context(), task["box"]
    rank, world_size = context.get_world_rank(), context.get_world_size()
    step = torch.tensor([ray.get(box.start.remote(world_size)) if rank == 0 else 0])
    dist.broadcast(step, 0)
    with open(task["log"], "a", buffering=1) as log:
        while step < task["num_steps"]:
            time.sleep(task["step_s"])
            wishes = torch.tensor(ray.get(box.wishes.remote()) if rank == 0 else [0, 0], dtype=torch.int64)
            dist.all_reduce(wishes)
            is_ordered, is_over = wishes.tolist()
            step += 1
            log.write(json.dumps([time.time(), rank, world_size, os.getpid(), int(step)]) + "\n")
            if is_ordered:
                if rank == 0:
                    ray.get(box.commit.remote(int(step), True))
                until_s = time.time() + 15
                while time.time() < until_s and ray.get(box.is_ordered.remote()):
                    time.sleep(0.05)
            elif rank == 0 and step % task["every"] == 0:
                ray.get(box.commit.remote(int(step), False))
            if step % task["fails_every"] == 0:
                raise task["error"]
            if is_over:
                return


class Run:
    """A trainer in a thread of its own, since nodes are added by the main thread."""

    def __init__(self, folder: Path, workers: dict[str, Any], **task: Any) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from diurnal.train.elastic import elastic_trainer

        self._log = folder / "steps"
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        by_value(work)
        box = ray.remote(num_cpus=0)(Mailbox).options(scheduling_strategy=here)
        self.box: Any = box.remote()
        defaults: dict[str, Any] = {"num_steps": NEVER, "step_s": 0.05, "every": 5, "fails_every": NEVER, "error": None}
        task = {**defaults, "box": self.box, "log": str(self._log), **task}
        trainer = elastic_trainer(work, config_of(**workers), task, str(folder), self.box)
        self.error: BaseException | None = None

        def fit() -> None:
            try:
                trainer.fit()
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=fit, daemon=True)
        self._thread.start()

    def steps(self) -> list[tuple[float, int, int, int, int]]:
        """(time, rank, world size, process id, step)."""
        if not self._log.exists():
            return []
        return [tuple(json.loads(line)) for line in self._log.read_text().splitlines() if line.endswith("]")]

    def wait_for(self, world_size: int, since_s: float = 0.0, timeout_s: float = 240.0) -> float:
        """When the first step at this size was done."""
        until_s = time.time() + timeout_s
        while time.time() < until_s and self.error is None:
            for at_s, _, size, _, _ in self.steps():
                if size == world_size and at_s > since_s:
                    return at_s
            time.sleep(0.1)
        raise AssertionError(f"no step of {world_size} workers: {self.seen()}, {self.error!r}")

    def end(self) -> None:
        self.box.end.remote()
        self.wait()
        assert self.error is None

    def wait(self, timeout_s: float = 300.0) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), self.seen()

    def seen(self) -> dict[str, Any]:
        import ray

        return ray.get(self.box.seen.remote())

    def notes(self, kind: str) -> list[dict[str, Any]]:
        return [data for name, data in self.seen()["notes"] if name == kind]


def config_of(read_cpus: float = 0.1, **workers: Any) -> Config:
    return tiny_config({"workers": {"cpus": 0.9, **workers}, "data": {"read_cpus": read_cpus}})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    from diurnal.train.elastic import ENVIRONMENT

    with nodes(1, ENVIRONMENT) as cluster:
        yield cluster


def test_a_group_grows_without_losing_a_step_and_shrinks_when_a_node_dies(cluster: Nodes, tmp_path: Path) -> None:
    run = Run(tmp_path, {"min": 1, "max": 2, "max_failures": 0})
    run.wait_for(1)
    node = cluster.add(1)
    run.wait_for(2)
    (resize,) = run.notes("resize")
    assert (resize["from"], resize["to"]) == (1, 2)
    before = [step for at_s, _, size, _, step in run.steps() if size == 1]
    after = [step for at_s, rank, size, _, step in run.steps() if size == 2 and rank == 0]
    assert before == list(range(1, before[-1] + 1))
    assert after[0] == before[-1] + 1
    time.sleep(2.0)
    killed_s = time.time()
    cluster.kill(node)
    assert run.wait_for(1, since_s=killed_s) < killed_s + 45.0
    run.end()
    (restart,) = run.notes("restart")
    assert (restart["from"], restart["to"]) == (2, 1)
    assert run.seen()["orders"][-1][1] is False


def test_a_group_leaves_a_node_that_is_drained_before_its_deadline(cluster: Nodes, tmp_path: Path) -> None:
    node = cluster.add(1)
    run = Run(tmp_path, {"min": 1, "max": 2, "max_failures": 0})
    run.wait_for(2)
    drained_s = time.time()
    cluster.drain(node, deadline_s=60.0)
    assert run.wait_for(1, since_s=drained_s) < drained_s + 50.0
    run.end()
    assert [(note["from"], note["to"]) for note in run.notes("resize")] == [(2, 1)]
    assert run.notes("restart") == []
    steps = [step for _, rank, _, _, step in run.steps() if rank == 0]
    assert steps == list(range(1, len(steps) + 1))


def test_a_killed_worker_is_replaced_by_a_process_that_waited(cluster: Nodes, tmp_path: Path) -> None:
    run = Run(tmp_path, {"max": 1})
    run.wait_for(1)
    (pid,) = cluster.pids(cluster.head)
    deadline_s = time.time() + 60
    while not (idle := ready_spares(cluster)) and time.time() < deadline_s:
        time.sleep(0.2)
    killed_s = time.time()
    os.kill(pid, signal.SIGKILL)
    run.wait_for(1, since_s=killed_s)
    run.end()
    first, second = dict.fromkeys(pid for _, _, _, pid, _ in run.steps())
    assert first == pid
    assert second in idle
    (restart,) = run.notes("restart")
    assert (restart["from"], restart["to"]) == (1, 1)
    assert restart["reason"].startswith("worker died")


def test_failures_in_a_row_are_counted_and_commits_forgive_them(cluster: Nodes, tmp_path: Path) -> None:
    task = {"num_steps": 7, "step_s": 0.01, "fails_every": 3, "error": ValueError("a bug")}
    folders = [tmp_path / "in a row", tmp_path / "with commits"]
    for folder in folders:
        folder.mkdir()
    in_a_row = Run(folders[0], {"max": 1, "max_failures": 1}, every=NEVER, **task)
    in_a_row.wait()
    assert in_a_row.seen()["starts"] == [(1, 0), (1, 0)]
    assert "a bug" in str(in_a_row.error)
    forgiven = Run(folders[1], {"max": 1, "max_failures": 1}, every=1, **task)
    forgiven.wait()
    assert forgiven.error is None
    assert forgiven.seen()["starts"] == [(1, 0), (1, 3), (1, 6)]


def test_a_persons_fault_is_not_tried_again(cluster: Nodes, tmp_path: Path) -> None:
    from diurnal.train.interrupt import first_real_error

    run = Run(tmp_path, {"max": 1}, num_steps=10, fails_every=1, error=DataError("a day without a label"))
    run.wait()
    assert len(run.seen()["starts"]) == 1
    assert run.error is not None
    assert isinstance(first_real_error(run.error), DataError)


def test_a_group_without_room_gives_up_with_the_numbers(cluster: Nodes, tmp_path: Path) -> None:
    run = Run(tmp_path, {"min": 3, "max": 4, "wait_s": 2.0}, num_steps=10)
    run.wait()
    cause = getattr(run.error, "controller_failure", None)
    assert isinstance(cause, ResourceError)
    assert "room for 1 after" in str(cause)
    assert "room for 3, which need 3 CPUs" in str(cause)
    assert [(note["from"], note["to"]) for note in run.notes("waiting")] == [(0, 1)]


def test_training_goes_on_without_a_mailbox(cluster: Nodes, tmp_path: Path) -> None:
    import ray

    from diurnal.train.elastic import elastic_trainer
    from diurnal.train.post import Post

    mailbox: Any = ray.remote(num_cpus=0)(Mailbox).remote()
    ray.kill(mailbox)
    assert Post(mailbox).status(wait_s=5.0) is None
    trainer = elastic_trainer(by_value(nothing), config_of(max=1), {}, str(tmp_path), mailbox)
    assert trainer.fit().error is None


def nothing(_: dict[str, Any]) -> None:
    time.sleep(2.0)


def test_the_first_group_takes_processes_that_were_warmed(cluster: Nodes, tmp_path: Path) -> None:
    from diurnal.train import spares
    from diurnal.train.warm import expected_environment, warm

    # What a job's first driver asks for: no process of an earlier test may be there.
    for pid in ready_spares(cluster):
        os.kill(pid, signal.SIGKILL)
    warm(config_of(max=1))
    deadline_s = time.time() + 60
    while not (idle := ready_spares(cluster)) and time.time() < deadline_s:
        time.sleep(0.2)
    run = Run(tmp_path, {"max": 1})
    run.wait_for(1)
    run.end()
    assert {pid for _, _, _, pid, _ in run.steps()} <= set(idle)
    assert spares.known_environment() == expected_environment()


def ready_spares(cluster: Nodes) -> list[int]:
    """Idle processes of the head that have imported everything. (The list of a driver is its job's.)"""
    from diurnal.train import spares

    found = spares.processes(cluster.head.node_id)
    return [
        pid for pid, process in found.items() if process["ready_s"] and pid in cluster.pids(cluster.head, "ray::IDLE")
    ]


def test_places_count_what_fits_and_leave_cpus_to_read() -> None:
    from diurnal.train.places import Places

    one_cpu = {"Resources": {"CPU": 1.0}}
    free = {"a": {"CPU": 0.1}, "b": {"CPU": 1.0}}
    places = Places(config_of(max=4), {"a": one_cpu, "b": one_cpu}, free)
    assert places.most(Counter(), free_only=False) == 2
    assert places.most(Counter(), free_only=True) == 1
    assert places.most(Counter(a=1), free_only=True) == 2
    greedy = Places(config_of(max=4, read_cpus=0.5), {"a": one_cpu, "b": one_cpu}, free)
    assert greedy.most(Counter(a=1), free_only=True) == 1


def test_a_group_that_failed_half_way_gives_its_places_back() -> None:
    from diurnal.train.elastic import _Groups

    ended = []

    class Half:
        def has_started(self) -> bool:
            return True

        def get_worker_group_state(self) -> Any:
            return type("State", (), {"shutdown": lambda _: ended.append(1)})()

    groups = _Groups(makes_spares=True)
    groups.after_worker_group_start(Half())
    groups.before_worker_group_start(None)
    groups.before_worker_group_start(None)
    assert ended == [1]


def test_the_cluster_tells_what_the_places_need(cluster: Nodes) -> None:
    import ray
    import ray._private.state

    from diurnal.train.places import draining_nodes, silent_nodes

    node = next(node for node in ray.nodes() if node["Alive"])
    assert {"NodeID", "Alive", "Resources", "NodeManagerAddress", "NodeManagerPort"} <= set(node)
    free = ray._private.state.state.available_resources_per_node()
    assert node["NodeID"] in free
    assert silent_nodes([node]) == set()
    assert silent_nodes([node | {"NodeManagerPort": 1}]) == {node["NodeID"]}
    assert all(isinstance(deadline_ms, int) for deadline_ms in draining_nodes().values())
