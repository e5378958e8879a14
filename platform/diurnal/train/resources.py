"""The Ray cluster that a run uses: one that exists, or one started here for the run; refused when it can never fit."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

from diurnal.config import Config
from diurnal.errors import Fault, ResourceError

OBJECT_STORE_BYTES = 512 * 2**20
"""Object store of a cluster that is started here: batches pass through it, nothing stays."""

_ENVIRONMENT = {
    # Ray Train's controller looks at its workers this often; a report waits for the next look.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}


def needed_cpus(config: Config) -> float:
    """CPUs of all workers and of the tasks that read for them."""
    return config.workers.max * (config.workers.cpus + config.data.read_cpus)


@contextmanager
def cluster(config: Config) -> Iterator[None]:
    """Joins the cluster at `workers.address`, or starts one on this machine and ends it afterwards.

    A cluster that is started here is told of as many CPUs as the run asks for, though the machine may have fewer:
    Ray counts CPUs, it does not bind them.

    Raises:
        ResourceError: when the cluster's total is too small, with the numbers.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        _refuse_what_never_fits(config, ray.cluster_resources())
        yield
        return
    quiet = {"logging_level": logging.WARNING, "log_to_driver": False}
    if config.workers.address:
        ray.init(address=config.workers.address, **quiet)
    else:
        num_cpus = max(os.cpu_count() or 1, math.ceil(needed_cpus(config)))
        ray.init(
            num_cpus=num_cpus, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False, **quiet
        )
    try:
        _refuse_what_never_fits(config, ray.cluster_resources())
        yield
    finally:
        ray.shutdown()


def _refuse_what_never_fits(config: Config, total: dict[str, float]) -> None:
    workers, data = config.workers, config.data
    faults = []
    cpus = total.get("CPU", 0.0)
    if needed_cpus(config) > cpus:
        found = (
            f"{needed_cpus(config):g} CPUs: {workers.max} workers x ({workers.cpus:g} for training "
            f"+ {data.read_cpus:g} for reading)"
        )
        fix = "lower workers.max, workers.cpus or data.read_cpus, or add nodes"
        faults.append(Fault("workers", found, f"the cluster's total, {cpus:g} CPUs", fix))
    gpus = total.get("GPU", 0.0)
    if workers.max * workers.gpus > gpus:
        found = f"{workers.max * workers.gpus} GPUs"
        faults.append(Fault("workers.gpus", found, f"the cluster's total, {gpus:g} GPUs", "set workers.gpus = 0"))
    if faults:
        raise ResourceError(faults)
