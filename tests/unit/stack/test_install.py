"""platform/install.sh with an interpreter that only writes down what it is asked."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOLS = ("sh", "cat", "chmod", "cp", "cut", "dirname", "flock", "grep", "mkdir", "mv", "rm")
TOOLS += ("sed", "sha256sum", "sleep", "tail", "timeout")

FAKE = """#!/bin/sh
# Stands in for an interpreter: {version}
case "$*" in
    "-c import sys; sys.exit"*) exit {unsupported} ;;
    "-c import ensurepip, venv") exit {no_venv} ;;
    "-c import sys; print(sys.base_prefix"*) echo "$FAKE_PREFIX {version}" ;;
    "-c import sys; print(\\"python"*) echo python{version}-venv ;;
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo "venv $3" >>"$CALLS" ;;
    "-m pip install "*)
        echo "$*" >>"$CALLS"
        case "$*" in *"$FAIL_AT"*) echo "$FAIL_SAYS"; exit 1 ;; esac ;;
    "-m compileall "*) ;;
    *) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""


class Machine:
    """A folder that looks like a checkout, on a machine that has nothing but the tools every Debian has."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        self.programs = folder / "programs"
        self.calls_file = folder / "calls"
        self.programs.mkdir(parents=True)
        (self.checkout / "platform").mkdir(parents=True)
        for name in ("pyproject.toml", "constraints.txt", "platform/install.sh"):
            shutil.copy(ROOT / name, self.checkout / name)
        for tool in TOOLS:
            self.programs.joinpath(tool).symlink_to(shutil.which(tool) or f"/usr/bin/{tool}")

    def add_python(self, name: str, version: str, supported: bool = True, has_venv: bool = True) -> None:
        text = FAKE.format(version=version, unsupported=int(not supported), no_venv=int(not has_venv))
        self.add_program(name, text)

    def add_program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def install(self, timeout_s: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
        self.calls_file.write_text("")
        base = {"PATH": str(self.programs), "CALLS": str(self.calls_file), "FAIL_AT": "nothing at all", "FAIL_SAYS": ""}
        command = ["sh", str(self.checkout / "platform" / "install.sh")]
        environment = {"FAKE_PREFIX": "base", **base, **environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines()

    @property
    def libraries(self) -> str:
        return (self.checkout / ".venv" / "installed").read_text().splitlines()[2]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def ready(machine: Machine) -> Machine:
    machine.add_python("python3.11", "3.11.7")
    return machine


def test_installs_in_order_and_then_does_nothing(ready):
    assert ready.install().returncode == 0
    venv, torch, rest, torchrec = ready.calls
    assert venv == "venv .venv"
    assert " torch==" in torch
    assert "--editable .[cpu,dev]" in rest
    assert "--no-deps torchrec==" in torchrec
    assert all("--constraint constraints.txt" in call for call in (torch, rest, torchrec))
    again = ready.install()
    assert (again.returncode, again.stdout, again.stderr, ready.calls) == (0, "", "", [])


@pytest.mark.parametrize("step", [" torch==", "--editable", "--no-deps"])
def test_interrupted_installation_is_made_anew(ready, step):
    stopped = ready.install(FAIL_AT=step)
    assert stopped.returncode == 2
    assert "run make again" in stopped.stderr
    assert ready.install().returncode == 0
    assert ready.calls[0] == "venv .venv"
    assert len(ready.calls) == 4


def test_changed_pins_are_installed_into_the_same_environment(ready):
    ready.install()
    with (ready.checkout / "constraints.txt").open("a") as pins:
        pins.write("# another\n")
    assert ready.install().returncode == 0
    assert len(ready.calls) == 3
    assert "venv .venv" not in ready.calls
    assert ready.install().stderr == ""


def test_moved_checkout_is_installed_anew(ready, tmp_path):
    ready.install()
    ready.checkout = ready.checkout.rename(tmp_path / "moved")
    ready.install()
    assert ready.calls[0] == "venv .venv"


@pytest.mark.parametrize(
    ("choice", "smi", "expected"),
    [
        ("", None, "cpu"),
        ("", "echo GPU 0: H200", "gpu"),
        ("", "exit 9", "cpu"),
        ("0", "echo GPU 0", "cpu"),
        ("1", None, "gpu"),
    ],
)
def test_libraries_follow_the_driver_unless_told(ready, choice, smi, expected):
    if smi:
        ready.add_program("nvidia-smi", f"#!/bin/sh\n{smi}\n")
    ready.install(GPU=choice)
    assert ready.libraries == expected
    assert f"--editable .[{expected},dev]" in ready.calls[2]


def test_other_libraries_mean_another_environment(ready):
    ready.install(GPU="0")
    ready.install(GPU="1")
    assert ready.calls[0] == "venv .venv"
    assert ready.libraries == "gpu"
    ready.install()
    assert ready.calls == []
    wrong = ready.install(GPU="2")
    assert (wrong.returncode, ready.calls) == (2, [])
    assert "GPU=2" in wrong.stderr


def test_first_interpreter_that_works_is_taken(machine):
    machine.add_program("python3.11", "#!/bin/sh\nexit 127\n")
    machine.add_python("python3.12", "3.12.1", has_venv=False)
    machine.add_python("python3", "3.13.0")
    done = machine.install()
    assert done.returncode == 0
    assert "Python 3.13.0" in done.stderr


def test_named_interpreter_replaces_another(ready):
    ready.install()
    ready.add_python("other", "3.12.1")
    assert "Python 3.12.1" in ready.install(PYTHON="other").stderr
    assert ready.install().stderr == ""
    assert ready.install(PYTHON="other").stderr == ""


def test_no_interpreter_is_one_line_with_the_fix(machine):
    machine.add_python("python3", "3.9.2", supported=False)
    done = machine.install()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "fix: apt-get install python3.11 python3.11-venv" in done.stderr


def test_interpreter_without_venv_names_the_package(machine):
    machine.add_python("python3.11", "3.11", has_venv=False)
    done = machine.install()
    assert done.returncode == 2
    assert done.stderr == "install: python3.11 cannot make virtual environments; fix: apt-get install python3.11-venv\n"
    assert not (machine.checkout / ".venv").exists()


def test_named_interpreter_that_does_not_work_is_refused(ready):
    ready.install()
    done = ready.install(PYTHON="python2")
    assert done.returncode == 2
    assert "PYTHON=python2 is not a working Python" in done.stderr
    assert ready.calls == []


@pytest.mark.parametrize(
    ("says", "fix"),
    [
        ("error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory", "apt-get install build-essential"),
        ("fatal error: Python.h: No such file or directory", "python3-dev"),
        ("ERROR: No matching distribution found for fbgemm-gpu-cpu==1.8.0", "glibc 2.28"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
    ],
)
def test_what_pip_stumbles_over_is_explained(ready, says, fix):
    done = ready.install(FAIL_AT="--editable", FAIL_SAYS=says)
    assert done.returncode == 2
    assert says in done.stderr
    assert fix in done.stderr.splitlines()[-1]


def test_second_make_waits_for_the_first(ready):
    ready.install()
    (ready.checkout / ".venv" / "installed").unlink()
    with (ready.checkout / "build" / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(subprocess.TimeoutExpired) as waiting:
            ready.install(timeout_s=2)
        assert b"waiting for it" in (waiting.value.stderr or b"")
        assert ready.calls == []
    assert ready.install().returncode == 0
