"""A worker group of which no rank can speak any more: nobody in it can find that out, so the driver does."""

from __future__ import annotations

import time

from diurnal.train.events import Inbox
from diurnal.train.pulse import Beat
from diurnal.train.stall import kill_frozen

LOOK_EVERY_S = 2.0


class Silence:
    """Looks after the signs of life of all ranks together: of some ranks alone, the other ones' watchdogs judge."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._looked_s = time.monotonic()
        self._ended: set[tuple[int, str]] = set()

    def end(self) -> None:
        """Kills the processes of a group that is silent as a whole, as far as they are on this machine; those on others
        are given up by Ray Train's own health check."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        beats = [Beat.from_wire(beat) for beat in self._inbox.beats()]
        watched = [beat for beat in beats if beat.limit_s is not None and not beat.has_ended]
        if len(watched) < max(1, len(beats)) or any(beat.age_s < (beat.limit_s or 0.0) for beat in watched):
            return
        processes = {(beat.pid, beat.birth) for beat in watched}
        if processes <= self._ended:
            return
        self._ended |= processes
        ranks = ", ".join(str(beat.rank) for beat in watched)
        text = f"rank {ranks} stalls: no sign of life for {watched[0].age_s:.0f} s; last seen in {watched[0].phase}"
        self._inbox.channel().send("stalled", "", rank=watched[0].rank, text=text, stacks="")
        kill_frozen(watched)
