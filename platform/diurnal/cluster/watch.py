"""Watching a job: its log as it is written, and in the end what it ended with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diurnal.cluster.client import Job, JobServer
from diurnal.cluster.report import End, end_in, end_of
from diurnal.errors import EXIT_DONE, EXIT_ERROR

_RAYS_OWN = ("Running entrypoint for job ", "Runtime env is setting up.")


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    id: str
    status: str
    exit_code: int
    """0, 1, 2, 3 or 4, as the command would have answered here."""
    error: str
    """What went wrong first; empty when nothing did."""

    def text(self) -> str:
        if self.status == "STOPPED":
            return f"{self.id} was stopped"
        if self.exit_code == EXIT_DONE:
            return f"{self.id} is done"
        words = f"{self.id} ended with exit code {self.exit_code}"
        return f"{words}: {self.error}" if self.error else words


def watch(server: JobServer, id: str, out: Callable[[str], None]) -> Ended:
    """Passes a job's log on, line by line, until the job has ended. Of one that has ended, all that it wrote.

    Raises:
        JobLost: the cluster has lost it.
    """
    lines = _Lines(out)
    job = server.follow(id, lines.add)
    lines.close()
    return ended(job, lines.end)


def how_it_ended(server: JobServer, job: Job) -> Ended:
    """Of a job that has ended."""
    return ended(job, end_of(server.log(job.id)))


def ended(job: Job, end: End | None) -> Ended:
    """What a job's own last word and Ray's status say together. Ray's counts where they differ: after SIGKILL there
    is no last word, and a job that was stopped has not done its work, whatever it said."""
    if job.status == "SUCCEEDED":
        return Ended(job.id, job.status, end.exit_code if end else EXIT_DONE, end.error if end else "")
    if job.status == "STOPPED":
        return Ended(job.id, job.status, EXIT_ERROR, end.error if end else "stopped")
    if end is not None and end.exit_code != EXIT_DONE:
        return Ended(job.id, job.status, end.exit_code, end.error)
    return Ended(job.id, job.status, EXIT_ERROR, _first_line(job.message))


def _first_line(message: str) -> str:
    """Of Ray's own words: the error that a person can use, where one is marked, or the beginning."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith(("ERROR:", "Error:")) or "Error: " in line]
    return (marked or lines or ["no reason given"])[0][:500]


class _Lines:
    """Cuts what comes into lines, and keeps the one that is meant for us."""

    def __init__(self, out: Callable[[str], None]) -> None:
        self.end: End | None = None
        self._out = out
        self._rest = ""

    def add(self, text: str) -> None:
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            self._line(line)

    def close(self) -> None:
        if self._rest:
            self._line(self._rest)
            self._rest = ""

    def _line(self, line: str) -> None:
        if (end := end_in(line)) is not None:
            self.end = end
        elif not any(words in line for words in _RAYS_OWN):
            self._out(line)
