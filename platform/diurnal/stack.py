"""Library versions that belong together: written, checked and loaded here.

torch, torchrec and fbgemm are one set: fbgemm's C++ operators are built against one torch release and do not load in
another. fbgemm has two packages, `fbgemm-gpu-cpu` and `fbgemm-gpu` (CUDA), that write the same folder.
"""

from __future__ import annotations

import csv
import logging
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from diurnal.errors import Fault, StackError

TORCH = "2.13.0"
TORCHREC = "1.8.0"
FBGEMM = "1.8.0"
FLOORS = {"ray": "2.60.0", "mlflow": "3.17.2", "pyarrow": "25.0.1", "pydantic": "2.14", "numpy": "2.4"}
"""Lowest versions that we test."""

_CPU, _GPU = "fbgemm-gpu-cpu", "fbgemm-gpu"


def install_line(gpu: bool = False) -> str:
    """What to type to get the set, in order: torchrec asks for fbgemm-gpu by name, so its requirements are left out."""
    fbgemm = _GPU if gpu else _CPU
    return f"pip install torch=={TORCH} {fbgemm}=={FBGEMM} && pip install --no-deps torchrec=={TORCHREC}"


def library_versions(search: Sequence[str] | None = None) -> dict[str, str]:
    """Name to installed version of every library that results depend on; what is not installed is left out.

    `search` are the folders to look in, `sys.path` when left out.
    """
    names = ("diurnal", "torch", "torchrec", _CPU, _GPU, *FLOORS)
    found = {name: d.version for name in names if (d := _find(name, search)) is not None}
    return {"python": platform.python_version(), **found}


def check_stack(search: Sequence[str] | None = None) -> dict[str, str]:
    """The installed versions, once they are known to belong together; takes milliseconds, loads no library.

    Raises:
        StackError: with every version that is missing, too old or of another set, found and expected, and the
            command that installs the right one.
    """
    versions = library_versions(search)
    gpu = _GPU in versions and _CPU not in versions
    faults = [
        *_set_faults(versions, gpu),
        *_fbgemm_faults(versions, gpu, search),
        *(fault for name, floor in FLOORS.items() if (fault := _floor_fault(name, floor, versions)) is not None),
    ]
    if faults:
        raise StackError(faults)
    return versions


def load_operators() -> None:
    """Imports torch, fbgemm and torchrec and touches one operator of fbgemm, without fbgemm's lines in the log.

    Raises:
        StackError: as `check_stack` does, or when the versions are right and the libraries do not load all the same.
    """
    versions = check_stack()
    try:
        with _quiet_root_logger():
            import fbgemm_gpu  # noqa: F401
            import torch
            import torchrec  # noqa: F401
        _ = torch.ops.fbgemm.asynchronous_complete_cumsum.default
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        raise StackError([_load_fault(error, versions)]) from None


def _find(name: str, search: Sequence[str] | None) -> metadata.Distribution | None:
    where: dict[str, Any] = {} if search is None else {"path": list(search)}
    return next(iter(metadata.distributions(name=name, **where)), None)


def _set_faults(versions: dict[str, str], gpu: bool) -> Iterator[Fault]:
    fbgemm = _GPU if gpu else _CPU
    for name, expected in (("torch", TORCH), (fbgemm, FBGEMM), ("torchrec", TORCHREC)):
        found = versions.get(name)
        if found is None or found.partition("+")[0] != expected:
            rule = f"{expected}: torch {TORCH}, fbgemm {FBGEMM} and torchrec {TORCHREC} belong together"
            yield Fault(name, found or "not installed", rule, install_line(gpu))


def _fbgemm_faults(versions: dict[str, str], gpu: bool, search: Sequence[str] | None) -> Iterator[Fault]:
    installed = [name for name in (_CPU, _GPU) if name in versions]
    if len(installed) == 2:
        found = f"both {_CPU} {versions[_CPU]} and {_GPU} {versions[_GPU]}"
        fix = f"pip uninstall -y {_CPU} {_GPU} && pip install --no-deps {_CPU}=={FBGEMM}"
        yield Fault("fbgemm", found, "one of them: both write the folder fbgemm_gpu", fix)
        return
    if gpu and versions.get("torch", "").endswith("+cpu"):
        fix = f"pip uninstall -y {_GPU} && {install_line()}"
        yield Fault(_GPU, f"torch {versions['torch']}", f"a CPU build of torch goes with {_CPU}", fix)
    for name in installed:
        damaged = _damaged_files(name, search)
        if damaged:
            found = f"{len(damaged)} of its files gone or replaced, {damaged[0]} among them"
            rule = "the files that were installed (removing the other fbgemm package takes them away)"
            fix = f"pip install --force-reinstall --no-deps {name}=={FBGEMM}"
            yield Fault(name, found, rule, fix)


def _damaged_files(name: str, search: Sequence[str] | None) -> list[str]:
    distribution = _find(name, search)
    if distribution is None:
        return []
    # Not `distribution.files`: from Python 3.12 on it leaves out what is missing.
    record = distribution.read_text("RECORD") or ""
    damaged: list[str] = []
    for file, _, size in csv.reader(record.splitlines()):
        if not file.endswith((".so", "__init__.py")):
            continue
        try:
            whole = size in ("", str(Path(str(distribution.locate_file(file))).stat().st_size))
        except OSError:
            whole = False
        if not whole:
            damaged.append(file)
    return damaged


def _floor_fault(name: str, floor: str, versions: dict[str, str]) -> Fault | None:
    found = versions.get(name)
    if found is not None and _numbers(found) >= _numbers(floor):
        return None
    return Fault(name, found or "not installed", f"{floor} or newer", f'pip install "{name}>={floor}"')


def _numbers(version: str) -> tuple[int, ...]:
    """`25.0.1rc1+x` -> (25, 0, 1): enough to compare with a floor."""
    numbers: list[int] = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _load_fault(error: Exception, versions: dict[str, str]) -> Fault:
    gpu = _GPU in versions
    text = str(error)
    where = "torch, fbgemm, torchrec"
    if "libnvidia" in text or "libcuda" in text:
        fix = f"pip uninstall -y {_GPU} && {install_line()}"
        return Fault(where, "the NVIDIA driver's library is missing", f"{_GPU} runs on machines with its driver", fix)
    if isinstance(error, ModuleNotFoundError):
        is_ours = (error.name or "").partition(".")[0] in ("torch", "fbgemm_gpu", "torchrec")
        fix = _reinstall_line(gpu) if is_ours else f"pip install {error.name}"
        return Fault(where, f"no module {error.name}", "every module they import is installed", fix)
    found = text.partition("\n")[0][:160]
    if not found or "symbol" in text or ".so" in text:
        found = "a compiled library that was built for other versions than these"
    fix = f"{_reinstall_line(gpu)} (the library's own words: python -c 'import fbgemm_gpu')"
    return Fault(where, found, "compiled libraries of one set, each as its package brought it", fix)


def _reinstall_line(gpu: bool) -> str:
    torch, torchrec = install_line(gpu).split(" && ")
    return f"{torch} --force-reinstall --no-deps && {torchrec} --force-reinstall"


@contextmanager
def _quiet_root_logger() -> Iterator[None]:
    """fbgemm logs each file that it loads to the root logger, whose first line also installs a handler for good."""
    before = logging.root.manager.disable
    handlers = list(logging.root.handlers)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
        logging.root.handlers[:] = handlers
