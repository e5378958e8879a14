"""Named moments of a run at which a test may kill a process; outside tests they cost one look into the environment."""

from __future__ import annotations

import os
import signal

KILL_AT = "DIURNAL_KILL_AT"
"""Environment variable `<point>@<rank>`: the process of that rank dies by SIGKILL when it reaches the point."""

KILL_ONCE = "DIURNAL_KILL_ONCE"
"""Environment variable: a file that does not exist yet; who dies makes it first, and nobody dies once it is there."""


def reached(point: str, rank: int) -> None:
    """Marks a moment, for example `checkpoint/before-commit`, that a test wants to cut a process at."""
    if os.environ.get(KILL_AT) != f"{point}@{rank}":
        return
    if once := os.environ.get(KILL_ONCE):
        try:
            open(once, "x").close()
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)
