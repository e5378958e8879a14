"""The Dockerfile, which no test can build: it installs what platform/install.sh does, and is what the chart expects."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
LINES = [line for line in re.sub(r"\\\n\s*", "", TEXT).splitlines() if line and not line.startswith("#")]
STAGES = re.split(r"^(?=FROM )", "\n".join(LINES), flags=re.MULTILINE)[1:]


def test_hadolint_finds_nothing():
    program = shutil.which("hadolint", path=sysconfig.get_path("scripts"))
    assert program is not None
    done = subprocess.run([program, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_it_installs_what_the_script_installs():
    """The same packages in the same order, but for the package itself: it is installed whole, without dev's extras, and
    with what MLflow's server needs."""
    script = (ROOT / "platform" / "install.sh").read_text()
    in_script = re.findall(r'pip_install "\d/3 [^"]*" (.*)', script)
    options = re.findall(r"-m pip install (.*?) \"\$@\"", script.replace("\\\n", ""))
    in_image = re.findall(
        r"pip install (--no-compile --constraint constraints\.txt) (.*?)(?: &&|$)", STAGES[0], re.MULTILINE
    )
    assert options == ['--disable-pip-version-check --no-compile --constraint "$constraints"']
    assert "PIP_DISABLE_PIP_VERSION_CHECK=1" in STAGES[0]
    assert len(in_script) == len(in_image) == 3
    wanted = [line.replace("--editable ", "").replace("$libraries,dev", "${LIBRARIES},server,s3") for line in in_script]
    assert [line for _, line in in_image] == wanted


@pytest.mark.parametrize(
    "path",
    sorted(
        {path for line in LINES if line.startswith("COPY ") and "--from" not in line for path in line.split()[1:-1]}
    ),
)
def test_what_is_copied_is_there_and_sent(path):
    assert (ROOT / path).exists()
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    parts = [path, *(str(parent) for parent in Path(path).parents)]
    last = [rule for rule in rules if any(fnmatch(part, rule.removeprefix("!")) for part in parts)][-1]
    assert last.startswith("!")


def test_nothing_is_sent_but_what_is_copied():
    sent = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copied = {word.partition("/")[0] for line in LINES if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert sent == copied - {"--from=libraries", ""}


def test_the_last_stage_is_small_and_runs_as_the_charts_user():
    assert re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE) == ["python:${PYTHON}", "libraries", "python:${PYTHON}-slim"]
    last = STAGES[-1]
    chart = (ROOT / "helm" / "diurnal" / "templates" / "_pods.tpl").read_text()
    (user,) = set(re.findall(r"runAs(?:User|Group): (\d+)", chart))
    assert f"USER {user}:{user}" in last
    assert last.index("USER ") > last.index("RUN ")
    assert "--no-cache-dir --no-index --no-deps" in last, "the package alone, and from nowhere else"
    assert "ENTRYPOINT" not in last, "KubeRay gives the command"
