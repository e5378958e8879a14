"""What is sent with a job: the resolved configuration, the versions it is to find, and the package when asked to.

Never the repository: what runs is what the cluster's image has, or the wheel that was named.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

from diurnal.config import Config, resolved_json
from diurnal.errors import ConfigError, Fault
from diurnal.stack import library_versions

CONFIG_FILE, VERSIONS_FILE = "run.json", "versions.json"

_COMPARED = ("diurnal", "python", "torch", "torchrec", "fbgemm", "ray", "mlflow", "pyarrow", "pydantic", "numpy")


def pack(folder: Path, config: Config, wheel: Path | None = None) -> None:
    """Writes a job's working folder.

    A wheel is unpacked into it: Ray would install it with everything that it asks for, torch too, on each node.

    Raises:
        ConfigError: the wheel is none of this package.
    """
    versions = comparable(library_versions())
    if wheel is not None:
        versions["diurnal"] = _unpack(wheel, folder)
    (folder / CONFIG_FILE).write_text(resolved_json(config), encoding="utf-8")
    (folder / VERSIONS_FILE).write_text(json.dumps(versions, indent=1), encoding="utf-8")


def comparable(versions: Mapping[str, str]) -> dict[str, str]:
    """What has to be the same at both ends: Python without its patch level, libraries without their build (`+cpu`),
    fbgemm by whichever of its two names."""
    found = {name.removesuffix("-gpu-cpu").removesuffix("-gpu"): v.partition("+")[0] for name, v in versions.items()}
    found["python"] = ".".join(versions.get("python", "").split(".")[:2])
    return {name: found[name] for name in _COMPARED if name in found}


def differences(sent: Mapping[str, str], here: Mapping[str, str]) -> list[Fault]:
    """Where the cluster's versions are not those of the submitter, who prepared for them."""
    return [
        Fault(
            f"cluster: {name}",
            here.get(name, "not installed"),
            f"the submitter's version, {version}",
            "use the same image or constraints.txt on both sides, or send the package with --wheel",
        )
        for name, version in sent.items()
        if here.get(name) != version
    ]


def _unpack(wheel: Path, folder: Path) -> str:
    """Answers its version."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            roots = {name.partition("/")[0] for name in archive.namelist()}
            infos = [root for root in roots if root.endswith(".dist-info")]
            is_ours = len(infos) == 1 and roots == {"diurnal", *infos} and infos[0].startswith("diurnal-")
            if is_ours:
                archive.extractall(folder)
                return infos[0].removeprefix("diurnal-").removesuffix(".dist-info")
            found = f"{wheel}, which holds {', '.join(sorted(roots)[:5])}"
    except (OSError, zipfile.BadZipFile) as error:
        found = f"{wheel}: {error}"
    rule = "a wheel of diurnal, as `python -m hatchling build --target wheel` makes it"
    raise ConfigError([Fault("--wheel", found, rule, "correct the path, or leave it out")])
