"""A Ray cluster of several nodes on this machine: nodes come, are killed, are drained. For tests and torture scripts.

Nodes are started by the main thread (Ray sets signal handlers there), so a run that is to see them come and go belongs
into another thread.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OBJECT_STORE_BYTES = 128 * 2**20


class Nodes:
    """The nodes beside the head. `node_id` of what `add` answers names a node as Ray does, in hex."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    @property
    def address(self) -> str:
        return self._cluster.address

    @property
    def head(self) -> Any:
        return self._cluster.head_node

    def add(self, num_cpus: float = 1, **options: Any) -> Any:
        """Starts a node and waits until the cluster knows it."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("nodes are added by the main thread")
        return self._cluster.add_node(num_cpus=num_cpus, object_store_memory=OBJECT_STORE_BYTES, **options)

    def remove(self, node: Any) -> None:
        """Ends a node in order, as an autoscaler does."""
        self._cluster.remove_node(node)

    def kill(self, node: Any) -> None:
        """Ends a node as a machine's death does: SIGKILL for its raylet, whose workers then end themselves."""
        node.kill_raylet(check_alive=False)

    def drain(self, node: Any, deadline_s: float | None = None) -> None:
        """Says that the node will be taken away, `deadline_s` from now if that is known, and lets it run."""
        raylet: Any = importlib.import_module("ray._raylet")
        messages: Any = importlib.import_module("ray.core.generated.autoscaler_pb2")
        reason = messages.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        # Without a deadline Ray would take the node for idle work only; 2**62 is never.
        at_ms = 2**62 if deadline_s is None else int((time.time() + deadline_s) * 1000)
        client = raylet.GcsClient(address=self.address)
        accepted, message = client.drain_node(node.node_id, reason, "taken away by a test", at_ms)
        if not accepted:
            raise RuntimeError(f"the node would not be drained: {message}")

    def pids(self, node: Any, title: str = "ray::RayTrainWorker") -> list[int]:
        """Worker processes of a node whose title begins with `title`, oldest first."""
        raylet = node.all_processes["raylet"][0].process.pid
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                after_name = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            state, parent, started = after_name[0], int(after_name[1]), int(after_name[19])
            if parent == raylet and state != "Z" and command.startswith(title):
                found.append((started, int(folder.name)))
        return [pid for _, pid in sorted(found)]


@contextmanager
def nodes(num_cpus_head: float = 1, **environment: str) -> Iterator[Nodes]:
    """A cluster with a head alone, which this process has joined; ended, with all its nodes, on leaving.

    Args:
        num_cpus_head: CPUs of the head. Ray's head cannot be taken away: 0 keeps all work off it.
        environment: added to the environment of this process, and so of all that the nodes start, until the end.
    """
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    import ray
    from ray.cluster_utils import Cluster

    for name in ("ray._private.authentication.authentication_token_setup", "ray.cluster_utils"):
        logging.getLogger(name).setLevel(logging.ERROR)
    _ensure_token()
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": num_cpus_head,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        },
    )
    try:
        ray.init(address=cluster.address, logging_level=logging.WARNING, log_to_driver=False)
        yield Nodes(cluster)
    finally:
        ray.shutdown()
        for node in list(cluster.worker_nodes):
            cluster.remove_node(node, allow_graceful=False)
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _ensure_token() -> None:
    """Ray's token, which its nodes and clients share; `ray.init` makes one only for clusters that it starts itself."""
    from ray._private.authentication import authentication_token_setup as setup

    setup.enable_token_auth_by_default()
    setup.ensure_token_if_auth_enabled(create_token_if_missing=True)
