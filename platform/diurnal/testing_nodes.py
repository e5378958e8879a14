"""A Ray cluster of several nodes on this machine: nodes come, are killed, are drained. For tests and torture scripts.

Nodes are started by the main thread (Ray sets signal handlers there), so a run that is to see them come and go belongs
into another thread.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
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
    def jobs_url(self) -> str:
        """Of the job server, where the cluster was started with one."""
        return f"http://{self._cluster.webui_url}"

    @property
    def head(self) -> Any:
        return self._cluster.head_node

    def members(self) -> list[Any]:
        """Those that were added and not removed."""
        return list(self._cluster.worker_nodes)

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
def nodes(
    num_cpus_head: float = 1, environment: Mapping[str, str] = MappingProxyType({}), *, has_jobs: bool = False
) -> Iterator[Nodes]:
    """A cluster with a head alone, which this process has joined; ended, with all its nodes, on leaving.

    Args:
        num_cpus_head: CPUs of the head. Ray's head cannot be taken away: 0 keeps all work off it.
        environment: added to the environment of this process, and so of all that the nodes start, until the end.
        has_jobs: with a job server, at `jobs_url`.
    """
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    import ray
    from ray.cluster_utils import Cluster

    for name in ("ray._private.authentication.authentication_token_setup", "ray.cluster_utils"):
        logging.getLogger(name).setLevel(logging.ERROR)
    _ensure_token()
    options: dict[str, Any] = {"num_cpus": num_cpus_head, "object_store_memory": OBJECT_STORE_BYTES}
    folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    if has_jobs:
        # Ray tells a job the address of the newest cluster of its folder, whosever that is.
        options |= {"temp_dir": folder.name, "dashboard_port": free_port(), "dashboard_agent_listen_port": 0}
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": has_jobs, **options})
    try:
        if has_jobs:
            utils: Any = importlib.import_module("ray._private.utils")
            utils.write_ray_address(cluster.address, folder.name)
        ray.init(address=cluster.address, logging_level=logging.WARNING, log_to_driver=False)
        yield Nodes(cluster)
    finally:
        ray.shutdown()
        for node in list(cluster.worker_nodes):
            cluster.remove_node(node, allow_graceful=False)
        cluster.shutdown()
        folder.cleanup()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class ScaledNodes:
    """Nodes that Ray's own autoscaler starts and ends. Only the machines are faked: each node is processes of ours."""

    def __init__(self, address: str, jobs_url: str, mark: str) -> None:
        self.address = address
        self.jobs_url = jobs_url
        self._mark = mark

    def alive(self) -> set[str]:
        """Ids of the nodes beside the head."""
        from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

        raylet: Any = importlib.import_module("ray._raylet")
        infos = raylet.GcsClient(address=self.address).get_all_node_info().values()
        return {info.node_id.hex() for info in infos if info.state == 0} - {FAKE_HEAD_NODE_ID}

    def kill(self, node_id: str) -> None:
        """Ends a node as a machine's death does."""
        for pid in marked_processes(f"RAY_OVERRIDE_NODE_ID_FOR_TESTING={node_id}", self._mark):
            with suppress(OSError):
                if b"raylet/raylet" in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]:
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def scaled_nodes(
    folder: Path, environment: Mapping[str, str], most: int, num_cpus: int = 1, idle_s: float = 6.0
) -> Iterator[ScaledNodes]:
    """A head without work and Ray's real autoscaler, version 2, over a group of nodes that begins at zero.

    Args:
        folder: for its configuration and log.
        environment: of all processes, beside this one's.
        most: nodes of the group.
        num_cpus: of each node.
        idle_s: a node that has been idle for so long is ended.
    """
    from ray._private.services import get_node_ip_address
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

    _ensure_token()
    ports = {name: free_port() for name in ("port", "dashboard-port", "ray-client-server-port")}
    address, mark = f"{get_node_ip_address()}:{ports['port']}", f"DIURNAL_NODES={folder}"
    _write_autoscaling(folder, address, FAKE_HEAD_NODE_ID, most, num_cpus, idle_s)
    limits = [{"name": "train", "max": most, "resources": {"CPU": num_cpus}}]
    paths = [str(folder), *filter(None, (environment.get("PYTHONPATH") or os.environ.get("PYTHONPATH"),))]
    own = {
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "DIURNAL_NODE_LIMITS": json.dumps(limits),
        "DIURNAL_NODES": str(folder),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    temp = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    options: dict[str, Any] = {
        **ports,
        "dashboard-agent-listen-port": 0,
        "min-worker-port": 0,
        "max-worker-port": 0,
        "num-cpus": 0,
    }
    options["temp-dir"] = temp.name
    options |= {"object-store-memory": OBJECT_STORE_BYTES, "autoscaling-config": folder / "autoscaling.json"}
    line = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    line += [f"--{name}={value}" for name, value in options.items()]
    with open(folder / "head.log", "w") as log:
        head = subprocess.Popen(line, env={**os.environ, **environment, **own}, stdout=log, stderr=log)
    try:
        jobs_url = f"http://127.0.0.1:{ports['dashboard-port']}"
        _wait_for_server(jobs_url, head, folder / "head.log")
        yield ScaledNodes(address, jobs_url, mark)
    finally:
        head.terminate()
        with suppress(subprocess.TimeoutExpired):
            head.wait(5.0)
        for _ in range(2):  # what one of them starts while they are ended
            for pid in marked_processes(mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        head.wait()
        temp.cleanup()


def _write_autoscaling(folder: Path, address: str, head_id: str, most: int, num_cpus: int, idle_s: float) -> None:
    # Ray's own provider cannot be named: its example is missing in the wheel.
    parent = "ray.autoscaler._private.fake_multi_node.node_provider"
    code = f"from {parent} import FakeMultiNodeProvider\n\n\nclass Provider(FakeMultiNodeProvider):\n    pass\n"
    (folder / "diurnal_fake_nodes.py").write_text(code)
    (folder / "autoscaling.json").write_text(json.dumps(_autoscaling(address, head_id, most, num_cpus, idle_s)))


def _autoscaling(address: str, head_id: str, most: int, num_cpus: int, idle_s: float) -> dict[str, Any]:
    """What Ray's autoscaler is told, in the words of its configuration file."""
    resources = {"CPU": num_cpus, "object_store_memory": OBJECT_STORE_BYTES}
    lists = (
        "initialization_commands",
        "setup_commands",
        "head_setup_commands",
        "worker_setup_commands",
        "head_start_ray_commands",
        "worker_start_ray_commands",
        "cluster_synced_files",
        "rsync_exclude",
        "rsync_filter",
    )
    return {
        "cluster_name": "fake",
        "max_workers": most,
        "idle_timeout_minutes": idle_s / 60,
        "upscaling_speed": 10.0,
        "provider": {
            "type": "external",
            "module": "diurnal_fake_nodes.Provider",
            "gcs_address": address,
            "head_node_id": head_id,
            "launch_multiple": True,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "train": {"resources": resources, "node_config": {}, "min_workers": 0, "max_workers": most},
        },
        "head_node_type": "ray.head.default",
        "auth": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{name: [] for name in lists},
    }


def _wait_for_server(url: str, head: subprocess.Popen[bytes], log: Path, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and head.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/api/version", timeout=5.0).close()
            return
        except urllib.error.HTTPError:
            return  # it answers, though not without a token
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"no head: {log.read_text()[-2000:]}")


def marked_processes(*marks: str) -> list[int]:
    """Live processes that have all of these in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = (folder / "environ").read_bytes().split(b"\0")
            if int(folder.name) != os.getpid() and all(mark.encode() in environment for mark in marks):
                found.append(int(folder.name))
    return found


def free_port() -> int:
    """One that nobody listens at. From below those that the system deals out by itself, so that it stays free."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


def _ensure_token() -> None:
    """Ray's token, which its nodes and clients share; `ray.init` makes one only for clusters that it starts itself."""
    from ray._private.authentication import authentication_token_setup as setup

    setup.enable_token_auth_by_default()
    setup.ensure_token_if_auth_enabled(create_token_if_missing=True)
