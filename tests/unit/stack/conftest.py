"""Installations made of metadata only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from diurnal.stack import FBGEMM, FLOORS, TORCH, TORCHREC

RIGHT = {"torch": TORCH, "torchrec": TORCHREC, "fbgemm-gpu-cpu": FBGEMM, **FLOORS}

Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """`install(torch="2.12.0", mlflow=None)` -> a folder with the metadata of the right set, but for what is named."""

    def make(**changes: str | None) -> str:
        versions = {**RIGHT, **{name.replace("_", "-"): version for name, version in changes.items()}}
        for name, version in versions.items():
            if version is not None:
                folder = tmp_path / "site" / f"{name.replace('-', '_')}-{version}.dist-info"
                folder.mkdir(parents=True)
                (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return str(tmp_path / "site")

    return make
