"""What runs `diurnal daily` by itself: times, quoting by the shells that read it, and other people's crontab lines."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from diurnal.cli.schedule import schedule
from diurnal.daily.schedule import Job, cron_line, systemd_units
from diurnal.daily.scheduler import with_line
from diurnal.daily.timing import Timing, is_utc, parse_timing
from diurnal.errors import ConfigError

SCHEMA = """
label = { column = "label" }
dense = [{ name = "d" }]
sparse = [{ name = "s", table = "s" }]
tables = [{ name = "s", rows = 8, dim = 4 }]
"""
NASTY = """a b'c"d%e$HOME`x`\\n;#&"""
DAILY = ["-m", "diurnal.cli.main", "daily"]


def job(folder: Path, *options: str, environment: tuple[tuple[str, str], ...] = ()) -> Job:
    command = (str(folder / "bin" / "python"), *DAILY, *options)
    return Job("m", "s", str(folder), command, environment, str(folder / "logs" / "daily.log"))


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A folder with an odd name and, in it, an interpreter that writes down what it was called with."""
    folder = tmp_path / "50% a'b $HOME"
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "python"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print('said')\n"
        "json.dump([sys.argv[1:], os.getcwd(), os.environ.get('PYTHONPATH')], open('called.json', 'w'))\n"
    )
    program.chmod(0o755)
    return folder


def as_cron_reads(line: str) -> str:
    """The command that cron gives to the shell: after five fields, with `\\%` unescaped and a bare `%` as a newline."""
    command = line.split(" ", 5)[5]
    return re.sub(r"\\%|%", lambda found: "%" if found[0] == "\\%" else "\n", command)


def run_shell(command: str, path: str = "") -> int:
    environment = {"PATH": f"{path}{os.pathsep}/usr/bin:/bin", "HOME": "/"}
    return subprocess.run(["/bin/sh", "-c", command], env=environment, timeout=60, check=False).returncode


def called(folder: Path) -> list[object]:
    return json.loads((folder / "called.json").read_text())


@pytest.mark.parametrize("by_utc", [True, False])
def test_the_line_runs_the_very_command(stub: Path, by_utc: bool):
    options = ["--config", f"{stub}/x.toml", "--set", f"name={NASTY}"]
    line = cron_line(job(stub, *options, environment=(("PYTHONPATH", "/a b:%"),)), parse_timing(every=1), by_utc)
    assert "\n" not in line
    assert run_shell(as_cron_reads(line)) == 0
    assert called(stub) == [[*DAILY, *options], str(stub), "/a b:%"]
    assert (stub / "logs" / "daily.log").read_text() == "said\n"


@pytest.mark.parametrize(
    ("says", "runs"), [("30 03 01 12 2", True), ("31 03 01 12 2", False), ("30 04 01 12 2", False)]
)
def test_elsewhere_than_in_utc_the_line_looks_at_the_clock(stub: Path, tmp_path: Path, says: str, runs: bool):
    (tmp_path / "bin").mkdir()
    clock = tmp_path / "bin" / "date"
    clock.write_text(f'#!/bin/sh\n[ "$*" = "-u +%M %H %d %m %w" ] && echo "{says}"\n')
    clock.chmod(0o755)
    line = cron_line(job(stub), parse_timing(at="03:30"), by_utc=False)
    assert line.startswith("0,15,30,45 * * * * date -u ")
    run_shell(as_cron_reads(line), str(tmp_path / "bin"))
    assert (stub / "called.json").exists() is runs


def test_in_utc_the_line_is_plain(tmp_path: Path):
    line = cron_line(job(tmp_path), parse_timing(at="03:05"), by_utc=True)
    assert line.startswith(f"5 3 * * * cd {tmp_path} && ")


def test_a_line_that_cron_would_refuse_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="at most 990 in a crontab"):
        cron_line(job(tmp_path, "--set", "x=" + "y" * 990), parse_timing(), by_utc=True)


FIELDS = st.tuples(
    st.sampled_from(["*", "*/7", "30", "0,15", "5-20/5"]),
    st.sampled_from(["*", "3", "*/6", "22-23,1"]),
    st.sampled_from(["*", "1", "*/2", "1-31", "10-20"]),
    st.sampled_from(["*", "3", "feb", "jan-jun"]),
    st.sampled_from(["*", "1", "mon-fri", "7", "0-7", "*/3"]),
)


def expand(field: str, low: int, high: int) -> set[int]:
    """A second reading of a crontab's field, by brute force."""
    words = {"feb": 2, "jan": 1, "jun": 6, "mon": 1, "fri": 5}
    found = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        begin, _, end = ("*" if span == "*" else span).partition("-")
        first = low if begin == "*" else words.get(begin) or int(begin)
        last = high if begin == "*" else words.get(end or begin) or int(end or begin)
        found |= {n for n in range(low, 60) if first <= n <= last and (n - first) % int(step or 1) == 0}
    return found


def is_time(text: str, now: datetime) -> bool:
    """What cron(5) says of five fields."""
    minute, hour, days, month, weekdays = text.split()
    in_days = now.day in expand(days, 1, 31)
    in_weekdays = now.isoweekday() % 7 in {n % 7 for n in expand(weekdays, 0, 6)}
    stars = days.startswith("*") or weekdays.startswith("*")
    return (
        now.minute in expand(minute, 0, 59)
        and now.hour in expand(hour, 0, 23)
        and now.month in expand(month, 1, 12)
        and (in_days and in_weekdays if stars else in_days or in_weekdays)
    )


MINUTES = st.integers(0, 2 * 366 * 24 * 60 - 1).map(lambda n: datetime(2027, 1, 1, tzinfo=UTC) + timedelta(minutes=n))


@given(
    FIELDS, MINUTES, st.sampled_from(["UTC", "Asia/Kolkata", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"])
)
def test_a_line_fires_when_its_expression_says_in_every_zone(fields: tuple[str, ...], now: datetime, zone: str):
    text = " ".join(fields)
    timing = parse_timing(cron=text)
    says = now.strftime("%M %H %d %m %w")
    fires = is_time(timing.quarters(), now.astimezone(ZoneInfo(zone))) and re.fullmatch(timing.pattern(), says)
    assert bool(fires) == is_time(text, now)
    if timing.is_plain:
        assert is_time(timing.cron(), now) == is_time(text, now)


@pytest.mark.parametrize(
    ("asked", "cron", "calendar"),
    [
        ({"at": "03:30"}, "30 3 * * *", ["*-*-* 03:30:00 UTC"]),
        ({"at": "00:00"}, "0 0 * * *", ["*-*-* 00:00:00 UTC"]),
        ({}, "0 * * * *", ["*-*-* *:00:00 UTC"]),
        ({"every": 20}, "0,20,40 * * * *", ["*-*-* *:00,20,40:00 UTC"]),
        ({"every": 480}, "0 0,8,16 * * *", ["*-*-* 00,08,16:00:00 UTC"]),
        ({"every": 1440}, "0 0 * * *", ["*-*-* 00:00:00 UTC"]),
        ({"cron": "5 4 * * mon-fri"}, "5 4 * * 1,2,3,4,5", ["Mon,Tue,Wed,Thu,Fri *-*-* 04:05:00 UTC"]),
        ({"cron": "5 4 1 * 7"}, "5 4 1 * 0", ["*-*-01 04:05:00 UTC", "Sun *-*-* 04:05:00 UTC"]),
    ],
)
def test_times_as_cron_and_systemd_have_them(asked: dict[str, str | int], cron: str, calendar: list[str]):
    timing = parse_timing(**asked)  # pyright: ignore[reportArgumentType]
    assert (timing.cron(), timing.calendar()) == (cron, calendar)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"at": "24:00"}, "HH:MM"),
        ({"at": "3:30"}, "HH:MM"),
        ({"at": "03:30", "every": 5}, "one of --at, --every and --cron"),
        ({"every": 0}, "--every 1"),
        ({"every": 7}, "--every 6"),
        ({"every": -60}, "--every 1"),
        ({"every": 10**6}, "--every 1440"),
        ({"cron": ""}, "five fields"),
        ({"cron": "@daily"}, "five fields"),
        ({"cron": "60 * * * *"}, "minute: 0 to 59"),
        ({"cron": "* 5-3 * * *"}, "hour: 0 to 23"),
        ({"cron": "* * 0 * *"}, "day of month: 1 to 31"),
        ({"cron": "* * * 13 *"}, "month: 1 to 12"),
        ({"cron": "* * * * someday"}, "day of week: 0 to 7"),
        ({"cron": "*/0 * * * *"}, "minute"),
        ({"cron": "5/2 * * * *"}, "minute"),
        ({"cron": "1,,2 * * * *"}, "minute"),
        ({"cron": "* * 30 feb *"}, "a day that the month has"),
    ],
)
def test_nonsense_is_refused_with_one_fault(asked: dict[str, str | int], words: str):
    with pytest.raises(ConfigError) as error:
        parse_timing(**asked)  # pyright: ignore[reportArgumentType]
    assert len(error.value.faults) == 1
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("zone", "answer"),
    [("UTC", True), ("Etc/GMT", True), ("Europe/London", False), ("Africa/Abidjan", True), ("Asia/Kolkata", False)],
)
def test_which_zones_are_utc(zone: str, answer: bool):
    assert is_utc(ZoneInfo(zone), datetime(2027, 1, 1, tzinfo=UTC)) is answer


def test_units_are_what_systemd_takes(stub: Path, tmp_path: Path):
    """Verified by systemd itself where it is there; read back by its rules of quoting everywhere."""
    options = ("--set", f"name={NASTY}")
    units = systemd_units(job(stub, *options, environment=(("PYTHONPATH", "/a b:%"),)), parse_timing(cron="5 4 1 * 7"))
    service, timer = units["diurnal-m.service"], units["diurnal-m.timer"]
    lines = dict(line.split("=", 1) for line in service.splitlines() if "=" in line and line[0] not in "#[")
    (words,) = re.findall(r"^ExecStart=(.*)$", service, re.MULTILINE)
    read = [re.sub(r"\\(.)|\$\$", lambda f: f[1] or "$", w) for w in re.findall(r'"((?:\\.|[^"\\])*)"', words)]
    assert [word.replace("%%", "%") for word in read[1:]] == [*DAILY, *options]
    assert (lines["Type"], lines["SuccessExitStatus"]) == ("oneshot", "3 4")
    assert lines["Environment"] == '"PYTHONPATH=/a b:%%"'
    assert "Persistent=true" in timer.splitlines()
    assert re.findall("OnCalendar=(.*)", timer) == ["*-*-01 04:05:00 UTC", "Sun *-*-* 04:05:00 UTC"]
    program = shutil.which("systemd-analyze")
    if program is not None:
        for name, text in units.items():
            (tmp_path / name).write_text(text)
        done = subprocess.run(
            [program, "--user", "verify", *(str(tmp_path / name) for name in units)],
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "diurnal-m" not in done.stderr


LINES = st.sampled_from(
    ["", "# a comment\n", "5 * * * * true\n", "A=b\r\n", "7 * * * * a\\%b\n", "1 * * * * old -m diurnal\n"]
)


@given(st.lists(LINES), st.booleans())
def test_other_lines_of_a_crontab_stay_as_they_are(others: list[str], ends: bool):
    crontab = "".join(others)
    crontab = crontab if ends else crontab.rstrip("\n")
    once = with_line(crontab, "# mine", "1 1 * * * run it", "run it")
    assert once.count("# mine\n1 1 * * * run it\n") == 1
    twice = with_line(once + "9 * * * * later\n", "# mine", "2 2 * * * run it", "run it")
    assert twice == once.replace("1 1 * * * run it", "2 2 * * * run it") + "9 * * * * later\n"
    gone = with_line(twice, "# mine", None, "run it")
    assert gone == crontab + ("\n" if crontab and not crontab.endswith("\n") else "") + "9 * * * * later\n"


def test_a_line_that_somebody_put_under_the_marker_stays():
    assert with_line("# mine\n5 * * * * true\n", "# mine", None, "run it") == "5 * * * * true\n"
    assert with_line("# mine\n#1 1 * * * run it\n", "# mine", None, "run it") == ""


class Machine:
    """A home with a configuration, and stand-ins for `crontab` and `systemctl`."""

    def __init__(self, home: Path) -> None:
        self.home, self.crontab, self.calls = home, home / "crontab.txt", home / "calls.txt"
        (home / "bin").mkdir()
        (home / "schema.toml").write_text(SCHEMA)
        (home / "m.toml").write_text(
            'name = "m"\nstorage = "my storage"\ndata.path = "d"\ndata.schema_file = "schema.toml"\n'
        )
        self.program(
            "crontab",
            f"""
if [ "$1" = -l ]; then
  [ -e {home}/denied ] && {{ echo 'you are not allowed' >&2; exit 1; }}
  [ -e {home}/crontab.txt ] || {{ echo 'no crontab for me' >&2; exit 1; }}
  exec cat {home}/crontab.txt
fi
[ "$1" = - ] && exec cat > {home}/crontab.txt
exit 2""",
        )
        self.program(
            "systemctl",
            f"""echo "$@" >> {home}/calls.txt; [ ! -e {home}/denied ] || {{ echo 'no bus' >&2; exit 1; }}""",
        )

    def program(self, name: str, text: str) -> None:
        path = self.home / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, *arguments: str, config: str = "m.toml") -> Result:
        return CliRunner().invoke(schedule, [*arguments, "--config", config])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return found


def test_to_print_changes_nothing(machine: Machine):
    before = sorted(machine.home.rglob("*"))
    for option in ("--cron-line", "--systemd"):
        done = machine.run("--at", "03:30", option)
        assert done.exit_code == 0, done.output
        assert f"{sys.executable}" in done.stdout
        assert str(machine.home / "m.toml") in done.stdout
        assert str(machine.home / "my storage" / "m" / "daily.log") in done.stdout
    assert sorted(machine.home.rglob("*")) == before


def test_a_crontab_is_installed_replaced_and_restored(machine: Machine):
    done = machine.run("--at", "03:30", "--install")
    assert (done.exit_code, done.stdout) == (0, "m: installed\n")
    machine.crontab.write_bytes(b"5 * * * * caf\xe9\r\n" + machine.crontab.read_bytes() + b"6 * * * * b\n")
    assert machine.run("--every", "30", "--install", "--set", "seed=7").stdout == "m: replaced\n"
    lines = machine.crontab.read_bytes().split(b"\n")
    assert len(lines) == 5
    assert lines[0] == b"5 * * * * caf\xe9\r"
    assert lines[2].startswith(b"0,30 * * * * cd ")
    assert b"--set seed=7" in lines[2]
    assert (machine.run("--remove").stdout, machine.run("--remove").stdout) == ("m: removed\n", "m: not there\n")
    assert machine.crontab.read_bytes() == b"5 * * * * caf\xe9\r\n6 * * * * b\n"


def test_two_models_have_a_line_each(machine: Machine):
    for storage in itertools.islice(itertools.cycle(("a", "b")), 4):
        assert machine.run("--install", "--set", f"storage={storage}").exit_code == 0
    assert machine.crontab.read_text().count("# diurnal: m in ") == 2


def test_a_zone_of_the_crontab_is_heeded(machine: Machine):
    machine.crontab.write_text("CRON_TZ=Asia/Tokyo\n")
    assert machine.run("--at", "03:30", "--install").exit_code == 0
    assert "grep -Eqx '30 03 .. .. .'" in machine.crontab.read_text()


def test_a_crontab_that_cannot_be_read_is_not_overwritten(machine: Machine):
    machine.crontab.write_text("5 * * * * mine\n")
    (machine.home / "denied").touch()
    done = machine.run("--install")
    assert (done.exit_code, machine.crontab.read_text()) == (2, "5 * * * * mine\n")
    assert "you are not allowed" in done.stderr


def test_a_timer_is_installed_replaced_and_removed(machine: Machine):
    folder = machine.home / "config" / "systemd" / "user"
    assert machine.run("--systemd", "--install", "--at", "03:30").stdout == "m: installed\n"
    assert (machine.home / "my storage" / "m").is_dir()
    assert machine.run("--systemd", "--install", "--at", "04:30").stdout == "m: replaced\n"
    assert "OnCalendar=*-*-* 04:30:00 UTC" in (folder / "diurnal-m.timer").read_text()
    again = machine.run("--systemd", "--install", "--set", "storage=b")
    assert (again.exit_code, "another name" in again.stderr) == (2, True)
    assert machine.run("--systemd", "--remove").stdout == "m: removed\n"
    assert machine.run("--systemd", "--remove").stdout == "m: not there\n"
    assert list(folder.iterdir()) == []
    started = ["daemon-reload", "enable diurnal-m.timer", "restart diurnal-m.timer"]
    ended = ["disable --now diurnal-m.timer", "daemon-reload"]
    assert machine.calls.read_text().splitlines() == [f"--user {call}" for call in [*started, *started, *ended]]


def test_a_scheduler_that_refuses_is_a_fault(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    (machine.home / "denied").touch()
    assert "no bus" in machine.run("--systemd", "--install").stderr
    monkeypatch.setenv("PATH", str(machine.home))
    for option in ("--systemd", "--cron-line"):
        done = machine.run(option, "--install")
        assert (done.exit_code, "no such program" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--install", "--remove"], "one of --install and --remove"),
        (["--at", "noon"], "HH:MM"),
        (["--set", "name=a\nb"], "name"),
        (["--set", "tracking.uri=a\nb"], "no line break"),
    ],
)
def test_what_the_command_refuses(machine: Machine, arguments: list[str], words: str):
    done = machine.run(*arguments)
    assert (done.exit_code, words in done.stderr) == (2, True), done.output
    assert not machine.crontab.exists()


def test_json(machine: Machine):
    told = json.loads(machine.run("--json", "--at", "03:30", "--set", "data.batch_rows=8").stdout)
    assert (told["name"], told["kind"], told["what"]) == ("m", "cron", "printed")
    config = ["--config", str(machine.home / "m.toml")]
    assert told["command"] == [sys.executable, *DAILY, *config, "--set", "data.batch_rows=8"]
    assert shlex.join(told["command"]) in told["text"]
    assert told["log"] == str(machine.home / "my storage" / "m" / "daily.log")


def test_a_log_beside_a_storage_that_is_no_folder(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(machine.home / "state"))
    told = json.loads(machine.run("--json", "--set", "storage=s3://key:secret@bucket/x").stdout)
    assert told["log"] == str(machine.home / "state" / "diurnal" / "m.log")
    assert told["text"].startswith("# diurnal: m in s3://***@bucket/x ")


def test_only_a_timing_that_repeats_evenly_ignores_the_zone():
    intervals = [every for every in (1, 30, 60, 720, 1440) if parse_timing(every=every).is_interval]
    assert intervals == [1, 30, 60, 720]
    assert isinstance(parse_timing(at="01:00"), Timing)
    assert not parse_timing(at="01:00").is_interval
