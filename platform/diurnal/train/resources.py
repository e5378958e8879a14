"""The Ray cluster that a run uses: one that exists, or one started here for the run; refused when it can never fit."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from diurnal.config import Config
from diurnal.errors import Fault, ResourceError
from diurnal.train.limits import attainable, refuse_a_storage_of_one_machine, refuse_what_never_fits

OBJECT_STORE_BYTES = 512 * 2**20
"""Object store of a cluster that is started here: batches pass through it, nothing stays."""


def needed_cpus(config: Config, num_workers: int) -> float:
    """CPUs of so many workers and of the tasks that read for them."""
    return num_workers * (config.workers.cpus + config.data.read_cpus)


@contextmanager
def cluster(config: Config) -> Iterator[None]:
    """The cluster that is joined already, the one at `workers.address`, the one whose job this is, or one started here
    and ended afterwards.

    A cluster that is started here has a core for each CPU of the workers; the tasks that read share these cores, so
    that Ray, which counts CPUs and does not bind them, is told of more.

    Raises:
        ResourceError: when all that the cluster can become, or this machine, is too small, with the numbers.
        ConfigError: when its machines do not share the storage, as far as that can be seen from here.
    """
    import ray

    from diurnal.train.detached import settle
    from diurnal.train.warm import warm

    is_own, address = not ray.is_initialized(), _address(config)
    if is_own and address:
        _set_environment()
        ray.init(address=address, logging_level=logging.WARNING, log_to_driver=False)
    elif is_own:
        num_cores = os.cpu_count() or 1
        start_local(max(num_cores, math.ceil(needed_cpus(config, _workers_on(num_cores, config)))))
    try:
        nodes = ray.nodes()
        groups = attainable(nodes)
        if groups is not None:
            refuse_what_never_fits(config, groups)
        refuse_a_storage_of_one_machine(config, nodes)
        if address:
            settle()
        warm(config)
        # Ray tells of dead workers on stdout, which is for results.
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if is_own:
            ray.shutdown()


def _address(config: Config) -> str:
    """Of the cluster to join. Ray tells its jobs where they are; what a person's shell has in RAY_ADDRESS is the job
    server that `diurnal submit` speaks to."""
    of_job = os.environ.get("RAY_ADDRESS", "") if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else ""
    return config.workers.address or of_job


def start_local(num_cpus: int) -> None:
    """Starts a quiet Ray cluster on this machine and joins it."""
    _set_environment()
    import ray

    # Says on every start that a token protects the cluster, which nobody has to act on.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    ray.init(
        # Another cluster of this machine is not joined by accident.
        address="local",
        num_cpus=num_cpus,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        logging_level=logging.WARNING,
        log_to_driver=False,
    )


def _set_environment() -> None:
    from diurnal.train.elastic import ENVIRONMENT

    for name, value in {**ENVIRONMENT, "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}.items():
        os.environ.setdefault(name, value)


def _workers_on(num_cores: int, config: Config) -> int:
    """How many workers this machine has cores for, `workers.max` at most.

    Raises:
        ResourceError: fewer than `workers.min`.
    """
    workers = config.workers
    count = min(workers.max, int(num_cores / workers.cpus + 1e-9))
    if count < workers.least:
        found = f"{workers.least} workers x {workers.cpus:g} CPUs"
        fix = "lower workers.max, workers.min or workers.cpus, or name a cluster in workers.address"
        raise ResourceError([Fault("workers", found, f"this machine's {num_cores} cores", fix)])
    return count
