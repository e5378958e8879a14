"""Named moments of a run at which a test may kill a process; outside tests they cost one look into the environment."""

from __future__ import annotations

import os
import signal

KILL_AT = "DIURNAL_KILL_AT"
"""Environment variable `<point>@<rank>`: the process of that rank dies by SIGKILL when it reaches the point."""


def reached(point: str, rank: int) -> None:
    """Marks a moment, for example `checkpoint/before-commit`, that a test wants to cut a process at."""
    if os.environ.get(KILL_AT) == f"{point}@{rank}":
        os.kill(os.getpid(), signal.SIGKILL)
