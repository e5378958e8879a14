"""Versions stand in stack.py, pyproject.toml, install.sh and constraints.txt: all agree, with what is installed too."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from diurnal import stack

ROOT = Path(__file__).parents[3]
SITE = sysconfig.get_path("purelib")
"""What is installed, without the copies that Ray puts on the path when it is imported."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    canonicalize_name(name): Version(version)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
    for name, _, version in [line.partition("==")]
}
BUILT_ELSEWHERE = {"diurnal", "pip", "fbgemm-gpu"}
"""Not among the pins: ourselves, the installer, and what pyproject.toml pins for GPUs alone."""
CUDA = re.compile(r"(nvidia|cuda|triton)\b")


def requirements(*extras: str) -> list[Requirement]:
    lines = [*PROJECT["dependencies"], *(line for e in extras for line in PROJECT["optional-dependencies"][e])]
    return [Requirement(line) for line in lines]


def needed_by(distribution: metadata.Distribution) -> list[str]:
    """Names that an installation without extras asks for."""
    wanted = [Requirement(line) for line in distribution.requires or ()]
    return [canonicalize_name(r.name) for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]


def torchs_own() -> set[str]:
    """torch and everything below it: a CUDA build brings libraries of its own, in versions that it pins."""
    seen: set[str] = set()
    waiting = ["torch"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        found = next(iter(metadata.distributions(name=name)), None)
        for line in (found.requires if found else None) or ():
            waiting.append(canonicalize_name(Requirement(line).name))
    return seen


def test_every_installed_distribution_is_pinned():
    installed = {canonicalize_name(d.name): d.version for d in metadata.distributions(path=[SITE])}
    cuda = {name for name in torchs_own() if CUDA.match(name)}
    loose = {
        name: found for name, found in installed.items() if name not in PINS and name not in cuda | BUILT_ELSEWHERE
    }
    assert loose == {}
    other = {n: f for n, f in installed.items() if n in PINS and Version(Version(f).public) != PINS[n]}
    assert other == {}


def test_pins_name_no_cuda_library_host_or_hash():
    text = (ROOT / "constraints.txt").read_text()
    assert not [name for name in PINS if CUDA.match(name) or name == "fbgemm-gpu"]
    assert "://" not in text
    assert "--" not in text
    assert "sha256" not in text
    assert not re.search(r"==.*\+", text), "a pin names one build of a release"


def test_only_torch_brings_cuda_libraries():
    """meta-pytorch/torchrec#224: asked for the CPU build, got the GPU one as a dependency."""
    torchs = torchs_own()
    asking = {
        d.name: [name for name in needed_by(d) if CUDA.match(name)]
        for d in metadata.distributions(path=[SITE])
        if canonicalize_name(d.name) not in torchs
    }
    assert {name: wanted for name, wanted in asking.items() if wanted} == {}
    assert not [r for r in requirements("cpu", "dev") if CUDA.match(r.name) or r.name == "fbgemm-gpu"]


def test_pip_check_has_one_known_complaint():
    """torchrec asks for fbgemm-gpu by name; on the CPU path fbgemm-gpu-cpu stands in for it."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    is_cpu = "fbgemm-gpu-cpu" in stack.library_versions()
    known = f"torchrec {stack.TORCHREC} requires fbgemm-gpu, which is not installed."
    assert done.stdout.splitlines() == [known if is_cpu else "No broken requirements found."]


def test_the_set_is_the_same_everywhere():
    pinned = {r.name: str(r.specifier) for r in requirements("cpu", "gpu")}
    assert pinned["torch"] == f"=={stack.TORCH}"
    assert pinned["fbgemm-gpu-cpu"] == pinned["fbgemm-gpu"] == f"=={stack.FBGEMM}"
    script = (ROOT / "platform" / "install.sh").read_text()
    assert re.findall(r"\btorch==(\S+)", script) == [stack.TORCH]
    assert re.findall(r"--no-deps torchrec==(\S+)", script) == [stack.TORCHREC]
    assert str(PINS[canonicalize_name("torch")]) == stack.TORCH
    assert str(PINS[canonicalize_name("torchrec")]) == stack.TORCHREC
    torchrec = metadata.distribution("torchrec")
    missing = {*needed_by(torchrec)} - {canonicalize_name(r.name) for r in requirements()} - {"fbgemm-gpu"}
    assert missing == set(), "torchrec is installed without its requirements, so they are listed among ours"


def test_floors_are_what_is_tested():
    """ray-project/ray#65124: the lowest versions that a resolver may take are those of constraints.txt."""
    for requirement in requirements("cpu", "dev"):
        floors = [s.version for s in requirement.specifier if s.operator in (">=", "==")]
        assert len(floors) == 1, f"{requirement} has no floor"
        pin = PINS[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{requirement} does not admit {pin}"
        floor = Version(floors[0]).release
        assert pin.release[: len(floor)] == floor, f"{requirement}: {pin} is what we test"
    declared = {r.name: next(s.version for s in r.specifier if s.operator in (">=", "==")) for r in requirements()}
    assert {name: declared[name] for name in stack.FLOORS} == stack.FLOORS
