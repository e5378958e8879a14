"""A real Prometheus looks at a real run: every query of a dashboard has an answer, and alerts fire as they should."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from diurnal.testing_nodes import Nodes, free_port, nodes

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
ROWS = 6000
SETTINGS = (
    "workers.max=1",
    "data.batch_rows=24",
    "workers.stall_s=300.0",
    "gate.min_rows=200",
    "gate.max_ne_rise=0.5",
    "gate.calibration=[0.2, 5.0]",
    "profile.min_rows=100",
    "tracking.enabled=false",
)
WINDOW_S = 6
"""In place of the minutes of a rule, and of the window that Grafana chooses."""

NEEDS_A_GPU = re.compile("ray_node_(gpus|gram)_")


@dataclass
class Prometheus:
    address: str

    def _ask(self, path: str, **arguments: Any) -> list[dict[str, Any]]:
        with urlopen(f"{self.address}/api/v1/{path}?{urlencode(arguments)}", timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def now(self, expr: str) -> list[dict[str, Any]]:
        return self._ask("query", query=expr)

    def since(self, expr: str, begun_s: float) -> list[dict[str, Any]]:
        return self._ask("query_range", query=expr, start=begun_s, end=time.time(), step=1)

    def firing(self) -> set[str]:
        return {found["metric"]["alertname"] for found in self.now('ALERTS{alertstate="firing"}')}

    def wait_for(self, what: Callable[[], Any], limit_s: float = 90.0) -> None:
        until_s = time.monotonic() + limit_s
        while not what():
            assert time.monotonic() < until_s, f"not within {limit_s} s; firing: {self.firing()}"
            time.sleep(0.3)


@contextmanager
def process(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs while the context lasts; what it says goes to a file."""
    with log.open("wb") as said, subprocess.Popen(command, stdout=said, stderr=said) as started:
        try:
            yield started
        finally:
            started.terminate()
            started.wait(30)


def command(world: Any, *words: str, more: tuple[str, ...] = ()) -> list[str]:
    config = world.config()
    own = {"data.path": config.data.path, "data.schema_file": config.data.schema_file, "storage": config.storage}
    sets = [*SETTINGS, *more, *(f"{key}={value!r}" for key, value in own.items())]
    base = ["--config", str(world.root / "run.toml"), *(part for one in sets for part in ("--set", one))]
    return [sys.executable, "-m", "diurnal.cli.main", *words, *base]


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[Prometheus]:
    rules = (DASHBOARDS / "prometheus" / "alerts.yaml").read_text()
    rules = re.sub(r"for: \d+m", "for: 0s", rules).replace("[10m]", f"[{WINDOW_S}s]")
    (folder / "rules.yaml").write_text(rules)
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    jobs = [{"job_name": "all", "static_configs": [{"targets": targets}]}]
    config = {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": jobs}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    options = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/tsdb"]
    options += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error", "--query.lookback-delta=5s"]
    with process(folder / "prometheus.log", "prometheus", *options):
        found = Prometheus(f"http://127.0.0.1:{port}")
        until_s = time.monotonic() + 30
        while True:
            try:
                found.now("1")
                break
            except OSError:
                assert time.monotonic() < until_s
                time.sleep(0.1)
        yield found


@pytest.fixture(scope="module")
def seen(new_world: Callable[[], Any]) -> Iterator[tuple[Prometheus, float, dict[str, set[str]]]]:
    """Two days are learned, the second after its worker has stood still for a while; a third is held, a fourth is late.

    Prometheus, when it began, and what fired at which moment.
    """
    world, fired = new_world(), {}
    for index in range(3):
        world.write_day(index, ROWS, change=(lambda c: c.update(price=[None] * ROWS)) if index == 2 else None)
    log = world.root / "daily.log"
    with ExitStack() as stack:
        cluster: Nodes = stack.enter_context(nodes(4, {"RAY_metrics_report_interval_ms": "1000"}))
        exporters = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        found = stack.enter_context(prometheus(world.root, [node_metrics(), *exporters]))

        def start(name: str, *words: str, more: tuple[str, ...]) -> subprocess.Popen[bytes]:
            return stack.enter_context(process(world.root / f"{name}.log", *command(world, *words, more=more)))

        start("in time", "status", "--listen", exporters[0], more=("days.wait_s=1e9",))
        begun_s = time.time()
        daily = start("daily", "daily", more=(f"workers.address={cluster.address!r}",))
        found.wait_for(lambda: found.now("ray_diurnal_train_done_share > 0.1") or daily.poll())
        assert daily.poll() is None, log.read_text()
        found.wait_for(lambda: "DiurnalStalled" not in found.firing())
        (pid,) = cluster.pids(cluster.head)
        fired["before"] = found.firing()
        os.kill(pid, signal.SIGSTOP)
        found.wait_for(lambda: "DiurnalStalled" in found.firing())
        fired["frozen"] = found.firing()
        os.kill(pid, signal.SIGCONT)
        start("late", "status", "--listen", exporters[1], more=())
        assert daily.wait(240) == 3, log.read_text()
        found.wait_for(lambda: found.firing() == {"DiurnalHeld", "DiurnalLate"})
        yield found, begun_s, fired


def node_metrics() -> str:
    import ray

    (node,) = ray.nodes()
    return f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"


def test_alerts_fire_when_a_worker_stands_still_a_day_is_held_and_one_is_late(seen: Any) -> None:
    found, _, fired = seen
    assert fired == {"before": set(), "frozen": {"DiurnalStalled"}}
    assert found.firing() == {"DiurnalHeld", "DiurnalLate"}


def test_every_query_of_the_dashboards_has_an_answer(seen: Any) -> None:
    found, begun_s, _ = seen
    silent = []
    for file in sorted((DASHBOARDS / "grafana").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                expr = target["expr"].replace("$__rate_interval", f"{WINDOW_S}s").replace("$model", ".*")
                numbers = [v for one in found.since(expr, begun_s) for _, v in one["values"] if v != "NaN"]
                if not numbers and not NEEDS_A_GPU.search(expr):
                    silent.append(f"{file.stem}: {panel['title']}: {expr}")
    assert silent == []


def test_numbers_are_those_of_the_run(seen: Any) -> None:
    found, begun_s, _ = seen

    def largest(expr: str) -> float:
        return max(float(v) for one in found.since(expr, begun_s) for _, v in one["values"] if v != "NaN")

    assert largest("ray_diurnal_cluster_world_size") == 1
    assert 0.3 < largest("ray_diurnal_train_done_share") <= 1
    assert largest("sum(ray_diurnal_worker_steps_total)") > 2 * ROWS / 24
    assert largest("diurnal_model_champion") == 2
    assert largest('max(diurnal_table_learned_rows{table="user"})') > 100
    ((labels,),) = [[one["metric"]] for one in found.now('max by (kind, reason) (diurnal_model_trouble{kind="held"})')]
    assert "price" in labels["reason"]
