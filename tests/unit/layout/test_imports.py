"""Which room imports which, and what a command costs before it does anything."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "torchrec", "fbgemm_gpu", "ray", "mlflow", "pyarrow", "pandas", "numpy", "matplotlib")

UNLISTED = ("diurnal", "torchrec", "fbgemm_gpu", "pydantic_core")
"""Not in pyproject.toml's list of what the package needs: itself, what is installed in two ways, what pydantic pins."""


def lint(folder: Path, package: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    command += ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_rooms_import_one_way(tmp_path):
    done = lint(tmp_path, ROOT / "platform")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line", "says"),
    [
        ("utils.py", "", "diurnal.utils"),
        ("config/planted.py", "import torch", "diurnal.config.planted -> torch"),
        ("data/planted.py", "import diurnal.model.dlrm", "diurnal.data.planted -> diurnal.model.dlrm"),
        ("data/planted.py", "import torch", "diurnal.data.planted -> torch"),
        ("ledger/planted.py", "import ray", "diurnal.ledger.planted -> ray"),
        ("model/planted.py", "import mlflow", "diurnal.model.planted -> mlflow"),
    ],
)
def test_a_planted_import_is_found(tmp_path, file, line, says):
    package = tmp_path / "diurnal"
    shutil.copytree(ROOT / "platform" / "diurnal", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / file).write_text(line + "\n")
    done = lint(tmp_path, tmp_path)
    assert done.returncode == 1
    assert says in done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import diurnal.errors, diurnal.stack, diurnal.config",
        "import diurnal.cli.main, diurnal.cli.doctor",
        "import diurnal.ledger.claims",
    ],
)
def test_light_rooms_load_nothing_heavy(code):
    code += f"; import sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_loads_nothing_heavy():
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr))\n"
        "from diurnal.cli.main import main\n"
        "sys.argv = ['diurnal', '--help']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "doctor" in done.stdout
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("folders", "extras"),
    [(["platform/diurnal"], []), (["jobs", "datasets", "tests"], ["dev"])],
    ids=["package", "rest"],
)
def test_every_imported_library_is_declared(folders, extras):
    """What only comes along with another library may go with its next release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    names = {canonicalize_name(Requirement(line).name) for line in lines}
    libraries = metadata.packages_distributions()
    missing = {
        f"{path.relative_to(ROOT)}: {module}"
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for module in imported_by(path) & libraries.keys() - {*UNLISTED}
        if names.isdisjoint(canonicalize_name(name) for name in libraries[module])
    }
    assert sorted(missing) == []


def imported_by(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {module.partition(".")[0] for module in modules}
