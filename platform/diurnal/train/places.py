"""The places on a cluster's nodes where workers fit, as they are now."""

from __future__ import annotations

import math
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray
import ray._private.state

from diurnal.config import Config
from diurnal.errors import Fault

CONNECT_S = 0.5
"""For a node's raylet to take a connection. That of a dead process on a live machine is refused at once."""


@dataclass(frozen=True)
class Places:
    """The nodes that workers can be placed on, all resources of each and the free ones."""

    config: Config
    nodes: Mapping[str, dict[str, Any]]
    """By node id, as in `ray.nodes()`."""
    free: Mapping[str, dict[str, float]]

    @classmethod
    def now(cls, config: Config, left_out: Iterable[str] = ()) -> Places:
        gone = set(left_out)
        nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in gone}
        return cls(config, nodes, ray._private.state.state.available_resources_per_node())

    def answering(self) -> Places:
        silent = silent_nodes(self.nodes.values())
        return Places(self.config, {id: node for id, node in self.nodes.items() if id not in silent}, self.free)

    def ids(self) -> list[str]:
        """Nodes with room for at least one worker."""
        return [id for id in self.nodes if self.num_at(id, 1)]

    def num_at(self, id: str, most: int) -> int:
        return min(fits(self.nodes[id]["Resources"], self._need), most)

    def most(self, here: Counter[str], free_only: bool) -> int:
        """Workers that fit. All of them, and the tasks that read for them, must find CPUs.

        Args:
            here: workers of the present group by node, whose place is free once it has ended.
            free_only: count what nobody uses now, not what a node has.
        """
        if free_only:
            count = sum(fits(self.free.get(id, {}), self._need) + here[id] for id in self.nodes)
        else:
            count = sum(fits(node["Resources"], self._need) for node in self.nodes.values())
        workers, data = self.config.workers, self.config.data
        if data.node_labels:
            return count  # the tasks that read have nodes of their own, which come when the tasks are there
        return min(count, math.floor(self._total("CPU") / (workers.cpus + data.read_cpus) + 1e-9))

    def too_few(self, size: int, waited_s: float) -> Fault:
        workers, data = self.config.workers, self.config.data
        cpus, gpus = workers.least * (workers.cpus + data.read_cpus), workers.least * workers.gpus
        found = (
            f"room for {size} after {waited_s:.0f} s: {len(self.nodes)} nodes with "
            f"{self._total('CPU'):g} CPUs and {self._total('GPU'):g} GPUs"
        )
        rule = f"room for {workers.least}, which need {cpus:g} CPUs ({data.read_cpus:g} each to read) and {gpus} GPUs"
        return Fault("workers", found, rule, "add nodes, lower workers.min, or raise workers.wait_s")

    @property
    def _need(self) -> dict[str, float]:
        return {"CPU": self.config.workers.cpus, "GPU": float(self.config.workers.gpus)}

    def _total(self, resource: str) -> float:
        return sum(node["Resources"].get(resource, 0.0) for node in self.nodes.values())


def lost_nodes() -> frozenset[str]:
    """Nodes that are dead, do not answer, or are being taken away."""
    nodes = ray.nodes()
    dead = {node["NodeID"] for node in nodes if not node["Alive"]}
    return frozenset(dead | draining_nodes().keys() | silent_nodes(node for node in nodes if node["Alive"]))


def silent_nodes(nodes: Iterable[dict[str, Any]]) -> set[str]:
    """Those of the nodes whose raylet takes no connection: dead, although Ray may not know it yet."""
    asked = list(nodes)
    if not asked:
        return set()
    with ThreadPoolExecutor(min(len(asked), 32)) as pool:
        return {node["NodeID"] for node, is_up in zip(asked, pool.map(_answers, asked), strict=True) if not is_up}


def _answers(node: dict[str, Any]) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


def draining_nodes() -> dict[str, int]:
    """Node id to deadline in Unix ms, 0 for none."""
    return ray._private.state.state.get_draining_nodes()


def fits(resources: Mapping[str, float], need: Mapping[str, float]) -> int:
    """How often a need, of which something is positive, fits into resources."""
    return min(math.floor(resources.get(name, 0.0) / amount + 1e-9) for name, amount in need.items() if amount > 0)
