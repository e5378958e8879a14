"""What passes between the driver and its workers, all as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from diurnal.metrics.segments import Segment
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
    """A folder or URL in the storage that is this run's own; a folder is there."""
    started_s: float
    """`time.time()` when the driver began."""


@dataclass(frozen=True)
class Trial:
    """What is measured while an increment is fitted, so that a version can be judged."""

    baseline: int | None
    """The version to compare with: the champion, or the parent while there is none."""
    baseline_path: str
    """Its folder below `versions/`."""
    baseline_past: str
    """Folder of its `data.past`."""
    slice: dict[str, Any] | None
    """A `data.streams.StreamPlan` of the rows that are held out, as JSON: the version that the increment ends in is
    judged on them. None: its parent is judged on the whole increment, before that is learned."""
    segments: tuple[Segment, ...] = ()
    named: tuple[Segment, ...] = ()
    """Tell which ids the slices of `metrics.slices` are about."""


@dataclass(frozen=True)
class Fit:
    """One increment to be fitted."""

    plan: dict[str, Any]
    """A `data.streams.StreamPlan` as JSON."""
    fingerprint: str
    number: int
    """Number of the version that is committed after it."""
    attempt: int
    parent: int | None = None
    """Number of the version that learning goes on from."""
    parent_path: str = ""
    """Its folder below `versions/`; empty when it is not committed yet, so that the workers have it."""
    trial: Trial | None = None
    """None: nothing is judged."""
    past_after: str = ""
    """Folder of the `data.past` of the version that is committed; the plan has the one that it is learned with."""


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
