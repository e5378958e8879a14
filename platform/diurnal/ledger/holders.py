"""Who holds a lease: a process, and whether it is still there."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Holder:
    host: str
    pid: int
    place: str
    """Boot of the machine and process namespace: pids of the same place can be compared. Empty where the system does
    not tell."""
    started: int
    """When the process started, in clock ticks after boot: with the pid it names one process for good."""

    @staticmethod
    def here() -> Holder:
        """This process."""
        try:
            _, started = _state_and_start(os.getpid())
        except OSError:
            started = 0
        return Holder(socket.gethostname(), os.getpid(), _place(), started)

    def is_dead(self) -> bool:
        """Whether the process has certainly ended. False for one that cannot be seen from here, on another host or
        in another container, and for one that is frozen."""
        if not self.place or self.place != _place():
            return False
        try:
            state, started = _state_and_start(self.pid)
        except (FileNotFoundError, ProcessLookupError):
            return not _is_hidden(self.pid)
        except OSError:
            return False
        return state in "ZX" or started != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _place() -> str:
    try:
        boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink(_PROC / 'self' / 'ns' / 'pid')}"
    except OSError:
        return ""


def _state_and_start(pid: int) -> tuple[str, int]:
    """Fields 3 and 22 of `proc(5)`, /proc/[pid]/stat. The name before them may hold blanks and parentheses."""
    fields = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _is_hidden(pid: int) -> bool:
    """Of another user, where /proc shows one's own processes only (`hidepid`)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
