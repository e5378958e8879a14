"""What Ray runs on the head: one command, watched, and what it left open closed if it had to be killed.

    python -P -m diurnal.cluster.job daily --config run.toml

The command runs in a process of its own, so that its death, by whatever means, is seen and told. To Ray a held or
undecided day is a success, since a retry would not help; the last line of the log has the true exit code.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from diurnal.cluster.report import KEPT_LINES, End, first_error
from diurnal.cluster.request import SWEEP_S
from diurnal.cluster.ship import CONFIG_FILE, VERSIONS_FILE, comparable, differences
from diurnal.errors import EXIT_DONE, EXIT_ERROR, EXIT_FAULT, EXIT_HELD, EXIT_LEASED, StackError
from diurnal.stack import library_versions

STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Ray's variable for the seconds between SIGTERM and SIGKILL when a job is stopped."""
RAYS_STOP_WAIT_S = 3
"""Ray's default for it."""
SHIPPED = "--shipped"
"""The first word of a job that `diurnal submit` made: its current directory holds the configuration and the versions
that it is to find."""

_PR_SET_PDEATHSIG = 1
"""Of Linux: the signal that a process gets when its parent ends."""

_CLI = (sys.executable, "-P", "-m", "diurnal.cli.main")


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command to its end, tells how it ended, and answers what Ray should see."""
    words = list(sys.argv[1:] if words is None else words)
    if words[:1] != [SHIPPED]:
        end = run(words)
    elif faults := differences(json.loads(Path(VERSIONS_FILE).read_text(encoding="utf-8")), _versions_here()):
        end = End(EXIT_FAULT, str(StackError(faults)))
        print(end.error, file=sys.stderr)
    else:
        with _own_folder() as folder:
            end = run([*words[1:], "--config", str(folder / CONFIG_FILE)])
    print(end.line(), file=sys.stderr, flush=True)
    return EXIT_DONE if end.exit_code == EXIT_HELD else end.exit_code


def run(words: Sequence[str]) -> End:
    """Runs a command, and `status --sweep` after it if it was killed.

    Ray sends SIGTERM to this process and to the command alike, so that it is not passed on: a second one would cut a
    last commit short.
    """
    asked: list[str] = []

    def note(number: int, _: object) -> None:
        asked.append(signal.Signals(number).name)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        command = subprocess.Popen(
            [*_CLI, *words], stderr=subprocess.PIPE, text=True, errors="replace", preexec_fn=_end_with_parent
        )
        kept: deque[str] = deque(maxlen=KEPT_LINES)
        assert command.stderr is not None
        reader = threading.Thread(target=_pass_on, args=(command.stderr, kept), daemon=True)
        reader.start()
        code = _wait(command, asked)
        reader.join(5.0)
        if code < 0:
            _sweep(words)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return _end(code, list(kept), asked)


def _end_with_parent() -> None:
    """Nobody would tell how a command ended that goes on alone. As it is ended, so whoever starts next closes it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(command: subprocess.Popen[str], asked: list[str]) -> int:
    """Until it has ended, or was killed because it does not end although it was asked to."""
    by_s: float | None = None
    while (code := command.poll()) is None:
        if asked and by_s is None:
            by_s = time.monotonic() + max(1.0, float(os.environ.get(STOP_WAIT, RAYS_STOP_WAIT_S)) - SWEEP_S)
        if by_s is not None and time.monotonic() > by_s:
            command.kill()
        time.sleep(0.05)
    return code


def _end(code: int, lines: list[str], asked: list[str]) -> End:
    if code < 0:
        name = signal.Signals(-code).name
        if asked:
            return End(EXIT_ERROR, f"stopped by {asked[0]}; the driver did not end by itself and was ended by {name}")
        return End(EXIT_ERROR, f"the driver was ended by {name}, as by a machine that has no memory left")
    if asked and code != EXIT_DONE:
        return End(EXIT_ERROR, f"stopped by {asked[0]}; the same command goes on from the newest commit")
    known = code in (EXIT_DONE, EXIT_ERROR, EXIT_FAULT, EXIT_HELD, EXIT_LEASED)
    exit_code = code if known else EXIT_ERROR
    return End(exit_code, "" if exit_code == EXIT_HELD else first_error(lines, exit_code))


def _sweep(words: Sequence[str]) -> None:
    """Closes the runs, attempts and the lease of a command that was killed. It ran on this machine, so that its death
    is certain; nobody has to wait for the lease to run out."""
    about = list(_config_words(words))
    if not about:
        return
    print("closing what it left open", file=sys.stderr, flush=True)
    try:
        subprocess.run([*_CLI, "status", "--sweep", *about], stdout=subprocess.DEVNULL, timeout=SWEEP_S, check=False)
    except subprocess.TimeoutExpired:
        print("that takes too long; whoever starts next does it", file=sys.stderr, flush=True)


def _config_words(words: Sequence[str]) -> Iterator[str]:
    """Those that name the configuration."""
    names = ("--config", "--set")
    for position, word in enumerate(words):
        if word in names:
            yield from words[position : position + 2]
        elif word.startswith(tuple(f"{name}=" for name in names)):
            yield word


def _pass_on(stream: IO[str], kept: deque[str]) -> None:
    for line in stream:
        kept.append(line)
        sys.stderr.write(line)
        sys.stderr.flush()


@contextmanager
def _own_folder() -> Iterator[Path]:
    """A current directory with the configuration in it. Ray's own may be unpacked anew under a running process: by
    another node of this machine."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="diurnal-job-") as name:
        shutil.copy(CONFIG_FILE, name)
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before if before.is_dir() else Path(name).parent)


def _versions_here() -> dict[str, str]:
    return comparable(library_versions())


if __name__ == "__main__":
    sys.exit(main())
