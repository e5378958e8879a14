"""What a cluster can become, not what it is now: a group of nodes that starts from zero has no node to look at."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diurnal.config import Config
from diurnal.data.objects import is_url
from diurnal.errors import ConfigError, Fault, ResourceError

NODE_LIMITS = "DIURNAL_NODE_LIMITS"
"""Environment variable of the head, for clusters with an autoscaler, whose limits Ray does not tell: a JSON list of
`{"name": "train", "max": 4, "resources": {"CPU": 8, "GPU": 1}}`, one a group of worker nodes. The chart sets it."""

_AUTOSCALER = "RAY_enable_autoscaler_v2"

_PRIVATE = frozenset({"overlay", "aufs", "tmpfs", "ramfs"})
"""File systems that are a container's or a machine's own. Others may be shared, which no program can see."""


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that are alike, as many as there can be."""

    name: str
    most: int
    resources: Mapping[str, float]

    def __str__(self) -> str:
        has = ", ".join(f"{self.resources.get(kind, 0):g} {kind}s" for kind in ("CPU", "GPU"))
        return f"{self.name}: max {self.most} nodes with {has} each"


def attainable(nodes: Iterable[Mapping[str, Any]]) -> list[NodeGroup] | None:
    """The groups of nodes that a cluster can have; None when there is an autoscaler that does not tell.

    Args:
        nodes: those that are there, as in `ray.nodes()`: what counts where nothing scales.

    Raises:
        ConfigError: `NODE_LIMITS` is nonsense.
    """
    if text := os.environ.get(NODE_LIMITS):
        try:
            return [NodeGroup(str(g["name"]), int(g["max"]), dict(g["resources"])) for g in json.loads(text)]
        except (ValueError, TypeError, KeyError) as error:
            rule = 'a JSON list of {"name": ..., "max": ..., "resources": {"CPU": ..., "GPU": ...}}'
            found = f"{text[:120]} ({type(error).__name__})"
            raise ConfigError([Fault(NODE_LIMITS, found, rule, "correct the environment of the head")]) from None
    if os.environ.get(_AUTOSCALER, "0").lower() in ("1", "true"):
        return None
    return [NodeGroup(node["NodeManagerHostname"], 1, node["Resources"]) for node in nodes if node["Alive"]]


def refuse_what_never_fits(config: Config, groups: list[NodeGroup]) -> None:
    """
    Raises:
        ResourceError: the least that the run needs is more than the groups can ever give, with the numbers.
    """
    from diurnal.train.places import fits

    workers, data = config.workers, config.data
    need = {"CPU": workers.cpus, "GPU": float(workers.gpus)}
    cpus = sum(group.most * group.resources.get("CPU", 0.0) for group in groups)
    places = sum(group.most * fits(group.resources, need) for group in groups)
    faults = []
    needed_cpus = workers.least * (workers.cpus + data.read_cpus)
    if places < workers.least:
        found = f"{workers.least} workers x {workers.cpus:g} CPUs and {workers.gpus} GPUs"
        fix = "lower workers.max, workers.min, workers.cpus or workers.gpus, or allow for more nodes"
        faults.append(Fault("workers", found, f"max {places}: {_told(groups)}", fix))
    if needed_cpus > cpus and not data.node_labels:
        found = (
            f"{needed_cpus:g} CPUs: {workers.least} workers x ({workers.cpus:g} for training "
            f"+ {data.read_cpus:g} for reading)"
        )
        fix = "lower workers.max, workers.min, workers.cpus or data.read_cpus, or allow for more nodes"
        faults.append(Fault("workers", found, f"max {cpus:g} CPUs: {_told(groups)}", fix))
    if faults:
        raise ResourceError(faults)


def refuse_a_storage_of_one_machine(config: Config, nodes: Iterable[Mapping[str, Any]]) -> None:
    """Before any worker starts, where that can be seen; each worker looks for itself too.

    Raises:
        ConfigError: the storage is a folder that no other machine sees, and there is more than one.
    """
    if is_url(config.storage):
        return
    hosts = {node["NodeManagerHostname"] for node in nodes if node["Alive"]}
    is_spread = len(hosts) > 1 or (NODE_LIMITS in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ)
    kind = file_system_of(Path(config.storage))
    if is_spread and kind in _PRIVATE:
        found = f"{config.storage}, which is on {kind}: this machine's own"
        rule = "a storage that all nodes share, when there is more than one"
        raise ConfigError([Fault("storage", found, rule, "use a volume that is mounted on every node")])


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """The kind of file system that a path is on, or will be; empty where the system does not tell.

    `mounts` is what `proc(5)` says of /proc/[pid]/mounts: device, mount point, kind.
    """
    try:
        text = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace") if mounts is None else mounts
    except OSError:
        return ""
    absolute = path.absolute()
    best, kind = -1, ""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        # The later one of two mounts at the same place covers the first.
        if (point == absolute or point in absolute.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind


def _told(groups: list[NodeGroup]) -> str:
    return "; ".join(map(str, groups[:6])) or "no nodes"
