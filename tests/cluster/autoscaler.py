"""Around one increment: Ray's real autoscaler brings nodes from zero to the maximum and takes them away again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from diurnal.ledger.claims import Ledger
from diurnal.testing_nodes import ScaledNodes, scaled_nodes
from diurnal.testing_runs import runs_of

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

ROWS, MOST = 150_000, 2


class Timeline:
    """What was seen when, printed as it is seen."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self.seen: list[tuple[float, int, str]] = []

    def note(self, num_nodes: int, what: str) -> None:
        at_s = time.monotonic() - self._begun_s
        self.seen.append((at_s, num_nodes, what))
        print(f"{at_s:6.1f} s  {num_nodes} nodes  {what}", flush=True)

    def until(self, cluster: ScaledNodes, condition: Any, what: str, timeout_s: float = 300.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            nodes = cluster.alive()
            if not self.seen or self.seen[-1][1] != len(nodes):
                self.note(len(nodes), "")
            if found := condition(nodes):
                self.note(len(nodes), what)
                return found
            assert time.monotonic() < deadline, f"{what} did not come: {self.seen}"
            time.sleep(0.2)


def test_nodes_come_for_an_increment_are_replaced_when_lost_and_go_after_it(world: Any, tmp_path: Path) -> None:
    """ray-project/kuberay#321, ray-project/ray#47578: from no node at all, and back to none."""
    from diurnal.train.elastic import ENVIRONMENT

    day = world.write_day(0, ROWS)
    settings = ("workers.min=1", "workers.cpus=0.8", "data.read_cpus=0.2", "checkpoint.every_s=1.0")
    config = world.config(*settings)
    own = {"data.path": config.data.path, "data.schema_file": config.data.schema_file, "storage": config.storage}
    sets = [*(f"{key}={value!r}" for key, value in own.items()), *settings]
    words = ["--config", str(world.root / "run.toml"), *(part for one in sets for part in ("--set", one))]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    folder = tmp_path / "cluster"
    folder.mkdir()
    timeline = Timeline()
    with (
        scaled_nodes(folder, {"PATH": path, **ENVIRONMENT}, MOST) as cluster,
        Ledger.of(config) as ledger,
        open(tmp_path / "job.log", "w+") as log,
    ):
        timeline.note(len(cluster.alive()), "head is up")
        submit = [sys.executable, "-P", "-m", "diurnal.cli.main", "submit", "--address", cluster.jobs_url]
        client = subprocess.Popen([*submit, "train", "--day", day, *words], stdout=log, stderr=log)
        try:
            full = timeline.until(cluster, lambda nodes: nodes if len(nodes) == MOST else None, "the maximum")
            timeline.until(
                cluster,
                lambda _: any(attempt.world_size == MOST for attempt in ledger.attempts("clicks")),
                "all of it trains",
            )
            lost = min(full)
            cluster.kill(lost)
            timeline.note(len(full), "a node is killed")
            timeline.until(cluster, lambda nodes: len(nodes) == MOST and lost not in nodes, "another one in its place")
            timeline.until(cluster, lambda _: client.poll() is not None, "the increment is learned")
            text = (tmp_path / "job.log").read_text()
            assert client.returncode == 0, text
            timeline.until(cluster, lambda nodes: not nodes, "nobody is needed any more", 120.0)
        finally:
            client.kill()
        (version,) = [commit for commit in ledger.commits("clicks") if commit.is_final]
        assert (version.increment, version.number) == (day, 1)
        assert ledger.held("clicks") is None
        sizes = [attempt.world_size for attempt in ledger.attempts("clicks")]
        assert len(sizes) >= 2, "the loss of a node was noticed"
        assert max(sizes) == MOST
    assert {run.info.status for run in runs_of(config).values()} == {"FINISHED"}
    sizes = [num_nodes for _, num_nodes, _ in timeline.seen]
    assert (sizes[0], max(sizes), sizes[-1]) == (0, MOST, 0)
