"""For all tests: quiet libraries, no reports home, Hypothesis without a stop watch; and what two folders share."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
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


@pytest.fixture
def short_torture(tmp_path: Path) -> Callable[..., None]:
    """Runs some events of `make torture`, all of one part, and looks at what came of them."""

    def torture(part: str, events: int, ray_events: int) -> None:
        script = Path(__file__).parent / "torture" / "run.py"
        counts = ["--events", str(events), "--ray-events", str(ray_events)]
        command = [sys.executable, str(script), *counts, "--out", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1100)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
        result = json.loads((tmp_path / "torture.json").read_text())
        assert (result["events"] >= events, result["ray_events"]) == (True, ray_events)
        assert result["increments"] >= 2
        assert (result["rows_lost"], result["rows_doubled"], result["leftovers"], result["failures"]) == (0, 0, 0, [])
        assert math.isfinite(result["max_weight_diff"])
        assert result["recovery_s_max"] > 0
        assert all(kind.startswith(f"{part}: ") for kind in result["by_kind"])

    return torture


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An S3-compatible server with an empty bucket `log`, named by the environment; its log has a line a request."""
    from pyarrow import fs

    from diurnal.testing_nodes import free_port

    port, log = free_port(), tmp_path_factory.mktemp("s3") / "log"
    environment = {
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "of-the-tests",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch, log.open("w") as out:
        for name, value in environment.items():
            patch.setenv(name, value)
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=out)
        deadline = time.monotonic() + 60
        try:
            while True:
                try:
                    remote, _ = fs.FileSystem.from_uri("s3://log?allow_bucket_creation=true")
                    remote.create_dir("log")
                    break
                except OSError:
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
            yield log
        finally:
            process.kill()
            process.wait()


RAY = ("tests/cluster/", "tests/e2e/")
RAY_AT_THE_END = ("tests/cluster/test_daily", "tests/cluster/test_train", "tests/e2e/")
"""These do not mind being slow, so that the process that has done all else takes them over."""


def _turn(nodeid: str) -> int:
    return 2 if nodeid.startswith(RAY_AT_THE_END) else 0 if nodeid.startswith(RAY) else 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _turn(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files run side by side, but those that start Ray one after the other, since two clusters are much for two cores.
    They come first, for they take longest; the last of them may meet others."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False

    class FewClusters(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return {0: "ray", 1: nodeid.partition("::")[0], 2: "ray at the end"}[_turn(nodeid)]

    return FewClusters(config, log)
