"""Submitting: one job does the work of all who ask for the same, and the next attempt follows the one that failed."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diurnal.cluster.client import Job, JobServer
from diurnal.cluster.job import SHIPPED, STOP_WAIT
from diurnal.cluster.request import Request
from diurnal.cluster.ship import pack
from diurnal.cluster.watch import how_it_ended
from diurnal.errors import EXIT_HELD


@dataclass(frozen=True)
class Submitted:
    """Which job does what was asked for."""

    id: str
    attempt: int
    how: str
    """"started", "attached" to one that runs already, or "done" before."""


def submit(
    request: Request, server: JobServer, say: Callable[[str], None], *, again: bool = False, wheel: Path | None = None
) -> Submitted:
    """Makes sure that the cluster does, or has done, what is asked for. May be called by several at once.

    Args:
        say: for a person: what was found.
        again: do it once more, although it has succeeded.
        wheel: of this package, to run instead of what the cluster has.

    Raises:
        ClusterError: the cluster does not take the job.
        ConfigError: the wheel is none.
    """
    attempt, last = _newest(request, server)
    if last is not None and not last.is_over:
        return _attach(request, last, attempt, say)
    if last is not None:
        before = how_it_ended(server, last)
        is_done = last.status == "SUCCEEDED" and before.exit_code != EXIT_HELD
        if is_done and request.is_bounded and not again:
            say(f"{last.id} is done already; --again does it once more, `diurnal watch {last.id}` shows it")
            _tell_of_another_configuration(request, last, say)
            return Submitted(last.id, attempt, "done")
        if not is_done:
            say(f"{before.text()}; this is attempt {attempt + 1}")
    attempt += 1
    id = request.id(attempt)
    with tempfile.TemporaryDirectory(prefix="diurnal-job-") as folder:
        pack(Path(folder), request.config, wheel)
        words = ["python", "-P", "-m", "diurnal.cluster.job", SHIPPED, request.command, *request.words]
        env = {STOP_WAIT: str(request.stop_s)}
        is_ours = server.submit(id, shlex.join(words), Path(folder), env, request.metadata(attempt))
    if not is_ours and (other := server.find(id)) is not None:
        return _attach(request, other, attempt, say)
    say(f"{id} is submitted to {server.address}")
    return Submitted(id, attempt, "started")


def _newest(request: Request, server: JobServer) -> tuple[int, Job | None]:
    numbered = {number: job for job in server.jobs() if (number := request.attempt_of(job.id)) is not None}
    newest = max(numbered, default=0)
    return newest, numbered.get(newest)


def _attach(request: Request, job: Job, attempt: int, say: Callable[[str], None]) -> Submitted:
    by = job.metadata.get("submitter", "somebody")
    say(f"{job.id} is {job.status.lower()} already, submitted by {by}: attached to it")
    _tell_of_another_configuration(request, job, say)
    return Submitted(job.id, attempt, "attached")


def _tell_of_another_configuration(request: Request, job: Job, say: Callable[[str], None]) -> None:
    theirs, ours = job.metadata.get("config_hash"), request.config_hash
    if theirs is not None and theirs != ours:
        say(f"{job.id} has another configuration than this one: {theirs}, and this is {ours}")
