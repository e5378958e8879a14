"""What others install: the package, its command, and nothing else of this repository."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from diurnal import __version__

ROOT = Path(__file__).parents[3]


def test_wheel_holds_the_package_only(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = f"diurnal-{__version__}.dist-info"
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert {name.partition("/")[0] for name in names} == {"diurnal", info}
    assert f"{info}/licenses/LICENSE" in names
    written = {str(p.relative_to(ROOT / "platform")) for p in (ROOT / "platform" / "diurnal").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == written
    assert "diurnal = diurnal.cli.main:main" in entry_points
