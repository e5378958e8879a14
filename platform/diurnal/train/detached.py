"""Where what outlives a run lives: on the driver's node, which in a job is the head.

Ray Data's actor for statistics belongs to no run and stays until the cluster ends, on the node of the process that has
asked for it first. Our ranks are the ones that read through Ray Data: without this it would lie on the node of one of
them, and a node with an actor on it never counts as idle, so that the autoscaler could not take it away.
"""

from __future__ import annotations

_kept: list[object] = []
"""Ray creates an actor whose handle is dropped at once, or not at all."""


def settle() -> None:
    """Makes the actor here, unless the cluster has one. The process has to have joined it."""
    from ray.data._internal.stats import get_or_create_stats_actor

    _kept[:] = [get_or_create_stats_actor()]
