"""When `diurnal daily` runs on this machine: a crontab line or a systemd user timer, as text and installed.

Times are UTC. A systemd timer says so itself. cron goes by the machine's zone, and only some crons can be told otherwise
(`CRON_TZ` works in cronie, while Debian's cron and BusyBox ignore it): unless the machine's zone is UTC, the line fires
every quarter of an hour that the time may fall on, as zones differ by whole quarters, and goes on where `date -u` says
that the time has come. That holds in every cron, and over a change to summer time.

A `%` in a crontab is written `\\%`, as POSIX cron wants it; BusyBox's crond keeps the backslash, so it is not supported.
Two runs never do harm, since the ledger lets one of them train: the other one ends with 4, which a timer counts as a
success, like 3, held by the gate. cron does not look at exit codes.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from diurnal.config import Config
from diurnal.errors import ConfigError, Fault, StackError

_RANGES = {"minute": (0, 59), "hour": (0, 23), "day of month": (1, 31), "month": (1, 12), "day of week": (0, 7)}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NUMBERS = {
    "month": {name: number for number, name in enumerate(_MONTHS, 1)},
    "day of week": {name: number for number, name in enumerate(_WEEKDAYS)},
}
_ITEM = re.compile(r"(?:\*|(?P<first>[0-9a-z]+)(?:-(?P<last>[0-9a-z]+))?)(?:/(?P<step>[0-9]{1,4}))?", re.ASCII)
_EVERY = tuple(n for n in range(1, 61) if 60 % n == 0) + tuple(60 * n for n in range(2, 25) if 24 % n == 0)
_QUARTERS = (0, 15, 30, 45)
_COMMAND = "-m diurnal.cli.main daily"
_MAX_COMMAND = 990
"""Bytes of a crontab's command: Debian's cron refuses 1000."""
_SYSTEMCTL = ("systemctl", "--user")


@dataclass(frozen=True)
class Timing:
    """Minutes at which something runs, UTC: five fields of a crontab, as sorted numbers. Sunday is 0."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    is_either: bool = False
    """Day of month or day of week is enough, as cron has it when neither begins with `*`."""
    is_interval: bool = False
    """Only the distance between two runs matters, so that the zone does not."""

    def calendar(self) -> list[str]:
        """The same for systemd: one `OnCalendar=` a line, any of which is enough."""
        weekdays = "" if len(self.weekdays) == 7 else ",".join(_WEEKDAYS[n].title() for n in self.weekdays) + " "
        days, months = _list(self.days, 31), _list(self.months, 12)
        time = f"{_list(self.hours, 24)}:{_list(self.minutes, 60)}:00 UTC"
        if self.is_either:
            return [f"*-{months}-{days} {time}", f"{weekdays}*-{months}-* {time}"]
        return [f"{weekdays}*-{months}-{days} {time}"]

    def cron(self) -> str:
        """The five fields, for a cron that goes by UTC.

        `is_either` comes back in the reading, since a field that is whole is `*` and the others are lists.
        """
        fields = [_cron_list(values, *_RANGES[name]) for name, values in zip(_RANGES, self._fields, strict=True)]
        return " ".join(fields)

    @property
    def _fields(self) -> tuple[tuple[int, ...], ...]:
        return self.minutes, self.hours, self.days, self.months, self.weekdays

    def quarters(self) -> str:
        """The five fields of a line that fires whenever it may be time, in whichever zone."""
        minutes = sorted({(minute + quarter) % 60 for minute in self.minutes for quarter in _QUARTERS})
        return f"{_cron_list(minutes, 0, 59)} * * * *"

    def pattern(self) -> str:
        """What `date -u '+%M %H %d %m %w'` says when it is time, as an extended regular expression."""
        minute, hour, month = _any(self.minutes, 60), _any(self.hours, 24), _any(self.months, 12)
        day, weekday = _any(self.days, 31), _any(self.weekdays, 7, 1)
        if self.is_either:
            return f"{minute} {hour} ({day} {month} .|.. {month} {weekday})"
        return f"{minute} {hour} {day} {month} {weekday}"


def _list(values: Sequence[int], count: int) -> str:
    return "*" if len(values) == count else ",".join(f"{value:02}" for value in values)


def _cron_list(values: Sequence[int], low: int, high: int) -> str:
    count = high - low + 1 if high != 7 else 7
    return "*" if len(values) == count else ",".join(map(str, values))


def _any(values: Sequence[int], count: int, width: int = 2) -> str:
    if len(values) == count:
        return "." * width
    texts = [f"{value:0{width}}" for value in values]
    return texts[0] if len(texts) == 1 else f"({'|'.join(texts)})"


def parse_timing(at: str | None = None, every: int | None = None, cron: str | None = None) -> Timing:
    """Reads when to run; every hour, when nothing is given.

    Args:
        at: `HH:MM`, once a day.
        every: minutes; what divides an hour or a day, so that runs stay evenly apart.
        cron: five fields of a crontab, in numbers, names of three letters, ranges, steps and lists.

    Raises:
        ConfigError: it makes no sense, or more than one is given.
    """
    given = [name for name, value in (("--at", at), ("--every", every), ("--cron", cron)) if value is not None]
    if len(given) > 1:
        raise _fault("diurnal schedule", " and ".join(given), "one of --at, --every and --cron", "leave the others out")
    whole = tuple(range(1, 32)), tuple(range(1, 13)), tuple(range(7))
    if at is not None:
        found = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", at, re.ASCII)
        if not found:
            raise _fault("--at", at, "HH:MM, 00:00 to 23:59, UTC", "--at 03:30")
        return Timing((int(found[2]),), (int(found[1]),), *whole)
    if cron is not None:
        return _parse_cron(cron)
    every = 60 if every is None else every
    if every not in _EVERY:
        must = f"minutes that divide an hour or a day: {', '.join(map(str, _EVERY))}"
        raise _fault("--every", str(every), must, f"--every {min(_EVERY, key=lambda n: abs(n - every))}")
    hours = tuple(range(0, 24, max(1, every // 60)))
    return Timing(tuple(range(0, 60, min(every, 60))), hours, *whole, is_interval=every < 1440)


def _parse_cron(text: str) -> Timing:
    fields = text.split()
    if len(fields) != 5:
        must = "five fields: minute, hour, day of month, month, day of week"
        raise _fault("--cron", text, must, "--cron '30 3 * * *'")
    values = []
    for name, field in zip(_RANGES, fields, strict=True):
        parsed = {number for item in field.lower().split(",") for number in _parse_item(name, item, text)}
        values.append(tuple(sorted({n % 7 for n in parsed} if name == "day of week" else parsed)))
    timing = Timing(*values, is_either=not fields[2].startswith("*") and not fields[4].startswith("*"))
    latest = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
    if not timing.is_either and not any(timing.days[0] <= latest.get(month, 31) for month in timing.months):
        raise _fault("--cron", text, "a day that the month has", "choose an earlier day of the month")
    return timing


def _parse_item(name: str, item: str, text: str) -> range:
    low, high = _RANGES[name]
    found = _ITEM.fullmatch(item)
    first, last, step = found.group("first", "last", "step") if found else (None, None, None)
    numbers = [_number(name, part) for part in (first, last) if part is not None]
    is_sound = found is not None and None not in numbers and (step is None or (int(step) > 0 and (not first or last)))
    begin, end = low, high - (name == "day of week")
    if is_sound and numbers:
        begin, end = numbers[0] or 0, numbers[-1] or 0
    if not is_sound or not low <= begin <= end <= high:
        must = f"{name}: {low} to {high}, as in 5, 1-5, */2, 1-9/2 or 1,3"
        raise _fault("--cron", f"{item!r} in {text!r}", must, "--cron '30 3 * * *'")
    return range(begin, end + 1, int(step or 1))


def _number(name: str, text: str) -> int | None:
    return int(text) if text.isdecimal() else _NUMBERS.get(name, {}).get(text)


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


def machine_zone() -> tzinfo:
    """The zone that cron goes by; TZ of this shell is not it."""
    try:
        with Path("/etc/localtime").open("rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError):
        return UTC


def is_utc(zone: tzinfo, now: datetime | None = None) -> bool:
    """Whether the zone has no offset all year."""
    begin = now or datetime.now(UTC)
    return not any((begin + timedelta(days=7 * week)).astimezone(zone).utcoffset() for week in range(53))


def cron_line(job: Job, timing: Timing, by_utc: bool) -> str:
    """The line of a crontab.

    Args:
        by_utc: whether cron goes by UTC.

    Raises:
        ConfigError: it is longer than cron takes.
    """
    if by_utc or timing.is_interval:
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
    words = [_unit_word(job.command[0], ""), *(_unit_word(word, "$") for word in job.command[1:])]
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


def with_line(crontab: str, job: Job, line: str | None) -> str:
    """A crontab with the job's line in place of the one that it has, or at its end; without it, when `line` is None.
    Everything else stays as it is."""
    kept: list[str] = []
    place = None
    lines = crontab.splitlines(keepends=True)
    while lines:
        text = lines.pop(0)
        if text.rstrip("\r\n") != job.marker:
            kept.append(text)
            continue
        place = len(kept) if place is None else place
        if lines and _COMMAND in lines[0]:
            lines.pop(0)
    if line is not None:
        place = len(kept) if place is None else place
        if place and not kept[place - 1].endswith("\n"):
            kept[place - 1] += "\n"
        kept[place:place] = [f"{job.marker}\n{line}\n"]
    return "".join(kept)


def read_crontab() -> str:
    """This user's crontab; empty when there is none.

    Raises:
        StackError: it cannot be read.
    """
    done = _run(["crontab", "-l"], "", "install cron, or use --systemd")
    # Only this says that there is none; an error that was taken for it would wipe the crontab.
    if done.returncode and "no crontab for" in done.stderr.lower():
        return ""
    return _checked(done, "crontab -l").stdout


def write_crontab(text: str) -> None:
    """Replaces this user's crontab.

    Raises:
        StackError: it was not taken.
    """
    _checked(_run(["crontab", "-"], text, "install cron, or use --systemd"), "crontab -")


def install_units(job: Job, units: dict[str, str]) -> bool:
    """Writes the units and starts the timer; says whether there were any.

    Raises:
        ConfigError: the units there are those of another model of this name.
        StackError: systemd did not take them; they stay where they are, and another try writes them again.
    """
    folder = _own_units(job)
    _need_systemctl()
    Path(job.log).parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    had = [(folder / name).exists() for name in units]
    for name, text in units.items():
        (folder / name).write_text(text, encoding="utf-8")
    _systemctl("daemon-reload")
    # A timer that runs keeps its old times until it is started again.
    _systemctl("enable", f"{unit_name(job)}.timer")
    _systemctl("restart", f"{unit_name(job)}.timer")
    return any(had)


def remove_units(job: Job) -> bool:
    """Stops the timer and removes the units; says whether there were any.

    Raises:
        ConfigError: they are those of another model of this name.
        StackError: systemd refused.
    """
    folder = _own_units(job)
    paths = [folder / f"{unit_name(job)}.{kind}" for kind in ("timer", "service")]
    if not any(path.exists() for path in paths):
        return False
    _systemctl("disable", "--now", f"{unit_name(job)}.timer")
    for path in paths:
        path.unlink(missing_ok=True)
    _systemctl("daemon-reload")
    return True


def units_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"


def _own_units(job: Job) -> Path:
    folder = units_folder()
    for kind in ("timer", "service"):
        path = folder / f"{unit_name(job)}.{kind}"
        first = path.read_text(encoding="utf-8").partition("\n")[0] if path.exists() else job.marker
        if first != job.marker:
            raise _fault(str(path), first or "an empty file", job.marker, "remove it, or give the model another name")
    return folder


def _need_systemctl() -> None:
    if shutil.which(_SYSTEMCTL[0]) is None:
        raise StackError([Fault("systemctl", "no such program", "a machine with systemd", "--cron-line")])


def _systemctl(*arguments: str) -> None:
    command = [*_SYSTEMCTL, *arguments]
    _checked(_run(command, "", "--cron-line"), " ".join(command))


def _run(command: list[str], text: str, fix: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, errors="surrogateescape", env=environment, timeout=60
        )
    except FileNotFoundError:
        raise StackError([Fault(command[0], "no such program", "the scheduler is installed", fix)]) from None
    except subprocess.TimeoutExpired:
        raise StackError([Fault(" ".join(command), "no answer for 60 s", "the scheduler answers", fix)]) from None


def _checked(done: subprocess.CompletedProcess[str], words: str) -> subprocess.CompletedProcess[str]:
    if done.returncode:
        found = done.stderr.strip() or f"exit code {done.returncode}"
        raise StackError([Fault(words, found, "the scheduler takes it", "mend that, or install the printed lines")])
    return done


def _fault(where: str, found: str, must: str, fix: str) -> ConfigError:
    return ConfigError([Fault(where, found, must, fix)])
