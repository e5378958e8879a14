"""What commits are written on: a disk, or an object store. Each makes a commit whole in its own way."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from diurnal.data.objects import ObjectPath, Place
from diurnal.errors import CheckpointError

COMMIT = "COMMIT"
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileRecord:
    bytes: int
    sha256: str

    @staticmethod
    def of(path: Place) -> FileRecord:
        """
        Raises:
            FileNotFoundError: there is no such file.
        """
        digest, size = hashlib.sha256(), 0
        for block in path.blocks() if isinstance(path, ObjectPath) else _blocks(path):
            digest.update(block)
            size += len(block)
        return FileRecord(size, digest.hexdigest())


class Medium(Protocol):
    """Folders `<number>/<attempt>-<step>` below a root. `Any` stands for the kind of place that the root is."""

    def prepare(self) -> None:
        """Makes the root, once at the start."""
        ...

    def refuse_without_room(self, needed_bytes: int) -> None:
        """
        Raises:
            OSError: so many bytes find no room.
        """
        ...

    def begin(self, number: int, attempt: int, step: int) -> Any:
        """A folder that nobody else has, nor had, nor will have."""
        ...

    def records(self, directory: Any, rank: int, written: Mapping[str, FileRecord]) -> dict[str, FileRecord]:
        """What a rank has put into a folder.

        Args:
            written: what `tensors.write` says of it.
        """
        ...

    def put(self, path: Any, text: str) -> FileRecord:
        """Writes a file that was not there."""
        ...

    def seal(self, directory: Any, files: Mapping[str, FileRecord], text: str) -> None:
        """Writes the commit record, when all else is there for good."""
        ...

    def folders(self) -> dict[Any, bool]:
        """Those that were begun, and whether they have a commit record."""
        ...

    def size(self, path: Any) -> int:
        """
        Raises:
            FileNotFoundError: there is no such file.
        """
        ...

    def remove(self, directory: Any) -> None:
        """Deletes a folder; what is left when that is interrupted is no commit any more."""
        ...

    def discard(self, directory: Any) -> None:
        """Deletes what can be deleted of a folder without a commit record."""
        ...


class Disk:
    """A file system. What is written is on the disk before the commit record gets its name."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def prepare(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)

    def refuse_without_room(self, needed_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self._root).free
        if free_bytes < needed_bytes:
            raise OSError(errno.ENOSPC, f"{needed_bytes:,} bytes are to be written, {free_bytes:,} are free")

    def begin(self, number: int, attempt: int, step: int) -> Path:
        parent = self._root / str(number)
        parent.mkdir(exist_ok=True)
        for tries in range(1, 1000):
            directory = parent / (f"{attempt}-{step}" if tries == 1 else f"{attempt}-{step}.{tries}")
            try:
                directory.mkdir()
            except FileExistsError:
                continue
            _sync(parent)
            return directory
        raise CheckpointError(f"{parent}: attempt {attempt} at step {step} has begun 1000 times")

    def records(self, directory: Path, rank: int, written: Mapping[str, FileRecord]) -> dict[str, FileRecord]:
        """Read again from where it lies now."""
        patterns = [f"*/__{rank}_*", *(["*/.metadata"] if rank == 0 else [])]
        paths = [path for pattern in patterns for path in directory.glob(pattern)]
        return {path.relative_to(directory).as_posix(): FileRecord.of(path) for path in paths}

    def put(self, path: Path, text: str) -> FileRecord:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return FileRecord.of(path)

    def seal(self, directory: Path, files: Mapping[str, FileRecord], text: str) -> None:
        for folder in {(directory / path).parent for path in files}:
            _sync(folder)
        unfinished = directory / f"{COMMIT}.tmp"
        self.put(unfinished, text)
        unfinished.rename(directory / COMMIT)
        _sync(directory)

    def folders(self) -> dict[Path, bool]:
        return {path: (path / COMMIT).exists() for path in self._root.glob("*/*") if path.is_dir()}

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def remove(self, directory: Path) -> None:
        (directory / COMMIT).unlink(missing_ok=True)
        self.discard(directory)

    def discard(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)


class Bucket:
    """An object store. It has no folder that only one can make, and no name that changes: each beginning has a name of
    its own instead, and the commit record is one PUT."""

    def __init__(self, root: ObjectPath) -> None:
        self._root = root

    def prepare(self) -> None:
        """Nothing: a folder is there with its first object."""

    def refuse_without_room(self, needed_bytes: int) -> None:
        """Never: a bucket has no end."""

    def begin(self, number: int, attempt: int, step: int) -> ObjectPath:
        # Two that write at once (a driver or a worker that was frozen past its lease, and its successor) can not meet:
        # no listing is asked which names are free, since both might get the same answer. Which of their two commits
        # counts is for the ledger to say, which takes the token of the lease that is current and no other. The time
        # comes first, so that what was begun later sorts behind.
        tries = f"{time.time_ns() // 1000}{secrets.randbelow(10**6):06}"
        return self._root / str(number) / f"{attempt}-{step}.{tries}"

    def records(self, directory: ObjectPath, rank: int, written: Mapping[str, FileRecord]) -> dict[str, FileRecord]:
        """Counted while it was sent, since to fetch it all again would double what goes over the network; `seal`
        compares the sizes of what has come to lie there, and every load all checksums."""
        return dict(written)

    def put(self, path: ObjectPath, text: str) -> FileRecord:
        content = text.encode()
        path.write_bytes(content)
        return FileRecord(len(content), hashlib.sha256(content).hexdigest())

    def seal(self, directory: ObjectPath, files: Mapping[str, FileRecord], text: str) -> None:
        there = directory.files()
        wrong = [path for path, record in files.items() if there.get(path) != record.bytes]
        if wrong:
            sizes = f"{there.get(wrong[0])} bytes instead of {files[wrong[0]].bytes}"
            raise OSError(
                errno.EIO, f"{len(wrong)} objects were not written as sent: {directory / wrong[0]} has {sizes}"
            )
        self.put(directory / COMMIT, text)

    def folders(self) -> dict[ObjectPath, bool]:
        found: dict[ObjectPath, bool] = {}
        paths = self._root.files()
        if not paths:
            self._root.refuse_no_bucket()
        for number, name, *rest in (path.split("/") for path in paths if path.count("/") > 1):
            folder = self._root / number / name
            found[folder] = found.get(folder, False) or rest == [COMMIT]
        return found

    def size(self, path: ObjectPath) -> int:
        with path.open() as file:
            return file.size()

    def remove(self, directory: ObjectPath) -> None:
        (directory / COMMIT).unlink(missing_ok=True)
        directory.remove()

    def discard(self, directory: ObjectPath) -> None:
        with suppress(OSError):
            directory.remove()


def medium_of(root: Place) -> Medium:
    return Bucket(root) if isinstance(root, ObjectPath) else Disk(root)


def _blocks(path: Path) -> Iterable[bytes]:
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
