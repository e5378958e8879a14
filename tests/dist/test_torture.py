"""`make torture` in short: random events on plain processes."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_short_torture_loses_doubles_and_leaves_nothing(short_torture: Any) -> None:
    """Whatever ends on the way, each row is learned once."""
    short_torture("gloo", events=4, ray_events=0)
