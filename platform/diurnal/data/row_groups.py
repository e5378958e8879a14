"""Row groups against the memory there is.

A reader takes the declared columns of a row group into memory as they are stored, compressed, and unpacks some thousand
rows at a time; of a row group of more than `HELD_BYTES` it takes about so much at a time (`footers.open_parquet`).
Measured on one of 265 MiB in twelve columns: it holds 34 or 114 MiB, with buffers of 1 or 8 MiB, instead of 293.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diurnal.config import Schema
from diurnal.data.columns import encoded_columns
from diurnal.data.contract import Note
from diurnal.data.footers import HELD_BYTES, Footer
from diurnal.errors import Fault

NOTED_SHARE = 0.25
"""Of a reader's memory that a row group may take without a word."""

_CGROUPS = ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
"""Limit and use of a container, of the second and the first version of control groups."""


def available_bytes() -> int | None:
    """Memory that this machine has left, or this container if that is less; None where neither says so."""
    left = [_meminfo()]
    for limit, usage in _CGROUPS:
        most, used = (_number(Path("/sys/fs/cgroup", name)) for name in (limit, usage))
        if most is not None and used is not None:
            left.append(max(0, most - used + _file_cache(Path("/sys/fs/cgroup", limit).with_name("memory.stat"))))
    return min((number for number in left if number is not None), default=None)


class RowGroups:
    """Takes in files, and says which have row groups that do not fit into a reader's share of the memory.

    Args:
        memory_bytes: that all readers share.
        readers: files that are read at a time: one for each stream.
    """

    def __init__(self, schema: Schema, memory_bytes: int, readers: int) -> None:
        self._names = set(encoded_columns(schema))
        self._readers = readers
        self._share = max(1, memory_bytes // readers)
        self._worst = (0, 0, "")
        self._noted = 0
        self.faults: list[Fault] = []

    def add(self, path: str, footer: Footer) -> None:
        rows, size = footer.largest_group(self._names)
        if size > HELD_BYTES:
            rows, size = round(rows * HELD_BYTES / size), HELD_BYTES
        if size > self._share:
            fix = f"{self._fix(rows, size)}, or lower data.streams or workers.max"
            self.faults.append(Fault(path, _told(rows, size), f"at most {self._told_share()}", fix))
        elif size > NOTED_SHARE * self._share:
            self._noted += 1
            self._worst = max(self._worst, (size, rows, path))

    def notes(self) -> Iterator[Note]:
        """The largest row group that takes more than `NOTED_SHARE` of the share, and how many files have such."""
        size, rows, path = self._worst
        if self._noted:
            text = f"{_told(rows, size)}: much of {self._told_share()}; {self._fix(rows, size)}"
            yield Note(path, f"{text} (such are in {self._noted:,} files, this is the largest)")

    def _told_share(self) -> str:
        return f"{_size(self._share)}, what this machine has left of memory for each of {self._readers} streams"

    def _fix(self, rows: int, size: int) -> str:
        return f"write row groups of at most {max(1, int(rows * NOTED_SHARE * self._share / size)):,} rows"


def _told(rows: int, size: int) -> str:
    return f"{rows:,} rows of a row group with {_size(size)} of declared columns, held while they are read"


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _file_cache(stat: Path) -> int:
    """Bytes that are counted as used and given back on demand."""
    try:
        counts = dict(line.split() for line in stat.read_text().splitlines())
        return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" is no limit
        return None


def _size(num_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.3g} GiB"
