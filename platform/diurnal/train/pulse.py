"""Where a rank stands in its step: marked by the thread that trains, read once a second by the thread that watches."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import IntEnum
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn


class Phase(IntEnum):
    """The parts of a step, in their order. Who is in an earlier one keeps those waiting who are in a later one."""

    START = 0
    """Building, loading, starting to read: has a longer limit, and so has the step that follows."""
    DATA = 1
    """Waiting for the batch."""
    EXCHANGE = 2
    """Ids on their way to the ranks that hold their rows."""
    FORWARD = 3
    """Lookups, pooled vectors on their way back, interaction, over arch."""
    VOTE = 4
    """The small all-reduce by which all ranks decide alike. A GPU is waited for here."""
    BACKWARD = 5
    DENSE = 6
    """Averaging the gradients of what is replicated, and its step."""
    COMMIT = 7
    BETWEEN = 8
    """Waiting for the driver's word; not watched. All ranks mark it alike: one that waits alone says `paused`."""

    @property
    def word(self) -> str:
        return self.name.lower()


class Moment(NamedTuple):
    """What a mark leaves behind; replaced as a whole, so that a reader needs no lock."""

    phase: Phase
    step: int
    num_steps: int
    """Steps begun since the group started. Unlike `step`, which starts again with each pass, it only grows."""
    phase_began_s: float
    """`time.monotonic()`, as the next one."""
    step_began_s: float
    is_first: bool
    """The step that follows `Phase.START`."""
    is_paused: bool

    @property
    def is_watched(self) -> bool:
        return not self.is_paused and self.phase is not Phase.BETWEEN


class Pulse:
    """Where this rank is. Made by the thread that trains.

    All ranks of a group mark the same sequence of steps and phases, since their progress is compared.
    """

    def __init__(self) -> None:
        now_s = time.monotonic()
        self.thread_id = threading.get_ident()
        self.rows = 0
        """Rows done so far; set by whoever counts them."""
        self.seconds = [0.0] * len(Phase)
        """Spent in each phase, up to the last mark; pauses are in none."""
        self.moment = Moment(Phase.START, 0, 0, now_s, now_s, True, False)

    def mark(self, phase: Phase, step: int) -> None:
        """Says that this rank is in `phase` of `step` from now on. Costs well under 2 microseconds."""
        now_s = time.monotonic()
        last_phase, last_step, num_steps, phase_began_s, step_began_s, is_first, is_paused = self.moment
        if not is_paused:
            self.seconds[last_phase] += now_s - phase_began_s
        if step != last_step or phase < last_phase or last_phase is Phase.START:
            num_steps += 1
            step_began_s = now_s
            is_first = last_phase is Phase.START or phase is Phase.START
        # A named tuple's own constructor is a Python function and would take half of the time.
        self.moment = tuple.__new__(Moment, (phase, step, num_steps, now_s, step_began_s, is_first, False))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Is not watched inside; who waits for this rank meanwhile is not said to stall. The step's clock starts again
        afterwards. A mark ends it too."""
        moment = self.moment
        if not moment.is_paused:
            self.seconds[moment.phase] += time.monotonic() - moment.phase_began_s
        self.moment = moment._replace(is_paused=True)
        try:
            yield
        finally:
            now_s = time.monotonic()
            self.moment = self.moment._replace(is_paused=False, phase_began_s=now_s, step_began_s=now_s)


@dataclass(frozen=True)
class Beat:
    """A rank's sign of life, as all ranks see it."""

    rank: int
    pid: int
    host: str
    birth: str
    """Tells this process from a later one with its pid; empty where that cannot be told."""
    group: str
    """The worker group: what a rank of an earlier one says does not count."""
    step: int
    num_steps: int
    phase: str
    since_s: float
    """Seconds in this phase."""
    step_s: float
    """Seconds in this step."""
    limit_s: float | None
    """How long the step may take; None while it is not watched."""
    rows: int
    at: str
    """The innermost line of the training thread, `function (file.py:12)`."""
    is_waiting: bool
    """That line is inside a collective."""
    has_ended: bool = False
    """The worker's function is over: its process may live on, but takes no step any more."""
    age_s: float = 0.0
    """Seconds since it arrived at the mailbox, which adds this."""

    @property
    def place(self) -> Phase:
        return Phase[self.phase.upper()]

    @property
    def progress(self) -> tuple[int, int]:
        """What is smaller keeps what is larger waiting."""
        return self.num_steps, self.place

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_wire(values: Mapping[str, Any]) -> Beat:
        return Beat(**{name: value for name, value in values.items() if name in Beat.__dataclass_fields__})


def beat_of(pulse: Pulse, rank: int, group: str, limit_s: float, start_limit_s: float) -> Beat:
    """This rank's beat of now.

    Args:
        limit_s: of a step.
        start_limit_s: of `Phase.START`, and of the step that follows it.
    """
    moment, now_s, pid = pulse.moment, time.monotonic(), os.getpid()
    may_last_s = (start_limit_s if moment.is_first else limit_s) if moment.is_watched else None
    at, is_waiting = _whereabouts(pulse.thread_id)
    return Beat(
        rank=rank,
        pid=pid,
        host=socket.gethostname(),
        birth=birth(pid),
        group=group,
        step=moment.step,
        num_steps=moment.num_steps,
        phase=moment.phase.word,
        since_s=now_s - moment.phase_began_s,
        step_s=now_s - moment.step_began_s,
        limit_s=may_last_s,
        rows=pulse.rows,
        at=at,
        is_waiting=is_waiting,
    )


COLLECTIVES = ("/torch/distributed/", "/torchrec/distributed/")
"""Where the innermost Python frame of a thread lies that waits for other ranks."""


def _whereabouts(thread_id: int) -> tuple[str, bool]:
    frame: FrameType | None = sys._current_frames().get(thread_id)
    if frame is None:
        return "", False
    path = frame.f_code.co_filename
    return f"{frame.f_code.co_name} ({os.path.basename(path)}:{frame.f_lineno})", any(c in path for c in COLLECTIVES)


def birth(pid: int) -> str:
    """What no two processes of one pid share: the machine's boot, the pid namespace, and the start in clock ticks.
    Empty if there is no such process here, or no /proc."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot, open(f"/proc/{pid}/stat") as stat:
            # The second field is the program's name in parentheses, which may hold spaces and parentheses itself.
            started = stat.read().rpartition(")")[2].split()[19]
            return f"{boot.read().strip()}/{os.readlink('/proc/self/ns/pid')}/{started}"
    except (OSError, IndexError):
        return ""


def mark_forward(module: nn.Module, pulse: Pulse) -> None:
    """Lets a sharded model mark `Phase.FORWARD` itself: its caller marks `EXCHANGE` and then calls it, TorchRec sends
    the ids of all tables, and only then looks up the first."""
    sharded = (getattr(part, "_lookups", None) for part in module.modules())
    lookups = next((found for found in sharded if found), None)
    assert lookups is not None, "a model whose tables TorchRec has sharded"

    def on_lookup(*_: Any) -> None:
        pulse.mark(Phase.FORWARD, pulse.moment.step)

    lookups[0].register_forward_pre_hook(on_lookup)
