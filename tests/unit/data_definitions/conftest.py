"""Scripts of `datasets/` are no package: a test loads them by path, with their folder on the path as when they run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _load(folder: str, *names: str) -> Iterator[SimpleNamespace]:
    path = str(ROOT / "datasets" / folder)
    sys.path.insert(0, path)
    try:
        modules: dict[str, ModuleType] = {name: importlib.import_module(name) for name in names}
        yield SimpleNamespace(root=ROOT, folder=ROOT / "datasets" / folder, **modules)
    finally:
        sys.path.remove(path)
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def movielens() -> Iterator[SimpleNamespace]:
    yield from _load("movielens", "past_only", "convert")


@pytest.fixture(scope="session")
def synthetic() -> Iterator[SimpleNamespace]:
    yield from _load("synthetic", "world", "generate")
