"""What the driver tells every worker: the run's configuration and the increments to fit, all as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from diurnal.train.events import Channel


@dataclass(frozen=True)
class Fit:
    """One increment to be fitted by the worker group."""

    plan: dict[str, Any]
    """A `data.streams.StreamPlan` as JSON."""
    fingerprint: str
    number: int
    """Number of the version that is committed after it."""
    attempt: int


@dataclass(frozen=True)
class Spec:
    """The whole task of a worker group."""

    mode: Literal["train", "evaluate"]
    config_json: str
    """The resolved configuration."""
    fits: tuple[Fit, ...]
    """Increments, in order."""
    parent: int | None
    """Number of the version to start from."""
    versions: dict[str, str]
    """Library versions of the driver; a worker with others refuses to start."""
    channel: Channel
    started_s: float
    """`time.time()` when the driver began."""
