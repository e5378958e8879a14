"""Processes for the first worker group, started and importing while the driver still prepares.

What is internal to Ray here is covered by the contract test of `elastic.py` too.
"""

from __future__ import annotations

import json
import logging

import ray
from ray._common.constants import RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_ENV_VAR
from ray.train.v2._internal.constants import (
    DEFAULT_RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_VALUE,
    get_env_vars_to_propagate,
)

from diurnal.config import Config
from diurnal.train.places import Places
from diurnal.train.spares import environment, prestart

_log = logging.getLogger(__name__)


def warm(config: Config) -> None:
    """Has the first group's processes started and importing, while the driver still reads footers and claims.

    To be called once the cluster is joined. Does not wait, and never raises. Of a job that was given an environment
    of its own, only later groups find such processes.
    """
    if not config.workers.spares:
        return
    try:
        if json.loads(ray.get_runtime_context().get_runtime_env_string() or "{}"):
            return
        places, missing = Places.now(config), config.workers.max
        for node_id in sorted(places.ids(), key=lambda id: -places.num_at(id, missing)):
            number = places.num_at(node_id, missing)
            if number:
                prestart(places.nodes[node_id], number, expected_environment())
                missing -= number
    except Exception as error:
        _log.warning("no processes ahead: %s", error)


def expected_environment() -> str:
    """What `serialized_environment` answers in a training worker of a job without an environment of its own."""
    variables = get_env_vars_to_propagate() | environment()
    variables.setdefault(RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_ENV_VAR, DEFAULT_RAY_WARN_BLOCKING_GET_INSIDE_ASYNC_VALUE)
    return json.dumps({"env_vars": variables}, sort_keys=True, separators=(",", ":"))
