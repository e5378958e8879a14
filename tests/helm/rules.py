"""What an operator or an auditor would refuse of a rendered object, and no schema says.

KubeRay's are those of `controllers/ray/utils/validation.go` of KubeRay 1.7; a pod's are those of Kubernetes' restricted
Pod Security Standard, and ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

NAME_LENGTHS = {"RayCluster": 53, "RayJob": 47, "RayCronJob": 36, "CronJob": 52}
RESOURCE_PARAMS = ("num-cpus", "num-gpus", "memory", "resources")
ONE_IMAGE_PARTS = ("head", "data", "train", "submit", "exporter", "mlflow")
MEBIBYTE = 2**20


def faults(document: Json) -> list[str]:
    """Everything wrong with one object; empty when nothing is."""
    return [f"{document['kind']} {document['metadata']['name']}: {fault}" for fault in _faults(document)]


def pods(documents: list[Json]) -> dict[str, Json]:
    """Part of the chart -> its pod template."""
    found: dict[str, Json] = {}
    for document in documents:
        for template in _templates(document):
            found[template["metadata"]["labels"]["diurnal.dev/part"]] = template
    return found


def size_bytes(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMGT]i)?", quantity).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return int(number) * {None: 1, "Ki": 2**10, "Mi": MEBIBYTE, "Gi": 2**30, "Ti": 2**40}[unit]


def _faults(document: Json) -> Iterator[str]:
    kind, name, spec = document["kind"], document["metadata"]["name"], document.get("spec", {})
    if len(name) > NAME_LENGTHS.get(kind, 63):
        yield f"a name of {len(name)} characters"
    if kind.startswith("Ray") and not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield "a name that is no DNS-1035 label"
    if kind == "Secret":
        yield "a secret in the release"
    if kind == "RayCluster":
        yield from _of_cluster(spec)
    elif kind == "RayJob":
        yield from _of_job(spec)
    elif kind == "RayCronJob":
        if "TZ=" in spec["schedule"]:
            yield "a time zone inside the schedule"
        yield from _of_job(spec["jobTemplate"])
    for template in _templates(document):
        yield from _of_pod(template)


def _of_cluster(spec: Json) -> Iterator[str]:
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    is_v2 = spec.get("enableInTreeAutoscaling") and spec.get("autoscalerOptions", {}).get("version") == "v2"
    for group in groups:
        params = group["rayStartParams"]
        if group.get("resources") and any(param in params for param in RESOURCE_PARAMS):
            yield "resources both of the group and in rayStartParams"
        if "labels" in params:
            yield "labels in rayStartParams"
        if is_v2 and group["template"]["spec"].get("restartPolicy", "Never") != "Never":
            yield "autoscaler v2 needs restartPolicy Never"
        if is_v2 and group.get("suspend"):
            yield "a suspended group under the autoscaler"
        if not is_v2 and ("idleTimeoutSeconds" in group or "priority" in group):
            yield "idleTimeoutSeconds or priority of a group without autoscaler v2"
        if group.get("minReplicas", 0) > group.get("maxReplicas", 0):
            yield "minReplicas above maxReplicas"
        yield from _of_memory(group)
    if spec.get("authOptions", {}).get("mode") == "token" and not _at_least(spec.get("rayVersion", ""), (2, 52)):
        yield "token authentication needs rayVersion 2.52 or newer"
    names = [env["name"] for env in spec["headGroupSpec"]["template"]["spec"]["containers"][0].get("env", [])]
    for forbidden in ("RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME", "RAY_enable_autoscaler_v2"):
        if forbidden in names:
            yield f"{forbidden} in the head's environment"
    if spec["headGroupSpec"]["rayStartParams"].get("num-cpus") != "0":
        yield "work on the head"


def _of_memory(group: Json) -> Iterator[str]:
    """ray-project/kuberay#321: what Ray is told of a pod is what the pod has."""
    params, container = group["rayStartParams"], group["template"]["spec"]["containers"][0]
    volumes = {volume["name"]: volume for volume in group["template"]["spec"]["volumes"]}
    (shm,) = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/dev/shm"]
    limits = container["resources"]["limits"]
    shared = size_bytes(volumes[shm]["emptyDir"]["sizeLimit"])
    if int(params["object-store-memory"]) > shared - 256 * MEBIBYTE:
        yield "an object store that does not fit into /dev/shm"
    if shared > size_bytes(limits["memory"]) - 512 * MEBIBYTE:
        yield "/dev/shm leaves no memory to run in"
    gpus = next((int(value) for key, value in limits.items() if "/" in key), 0)
    if int(params.get("num-gpus", gpus)) != gpus:
        yield f"Ray is told of {params['num-gpus']} GPUs, and the pod has {gpus}"


def _of_job(spec: Json) -> Iterator[str]:
    """ray-project/kuberay#3903: a run ends, is retried a number of times, and is cleared away."""
    for field in ("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"):
        if field not in spec:
            yield f"no {field}"
    if spec.get("ttlSecondsAfterFinished") and not spec.get("shutdownAfterJobFinishes"):
        yield "ttlSecondsAfterFinished without shutdownAfterJobFinishes"
    if spec.get("deletionStrategy") and spec.get("shutdownAfterJobFinishes"):
        yield "deletionStrategy beside shutdownAfterJobFinishes"
    if spec.get("clusterSelector") and (spec.get("backoffLimit") or spec.get("suspend")):
        yield "retries or suspend on a cluster of others"
    if spec.get("submissionMode") == "SidecarMode" and (
        spec.get("submitterPodTemplate") or spec.get("clusterSelector")
    ):
        yield "SidecarMode with a submitter or a cluster of its own"
    if spec.get("submissionMode") == "InteractiveMode" and spec.get("backoffLimit"):
        yield "InteractiveMode with retries"
    yield from _of_cluster(spec["rayClusterSpec"])


def _of_pod(template: Json) -> Iterator[str]:
    spec, part = template["spec"], template["metadata"]["labels"]["diurnal.dev/part"]
    security = spec.get("securityContext", {})
    if not (security.get("runAsNonRoot") and security.get("runAsUser")):
        yield f"{part} may run as root"
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield f"{part} has no seccomp profile"
    if not spec.get("serviceAccountName"):
        yield f"{part} has the namespace's service account"
    if spec.get("automountServiceAccountToken") and part not in ("head", "submit"):
        yield f"{part} holds a token of the API server"
    claimed = {volume["name"] for volume in spec.get("volumes", [])}
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        yield from (f"{part}: {fault}" for fault in _of_container(container))
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        if mounted - claimed - {"data"}:
            yield f"{part} mounts {mounted - claimed}, which it has not"


def _of_container(container: Json) -> Iterator[str]:
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False:
        yield "may gain privileges"
    if not security.get("readOnlyRootFilesystem"):
        yield "can write its root file system"
    if security.get("capabilities", {}).get("drop") != ["ALL"] or security["capabilities"].get("add"):
        yield "has capabilities"
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    for resource in ("cpu", "memory", "ephemeral-storage"):
        if resource not in requests:
            yield f"requests no {resource}"
    if any(requests.get(key) != value for key, value in limits.items() if "/" in key):
        yield "requests other GPUs than its limit"
    for variable in container.get("env", []):
        if re.search("PASSWORD|TOKEN|SECRET|KEY", variable["name"]) and "secretKeyRef" not in variable.get(
            "valueFrom", {}
        ):
            yield f"{variable['name']} is no reference to a Secret"
    if not any(mount["mountPath"] == "/tmp" for mount in container.get("volumeMounts", [])):
        yield "has no folder that it can write"


def _templates(document: Json) -> Iterator[Json]:
    kind, spec = document["kind"], document.get("spec", {})
    if kind in ("Deployment", "StatefulSet"):
        yield spec["template"]
    elif kind == "CronJob":
        yield spec["jobTemplate"]["spec"]["template"]
    elif kind in ("RayCluster", "RayJob", "RayCronJob"):
        cluster = spec.get("jobTemplate", spec)
        cluster = cluster.get("rayClusterSpec", cluster)
        yield cluster["headGroupSpec"]["template"]
        for group in cluster["workerGroupSpecs"]:
            yield group["template"]


def _at_least(version: str, wanted: tuple[int, int]) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= wanted
