"""When `diurnal daily` runs on this machine: a crontab line or a systemd user timer, as text and installed.

Times are UTC. A systemd timer says so itself. cron goes by the machine's zone, and only some can be told otherwise:
`CRON_TZ` works in cronie, while Debian's cron ignores it. Unless the machine's zone is UTC, the line therefore fires
every quarter of an hour that the time may fall on, as zones differ by whole quarters, and goes on where `date -u` says
that the time has come. That holds in every cron, and over a change to summer time.

A `%` in a crontab is written with a backslash, as cron and cronie want it; BusyBox's crond is not supported.
Two runs do no harm, since the ledger lets one of them train: the other one ends with 4, which a timer counts as a
success, like 3, held by the gate. cron does not look at exit codes.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from diurnal.config import Config
from diurnal.daily.scheduler import (
    install_units,
    read_crontab,
    remove_units,
    units_folder,
    with_line,
    write_crontab,
)
from diurnal.daily.timing import Timing, is_utc, machine_zone
from diurnal.errors import ConfigError, Fault

_COMMAND = "-m diurnal.cli.main daily"
_PROGRAM = re.compile(r"[\w/.+=@:,~% -]+")
_MAX_COMMAND = 990
"""Bytes of a crontab's command: Debian's cron refuses 1000."""


@dataclass(frozen=True)
class Job:
    """What a scheduler runs: `diurnal daily` for one configuration, here and with this interpreter."""

    name: str
    """Of the model."""
    storage: str
    folder: str
    """The current directory, which relative paths of the configuration start from."""
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    log: str
    """File that takes stdout and stderr of every run, one after the other. Nothing shortens it."""

    @property
    def marker(self) -> str:
        return f"# diurnal: {self.name} in {self.storage} (with the next line, rewritten by diurnal schedule)"

    def shell(self) -> str:
        """The command line, for `/bin/sh`."""
        assign = [f"{key}={shlex.quote(value)}" for key, value in self.environment]
        run = " ".join([*assign, *map(shlex.quote, self.command)])
        log = shlex.quote(self.log)
        return (
            f"cd {shlex.quote(self.folder)} && mkdir -p {shlex.quote(str(Path(self.log).parent))} && {run} >>{log} 2>&1"
        )


def daily_job(config: Config, files: Iterable[str], overrides: Iterable[str]) -> Job:
    """The job of a configuration that was read from `files` and `overrides` in the current directory.

    PYTHONPATH goes with it. Other variables do not: what a run needs of them (credentials, say) belongs into the
    scheduler's own settings.

    Raises:
        ConfigError: something in it holds a line break or another control character, which no crontab or unit can.
    """
    options = [word for file in files for word in ("--config", str(Path(file).absolute()))]
    options += [word for text in overrides for word in ("--set", text)]
    here = Path.cwd()
    paths = [str(here / part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "diurnal"
    log = home / f"{config.name}.log" if "://" in config.storage else Path(config.storage) / config.name / "daily.log"
    job = Job(
        name=config.name,
        storage=re.sub("//[^/@]*@", "//***@", config.storage),
        folder=str(here),
        command=(sys.executable, *_COMMAND.split(), *options),
        environment=(("PYTHONPATH", os.pathsep.join(paths)),) if paths else (),
        log=str(log),
    )
    told = (job.folder, job.log, job.storage, *job.command, *(value for _, value in job.environment))
    for text in told:
        if not text.isprintable():
            must = "no line break or other control character in a path or a setting"
            raise _fault("diurnal schedule", repr(text), must, "put the setting into a file of --config")
    return job


def cron_line(job: Job, timing: Timing, by_utc: bool) -> str:
    """The line of a crontab.

    Args:
        by_utc: whether cron goes by UTC.

    Raises:
        ConfigError: it is longer than cron takes.
    """
    if timing.is_interval or (by_utc and timing.is_plain):
        when, command = timing.cron(), job.shell()
    else:
        when = timing.quarters()
        command = f"date -u '+%M %H %d %m %w' | grep -Eqx {shlex.quote(timing.pattern())} && {job.shell()}"
    command = command.replace("%", "\\%")
    if len(command.encode()) > _MAX_COMMAND:
        found = f"a command of {len(command.encode())} bytes"
        raise _fault("diurnal schedule", found, f"at most {_MAX_COMMAND} in a crontab", "--systemd, or shorter paths")
    return f"{when} {command}"


def systemd_units(job: Job, timing: Timing) -> dict[str, str]:
    """Service and timer, by file name. systemd starts none twice, and makes up for a time when the machine was off."""
    # systemd refuses quotes and the like in the program's own name, and does not read `$$` there.
    program, *rest = job.command if _PROGRAM.fullmatch(job.command[0]) else ("/usr/bin/env", *job.command)
    words = [_unit_word(program, ""), *(_unit_word(word, "$") for word in rest)]
    environment = [f"Environment={_unit_word(f'{key}={value}', '')}" for key, value in job.environment]
    service = [
        job.marker,
        "[Unit]",
        f"Description=Daily training of {job.name}",
        "",
        "[Service]",
        "Type=oneshot",
        f"WorkingDirectory={_unit_path(job.folder)}",
        *environment,
        f"ExecStart={' '.join(words)}",
        "SuccessExitStatus=3 4",
        "KillMode=mixed",
        f"StandardOutput=append:{_unit_path(job.log)}",
        f"StandardError=append:{_unit_path(job.log)}",
    ]
    timer = [
        job.marker,
        "[Unit]",
        f"Description=When to train {job.name}",
        "",
        "[Timer]",
        *(f"OnCalendar={line}" for line in timing.calendar()),
        "Persistent=true",
        "",
        "[Install]",
        "WantedBy=timers.target",
    ]
    return {f"{unit_name(job)}.service": "\n".join(service) + "\n", f"{unit_name(job)}.timer": "\n".join(timer) + "\n"}


def unit_name(job: Job) -> str:
    return f"diurnal-{job.name}"


def _unit_path(text: str) -> str:
    return text.replace("%", "%%")


def _unit_word(text: str, doubled: str) -> str:
    """One word of a unit: in quotes, with what systemd would expand written twice."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text.replace(doubled, doubled * 2) if doubled else text}"'


What = Literal["print", "install", "remove"]


@dataclass(frozen=True)
class Scheduled:
    """What was printed, installed or removed."""

    job: Job
    kind: Literal["cron", "systemd"]
    what: Literal["printed", "installed", "replaced", "removed", "not there"]
    text: str
    """The crontab's lines; the units, one after the other, each under the path of its file."""
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.job.name,
            "kind": self.kind,
            "what": self.what,
            "text": self.text,
            "command": list(self.job.command),
            "log": self.job.log,
            "notes": list(self.notes),
        }


def schedule_cron(job: Job, timing: Timing, what: What) -> Scheduled:
    """Prints the crontab's lines, or puts them into this user's crontab, or takes them out.

    Raises:
        ConfigError: the line is longer than cron takes.
        StackError: there is no cron, or it refused.
    """
    before = "" if what == "print" else read_crontab()
    is_there = job.marker in before.splitlines()
    if what == "remove":
        if is_there:
            write_crontab(with_line(before, job.marker, None, _COMMAND))
        return Scheduled(job, "cron", "removed" if is_there else "not there", "", ())
    # cronie lets a crontab have another zone than the machine.
    has_zone = re.search(r"^\s*CRON_TZ\s*=", before, re.MULTILINE) is not None
    line = cron_line(job, timing, is_utc(machine_zone()) and not has_zone)
    notes = [f"what it says goes to {job.log}"]
    if "date -u" in line:
        notes.append("cron goes by its own zone: the line fires every quarter of an hour and looks at the clock, UTC")
    if what == "install":
        write_crontab(with_line(before, job.marker, line, _COMMAND))
    done = "printed" if what == "print" else "replaced" if is_there else "installed"
    return Scheduled(job, "cron", done, f"{job.marker}\n{line}\n", tuple(notes))


def schedule_systemd(job: Job, timing: Timing, what: What) -> Scheduled:
    """Prints the units of a timer, or installs them for this user, or takes them away.

    Raises:
        ConfigError: the units there are those of another model of this name.
        StackError: there is no systemd, or it refused.
    """
    if what == "remove":
        done = "removed" if remove_units(unit_name(job), job.marker) else "not there"
        return Scheduled(job, "systemd", done, "", ())
    units = systemd_units(job, timing)
    text = "\n".join(f"# {units_folder() / name}\n{unit}" for name, unit in units.items())
    folder, done = Path(job.log).parent, "printed"
    notes = [f"what it says goes to {job.log}", "to run while nobody is logged in: loginctl enable-linger"]
    if what == "print":
        notes.append(f"before the first run: mkdir -p {shlex.quote(str(folder))}")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        done = "replaced" if install_units(unit_name(job), job.marker, units) else "installed"
    return Scheduled(job, "systemd", done, text, tuple(notes))


def _fault(where: str, found: str, must: str, fix: str) -> ConfigError:
    return ConfigError([Fault(where, found, must, fix)])
