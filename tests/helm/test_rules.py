"""The checker of rules finds each fault that it knows: a rule that cannot be broken proves nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest

PLANTED: list[tuple[str, tuple[str, ...], str, Any, str]] = [
    ("RayCluster", ("metadata",), "name", "a" * 54, "a name of 54"),
    ("RayCluster", ("metadata",), "name", "1st", "DNS-1035"),
    ("RayCluster", ("spec", "workerGroupSpecs", "0", "template", "spec"), "restartPolicy", "Always", "restartPolicy"),
    ("RayCluster", ("spec", "headGroupSpec", "template", "spec"), "restartPolicy", "OnFailure", "restartPolicy"),
    ("RayCluster", ("spec", "workerGroupSpecs", "1"), "suspend", True, "suspended"),
    ("RayCluster", ("spec", "workerGroupSpecs", "1"), "resources", {"CPU": "1"}, "resources both"),
    ("RayCluster", ("spec", "workerGroupSpecs", "1", "rayStartParams"), "labels", "a=b", "labels in"),
    ("RayCluster", ("spec", "workerGroupSpecs", "1", "rayStartParams"), "num-gpus", "1", "told of 1 GPUs"),
    ("RayCluster", ("spec", "workerGroupSpecs", "1"), "minReplicas", 9, "minReplicas above"),
    ("RayCluster", ("spec", "autoscalerOptions"), "version", "v1", "without autoscaler v2"),
    ("RayCluster", ("spec", "headGroupSpec", "rayStartParams"), "num-cpus", "2", "work on the head"),
    ("RayCluster", ("spec",), "rayVersion", "2.51.1", "2.52"),
    ("RayCluster", ("spec", "headGroupSpec", "rayStartParams"), "object-store-memory", "1073741824", "/dev/shm"),
    (
        "RayCluster",
        ("spec", "headGroupSpec", "template", "spec", "containers", "0"),
        "env",
        [{"name": "REDIS_PASSWORD", "value": "x"}],
        "REDIS_PASSWORD in the head",
    ),
    (
        "CronJob",
        ("spec", "jobTemplate", "spec", "template", "spec", "containers", "0"),
        "env",
        [{"name": "RAY_AUTH_TOKEN", "value": "x"}],
        "no reference to a Secret",
    ),
    ("Deployment", ("spec", "template", "spec"), "securityContext", {}, "may run as root"),
    ("Deployment", ("spec", "template", "spec", "containers", "0"), "securityContext", {}, "has capabilities"),
    ("Deployment", ("spec", "template", "spec"), "automountServiceAccountToken", True, "token of the API server"),
    ("Deployment", ("spec", "template", "spec"), "serviceAccountName", "", "namespace's service account"),
    ("Deployment", ("spec", "template", "spec", "containers", "0", "resources"), "requests", {}, "requests no cpu"),
    ("Deployment", ("spec", "template", "spec"), "volumes", [], "which it has not"),
]
PLANTED_IN_RUN: list[tuple[tuple[str, ...], str, Any, str]] = [
    ((), "activeDeadlineSeconds", None, "no activeDeadlineSeconds"),
    ((), "backoffLimit", None, "no backoffLimit"),
    ((), "shutdownAfterJobFinishes", False, "without shutdownAfterJobFinishes"),
    ((), "deletionStrategy", {"deletionRules": []}, "deletionStrategy beside"),
    ((), "clusterSelector", {"ray.io/cluster": "x"}, "cluster of others"),
    ((), "submissionMode", "InteractiveMode", "InteractiveMode with retries"),
]  # fmt: skip


def plant(document: dict[str, Any], way: tuple[str, ...], key: str, value: Any) -> dict[str, Any]:
    planted = copy.deepcopy(document)
    at: Any = planted
    for step in way:
        at = at[int(step)] if step.isdigit() else at[step]
    if value is None:
        del at[key]
    else:
        at[key] = value
    return planted


@pytest.mark.parametrize(("kind", "way", "key", "value", "says"), PLANTED)
def test_a_planted_fault_is_found(chart, check, kind, way, key, value, says):
    document = next(d for d in chart.objects("trial") if d["kind"] == kind)
    assert check(document) == []
    assert says in "; ".join(check(plant(document, way, key, value)))


@pytest.mark.parametrize(("way", "key", "value", "says"), PLANTED_IN_RUN)
def test_a_planted_fault_of_a_run_is_found(chart, check, way, key, value, says):
    (run,) = [d for d in chart.objects("per-run") if d["kind"] == "RayJob"]
    assert check(run) == []
    assert says in "; ".join(check(plant(run, ("spec", *way), key, value)))


def test_a_secret_in_the_release_is_found(check):
    assert check({"kind": "Secret", "metadata": {"name": "x"}}) == ["Secret x: a secret in the release"]
