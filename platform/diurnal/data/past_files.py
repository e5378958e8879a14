"""A past as files of a folder; one of an object store is opened from a copy that a machine's readers share."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np

from diurnal.data.objects import ObjectPath, is_url
from diurnal.data.past import NOTHING, Past

FACTS = "past.json"
COPIES = 4
"""Pasts that a machine keeps copies of: of what is learned, of what it is compared with, and of those before."""
_VOCABULARY = ("hashes", "rows")
_VALUES = "values"


def write_past(past: Past, folder: Path) -> None:
    """Into a folder that is there and empty."""
    facts = {"increment": past.increment, "impressions": past.impressions, "positives": past.positives}
    counted, known, spread = list(past.of_feature), list(past.vocabulary), list(past.of_values)
    for index, feature in enumerate(counted):
        np.save(folder / f"{index}.npy", past.of_feature[feature])
    for index, feature in enumerate(known):
        for part, values in zip(_VOCABULARY, past.vocabulary[feature], strict=True):
            np.save(folder / f"{part}-{index}.npy", values)
    for index, feature in enumerate(spread):
        np.save(folder / f"{_VALUES}-{index}.npy", past.of_values[feature])
    (folder / FACTS).write_text(json.dumps({**facts, "counted": counted, "known": known, "spread": spread}))


@lru_cache(maxsize=4)
def open_past(path: str) -> Past:
    """A past whose counts stay on disk until they are asked for; an empty path is the past of a new model.

    Args:
        path: folder, or URL of one.

    Raises:
        OSError: it cannot be read.
    """
    if not path:
        return NOTHING
    if is_url(path):
        with _copied(ObjectPath.of(path)) as folder:
            return _opened(str(folder))
    return _opened(path)


def _opened(path: str) -> Past:
    facts = json.loads(Path(path, FACTS).read_text())
    counted, known, spread = facts.pop("counted"), facts.pop("known"), facts.pop("spread", ())

    def stored(name: str) -> np.ndarray:
        return np.load(Path(path, f"{name}.npy"), mmap_mode="r")

    return Past(
        **facts,
        of_feature={name: stored(str(index)) for index, name in enumerate(counted)},
        vocabulary={
            name: (stored(f"{_VOCABULARY[0]}-{index}"), stored(f"{_VOCABULARY[1]}-{index}"))
            for index, name in enumerate(known)
        },
        of_values={name: stored(f"{_VALUES}-{index}") for index, name in enumerate(spread)},
    )


@contextmanager
def _copied(source: ObjectPath) -> Iterator[Path]:
    """A copy on this machine's disk, whole, which stays at least until it was opened.

    One process at a time looks, fetches, opens and deletes: the others wait for the same copy. What others have open
    when it is deleted stays theirs, as files do.
    """
    copies = Path(tempfile.gettempdir(), f"diurnal-pasts-{os.getuid()}")
    copies.mkdir(mode=0o700, exist_ok=True)
    if copies.stat().st_uid != os.getuid():
        raise PermissionError(f"{copies} is another user's: set TMPDIR")
    with open(copies / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # A past's name tells its content, and another store may have one of that name.
        store = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        target = copies / hashlib.blake2b(f"{store} {source}".encode(), digest_size=16).hexdigest()
        if not target.exists():
            _fetch(source, target)
        os.utime(target)
        others = (entry for entry in copies.iterdir() if entry.is_dir() and entry != target)
        for old in sorted(others, key=lambda entry: entry.stat().st_mtime, reverse=True)[COPIES - 1 :]:
            shutil.rmtree(old, ignore_errors=True)
        yield target


def _fetch(source: ObjectPath, target: Path) -> None:
    half = target.with_name(f"{target.name}.half")
    shutil.rmtree(half, ignore_errors=True)  # by a process that was killed
    half.mkdir()
    sizes = source.files()
    if FACTS not in sizes:
        raise FileNotFoundError(f"{source / FACTS} is not there")
    for name, size in sizes.items():
        (source / name).download(half / name)
        if (half / name).stat().st_size != size:
            raise OSError(f"{source / name} is not whole")
    half.rename(target)
