"""How a job says, in the last line of its log, what it ended with: Ray keeps no more of it than success or not."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from diurnal.errors import EXIT_ERROR

MARK = "diurnal job ended: "
KEPT_LINES = 400
"""Of what a command writes on stderr: enough for the traceback of a worker."""

_FAULTS = re.compile(r"[a-z ]+: [0-9]+ faults?")
_FIRST = re.compile(r".*(rank [0-9]+ failed first \(of [0-9]+\)):?")


@dataclass(frozen=True)
class End:
    """What a command ended with."""

    exit_code: int
    """0, 1, 2, 3 or 4, as on the command line."""
    error: str = ""
    """What went wrong first, in the words of whoever noticed it; empty when nothing did."""

    def line(self) -> str:
        return MARK + json.dumps(asdict(self))


def end_in(line: str) -> End | None:
    """What a line of a log says of the end; None for every other line."""
    if not line.startswith(MARK):
        return None
    try:
        return End(**json.loads(line.removeprefix(MARK)))
    except (ValueError, TypeError):
        return None


def end_of(log: str) -> End | None:
    """The last one that a log tells of."""
    return next((end for line in reversed(log.splitlines()) if (end := end_in(line)) is not None), None)


def first_error(lines: Sequence[str], code: int) -> str:
    """What went wrong, from the last lines that a command wrote on stderr.

    A fault is told in full. Of an error that is no person's fault, the rank and the exception, and no traceback.
    """
    written = [line.rstrip() for line in lines if line.strip()]
    if code == 0 or not written:
        return ""
    if code != EXIT_ERROR:
        heads = [number for number, line in enumerate(written) if _FAULTS.fullmatch(line)]
        return "\n".join(written[heads[-1] :] if heads else written[-1:])
    ranks = [found[1] for line in written if (found := _FIRST.match(line))]
    return f"{ranks[-1]}: {written[-1]}" if ranks else written[-1]
