"""The doctor for real: its own process, the real libraries, and libraries that are broken in ways people met."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from diurnal.stack import FBGEMM, TORCH

SYMBOL = "_ZN5torch7Library4_defEON3c106eitherINS1_12OperatorNameE"
RAISES = "raise {kind}('fbgemm_gpu/fbgemm_gpu_py.so: {text}')\n"


def run(*arguments: str, first: str) -> subprocess.CompletedProcess[str]:
    """Runs Python; modules and metadata in the folder `first` hide the installed ones."""
    paths = os.pathsep.join(filter(None, [first, *sys.path]))
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def doctor(*arguments: str, first: str = "") -> subprocess.CompletedProcess[str]:
    return run("-c", "from diurnal.cli.main import main; main()", "doctor", *arguments, first=first)


@pytest.fixture
def broken(tmp_path: Path):
    """`broken(source)` -> a folder in which fbgemm_gpu is this source, under the right version's metadata."""

    def make(source: str) -> str:
        package = tmp_path / "fbgemm_gpu"
        package.mkdir()
        (package / "__init__.py").write_text(source)
        return str(tmp_path)

    return make


@pytest.mark.slow
def test_healthy_machine_looks_up_and_reduces():
    """meta-pytorch/torchrec#551, the right set."""
    done = doctor("--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["healthy"] is True
    assert report["versions"]["torch"].startswith(TORCH)
    assert [check["name"] for check in report["checks"]] == ["versions", "lookup", "collective", "gpu"]
    assert done.stderr == ""


def test_wrong_versions_end_before_anything_is_loaded(install):
    done = doctor(first=install(torch="2.12.0"))
    assert done.returncode == 2
    assert "found: 2.12.0" in done.stdout
    assert f"rule:  {TORCH}" in done.stdout
    assert f"fbgemm-gpu-cpu=={FBGEMM}" in done.stdout
    assert "lookup" not in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "says"),
    [
        (RAISES.format(kind="OSError", text=f"undefined symbol: {SYMBOL}"), "built for other versions"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n", "died of signal 11"),
    ],
    ids=["undefined_symbol", "crash"],
)
def test_broken_library_is_explained_without_its_symbols(broken, source, says):
    """pytorch/FBGEMM#2715, #2938, #3275: an undefined symbol at import."""
    done = doctor(first=broken(source))
    assert done.returncode == 2
    assert says in done.stdout
    assert "fix:" in done.stdout
    assert "_ZN" not in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("source", "found", "fix"),
    [
        (RAISES.format(kind="OSError", text="libnvidia-ml.so.1: cannot open"), "NVIDIA driver", "fbgemm-gpu-cpu=="),
        ("import no_such_module\n", "no module no_such_module", "pip install no_such_module"),
        ("open_source = True\n", "no module fbgemm_gpu.", "--force-reinstall"),
    ],
    ids=["no_driver", "no_requirement", "no_parts"],
)
def test_what_does_not_load_has_its_own_fix(broken, source, found, fix):
    """meta-pytorch/torchrec#770"""
    done = run("-m", "diurnal.cli.probes", "lookup", first=broken(source))
    assert done.returncode == 0, done.stderr
    (fault,) = json.loads(done.stdout)["faults"]
    assert found in fault["found"]
    assert fix in fault["fix"]
