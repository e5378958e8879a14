"""Every connection that the parts make is let through at both ends, and no other one."""

from __future__ import annotations

import re
from itertools import product
from typing import Any
from urllib.parse import urlsplit

import pytest

Json = dict[str, Any]
RAY = ("head", "data", "train")
OUTSIDE: dict[str, dict[str, Any]] = {
    "dns": {"namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
    "operator": {"namespace": "operators", "labels": {"app.kubernetes.io/name": "kuberay-operator"}},
    "prometheus": {"namespace": "monitoring", "labels": {"app.kubernetes.io/name": "prometheus"}},
    "stranger": {"namespace": "default", "labels": {"app": "stranger"}},
    "neighbour": {"labels": {"app": "neighbour"}},
    "internet": {"ip": "203.0.113.7"},
}
"""Who is there beside the chart's pods; a neighbour is in the same namespace."""
PORTS = (53, 80, 443, 5000, 5432, 6379, 6443, 8080, 8265, 9000, 9108, 10001, 44217, 44227)


def actors(objects: list[Json], pods_of: Any, Pod: Any) -> dict[str, Any]:
    inside = {part: Pod(pod["metadata"]["labels"]) for part, pod in pods_of(objects).items()}
    return inside | {name: Pod(**about) for name, about in OUTSIDE.items()}


def allowed(objects: list[Json], pods_of: Any, policies: Any, Pod: Any) -> set[tuple[str, str, int]]:
    """Of the chart's pods as source or target: (from, to, port), TCP."""
    there, rules = actors(objects, pods_of, Pod), policies(objects)
    ours = set(pods_of(objects))
    return {
        (a, b, port)
        for a, b, port in product(there, there, PORTS)
        if (a in ours or b in ours) and not (a in RAY and b in RAY) and rules.lets(there[a], there[b], port)
    }


def test_the_trial_lets_through_what_it_uses_and_nothing_else(chart, pods_of, policies, Pod):
    objects = chart.objects("trial", "monitoring.podMonitors=true")
    inside = set(pods_of(objects))
    expected = {(part, "dns", 53) for part in inside - {"postgresql"}}
    expected |= {(part, "postgresql", 5432) for part in ("head", "mlflow", "exporter")}
    expected |= {("head", "mlflow", 5000), ("submit", "head", 8265), ("operator", "head", 8265)}
    expected |= {("prometheus", part, 8080) for part in RAY} | {("prometheus", "exporter", 9108)}
    expected |= {("prometheus", "head", port) for port in (44217, 44227)}
    found = allowed(objects, pods_of, policies, Pod)
    # The API server is an address, and any address may be it.
    server = {edge for edge in found if edge[0] == "head" and edge[2] in (443, 6443) and edge[1] not in inside}
    assert ("head", "internet", 443) in server
    assert found - server == expected


def test_the_nodes_of_ray_reach_one_another(chart, pods_of, policies, Pod):
    objects = chart.objects("trial")
    there, rules = actors(objects, pods_of, Pod), policies(objects)
    for a, b in product(RAY, RAY):
        assert all(rules.lets(there[a], there[b], port) for port in (6379, 8076, 10002, 31999, 65535))
        assert not rules.lets(there["neighbour"], there[b], 6379)


@pytest.mark.parametrize(
    "values",
    [("trial",), ("production",), ("per-run",), ("per-run", "schedule.mode=none"), ("trial", "mlflow.mode=off")],
)
def test_every_address_in_a_pod_is_reached(chart, pods_of, policies, Pod, values):
    """The other way round: from what the pods are told to connect to."""
    objects = chart.objects(*values)
    there, rules = actors(objects, pods_of, Pod), policies(objects)
    (data,) = [d["data"] for d in objects if d["kind"] == "ConfigMap" and "cluster.toml" in d["data"]]
    used = {(part, "dns", 53) for part in there if part in pods_of(objects) and part != "postgresql"}
    for part, pod in pods_of(objects).items():
        container = pod["spec"]["containers"][0]
        told = " ".join([*container.get("command", []), *container.get("args", [])])
        told += " ".join(variable.get("value", "") for variable in container.get("env", []))
        if part == "head":
            told += data["cluster.toml"]
        elif part == "exporter":
            told += re.sub(r"uri = .*", "", data["cluster.toml"])
        for url in re.findall(r"\b(?:https?|postgresql\+psycopg)://[^\s\"]+", told):
            parts = urlsplit(url)
            name = (parts.hostname or "").removeprefix("trial-").removesuffix("-svc")
            default = {"https": 443, "http": 80}.get(parts.scheme)
            used.add((part, name if name in there else "internet", parts.port or default or 0))
    assert {port for _, to, port in used if to == "internet"} <= set(PORTS)
    refused = {
        edge
        for edge in used
        if not rules.lets(there[edge[0]], there[edge[1]], edge[2])
        # An external database of the example is in a namespace that the example names.
        and not (edge[2] == 5432 and rules.lets(there[edge[0]], Pod(namespace="databases"), 5432))
    }
    assert refused == set()
    assert len(used) > 5
    inside = set(pods_of(objects))
    callers = {("operator", "head", 8265)}
    if any(d["kind"] == "PodMonitor" for d in objects):
        callers |= {("prometheus", part, 8080) for part in RAY} | {("prometheus", "exporter", 9108)}
        callers |= {("prometheus", "head", 44217), ("prometheus", "head", 44227)}
    entering = {edge for edge in allowed(objects, pods_of, policies, Pod) if edge[1] in inside}
    assert entering - used == callers


@pytest.mark.parametrize(
    ("values", "leaving"),
    [
        (
            ("production", "cluster.faultTolerance.redisAddress=redis:6379"),
            {"head": {443, 6443, 6379}, "data": {443}, "train": {443}},
        ),
        (
            ("per-run",),
            {
                "head": {443, 6443, 5000, 5432, 9000},
                "data": {9000},
                "train": {9000},
                "submit": {443, 6443},
                "exporter": {5432},
            },
        ),
        (("trial",), {"head": {443, 6443}}),
    ],
)
def test_what_leaves_the_cluster(chart, pods_of, policies, Pod, values, leaving):
    """Object store, API server, and the services of others, each at its port."""
    found: dict[str, set[int]] = {}
    for source, target, port in allowed(chart.objects(*values), pods_of, policies, Pod):
        if target == "internet":
            found.setdefault(source, set()).add(port)
    assert found == leaving


def test_names_are_resolved_by_datagram_too(chart, pods_of, policies, Pod):
    objects = chart.objects("trial")
    there, rules = actors(objects, pods_of, Pod), policies(objects)
    assert rules.lets(there["train"], there["dns"], 53, "UDP")
    assert not rules.lets(there["train"], there["stranger"], 53, "UDP")


def test_people_are_let_in_when_named(chart, pods_of, policies, Pod):
    selector = '{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}'
    objects = chart.objects("trial", f"networkPolicy.peers.people=[{selector}]")
    there, rules = actors(objects, pods_of, Pod), policies(objects)
    assert rules.lets(there["stranger"], there["mlflow"], 5000)
    assert not rules.lets(there["stranger"], there["mlflow"], 80)
    assert rules.lets(there["stranger"], there["head"], 8265)
    assert not rules.lets(there["stranger"], there["head"], 6379)


def test_without_policies_everything_is_open(chart, pods_of, policies, Pod):
    objects = chart.objects("trial", "networkPolicy.enabled=false")
    there = actors(objects, pods_of, Pod)
    assert policies(objects).lets(there["stranger"], there["postgresql"], 5432)
