"""For all tests: quiet libraries, no reports home, Hypothesis without a stop watch."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.update(
    DO_NOT_TRACK="true",
    MLFLOW_DISABLE_TELEMETRY="true",
    RAY_USAGE_STATS_ENABLED="0",
)
settings.register_profile("diurnal", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("diurnal")
