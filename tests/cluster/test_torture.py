"""`make torture` in short: random events on a real local Ray cluster of several nodes."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_short_torture_loses_doubles_and_leaves_nothing(short_torture: Any) -> None:
    """ray-project/ray#48224, ray-project/ray#41700: whatever ends on the way, each row is learned once."""
    short_torture("ray", events=1, ray_events=1)
