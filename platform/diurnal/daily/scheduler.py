"""This machine's schedulers: the user's crontab, and systemd's timers of the user."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from diurnal.errors import ConfigError, Fault, StackError

_SYSTEMCTL = ("systemctl", "--user")
_PATIENCE_S = 60


def with_line(crontab: str, marker: str, line: str | None, is_ours: str) -> str:
    """A crontab with the line under its marker in place of the one there, or at its end; without both, when it is None.

    Args:
        is_ours: what each of our lines has in it. Another one that somebody put under the marker stays, as all others.
    """
    kept: list[str] = []
    place = None
    lines = crontab.splitlines(keepends=True)
    while lines:
        text = lines.pop(0)
        if text.rstrip("\r\n") != marker:
            kept.append(text)
            continue
        place = len(kept) if place is None else place
        if lines and is_ours in lines[0]:
            lines.pop(0)
    if line is not None:
        place = len(kept) if place is None else place
        if place and not kept[place - 1].endswith("\n"):
            kept[place - 1] += "\n"
        kept[place:place] = [f"{marker}\n{line}\n"]
    return "".join(kept)


def read_crontab() -> str:
    """This user's crontab; empty when there is none.

    Raises:
        StackError: it cannot be read.
    """
    done = _run(["crontab", "-l"], "", "install cron, or use --systemd")
    # Only this says that there is none; an error that was taken for it would wipe the crontab.
    if done.returncode and b"no crontab for" in done.stderr.lower():
        return ""
    return _checked(done, "crontab -l")


def write_crontab(text: str) -> None:
    """Replaces this user's crontab.

    Raises:
        StackError: it was not taken.
    """
    _checked(_run(["crontab", "-"], text, "install cron, or use --systemd"), "crontab -")


def install_units(name: str, marker: str, units: dict[str, str]) -> bool:
    """Writes the units and starts the timer; says whether there were any.

    Args:
        name: of the timer and the service, without their endings.
        marker: first line of the units.
        units: text by file name.

    Raises:
        ConfigError: the units there are those of another model of this name.
        StackError: systemd did not take them; they stay where they are, and another try writes them again.
    """
    folder = _own_units(name, marker)
    if shutil.which(_SYSTEMCTL[0]) is None:
        raise StackError([Fault("systemctl", "no such program", "a machine with systemd", "--cron-line")])
    folder.mkdir(parents=True, exist_ok=True)
    had = [(folder / file).exists() for file in units]
    for file, text in units.items():
        (folder / file).write_text(text, encoding="utf-8")
    _systemctl("daemon-reload")
    # A timer that runs keeps its old times until it is started again.
    _systemctl("enable", f"{name}.timer")
    _systemctl("restart", f"{name}.timer")
    return any(had)


def remove_units(name: str, marker: str) -> bool:
    """Stops the timer and removes the units; says whether there were any.

    Raises:
        ConfigError: they are those of another model of this name.
        StackError: systemd refused.
    """
    folder = _own_units(name, marker)
    paths = [folder / f"{name}.{kind}" for kind in ("timer", "service")]
    if not any(path.exists() for path in paths):
        return False
    _systemctl("disable", "--now", f"{name}.timer")
    for path in paths:
        path.unlink(missing_ok=True)
    _systemctl("daemon-reload")
    return True


def units_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"


def _own_units(name: str, marker: str) -> Path:
    folder = units_folder()
    for kind in ("timer", "service"):
        path = folder / f"{name}.{kind}"
        first = path.read_text(encoding="utf-8").partition("\n")[0] if path.exists() else marker
        if first != marker:
            fix = "remove it, or give the model another name"
            raise ConfigError([Fault(str(path), first or "an empty file", f"a unit that begins with {marker}", fix)])
    return folder


def _systemctl(*arguments: str) -> None:
    command = [*_SYSTEMCTL, *arguments]
    _checked(_run(command, "", "--cron-line"), " ".join(command))


def _run(command: list[str], text: str, fix: str) -> subprocess.CompletedProcess[bytes]:
    """In bytes: another's line of a crontab may end in CR LF, or be in no known encoding."""
    given = text.encode("utf-8", "surrogateescape")
    try:
        return subprocess.run(
            command, input=given, capture_output=True, env={**os.environ, "LC_ALL": "C"}, timeout=_PATIENCE_S
        )
    except FileNotFoundError:
        raise StackError([Fault(command[0], "no such program", "the scheduler is installed", fix)]) from None
    except subprocess.TimeoutExpired:
        found = f"no answer for {_PATIENCE_S} s"
        raise StackError([Fault(" ".join(command), found, "the scheduler answers", fix)]) from None


def _checked(done: subprocess.CompletedProcess[bytes], words: str) -> str:
    if done.returncode:
        found = _text(done.stderr).strip() or f"exit code {done.returncode}"
        raise StackError([Fault(words, found, "the scheduler takes it", "mend that, or install the printed lines")])
    return _text(done.stdout)


def _text(output: bytes) -> str:
    return output.decode("utf-8", "surrogateescape")
