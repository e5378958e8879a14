"""What a person sees while workers train: a bar on a terminal, plain lines elsewhere, one table row an increment."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from tqdm import tqdm

COLUMNS = (
    ("day", 13, "s"),
    ("rows", 9, ",d"),
    ("NE before", 9, ".4f"),
    ("AUC before", 10, ".4f"),
    ("NE learning", 11, ".4f"),
    ("AUC learning", 12, ".4f"),
    ("GAUC before", 11, ".4f"),
    ("GAUC learning", 13, ".4f"),
    ("NE of rate", 10, ".4f"),
    ("calibration", 11, ".3f"),
    ("rows/s", 8, ",.0f"),
    ("version", 7, "d"),
)
"""Title, width, format. `before`: the version before it scores the increment, none of which it has seen; `learning`:
each row is scored just before it is learned; `NE of rate`: predicting the click rate seen so far. Other columns come
after these: the NE of each other task while learning."""

_WHERE_GIVEN = ("GAUC before", "GAUC learning")
"""Shown only where the first row of the table has them: where the schema has a group."""

PLAIN_AFTER_S, PLAIN_EVERY_S = 1.0, 5.0
"""Without a terminal: when the first line of a pass comes, and how far apart the next ones are."""


class Progress:
    """Writes to `stream` (stderr by default, so that stdout stays for results)."""

    def __init__(self, stream: TextIO | None = None, *, table: bool = True) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._table = table
        self._bar: tqdm | None = None
        self._last_line_s = 0.0
        self._unit = "row"
        self._columns: tuple[tuple[str, int, str], ...] = ()

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        print(text, file=self._stream, flush=True)

    def begin(self, title: str, num_rows: int, unit: str = "row") -> None:
        """`unit` is what is counted, when it is not rows."""
        self.end()
        self._unit = unit
        self._last_line_s = time.monotonic() - (PLAIN_EVERY_S - PLAIN_AFTER_S)
        if self._is_terminal:
            self._bar = tqdm(
                total=num_rows, desc=title, unit=unit, unit_scale=True, file=self._stream, leave=False, mininterval=0
            )

    def at(self, title: str, rows: int, num_rows: int, numbers: dict[str, Any]) -> None:
        """`numbers`: short names to formatted values, shown beside the bar."""
        if self._bar is not None:
            self._bar.set_description(title, refresh=False)
            self._bar.set_postfix(numbers, refresh=False)
            self._bar.update(rows - self._bar.n)
        elif time.monotonic() - self._last_line_s >= PLAIN_EVERY_S:
            self._last_line_s = time.monotonic()
            shown = "  ".join(f"{name} {value}" for name, value in numbers.items())
            self.say(f"{title}: {rows:,} of {num_rows:,} {self._unit}s ({rows / max(num_rows, 1):.0%})  {shown}")

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def row(self, values: dict[str, Any]) -> None:
        """One line of the table; an undefined value is a dash."""
        self.end()
        if not self._table:
            return
        if not self._columns:
            others = [(title, len(title), ".4f") for title in values if title not in {c[0] for c in COLUMNS}]
            self._columns = (*(c for c in COLUMNS if c[0] in values or c[0] not in _WHERE_GIVEN), *others)
            self.say("  ".join(f"{title:>{width}}" for title, width, _ in self._columns))
        self.say("  ".join(_cell(values.get(title), width, kind) for title, width, kind in self._columns))


def _cell(value: Any, width: int, kind: str) -> str:
    return f"{'-' if value is None else format(value, kind):>{width}}"
