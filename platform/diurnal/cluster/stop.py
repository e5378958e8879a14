"""Stopping a job, in bounded time, whether it runs or waits."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from diurnal.cluster.client import ClusterError, Job, JobServer
from diurnal.cluster.request import CLOSE_S, SWEEP_S
from diurnal.cluster.watch import Ended, how_it_ended
from diurnal.errors import Fault

PENDING_S = 5.0
"""A job that still waits for its start so long after it was told to stop will not hear that: its starter is ended."""
STOP_S = 5 + 30 + CLOSE_S + SWEEP_S
"""For a job that does not say how long its end may take: that of one with the default settings."""
MARGIN_S = 15.0


def stop(server: JobServer, id: str, timeout_s: float | None, say: Callable[[str], None]) -> Ended:
    """Ends a job: by SIGTERM, so that it commits what it has learned and lets the model go, and by SIGKILL if that
    takes longer than the job's `workers.grace_s` and what closing takes. Of one that has ended already, nothing.

    Args:
        timeout_s: how long to wait for the end; what the job itself may take and a margin, when None.

    Raises:
        ClusterError: there is no such job, or it has not ended in time.
    """
    job = existing(server, id)
    if job.is_over:
        say(f"{id} has ended already ({job.status}): nothing to stop")
        return how_it_ended(server, job)
    begun_s = time.monotonic()
    if timeout_s is None:
        timeout_s = float(job.metadata.get("stop_s", STOP_S)) + MARGIN_S
    server.stop(id)
    is_reaped = False
    while not (job := existing(server, id)).is_over:
        waited_s = time.monotonic() - begun_s
        if waited_s > timeout_s:
            found = f"{job.status} {waited_s:.0f} s after it was told to stop"
            raise ClusterError([Fault(id, found, "ended", "the same command again, with a longer --timeout")])
        if job.status == "PENDING" and waited_s > PENDING_S and not is_reaped:
            is_reaped = True
            say(f"{id} has not started yet: its starter is ended")
            words = ["python", "-P", "-m", "diurnal.cluster.reap", id]
            server.submit(f"{id}-reap-{time.time_ns()}", shlex.join(words), None, {}, {"reaps": id})
        time.sleep(0.3)
    say(f"{id} ended {time.monotonic() - begun_s:.1f} s after it was told to")
    return how_it_ended(server, job)


def existing(server: JobServer, id: str) -> Job:
    """The job of that id.

    Raises:
        ClusterError: there is none; names those that there are.
    """
    job = server.find(id)
    if job is None:
        known = sorted(one.id for one in server.jobs())
        rule = f"a job of this cluster: {', '.join(known[-10:]) or 'it has none'}"
        raise ClusterError([Fault("ID", id, rule, "correct it")])
    return job
