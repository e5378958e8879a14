"""Worker processes that have imported everything before they are needed.

A new worker process of Ray spends most of its start on imports; torch and torchrec alone are several seconds. So each
node keeps as many idle processes as it has ranks: the next group's actors take them over and start at once. Ray has
the parts: a raylet starts processes ahead for an environment and keeps them for a given time; an environment can name
a function that runs first in each of its processes; and an idle process is given to any actor of the very same
environment. (Not so a process that has run a task, hence no tasks.)

What exists is written down in Ray's key-value store by the processes themselves.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

MODULES = (
    "torchrec",
    "diurnal.train.sequence",
    "diurnal.checkpoint.load",
    "diurnal.checkpoint.save",
    "diurnal.train.elastic",
    "ray.data",
    "ray.tune",
)
"""With what they import, all that a training worker needs."""

KEEP_S = 24 * 3600
"""An idle process is kept so long; it ends with the job in any case."""

_NAMESPACE = "diurnal-spares"
_PROTOCOL = ("common_pb2", "node_manager_pb2", "node_manager_pb2_grpc")
_BLIND_S = 10.0
"""From asking for a process until it has written itself down."""

_log = logging.getLogger(__name__)


def environment() -> dict[str, str]:
    """Environment variables of the training workers: each of their processes imports first, and leaves no actor of Ray
    Data's own reports on its node, which would keep the node from ever being idle."""
    from ray._private.ray_constants import WORKER_PROCESS_SETUP_HOOK_ENV_VAR

    return {
        WORKER_PROCESS_SETUP_HOOK_ENV_VAR: "diurnal.train.spares.prepare",
        "RAY_DATA_USAGE_DISABLED": "1",
    }


def prepare() -> None:
    """Runs first in each worker process; what goes wrong here goes wrong again, and is seen, in the worker itself."""
    born_s = time.time()
    with suppress(Exception):
        _write_down(born_s, ready_s=0.0)
    # Beside ranks that train, importing gets what they leave. A thread's niceness ends with the thread.
    thread = threading.Thread(target=_import_everything, name="diurnal-imports")
    thread.start()
    thread.join()
    with suppress(Exception):
        _write_down(born_s, ready_s=time.time())


def serialized_environment() -> str:
    """The environment of this worker, as the raylet compares it."""
    import ray

    return ray.get_runtime_context().get_runtime_env_string()


class Spares:
    """The idle processes of this job, as seen by its controller."""

    def __init__(self) -> None:
        self._asked_s: dict[str, float] = {}

    def taken(self, workers: Iterable[tuple[str, int]], serialized: str) -> None:
        """A group has started in these processes (node id, process id), with this environment."""
        import ray
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(f"{_job()}/environment", serialized, namespace=_NAMESPACE)
        by_node: dict[str, set[int]] = {}
        for node_id, pid in workers:
            by_node.setdefault(node_id, set()).add(pid)
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        for node_id, pids in by_node.items():
            self._cross_out(node_id, pids)
            if node_id in alive:
                self.keep(alive[node_id], len(pids), serialized)

    def keep(self, node: dict[str, Any], number: int, serialized: str | None = None) -> None:
        """Has processes started until so many are idle on the node, an entry of `ray.nodes()`. Does not wait."""
        node_id = node["NodeID"]
        serialized = serialized or known_environment()
        missing = number - len(processes(node_id))
        if serialized is None or missing <= 0 or time.monotonic() - self.asked_s(node_id) < _BLIND_S:
            return
        self._asked_s[node_id] = time.monotonic()
        prestart(node, missing, serialized)

    def asked_s(self, node_id: str) -> float:
        """When (monotonic) processes were last asked for on the node."""
        return self._asked_s.get(node_id, float("-inf"))

    def ready(self, node_id: str) -> int:
        """Processes on the node that are idle and have imported everything."""
        return sum(process["ready_s"] > 0 for process in processes(node_id).values())

    def _cross_out(self, node_id: str, pids: set[int]) -> None:
        from ray.experimental.internal_kv import _internal_kv_del

        known = processes(node_id)
        born_s = max((known[pid]["born_s"] for pid in pids if pid in known), default=0.0)
        for pid, process in known.items():
            # One that was ready when a worker had to be started anew is no longer there.
            if pid in pids or 0 < process["ready_s"] < born_s:
                _internal_kv_del(_key(node_id, pid), namespace=_NAMESPACE)


def prestart(node: dict[str, Any], number: int, serialized: str) -> None:
    """Has a node's raylet start idle worker processes for this job and environment, whatever it has already."""
    import ray
    from ray._private.grpc_utils import init_grpc_channel
    from ray._private.utils import get_runtime_env_info
    from ray.runtime_env import RuntimeEnv

    common, messages, services = (importlib.import_module(f"ray.core.generated.{name}") for name in _PROTOCOL)
    info: Any = get_runtime_env_info(RuntimeEnv.deserialize(serialized))
    # Processes are told apart by a hash of this very text.
    info.serialized_runtime_env = serialized
    request = messages.PrestartWorkersRequest(
        language=common.PYTHON,
        job_id=bytes.fromhex(ray.get_runtime_context().get_job_id()),
        runtime_env_info=info,
        keep_alive_duration_secs=KEEP_S,
        num_workers=number,
    )
    channel: Any = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
    with channel:
        services.NodeManagerServiceStub(channel).PrestartWorkers(request, timeout=2.0)


def _import_everything() -> None:
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    for module in MODULES:
        with suppress(Exception):
            importlib.import_module(module)


def _write_down(born_s: float, ready_s: float) -> None:
    import ray
    from ray.experimental.internal_kv import _internal_kv_put

    key = _key(ray.get_runtime_context().get_node_id(), os.getpid())
    _internal_kv_put(key, json.dumps({"born_s": born_s, "ready_s": ready_s}), namespace=_NAMESPACE)


def processes(node_id: str) -> dict[int, dict[str, float]]:
    """Process id to when it was born and ready (Unix time, 0 for not yet)."""
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list

    found = {}
    for key in _internal_kv_list(_key(node_id), namespace=_NAMESPACE):
        if value := _internal_kv_get(key, namespace=_NAMESPACE):
            found[int(key.decode().rpartition("/")[2])] = json.loads(value)
    return found


def known_environment() -> str | None:
    from ray.experimental.internal_kv import _internal_kv_get

    value = _internal_kv_get(f"{_job()}/environment", namespace=_NAMESPACE)
    return value.decode() if value else None


def _key(node_id: str, pid: int | str = "") -> str:
    return f"{_job()}/{node_id}/{pid}"


def _job() -> str:
    import ray

    return ray.get_runtime_context().get_job_id()
