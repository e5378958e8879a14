"""What passes between the driver and its workers, all as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from diurnal.train.events import Link


@dataclass(frozen=True)
class Spec:
    """The task of every worker group of a run, the same however often the group starts anew."""

    mode: Literal["train", "evaluate"]
    config_json: str
    """The resolved configuration."""
    versions: dict[str, str]
    """Library versions of the driver; a worker with others refuses to start."""
    link: Link
    scratch: str
    """A folder in the storage that the driver has made for this run."""
    started_s: float
    """`time.time()` when the driver began."""


@dataclass(frozen=True)
class Fit:
    """One increment to be fitted."""

    plan: dict[str, Any]
    """A `data.streams.StreamPlan` as JSON."""
    fingerprint: str
    number: int
    """Number of the version that is committed after it."""
    attempt: int


@dataclass(frozen=True)
class Start:
    """What the driver answers a worker group that starts."""

    token: int
    """Fencing token of the driver's lease."""
    path: str
    """Folder below `versions/` of the commit to go on from; empty for a new model."""
    is_resumed: bool
    """The commit is a resume point inside the first of the increments."""
    fits: tuple[Fit, ...]
    """Increments that are known by now, in order."""
    generation: int
    """Counts the worker groups of a run."""
