"""Whether NetworkPolicies let one pod reach another, as Kubernetes defines it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

NAMESPACE = "ml"
"""Where the chart is installed."""


@dataclass(frozen=True)
class Pod:
    labels: dict[str, str] = field(default_factory=dict)
    namespace: str = NAMESPACE
    ip: str = ""
    """Set for what is outside the cluster, and is no pod."""


class Policies:
    """The policies of a rendered chart."""

    def __init__(self, documents: list[Json]) -> None:
        self.all = [document["spec"] for document in documents if document["kind"] == "NetworkPolicy"]

    def lets(self, source: Pod, target: Pod, port: int, protocol: str = "TCP") -> bool:
        """Both ends have to: what no policy selects is open."""
        return self._lets("Egress", source, target, port, protocol) and self._lets(
            "Ingress", target, source, port, protocol
        )

    def _lets(self, way: str, pod: Pod, other: Pod, port: int, protocol: str) -> bool:
        selected = [
            spec
            for spec in self.all
            if way in spec["policyTypes"]
            and not pod.ip
            and pod.namespace == NAMESPACE
            and _has(pod.labels, spec["podSelector"])
        ]
        if not selected:
            return True
        rules = [rule for spec in selected for rule in spec.get(way.lower()) or []]
        return any(_covers(rule, way, other, port, protocol) for rule in rules)


def _covers(rule: Json, way: str, other: Pod, port: int, protocol: str) -> bool:
    peers, ports = rule.get("to" if way == "Egress" else "from"), rule.get("ports")
    is_port = ports is None or any(p["port"] == port and p["protocol"] == protocol for p in ports)
    # No peers at all are everybody.
    return is_port and (not peers or any(_is(peer, other) for peer in peers))


def _is(peer: Json, other: Pod) -> bool:
    if "ipBlock" in peer:
        return peer["ipBlock"]["cidr"] == "0.0.0.0/0" or bool(other.ip and other.ip in peer["ipBlock"]["cidr"])
    if other.ip:
        return False
    if "namespaceSelector" in peer:
        is_namespace = _has({"kubernetes.io/metadata.name": other.namespace}, peer["namespaceSelector"])
    else:
        is_namespace = other.namespace == NAMESPACE
    return is_namespace and _has(other.labels, peer.get("podSelector", {}))


def _has(labels: dict[str, str], selector: Json) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
