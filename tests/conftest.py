"""For all tests: quiet libraries, no reports home, Hypothesis without a stop watch."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

os.environ.update(
    DO_NOT_TRACK="true",
    MLFLOW_DISABLE_TELEMETRY="true",
    RAY_USAGE_STATS_ENABLED="0",
)
settings.register_profile("diurnal", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("diurnal")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files run side by side, but those that start Ray one after the other: two clusters are too much for two cores."""
    for item in items:
        group = "ray" if item.get_closest_marker("ray") else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
