"""For all tests: quiet libraries, no reports home, Hypothesis without a stop watch."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

os.environ.update(
    DO_NOT_TRACK="true",
    MLFLOW_DISABLE_TELEMETRY="true",
    RAY_USAGE_STATS_ENABLED="0",
)
settings.register_profile("diurnal", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("diurnal")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files run side by side, but those that start Ray one after the other: two clusters are too much for two cores."""
    from xdist.scheduler import LoadScopeScheduling

    class OneCluster(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "ray" if file.startswith(("tests/cluster/", "tests/e2e/")) else file

    return OneCluster(config, log)
