"""No hang: a thread on each rank notices a step that takes too long, says which rank stalls and where, and ends its
process, since the thread that trains sits in a collective that no exception reaches.

Ranks see each other's beats through a mailbox. Each decides for itself, about its own process only; except that a rank
that gives no sign of life any more is killed by one that shares its host, so that it holds up no restart.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Self

from diurnal.train.pulse import Beat, Phase, Pulse, beat_of, birth

EXIT_STALLED = 75
"""Exit code of a process that ended itself because of a stall; EX_TEMPFAIL of sysexits.h."""

START_LIMIT_S = 300.0
"""Building, loading and the first step may take so long at least."""

LINGER_S = 2.0
"""From a rank's own verdict to its end: the others come to theirs, before its broken connections disturb them."""


@dataclass(frozen=True)
class Stall:
    """A step that takes too long, and who is to blame as far as can be told."""

    ranks: tuple[int, ...]
    """Who stalls. All ranks if they are equally far and wait in the same collective; none if the mailbox is silent."""
    phase: str
    """Where the first of them is, or was in its last beat."""
    step: int
    seconds: float
    """Since the first of them entered that phase, or gave its last sign of life."""
    text: str
    is_over: bool = True
    """Whether somebody's limit is over. Who waits for a rank that is starting or pausing is not stalled yet."""
    frozen: tuple[Beat, ...] = ()
    """The last beats of those who give no sign of life any more."""
    seen_by: int | None = None
    """The rank that came to this verdict."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def silence_s(limit_s: float, every_s: float) -> float:
    """How long a rank may give no sign of life."""
    return max(3 * every_s, min(limit_s / 2, 30.0))


def diagnose(beats: Mapping[int, Beat], limit_s: float, world_size: int, *, every_s: float = 1.0) -> Stall:
    """Who stalls, when a step takes longer than `limit_s`.

    Ranks without a fresh beat come first: frozen, gone, or never heard of. Otherwise it is who has made the least
    progress; among several of these, who does not wait in a collective; if all of these do, who has left them.

    Args:
        beats: the newest one of each rank, of one group; a rank may be missing.
        every_s: seconds between two beats of a rank.
    """
    quiet_s = silence_s(limit_s, every_s)
    lost = {rank: words for rank in range(world_size) if (words := _loss(beats.get(rank), quiet_s))}
    ended = {rank: "its work has ended" for rank, beat in beats.items() if beat.has_ended}
    if lost:
        blamed, is_over = tuple(lost), True
    else:
        least = min(beat.progress for beat in beats.values())
        behind = [beat for rank, beat in beats.items() if beat.progress == least and rank not in ended]
        busy = [beat.rank for beat in beats.values() if beat.progress == least and not beat.is_waiting]
        blamed = tuple(sorted(busy or ended or [beat.rank for beat in behind]))
        is_over = all(beat.limit_s is not None for beat in behind) and (any(map(_is_late, behind)) or not behind)
    known = [beats[rank] for rank in blamed if rank in beats]
    first = known[0] if known else None
    return Stall(
        ranks=blamed,
        phase=first.phase if first else Phase.START.word,
        step=first.step if first else 0,
        seconds=_seconds(first, first.rank in lost) if first else 0.0,
        text=_text(beats, blamed, lost | ended, world_size),
        is_over=is_over,
        frozen=tuple(beat for beat in known if beat.rank in lost),
    )


def _loss(beat: Beat | None, quiet_s: float) -> str:
    """Why a rank seems to live no more; empty if it does, or has said goodbye."""
    if beat is None:
        return "no sign of life since the start"
    if beat.age_s > quiet_s and not beat.has_ended:
        return f"frozen or gone, no sign of life for {beat.age_s:.0f} s"
    return ""


def _seconds(beat: Beat, is_lost: bool) -> float:
    return beat.age_s if is_lost else beat.since_s + beat.age_s


def _is_late(beat: Beat) -> bool:
    return beat.limit_s is not None and beat.step_s + beat.age_s > beat.limit_s


def _text(beats: Mapping[int, Beat], blamed: Sequence[int], gone: Mapping[int, str], world_size: int) -> str:
    if len(blamed) == world_size > 1 and not gone and all(beat.is_waiting for beat in beats.values()):
        beat = beats[blamed[0]]
        return (
            f"all {world_size} ranks wait for each other in {beat.phase}: step {beat.step}, "
            f"for {_seconds(beat, False):.0f} s, in {beat.at}"
        )
    stalling: dict[str, list[int]] = {}
    for rank in blamed:
        stalling.setdefault(_where(beats.get(rank), gone.get(rank, "")), []).append(rank)
    waiting: dict[str, list[int]] = {}
    for rank in sorted(set(range(world_size)) - set(blamed) - set(gone)):
        waiting.setdefault(beats[rank].phase, []).append(rank)
    parts = [f"{_verb(ranks, 'stall')}: {where}" for where, ranks in stalling.items()]
    return "; ".join(parts + [f"{_verb(ranks, 'wait')} in {phase}" for phase, ranks in waiting.items()])


def _where(beat: Beat | None, why_gone: str) -> str:
    if beat is None:
        return why_gone
    if why_gone:
        return f"{why_gone}; last seen in step {beat.step}, phase {beat.phase}"
    text = f"step {beat.step}, phase {beat.phase}, for {_seconds(beat, False):.0f} s"
    return f"{text}, in {beat.at}" if beat.at else text


def _verb(ranks: Sequence[int], verb: str) -> str:
    numbers = ", ".join(map(str, ranks))
    return f"rank {numbers} {verb}s" if len(ranks) == 1 else f"ranks {numbers} {verb}"


Tell = Callable[[str, dict[str, Any]], None]
"""Takes the kind of a message, `stall`, and its data to the driver."""


def die(stall: Stall, tell: Tell | None = None, linger_s: float = LINGER_S) -> None:
    """Tells the verdict and this process' stacks, kills frozen ranks of this host, and ends this process.

    Args:
        tell: called with `"stall"` and `{**stall.to_dict(), "pid", "host", "stacks"}`; may be slow or fail.
        linger_s: how long all of this may take.
    """
    words = {**stall.to_dict(), "pid": os.getpid(), "host": socket.gethostname(), "stacks": stacks()}
    says = [lambda: print(f"{stall.text}\n\n{words['stacks']}", file=sys.stderr, flush=True)]
    if tell is not None:
        says.append(lambda: tell("stall", words))
    for say in says:
        threading.Thread(target=say, name="diurnal-last-words", daemon=True).start()
    time.sleep(linger_s)
    kill_frozen(stall.frozen)
    os._exit(EXIT_STALLED)


def kill_frozen(beats: Iterable[Beat]) -> None:
    """Kills the processes of these ranks that live on this host, unless a pid belongs to another process by now."""
    for beat in beats:
        if beat.birth and beat.pid != os.getpid() and birth(beat.pid) == beat.birth:
            with suppress(OSError):
                os.kill(beat.pid, signal.SIGKILL)


def stacks() -> str:
    """What all Python threads of this process are doing, the main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: (item[0] != main, item[0]))
    return "\n".join(
        f"thread {names.get(ident, 'of unknown name')} ({ident}):\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames
    )


class Watchdog:
    """Watches the thread that trains from its making until `close`.

    Args:
        limit_s: seconds that a step may take.
        exchange: leaves this rank's beat in the mailbox, and answers `{"beats": {rank: beat with age_s}, "orders":
            {...}}`. It may fail or be slow; then this rank decides alone.
        on_stall: called once, in the watching thread.
        every_s: seconds between two beats.
        start_limit_s: seconds that `Phase.START` and the step after it may take.
        group: the worker group's name; ranks of other groups are not listened to.
    """

    def __init__(
        self,
        pulse: Pulse,
        rank: int,
        world_size: int,
        limit_s: float,
        exchange: Callable[[dict[str, Any]], dict[str, Any]],
        on_stall: Callable[[Stall], None] = die,
        every_s: float = 1.0,
        *,
        start_limit_s: float = START_LIMIT_S,
        group: str = "",
    ) -> None:
        self._pulse = pulse
        self._rank = rank
        self._world_size = world_size
        self._limit_s = limit_s
        self._start_limit_s = max(limit_s, start_limit_s)
        self._exchange = exchange
        self._on_stall = on_stall
        self._every_s = every_s
        self._group = group
        self.orders: dict[str, Any] = {}
        """The newest orders for this rank. Replaced, never changed."""
        self._heard: dict[int, Beat] = {}
        self._heard_s = time.monotonic()
        self._closing = threading.Event()
        self._due = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, name="diurnal-watchdog", daemon=True),
            threading.Thread(target=self._talk, name="diurnal-beats", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stops watching, and lets the other ranks know; waits a moment for that at most."""
        self._closing.set()
        self._due.set()
        for thread in self._threads:
            thread.join(self._every_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()

    def _watch(self) -> None:
        """The check comes before the beat: who wakes up too late says no more that it lives."""
        ticked_s = time.monotonic()
        while not self._closing.is_set():
            frozen_s = time.monotonic() - ticked_s
            ticked_s = time.monotonic()
            stall = self._check(frozen_s)
            if stall is not None:
                self._on_stall(replace(stall, seen_by=self._rank))
                return
            self._due.set()
            self._closing.wait(self._every_s)

    def _check(self, frozen_s: float) -> Stall | None:
        mine = self._beat()
        if not _is_late(mine):
            return None
        quiet_s = silence_s(self._limit_s, self._every_s)
        deaf_s = time.monotonic() - self._heard_s
        if frozen_s > quiet_s:
            why = f"it was frozen, or its watchdog was kept from running, for {frozen_s:.0f} s"
            return _alone(mine, (self._rank,), why)
        if deaf_s > quiet_s and self._world_size > 1:
            return _alone(mine, (), f"the other ranks are unknown: no answer from the mailbox for {deaf_s:.0f} s")
        heard = {rank: replace(beat, age_s=beat.age_s + deaf_s) for rank, beat in self._heard.items()}
        stall = diagnose(heard | {self._rank: mine}, self._limit_s, self._world_size, every_s=self._every_s)
        return stall if stall.is_over else None

    def _beat(self) -> Beat:
        return beat_of(self._pulse, self._rank, self._group, self._limit_s, self._start_limit_s)

    def _talk(self) -> None:
        has_ended = False
        while not has_ended:
            self._due.wait()
            self._due.clear()
            has_ended = self._closing.is_set()
            beat = replace(self._beat(), has_ended=has_ended)
            # Whatever the mailbox has come across, the watch goes on without it.
            with suppress(Exception):
                self._hear(self._exchange(beat.to_wire()))

    def _hear(self, answer: Mapping[str, Any]) -> None:
        beats = [Beat.from_wire(values) for values in answer["beats"].values()]
        self._heard = {beat.rank: beat for beat in beats if beat.group == self._group and beat.rank < self._world_size}
        self._heard_s = time.monotonic()
        self.orders = dict(answer["orders"])


def _alone(mine: Beat, ranks: tuple[int, ...], why: str) -> Stall:
    text = f"rank {mine.rank}: step {mine.step}, phase {mine.phase}, for {mine.since_s:.0f} s; {why}"
    return Stall(ranks, mine.phase, mine.step, mine.since_s, text)
