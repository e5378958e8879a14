"""Scripts of `datasets/` are no package: a test loads them by path, with their folder on the path as when they run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _load(folder: str, *names: str) -> SimpleNamespace:
    path = str(ROOT / "datasets" / folder)
    sys.path.insert(0, path)
    try:
        modules: dict[str, ModuleType] = {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(path)
        for name in names:  # another folder has a module of this name too
            sys.modules.pop(name, None)
    return SimpleNamespace(root=ROOT, folder=ROOT / "datasets" / folder, **modules)


@pytest.fixture(scope="session")
def movielens() -> SimpleNamespace:
    return _load("movielens", "past_only", "convert")


@pytest.fixture(scope="session")
def synthetic() -> SimpleNamespace:
    return _load("synthetic", "world", "generate")


@pytest.fixture(scope="session")
def criteo() -> SimpleNamespace:
    return _load("criteo", "layout", "convert", "generate", "multihot")


@pytest.fixture(scope="session")
def open_bandit() -> SimpleNamespace:
    return _load("open_bandit", "convert")


@pytest.fixture(scope="session")
def ads() -> SimpleNamespace:
    return _load("ads", "layout", "convert", "generate")
