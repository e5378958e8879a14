"""What can never fit is refused with numbers, by what a cluster can become and not by what it is now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diurnal.errors import ConfigError, ResourceError
from diurnal.testing import tiny_config
from diurnal.train.limits import (
    NODE_LIMITS,
    attainable,
    file_system_of,
    refuse_a_storage_of_one_machine,
    refuse_what_never_fits,
)

HEAD: dict[str, Any] = {"NodeManagerHostname": "head", "Alive": True, "Resources": {"CPU": 2.0}}
TRAIN = {"name": "train", "max": 4, "resources": {"CPU": 8, "GPU": 1}}
DATA = {"name": "data", "max": 2, "resources": {"CPU": 16}}


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (NODE_LIMITS, "RAY_enable_autoscaler_v2", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def config(**workers: Any) -> Any:
    return tiny_config({"workers": workers, "data": {"batch_rows": 24}})


def test_a_group_that_starts_from_zero_counts_with_its_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    """ray-project/kuberay#321."""
    monkeypatch.setenv(NODE_LIMITS, json.dumps([TRAIN, DATA]))
    groups = attainable([HEAD])
    assert groups is not None
    refuse_what_never_fits(config(max=4, gpus=1), groups)
    refuse_what_never_fits(config(max=8, min=2, gpus=1), groups)
    with pytest.raises(ResourceError, match="8 workers x 1 CPUs and 1 GPUs") as refused:
        refuse_what_never_fits(config(max=8, gpus=1), groups)
    assert "max 4: train: max 4 nodes with 8 CPUs, 1 GPUs each; data: max 2" in str(refused.value)


def test_a_worker_that_is_larger_than_every_node_never_fits() -> None:
    groups = attainable([HEAD, HEAD, {**HEAD, "Alive": False}])
    assert groups is not None
    assert len(groups) == 2
    refuse_what_never_fits(config(max=2), groups)
    with pytest.raises(ResourceError, match="max 0"):
        refuse_what_never_fits(config(max=1, cpus=3.0), groups)
    with pytest.raises(ResourceError, match="6 CPUs: 3 workers"):
        refuse_what_never_fits(config(max=3), groups)


def test_an_autoscaler_that_does_not_tell_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_enable_autoscaler_v2", "1")
    assert attainable([HEAD]) is None
    monkeypatch.setenv(NODE_LIMITS, "[{}]")
    with pytest.raises(ConfigError, match=NODE_LIMITS):
        attainable([HEAD])


def test_a_storage_that_no_other_machine_sees_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """ray-project/ray#46913."""
    mounts = "overlay / overlay rw 0 0\nserver:/x /data nfs4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n"
    kinds = [file_system_of(Path(path), mounts) for path in ("/storage", "/data/models", "/dev/shm/x", "/database")]
    assert kinds == ["overlay", "nfs4", "tmpfs", "overlay"]
    monkeypatch.setattr("diurnal.train.limits.file_system_of", lambda path: "overlay")
    refuse_a_storage_of_one_machine(config(), [HEAD, HEAD])
    two = [HEAD, {**HEAD, "NodeManagerHostname": "other"}]
    with pytest.raises(ConfigError, match="all nodes share"):
        refuse_a_storage_of_one_machine(config(), two)
    refuse_a_storage_of_one_machine(config().model_copy(update={"storage": "s3://log/models"}), two)
