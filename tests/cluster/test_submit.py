"""Commands as Ray jobs on a cluster of several nodes: real clients, a real job server with token authentication, nodes
that come and go; and in the end ledger and MLflow as they should be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diurnal.ledger.claims import Ledger
from diurnal.ledger.database import default_url
from diurnal.testing_nodes import Nodes, free_port, nodes
from diurnal.testing_runs import runs_of

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

ROWS = 12_000
SETTINGS = (
    "workers.min=1",
    "workers.cpus=0.8",
    "data.read_cpus=0.2",
    "gate.min_rows=200",
    "gate.slice_share=0.2",
    "gate.max_ne_rise=0.05",
    "tracking.timeout_s=20",
)


class Clients:
    """People and schedulers in front of one cluster."""

    def __init__(self, cluster: Nodes, world: Any) -> None:
        self.cluster, self.world = cluster, world
        config = world.config(*SETTINGS)
        own = {"data.path": config.data.path, "data.schema_file": config.data.schema_file, "storage": config.storage}
        sets = [*(f"{key}={value!r}" for key, value in own.items()), *SETTINGS]
        self._config = ["--config", str(world.root / "run.toml"), *(part for one in sets for part in ("--set", one))]

    def start(
        self, command: str, *words: str, url: str = "", env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        line = [sys.executable, "-P", "-m", "diurnal.cli.main", command, "--address", url or self.cluster.jobs_url]
        line += [*words[:1], *(self._config if command == "submit" else []), *words[1:]]
        return subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )

    def run(self, command: str, *words: str, timeout: float = 240, **more: Any) -> tuple[int, str, str]:
        process = self.start(command, *words, **more)
        out, said = process.communicate(timeout=timeout)
        assert "Traceback" not in said, said
        return process.returncode, out, said

    def jobs(self) -> dict[str, str]:
        """Id to status."""
        from diurnal.cluster.client import JobServer

        return {job.id: job.status for job in JobServer(self.cluster.jobs_url).jobs()}

    def ledger(self, *overrides: str) -> Ledger:
        return Ledger(default_url(self.world.config(*SETTINGS, *overrides).storage))


@pytest.fixture(scope="module")
def clients(new_world: Any) -> Iterator[Clients]:
    from diurnal.train.elastic import ENVIRONMENT

    # A job's `python` is the one that is found first.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    world = new_world()
    for index in range(3):
        world.write_day(index, ROWS)
    with nodes(0, {"PATH": path, **ENVIRONMENT}, has_jobs=True) as cluster:
        for _ in range(2):
            cluster.add(1)
        yield Clients(cluster, world)


def until(condition: Any, what: str, timeout_s: float = 240.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.1)
    return found


def test_two_who_ask_for_the_same_days_get_one_job_that_outlives_a_node(clients: Clients) -> None:
    """ray-project/ray#31356: the same, twice within a moment, while a node is lost and another one comes."""
    asked = [clients.start("submit", "daily", "--until", "2026-01-03", "--json") for _ in range(2)]
    with clients.ledger() as ledger:
        until(lambda: [c for c in ledger.commits("clicks") if c.is_final], "a version")
        clients.cluster.kill(clients.cluster.members()[0])
        clients.cluster.add(1)
        answers = [client.communicate(timeout=300) for client in asked]
        told = [json.loads(out) for out, _ in answers]
        assert [client.returncode for client in asked] == [0, 0], answers
        assert {one["how"] for one in told} == {"started", "attached"}
        assert {one["id"] for one in told} == {"clicks-daily-2026-01-03-1"}
        assert clients.jobs() == {"clicks-daily-2026-01-03-1": "SUCCEEDED"}
        assert all("2026-01-03" in said for _, said in answers), "both have seen the work"

        assert [record.state for record in ledger.increments("clicks")] == ["promoted"] * 3
        assert ledger.champion("clicks") == 3
        assert ledger.held("clicks") is None
        versions = [commit for commit in ledger.commits("clicks") if commit.is_final]
        assert [commit.increment for commit in versions] == ["2026-01-01", "2026-01-02", "2026-01-03"]
        outcomes = [attempt.outcome for attempt in ledger.attempts("clicks")]
        assert outcomes.count("committed") == 3
        # None began anew when the node went while no group was on it, as between two increments.
        assert len(outcomes) <= 4, f"the group that lost a node, and nothing else, began anew: {outcomes}"
    runs = runs_of(clients.world.config(*SETTINGS))
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert len(runs) == 4


def test_what_is_done_is_not_done_again(clients: Clients) -> None:
    code, _, said = clients.run("submit", "daily", "--until", "2026-01-03")
    assert (code, len(clients.jobs())) == (0, 1)
    assert "is done already" in said


def test_what_failed_is_tried_again_and_says_what_went_wrong_first(clients: Clients, tmp_path: Path) -> None:
    """ray-project/kuberay#4140: other versions; Nixtla/mlforecast#731: more than the cluster can ever give."""
    large = ("name='large'", "workers.max=9", "workers.min=9", "data.batch_rows=90", "data.streams=9")
    words = ("submit", "train", "--day", "2026-01-01", *(part for one in large for part in ("--set", one)))
    info = tmp_path / "pyarrow-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyarrow\nVersion: 0.0.1\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code, _, said = clients.run(*words, env={"PYTHONPATH": path})
    assert code == 2, said
    assert "cluster: pyarrow" in said
    assert "the submitter's version, 0.0.1" in said

    code, out, said = clients.run(*words)
    assert code == 2, (out, said)
    before, _, last = said.rpartition("large-train-2026-01-01-2 ended with exit code 2: ")
    assert "large-train-2026-01-01-1 ended with exit code 2" in before
    assert "this is attempt 2" in before
    assert "9 workers x 0.8 CPUs" in last
    assert "max 2: " in last
    assert clients.run("watch", "large-train-2026-01-01-2")[0] == 2


def test_a_running_job_is_stopped_in_time_and_leaves_nothing_open(clients: Clients) -> None:
    """mlflow/mlflow#5963: the lease is free, the run is closed, and what was learned is kept."""
    name = "name='stopped'"
    clients.world.write_day(3, 60_000)
    more = ("--set", name, "--set", "workers.grace_s=20", "--set", "checkpoint.every_s=1")
    code, out, said = clients.run("submit", "train", "--day", "2026-01-04", *more, "--no-wait")
    id = out.strip()
    assert (code, id) == (0, "stopped-train-2026-01-04-1"), said
    with clients.ledger() as ledger:
        until(lambda: ledger.commits("stopped"), "a resume point")
        begun_s = time.monotonic()
        code, out, said = clients.run("stop", id, "--json")
        assert time.monotonic() - begun_s < 45
        assert (code, json.loads(out)["status"]) == (0, "STOPPED"), said
        assert "stopped by SIGTERM" in json.loads(out)["error"]
        assert ledger.held("stopped") is None
        assert [attempt.outcome for attempt in ledger.attempts("stopped")] == ["interrupted"]
        assert ledger.commits("stopped")[-1].rows > 0
    assert {run.info.status for run in runs_of(clients.world.config(name)).values()} == {"KILLED"}
    assert "nothing to stop" in clients.run("stop", id)[2]


def test_a_job_that_waits_for_its_place_is_stopped_too(clients: Clients) -> None:
    from ray.job_submission import JobSubmissionClient

    JobSubmissionClient(clients.cluster.jobs_url).submit_job(
        entrypoint="true", submission_id="waits", entrypoint_num_cpus=100
    )
    assert clients.jobs()["waits"] == "PENDING"
    code, _, said = clients.run("stop", "waits", "--timeout", "40")
    assert code == 0, said
    assert clients.jobs()["waits"] in ("FAILED", "STOPPED")


def test_a_cluster_that_does_not_let_one_in_or_is_not_there_is_one_clear_fault(clients: Clients) -> None:
    words = ("submit", "daily")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"env": {"RAY_AUTH_TOKEN": "0" * 64}}, "the token of this cluster"),
        ({"env": {"RAY_AUTH_MODE": "disabled"}}, "the token of this cluster"),
        ({"url": f"http://127.0.0.1:{free_port()}"}, "no answer"),
    ]
    for more, says in cases:
        code, _, said = clients.run(*words, **more)
        assert (code, said.count("cluster: 1 fault")) == (2, 1), said
        assert says in said
    assert len([id for id in clients.jobs() if id.startswith("clicks")]) == 1
