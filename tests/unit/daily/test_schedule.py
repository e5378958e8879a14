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
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from diurnal.cli.schedule import schedule
from diurnal.daily.schedule import Job, cron_line, systemd_units
from diurnal.daily.scheduler import with_line
from diurnal.daily.timing import parse_timing
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


def test_units_are_what_systemd_takes(stub: Path, tmp_path: Path):
    """Verified by systemd itself where it is there; read back by its rules of quoting everywhere."""
    options = ("--set", f"name={NASTY}")
    units = systemd_units(job(stub, *options, environment=(("PYTHONPATH", "/a b:%"),)), parse_timing(cron="5 4 1 * 7"))
    service, timer = units["diurnal-m.service"], units["diurnal-m.timer"]
    lines = dict(line.split("=", 1) for line in service.splitlines() if "=" in line and line[0] not in "#[")
    (words,) = re.findall(r"^ExecStart=(.*)$", service, re.MULTILINE)
    read = [re.sub(r"\\(.)|\$\$", lambda f: f[1] or "$", w) for w in re.findall(r'"((?:\\.|[^"\\])*)"', words)]
    assert [word.replace("%%", "%") for word in read] == ["/usr/bin/env", f"{stub}/bin/python", *DAILY, *options]
    plain = replace(job(stub), command=("/opt/my python/bin/python3", *DAILY))
    assert 'ExecStart="/opt/my python/bin/python3" "-m"' in systemd_units(plain, parse_timing())["diurnal-m.service"]
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
    told = json.loads(machine.run("--json", "--set", "storage=s3://bucket/x").stdout)
    assert told["log"] == str(machine.home / "state" / "diurnal" / "m.log")
    assert told["text"].startswith("# diurnal: m in s3://bucket/x ")
