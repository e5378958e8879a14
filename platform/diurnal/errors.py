"""A person's faults: never retried, one clear message, their own exit code.

Anything else that escapes is our bug or the machine's trouble and ends with exit code 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

EXIT_DONE = 0
EXIT_ERROR = 1
EXIT_FAULT = 2
EXIT_HELD = 3
EXIT_LEASED = 4

MAX_SHOWN = 20
"""Faults that a message spells out; all of them are in the error."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and what to do about it."""

    where: str
    """File and field, or file and column: `job.toml: data.batch_rows`."""
    found: str
    """The value that was found."""
    rule: str
    """What the value has to satisfy."""
    fix: str
    """What to type instead."""

    def __str__(self) -> str:
        return f"{self.where}\n  found: {self.found}\n  rule:  {self.rule}\n  fix:   {self.fix}"


class DiurnalError(Exception):
    """Base of everything that a person can mend. `exit_code` is what the command line answers."""

    exit_code = EXIT_FAULT
    title = "error"

    def __init__(self, message: str | Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = () if isinstance(message, str) else tuple(message)
        if isinstance(message, str):
            text = message
        else:
            count = len(self.faults)
            shown = [f"{self.title}: {count} fault{'' if count == 1 else 's'}", *map(str, self.faults[:MAX_SHOWN])]
            text = "\n".join(shown + [f"... and {count - MAX_SHOWN} more"] * (count > MAX_SHOWN))
        super().__init__(text)

    def __reduce__(self):
        # Crosses process borders (Ray workers raise it too): rebuilt from what it was made of.
        return type(self), (self.faults or str(self),)


class ConfigError(DiurnalError):
    """The configuration or the schema says something that cannot be run."""

    title = "configuration"


class DataError(DiurnalError):
    """A dataset, an increment or a file breaks the declared contract."""

    title = "data"


class CheckpointError(DiurnalError):
    """A version cannot be written, found, trusted or loaded under this configuration."""

    title = "checkpoint"


class StackError(DiurnalError):
    """The installed libraries do not belong together."""

    title = "installation"


class ResourceError(DiurnalError):
    """The cluster can never give what the run asks for."""

    title = "resources"


class LeaseHeld(DiurnalError):
    """Another process trains this model."""

    title = "lease"
    exit_code = EXIT_LEASED


class LeaseLost(DiurnalError):
    """This process trained a model that another one has taken over meanwhile: nothing of it counts from then on."""

    title = "lease"
    exit_code = EXIT_LEASED


class TrainingError(DiurnalError):
    """Training cannot go on: too many steps were not finite, or weights are out of bounds."""

    title = "training"
    exit_code = EXIT_ERROR
