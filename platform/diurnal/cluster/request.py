"""What is asked of a cluster, and the name that two people who ask for the same thing arrive at."""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import re
import socket
from dataclasses import dataclass

from diurnal import __version__
from diurnal.config import Config, resolved_json

SWEEP_S = 20
"""Of the time that Ray gives a job to stop: for closing what a driver that had to be killed left open."""
CLOSE_S = 10
"""Likewise: for ending the worker group and releasing the lease."""


@dataclass(frozen=True)
class Request:
    """One command over one configuration."""

    config: Config
    command: str
    words: tuple[str, ...]
    """Its options, without those that name the configuration."""
    what: str
    """The increment or range that it is about, as part of a name: `2026-01-01`, `2026-01-01_2026-01-03`, `ready`."""
    is_bounded: bool
    """Once it has succeeded there is nothing left to do. Not so for `daily` without an end: more days come."""

    @property
    def key(self) -> str:
        """The job's name without the number of its attempt. Letters, digits, `-`, `_` and `.`, 170 at most.

        Two requests have the same one if and only if they ask for the same work of the same model. The configuration
        is no part of it, so that a job that runs with another one is found, and named as such.
        """
        return f"{self.config.name}-{self.command}-{self.what}"

    def id(self, attempt: int) -> str:
        """Ray's id of an attempt, from 1."""
        return f"{self.key}-{attempt}"

    def attempt_of(self, id: str) -> int | None:
        """The number in an id of this request; None for any other id."""
        number = id.removeprefix(f"{self.key}-")
        return int(number) if number != id and re.fullmatch("[1-9][0-9]*", number) else None

    @property
    def config_hash(self) -> str:
        """Of the resolved configuration without the passwords of URLs."""
        return hashlib.sha256(resolved_json(self.config.public()).encode()).hexdigest()[:12]

    @property
    def stop_s(self) -> int:
        """How long Ray waits between SIGTERM and SIGKILL when the job is stopped: a last commit, then what tracking
        still has, then the ends of workers and lease, then a sweep if the driver had to be killed."""
        return math.ceil(self.config.workers.grace_s + self.config.tracking.timeout_s) + CLOSE_S + SWEEP_S

    def metadata(self, attempt: int) -> dict[str, str]:
        """What Ray keeps with the job, and shows to whoever lists jobs."""
        return {
            "model": self.config.name,
            "command": " ".join((self.command, *self.words)),
            "increment": self.what,
            "attempt": str(attempt),
            "config_hash": self.config_hash,
            "diurnal": __version__,
            "submitter": _submitter(),
            "stop_s": str(self.stop_s),
        }


def named(*parts: str | int | None, rest: object = None) -> str:
    """`what` of a request: the parts that are given, and a digest of `rest`, the options that change what is done."""
    shown = "_".join(str(part) for part in dict.fromkeys(parts) if part is not None)
    if not rest:
        return shown
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:8]
    return f"{shown}_{digest}"


def _submitter() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # no name for the user's number, as in many containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
