"""`diurnal daily` killed and started again: registry, runs and numbers in MLflow are those of an unbroken run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from diurnal.config import Config
from diurnal.daily.run import daily
from diurnal.testing_runs import runs_of
from diurnal.tracking import names
from diurnal.tracking.location import tracking_uri
from diurnal.train.progress import Progress

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS = (
    "workers.max=1",
    "gate.min_rows=100",
    "gate.slice_share=0.2",
    "gate.max_ne_rise=0.05",
    "profile.min_rows=100",
)
LIVE = ("throughput/", "checkpoint/", "cluster/", "data/freshness_s", "lr/", "train/")
"""Metrics that only who trains can tell, of the clock and of points within the increment."""


def shown(config: Config) -> dict[str, Any]:
    """What MLflow shows of a model, without what is gone with a process."""
    from mlflow.tracking import MlflowClient

    uri = tracking_uri(config)
    client = MlflowClient(uri, registry_uri=uri)
    model = client.get_registered_model(config.name)
    versions = {v.version: v.tags for v in client.search_model_versions(f"name='{config.name}'")}
    kept = (
        names.TAG_VERSION,
        names.TAG_PARENT_VERSION,
        names.TAG_INCREMENT,
        names.TAG_VERDICT,
        names.TAG_VERDICT_REASON,
    )
    tags = (names.TAG_VERDICT, names.TAG_VERDICT_REASON, names.TAG_VERSION)
    return {
        "aliases": {alias: versions[number][names.TAG_VERSION] for alias, number in model.aliases.items()},
        "versions": sorted([t.get(name) for name in kept] for t in versions.values()),
        "status": {name: run.info.status for name, run in runs_of(config).items()},
        "tags": {name: [run.data.tags.get(tag) for tag in tags] for name, run in runs_of(config).items()},
        "metrics": {
            name: {key: value for key, value in run.data.metrics.items() if not key.startswith(LIVE)}
            for name, run in runs_of(config).items()
        },
    }


def test_mlflow_shows_the_same_however_often_the_driver_was_killed(ray_cluster: None, new_world: Callable) -> None:
    import ray

    world = new_world()
    days = [world.write_day(index, 1500) for index in range(3)]
    unbroken = world.config(*SETTINGS, f"storage={str(world.root / 'unbroken')!r}")
    daily(unbroken, progress=Progress(table=False))
    config = world.config(*SETTINGS)
    own = {"data.path": config.data.path, "data.schema_file": config.data.schema_file, "storage": config.storage}
    own["workers.address"] = ray.get_runtime_context().gcs_address
    sets = [*(f"{key}={value!r}" for key, value in own.items()), *SETTINGS]
    command = [sys.executable, "-m", "diurnal.cli.main", "daily", "--config", str(world.root / "run.toml")]
    command += [part for text in sets for part in ("--set", text)]
    for point in ("daily/judged@0", "daily/mirrored@0", ""):
        env = {**os.environ, "DIURNAL_KILL_AT": point}
        life = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=env)
        assert life.returncode == (-9 if point else 0), life.stderr
    found, expected = shown(config), shown(unbroken)
    assert set(expected["status"]) == {*days, "lineage"}
    assert found == expected
