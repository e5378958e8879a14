"""The shape of the tree: nothing in it hides a library, names a machine, or outgrows its room."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = (".ci", "dashboards", "datasets", "helm", "jobs", "platform", "tests")
PACKAGE = ROOT / "platform" / "diurnal"
FILE_LINES, FUNCTION_LINES = 400, 60

_MACHINES = ("work", "root", "tmp", "home/[a-z]+", "Users/[A-Za-z]+")
MACHINE_PATH = re.compile(r"(?<![\w.$})/-])/(" + "|".join(_MACHINES) + ")/")
REGISTRY = re.compile(r"--(extra-)?index-url[ =]|--find-links[ =]|//[\w.-]+/(simple|packages|whl)/|//registry\.")
"""Where a package comes from: an address of an index, or an option that names one."""


def our_files() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".git"))
    for folder in FOLDERS:
        for where, names, files in os.walk(ROOT / folder):
            names[:] = [name for name in names if name != "__pycache__"]
            yield from (Path(where) / file for file in files)


def sources() -> list[Path]:
    return [path for path in our_files() if path.suffix == ".py"]


@pytest.mark.parametrize("folder", ["platform", "datasets", "jobs", "tests"])
def test_top_folders_are_no_packages(folder):
    """With platform/__init__.py on the path, `import ray` dies."""
    assert [str(p.relative_to(ROOT)) for p in (ROOT / folder).glob("__init__.py")] == []


def test_no_test_folder_is_a_package():
    assert [str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("__init__.py")] == []


@pytest.mark.parametrize("where", [".", "tests"])
def test_the_standard_librarys_platform_wins(where):
    code = "import platform; print(platform.python_version())"
    path = os.pathsep.join([str(ROOT / where), str(ROOT / "platform")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / where,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().startswith("3.")


def test_no_test_folder_is_named_like_a_library():
    names = {path.name for path in (ROOT / "tests").rglob("*") if path.is_dir() and path.name != "__pycache__"}
    assert [name for name in sorted(names) if name.isidentifier() and importlib.util.find_spec(name) is not None] == []


def test_nothing_imports_jobs_or_datasets():
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if name.partition(".")[0] in ("jobs", "datasets", "tests")
    ]
    assert found == []


def test_no_file_names_a_machine_or_a_registry():
    found = []
    for path in our_files():
        content = path.read_bytes()
        if b"\0" in content or path == Path(__file__):
            continue
        for number, line in enumerate(content.decode().splitlines(), start=1):
            if MACHINE_PATH.search(line) or REGISTRY.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


def test_ci_script_can_be_run():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_folder_of_tests_is_collected():
    """pytest passes over folders named `dist` by itself."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith("_")}
    passed_over = [name for name in folders for pattern in settings["norecursedirs"] if fnmatch(name, pattern)]
    assert passed_over == []


def test_files_stay_in_their_budget():
    """A file that outgrows this tells that its room is missing a file."""
    long = {str(p.relative_to(ROOT)): n for p in sources() if (n := len(p.read_text().splitlines())) > FILE_LINES}
    assert long == {}


def test_functions_stay_in_their_budget():
    long = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert long == {}
