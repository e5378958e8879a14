"""Does this machine train? Versions that belong together, one lookup, one collective, and whether a GPU is seen."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diurnal.errors import Fault, StackError
from diurnal.stack import check_stack, install_line, library_versions


@dataclass(frozen=True)
class Check:
    """One thing that was tried. `faults` is empty when it is in order."""

    name: str
    text: str
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Report:
    versions: dict[str, str]
    checks: tuple[Check, ...]

    @property
    def is_healthy(self) -> bool:
        return not any(check.faults for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {"healthy": self.is_healthy, "versions": self.versions, "checks": [asdict(c) for c in self.checks]}

    def text(self) -> str:
        lines: list[str] = []
        for check in self.checks:
            lines.append(f"{'wrong' if check.faults else 'ok':<6}{check.name:<12}{check.text}")
            lines += [f"      {line}" for fault in check.faults for line in str(fault).splitlines()]
        return "\n".join(lines)


def run_doctor(timeout_s: float = 180.0) -> Report:
    """Checks the installed versions and, if they belong together, tries them in processes of their own.

    What a compiled library does when it cannot be loaded (a dump of symbols, a crash) stays in those processes.
    """
    try:
        versions = check_stack()
    except StackError as error:
        return Report(library_versions(), (Check("versions", "these do not belong together", error.faults),))
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    checks = [Check("versions", named)]
    with tempfile.TemporaryDirectory(prefix="diurnal-doctor-") as folder:
        meeting = str(Path(folder) / "meeting")
        commands = (("lookup",), ("collective", meeting, "0"), ("collective", meeting, "1"))
        found, *sums = _probe(commands, timeout_s)
    checks.append(_judge("lookup", found, _LOOKUP_FAULT, f"2 rows read and updated on {found.get('device')}"))
    broken = next((answer for answer in sums if "failed" in answer or "faults" in answer), sums[0])
    checks.append(_judge("collective", broken, _COLLECTIVE_FAULT, "2 processes added their numbers over gloo"))
    if not checks[1].faults:
        checks.append(Check("gpu", _describe_gpu(found)))
    return Report(versions, tuple(checks))


_LOOKUP_FAULT = (
    "an embedding lookup in torchrec and fbgemm",
    "2 rows come back as they were written",
    "see all that it says: python -m diurnal.cli.probes lookup",
)
_COLLECTIVE_FAULT = (
    "a gloo collective between 2 processes",
    "both get the sum",
    "let this host's name mean an address of its own (/etc/hosts), or name an interface: GLOO_SOCKET_IFNAME=lo",
)


def _probe(commands: Sequence[tuple[str, ...]], timeout_s: float) -> list[dict[str, Any]]:
    """Runs all at once; an answer is what the probe printed, or `{"failed": why}`."""
    program = (sys.executable, "-P", "-m", "diurnal.cli.probes")
    processes = [
        subprocess.Popen((*program, *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    answers: list[dict[str, Any]] = []
    try:
        for process in processes:
            answers.append(_answer(process, timeout_s))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return answers


def _answer(process: subprocess.Popen[str], timeout_s: float) -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer after {timeout_s:.0f} s"}
    if process.returncode < 0:
        return {"failed": f"the process died of signal {-process.returncode}"}
    if process.returncode > 0:
        last = next((line for line in reversed(err.splitlines()) if line.strip()), "no message")
        return {"failed": last.strip()[:200]}
    return json.loads(out.splitlines()[-1])


def _judge(name: str, answer: dict[str, Any], expected: tuple[str, str, str], text: str) -> Check:
    if "faults" in answer:
        return Check(name, "the libraries do not load", tuple(Fault(**fault) for fault in answer["faults"]))
    if "failed" in answer:
        where, rule, fix = expected
        return Check(name, "does not work", (Fault(where, answer["failed"], rule, fix),))
    return Check(name, text)


def _describe_gpu(found: dict[str, Any]) -> str:
    if found["gpus"]:
        return f"{len(found['gpus'])}: {', '.join(sorted(set(found['gpus'])))} (CUDA {found['cuda']})"
    if _driver_sees_gpu():
        return f"nvidia-smi sees one, torch does not use it; for the CUDA libraries: {install_line(gpu=True)}"
    return "none seen; training runs on CPUs"


def _driver_sees_gpu() -> bool:
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    try:
        listed = subprocess.run((program, "-L"), capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "GPU" in listed.stdout
