"""Folders of an S3-compatible object store, with as much of `pathlib`'s manners as what a model keeps has need of.

Credentials, region and endpoint come from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
AWS_ENDPOINT_URL, or what else the AWS libraries look at. An object appears whole or not at all: one PUT, or the end of
an upload in parts; of an upload that was cut off nothing is ever listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from diurnal.errors import Fault

BLOCK_BYTES = 16 << 20
"""Read and written at a time: each read is a request."""

MAX_WAITING_BYTES = 128 << 20

_SCHEME = "s3://"
_CONNECT_S, _ANSWER_S, _TRIES = 5.0, 10.0, 3
"""A store that does not answer is given up after half a minute. The defaults, 1 s and 3 s, are short for a busy one."""


class Sending:
    """Takes bytes as fast as they come until `MAX_WAITING_BYTES` wait to be sent: Arrow alone would let all of them
    wait in memory."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._waiting_bytes = 0

    def write(self, block: bytes) -> None:
        self._stream.write(block)
        self._waiting_bytes += len(block)
        if self._waiting_bytes >= MAX_WAITING_BYTES:
            self._stream.flush()
            self._waiting_bytes = 0


@dataclass(frozen=True, order=True)
class ObjectPath:
    """An object, or a folder, which is what begins with its name and a slash."""

    key: str
    """Bucket and key, as in `bucket/models/ctr`."""

    @staticmethod
    def of(url: str) -> ObjectPath:
        return ObjectPath(url.removeprefix(_SCHEME).rstrip("/"))

    def __str__(self) -> str:
        return f"{_SCHEME}{self.key}"

    def __truediv__(self, below: str) -> ObjectPath:
        return ObjectPath(f"{self.key}/{below}")

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self.key.rpartition("/")[0])

    def relative_to(self, other: ObjectPath) -> PurePosixPath:
        return PurePosixPath(self.key).relative_to(other.key)

    def exists(self) -> bool:
        """Whether there is such an object: one request, unlike `get_file_info`, which lists when there is none."""
        try:
            self.open().close()
        except FileNotFoundError:
            return False
        return True

    def open(self) -> pa.NativeFile:
        """For reading; each read is a request for the bytes that are asked for.

        Raises:
            FileNotFoundError: there is no such object.
            OSError: the store fails.
        """
        return self._store().open_input_file(self.key)

    def read_bytes(self) -> bytes:
        with self.open() as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def blocks(self) -> Iterator[bytes]:
        with self.open() as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    @contextmanager
    def writing(self) -> Iterator[Sending]:
        """A stream whose end makes the object. Arrow has no way to give one up: what an error has cut off appears too,
        and is for the caller to delete."""
        with self._store().open_output_stream(self.key) as stream:
            yield Sending(stream)

    def write_bytes(self, content: bytes) -> None:
        with self.writing() as stream:
            stream.write(content)

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        self.write_bytes(text.encode(encoding))

    def upload(self, file: Path) -> None:
        try:
            with file.open("rb") as source, self.writing() as stream:
                while block := source.read(BLOCK_BYTES):
                    stream.write(block)
        except BaseException:
            self.unlink(missing_ok=True)
            raise

    def download(self, file: Path) -> None:
        with file.open("wb") as target:
            for block in self.blocks():
                target.write(block)
            target.flush()
            os.fsync(target.fileno())

    def files(self) -> dict[str, int]:
        """Bytes of all objects below, by their path from here; empty when there is nothing. One listing, of as many
        requests as there are thousands of objects."""
        below = fs.FileSelector(self.key, recursive=True, allow_not_found=True)
        infos = self._store().get_file_info(below)
        return {info.path[len(self.key) + 1 :]: info.size for info in infos if info.type == fs.FileType.File}

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._store().delete_file(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove(self) -> None:
        """Deletes all objects below, a thousand a request."""
        with suppress(FileNotFoundError):  # nothing is below
            self._store().delete_dir(self.key)

    def refuse_no_bucket(self) -> None:
        """A bucket that does not exist is listed like an empty one.

        Raises:
            OSError: it does not exist, or may not be seen.
        """
        bucket = self.key.partition("/")[0]
        if self._store().get_file_info(bucket).type == fs.FileType.NotFound:
            raise OSError(f"there is no bucket {bucket}")

    def fault(self, error: OSError) -> Fault:
        """What a person reads of a store that fails."""
        rule = "a bucket that exists, answers, and may be listed, read and written with the environment's credentials"
        fix = "correct storage, or AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL"
        return Fault("storage", f"{self}: {error}".partition("\n")[0], rule, fix)

    def _store(self) -> fs.S3FileSystem:
        about = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
        return _connected(self.key.partition("/")[0], about, os.getpid())


Place = Path | ObjectPath
"""Where something is kept: on a disk, or in an object store."""


def place_of(storage: str | Path, *below: str) -> Place:
    """A folder in a storage, which is a folder or a URL."""
    if is_url(storage):
        return ObjectPath("/".join((ObjectPath.of(str(storage)).key, *below)))
    return Path(storage, *below)


def is_url(storage: str | Path) -> bool:
    return "://" in str(storage)


@lru_cache(maxsize=8)
def _connected(bucket: str, about: tuple[tuple[str, str], ...], pid: int) -> fs.S3FileSystem:
    """One connection a process and environment; a fork needs its own."""
    settings = dict(about)
    region = settings.get("AWS_REGION") or settings.get("AWS_DEFAULT_REGION")
    endpoint = urlsplit(settings.get("AWS_ENDPOINT_URL_S3") or settings.get("AWS_ENDPOINT_URL") or "")
    if region is None and not endpoint.netloc:
        region = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        region=region,
        scheme=endpoint.scheme or None,
        endpoint_override=endpoint.netloc or None,
        connect_timeout=_CONNECT_S,
        request_timeout=_ANSWER_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
        allow_delayed_open=True,  # so that a small object is one PUT
    )
