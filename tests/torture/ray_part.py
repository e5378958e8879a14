"""The part on real local Ray: a cluster of several nodes, the command as a person runs it, and what happens to both."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gloo import LIFE_S, take_away
from lives import Life, live
from world import (
    MARK,
    TABLES,
    Event,
    Tally,
    World,
    check_tag_moments,
    check_what_is_left,
    compare_versions,
    processes_of,
)

from diurnal.config import Config, resolved_json
from diurnal.ledger.claims import Ledger
from diurnal.ledger.records import Event as LedgerEvent
from diurnal.testing import run_world
from diurnal.testing_nodes import Nodes, nodes
from diurnal.testing_runs import runs_of

KINDS = (
    "worker killed",
    "worker frozen",
    "node added",
    "node killed",
    "node drained",
    "driver killed",
    "driver terminated",
    "storage away",
)

COMES_OF_IT = {"storage away": "commit", "node added": "resize", "node drained": "resize"}
"""What the ledger tells of a blow's effect; of all others, a new attempt begins."""

STALL_S = 6.0
DRAIN_S = 10.0

PATIENCE_S = 40.0
"""How long the next blow waits for the effect of the last one, which may have none."""

ROWS_OF_AN_EVENT = 2200
"""So many rows are learned while the run is hit once and commits again, roughly."""

QUIET_S = 300.0
"""Without a commit: the run hangs."""

END_S = 60.0
"""For what ends: a driver after its signal, processes after their cluster."""

MAX_NODES = 3
NODE_CPUS = 3
"""Room for one worker and what reads for it."""


@dataclass
class _Blow:
    kind: str
    at_s: float
    after: int
    """Number of events that the ledger had then."""
    pause_s: float
    """From when the run has got over it until the next blow."""
    over_s: float | None = None


class Episode:
    """One model, trained by one command, that is started again whenever it was made to end."""

    def __init__(self, root: Path, index: int, seed: int, num_events: int, say: Callable[[str], None]) -> None:
        self._rng = rng = random.Random(f"{seed}/ray/{index}")
        self._say = say
        self._left = num_events
        self.tally = Tally("ray", index)
        shutil.rmtree(root, ignore_errors=True)
        count = rng.randint(2, 3)
        rows = ROWS_OF_AN_EVENT * num_events // count
        self._world = World(root, [rng.randint(rows * 3 // 4, rows * 5 // 4) for _ in range(count)], rng)
        self._settings = _settings(rng)
        self.config = self._world.config("storage", self._settings)
        self.unbroken = self._world.config("unbroken", [*self._settings, "tracking.enabled=false"])
        self._root = root
        self._mark = f"{os.getpid()}-ray-{index}"
        self._kinds: list[str] = []
        self._nodes: list[Any] = []
        self._gone: list[tuple[float, Any]] = []
        self._blows: list[_Blow] = []
        self._driver: subprocess.Popen[bytes] | None = None
        self._num_starts = 0
        self._may_end = False

    def run(self) -> Tally:
        began_s, tally = time.monotonic(), self.tally
        import ray._private.worker

        from diurnal.train.elastic import ENVIRONMENT

        # Ray would show the last words of each raylet that is killed here.
        ray._private.worker._worker_logs_enabled = False
        with nodes(0, {MARK: self._mark, **ENVIRONMENT}) as cluster:
            self._nodes = [cluster.add(NODE_CPUS) for _ in range(2)]
            self._start(cluster)
            try:
                self._play(cluster)
            except Exception as error:
                tally.failures.append(f"{type(error).__name__}: {error}")
            finally:
                self._end_driver()
        tally.leftovers += _after_a_while(self._mark)
        if not tally.failures:
            self._live_unbroken()
        if not tally.failures:
            self._check()
        if tally.failures:
            tally.failures.append(f"logs: {self._root}/driver-*.log")
        tally.seconds = time.monotonic() - began_s
        return tally

    def _play(self, cluster: Nodes) -> None:
        told: list[str] = []
        newest_s = time.time()
        while True:
            assert self._driver is not None
            code = self._driver.poll()
            if code == 0:
                return
            if code is not None:
                if not self._may_end or self._num_starts > 30:
                    self.tally.failures.append(f"the driver ended with {code}: {_last_lines(self._log)}")
                    return
                self._start(cluster)
            with Ledger.of(self.config) as ledger:
                kinds = ["commit" if e.kind == "version" else e.kind for e in ledger.events(self.config.name)]
            if kinds.count("commit") > told.count("commit"):
                newest_s = time.time()
            told = kinds
            if time.time() - max(newest_s, self._blows[-1].at_s if self._blows else 0.0) > QUIET_S:
                self.tally.failures.append(f"nothing is committed any more: {_last_lines(self._log)}")
                return
            self._take_drained(cluster)
            if self._left and self._is_due(told):
                self._strike(cluster, told)
            time.sleep(0.3)

    def _is_due(self, told: list[str]) -> bool:
        """The run has got over the last blow: it has committed after what came of it."""
        if not self._blows:
            return told.count("commit") >= 2
        last = self._blows[-1]
        since, effect = told[last.after :], COMES_OF_IT.get(last.kind, "begin")
        if effect in since:
            since = since[since.index(effect) :]
        elif time.time() - last.at_s < PATIENCE_S:
            return False
        if "commit" in since and last.over_s is None:
            last.over_s = time.time()
        return last.over_s is not None and time.time() - last.over_s > last.pause_s

    def _strike(self, cluster: Nodes, told: list[str]) -> None:
        kind, at_s = self._next_kind(), time.time()
        self._may_end = kind in ("driver killed", "driver terminated", "storage away")
        if not getattr(self, "_" + kind.replace(" ", "_"))(cluster):
            return
        self._blows.append(_Blow(kind, at_s, len(told), self._rng.uniform(0.0, 2.0)))
        self._left -= 1
        self._say(f"{kind}, after {told.count('commit')} commits; {len(self._nodes)} nodes")

    def _next_kind(self) -> str:
        """All kinds come equally often, in a random order, as far as the cluster allows."""
        if not self._kinds:
            self._kinds = self._rng.sample(KINDS, len(KINDS))
        kind = self._kinds.pop(0)
        is_going = kind in ("node killed", "node drained")
        if len(self._nodes) == (1 if is_going else MAX_NODES) and (is_going or kind == "node added"):
            other = "node added" if is_going else "node killed"
            if other in self._kinds:
                self._kinds.remove(other)
                self._kinds.insert(0, kind)
            return other
        return kind

    def _workers(self, cluster: Nodes) -> list[int]:
        return [pid for node in self._nodes for pid in cluster.pids(node)]

    def _worker_killed(self, cluster: Nodes) -> bool:
        pids = self._workers(cluster)
        if pids:
            os.kill(self._rng.choice(pids), signal.SIGKILL)
        return bool(pids)

    def _worker_frozen(self, cluster: Nodes) -> bool:
        """One of several stays frozen, since the others have to end it; a lone one comes back too late."""
        pids = self._workers(cluster)
        if not pids:
            return False
        chosen = self._rng.choice(pids)
        os.kill(chosen, signal.SIGSTOP)
        return True

    def _node_added(self, cluster: Nodes) -> bool:
        self._nodes.append(cluster.add(NODE_CPUS))
        return True

    def _take_one(self, cluster: Nodes) -> Any:
        """Most often a node where something would be missed."""
        busy = [node for node in self._nodes if cluster.pids(node)]
        node = self._rng.choice(busy if busy and self._rng.random() < 0.8 else self._nodes)
        self._nodes.remove(node)
        return node

    def _node_killed(self, cluster: Nodes) -> bool:
        node = self._take_one(cluster)
        cluster.kill(node)
        self._gone.append((time.time() + END_S, node))
        return True

    def _node_drained(self, cluster: Nodes) -> bool:
        node = self._take_one(cluster)
        cluster.drain(node, DRAIN_S)
        self._gone.append((time.time() + DRAIN_S, node))
        return True

    def _take_drained(self, cluster: Nodes) -> None:
        for at_s, node in [each for each in self._gone if each[0] < time.time()]:
            self._gone.remove((at_s, node))
            cluster.remove(node)

    def _driver_killed(self, cluster: Nodes) -> bool:
        assert self._driver is not None
        self._driver.kill()
        self._driver.wait(END_S)
        return True

    def _driver_terminated(self, cluster: Nodes) -> bool:
        assert self._driver is not None
        self._driver.terminate()
        try:
            self._driver.wait(END_S)
        except subprocess.TimeoutExpired:
            self.tally.failures.append(f"the driver did not end within {END_S:g} s of SIGTERM")
        return True

    def _storage_away(self, cluster: Nodes) -> bool:
        for_s = self._rng.uniform(0.5, 4.0)
        threading.Thread(target=take_away, args=(self.config, lambda: time.sleep(for_s))).start()
        return True

    def _start(self, cluster: Nodes) -> None:
        self._num_starts += 1
        self._log = self._root / f"driver-{self._num_starts}.log"
        address = f"workers.address={cluster.address!r}"
        days = ["--day", self._world.days[0], "--to", self._world.days[-1]]
        command = [sys.executable, "-m", "diurnal.cli.main", "train", *days]
        with open(self._log, "wb") as log:
            arguments = self._world.arguments("storage", [*self._settings, address])
            self._driver = subprocess.Popen([*command, *arguments], stdout=log, stderr=log)

    def _end_driver(self) -> None:
        if self._driver is not None and self._driver.poll() is None:
            self._driver.kill()
            self._driver.wait(END_S)

    def _live_unbroken(self) -> None:
        folder = self._root / "unbroken-life"
        folder.mkdir()
        try:
            run_world(live, 1, Life(resolved_json(self.unbroken), folder), timeout_s=LIFE_S)
        except Exception as error:
            self.tally.failures.append(f"the unbroken run: {error!r}")

    def _check(self) -> None:
        tally = self.tally
        tally.increments = len(self._world.days)
        tally.rows = sum(map(len, self._world.tags(self.config).values()))
        lost, doubled = check_tag_moments(self.config, self.unbroken, tally)
        tally.rows_lost += lost
        tally.rows_doubled += doubled
        compare_versions(self.config, self.unbroken, tally, is_exact=False)
        check_what_is_left(self.config, tally)
        _check_runs(self.config, self._world.days, tally)
        with Ledger.of(self.config) as ledger:
            told = ledger.events(self.config.name)
        ends = [*(blow.at_s for blow in self._blows[1:]), time.time()]
        for blow, until_s in zip(self._blows, ends, strict=True):
            meanwhile = [event for event in told if blow.at_s <= _unix_s(event.at) < until_s]
            again = [e.data["replayed_rows"] for e in meanwhile if e.kind == "begin" and e.data["attempt"] > 1]
            self.tally.events.append(Event(blow.kind, _recovery_s(blow, meanwhile), sum(again) if again else None))


def _recovery_s(blow: _Blow, meanwhile: list[LedgerEvent]) -> float | None:
    """What the run said itself; after the end of a driver, until the next attempt begins."""
    if blow.kind.startswith("driver"):
        return next((_unix_s(event.at) - blow.at_s for event in meanwhile if event.kind == "begin"), None)
    return next((event.data["recovery_s"] for event in meanwhile if event.kind == "recovered"), None)


def _check_runs(config: Config, days: list[str], tally: Tally) -> None:
    try:
        runs = runs_of(config)
    except AssertionError as error:
        tally.failures.append(f"MLflow: two runs of one name: {error}")
        return
    statuses = {name: run.info.status for name, run in runs.items() if name != "lineage"}
    if statuses != dict.fromkeys(days, "FINISHED"):
        tally.failures.append(f"MLflow: {statuses}")


def _settings(rng: random.Random) -> list[str]:
    settings = {
        "seed": rng.randrange(1000),
        "data.batch_rows": 12,
        "data.streams": 6,
        "data.order": rng.choice(["file", "shuffled"]),
        "data.read_cpus": 1.0,
        "workers.min": 1,
        "workers.max": MAX_NODES,
        "workers.cpus": 2.0,
        "workers.stall_s": STALL_S,
        "workers.wait_s": 180.0,
        "workers.max_failures": 10,
        "checkpoint.every_s": 1.0,
        "checkpoint.retry_s": 30.0,
        "ledger.lease_s": 15.0,
        "metrics.auc_bins": 1024,
    }
    kinds = ["table_wise", "row_wise", "data_parallel"]
    placement = [f"sharding.placement.{table}={rng.choice(kinds)!r}" for table in TABLES]
    return [*(f"{name}={value!r}" for name, value in settings.items()), *placement]


def _after_a_while(mark: str) -> list[str]:
    until_s = time.monotonic() + END_S
    while (left := processes_of(mark)) and time.monotonic() < until_s:
        time.sleep(0.5)
    return left


def _unix_s(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def _last_lines(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-6:])[-1500:]
