"""`make torture` in short: a few random events on plain processes and on a real local Ray cluster of several nodes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

TORTURE = Path(__file__).parents[1] / "torture" / "run.py"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("part", "events", "ray_events"), [("gloo", 4, 0), ("ray", 2, 2)])
def test_a_short_torture_loses_doubles_and_leaves_nothing(
    tmp_path: Path, part: str, events: int, ray_events: int
) -> None:
    """ray-project/ray#48224, ray-project/ray#41700: whatever ends on the way, each row is learned once."""
    counts = ["--events", str(events), "--ray-events", str(ray_events)]
    command = [sys.executable, str(TORTURE), *counts, "--out", str(tmp_path)]
    torture = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1100)
    assert torture.returncode == 0, torture.stdout[-8000:] + torture.stderr[-4000:]
    result = json.loads((tmp_path / "torture.json").read_text())
    assert (result["events"] >= events, result["ray_events"]) == (True, ray_events)
    assert result["increments"] >= 2
    assert (result["rows_lost"], result["rows_doubled"], result["leftovers"], result["failures"]) == (0, 0, 0, [])
    assert math.isfinite(result["max_weight_diff"])
    assert result["recovery_s_max"] > 0
    assert all(kind.startswith(f"{part}: ") for kind in result["by_kind"])
