"""Torch's distributed checkpoints in an object store: shards go up as they are written, and come down in the ranges
that a rank needs."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import IO, Any, cast

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
from torch.futures import Future

from diurnal.checkpoint.media import FileRecord
from diurnal.data.objects import ObjectPath, Sending

METADATA = ".metadata"
_READERS = 8
"""Requests at a time, each for one chunk of at most 16 MiB, see `tensors.MAX_CHUNK_BYTES`."""


class _Upload(io.RawIOBase):
    """A stream that counts and hashes what passes through it."""

    def __init__(self, stream: Sending) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        # A copy: Arrow sends it later, from where it lies, and torch hands out memory that it takes back at once.
        block = bytes(data)
        self._stream.write(block)
        self._digest.update(block)
        self._bytes += len(block)
        return len(block)

    def tell(self) -> int:
        return self._bytes

    def record(self) -> FileRecord:
        return FileRecord(self._bytes, self._digest.hexdigest())


class _Objects(FileSystemBase):
    """What torch's writer and reader want of a file system, with no request that they can do without."""

    def __init__(self) -> None:
        self.sent: dict[str, FileRecord] = {}
        self._unnamed: dict[str, bytes] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        if mode == "rb":
            # Torch unpickles metadata in many small reads.
            yield io.BytesIO(path.read_bytes()) if path.name == METADATA else path.open()
        elif path.name.startswith(METADATA):
            # Written under another name, and then renamed: an object gets its name with all that is in it.
            buffer = io.BytesIO()
            yield buffer
            self._unnamed[path.name] = buffer.getvalue()
        else:
            with path.writing() as stream:
                upload = _Upload(stream)
                yield upload
            self.sent[path.name] = upload.record()

    def rename(self, path: Any, new_path: Any) -> None:
        content = self._unnamed.pop(path.name)
        new_path.write_bytes(content)
        self.sent[new_path.name] = FileRecord(len(content), hashlib.sha256(content).hexdigest())

    def concat_path(self, path: Any, suffix: str) -> Any:
        return path / suffix

    def init_path(self, path: Any) -> Any:
        return path

    def mkdir(self, path: Any) -> None:
        pass

    def exists(self, path: Any) -> bool:
        """Never: the folder is a fresh one."""
        return False

    def rm_file(self, path: Any) -> None:
        path.unlink()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, ObjectPath)


class ObjectWriter(FileSystemWriter):
    """Writes into a folder that nobody else writes into."""

    def __init__(self, folder: ObjectPath) -> None:
        # Torch would flush the disks of this machine where a stream has none to flush.
        super().__init__(str(folder), sync_files=False, overwrite=False)
        self._objects = _Objects()
        self.fs = self._objects  # pyright: ignore[reportAttributeAccessIssue]
        self.path = cast(Any, folder)

    @property
    def sent(self) -> dict[str, FileRecord]:
        """What this rank has written, by name."""
        return self._objects.sent

    @property
    def checkpoint_id(self) -> str:
        return str(self.path)


class ObjectReader(FileSystemReader):
    """Fetches each chunk that a plan names by one request."""

    def __init__(self, folder: ObjectPath) -> None:
        super().__init__(str(folder))
        self.fs = _Objects()  # pyright: ignore[reportAttributeAccessIssue]
        self.path = cast(Any, folder)

    @property
    def checkpoint_id(self) -> str:
        return str(self.path)

    def _slice_file(self, file: Any, sinfo: Any) -> IO[bytes]:
        return io.BytesIO(file.read_at(sinfo.length, sinfo.offset))

    def read_data(self, plan: dcp.LoadPlan, planner: dcp.LoadPlanner) -> Future[None]:
        def where(item: Any) -> tuple[str, int]:
            stored = self.storage_data[item.storage_index]
            return stored.relative_path, stored.offset

        # Neighbours stay together, since each share opens the objects that it reads.
        items = sorted(plan.items, key=where)
        cuts = [len(items) * i // _READERS for i in range(_READERS + 1)]
        shares = [dcp.LoadPlan(items[a:b]) for a, b in pairwise(cuts) if a < b]
        with ThreadPoolExecutor(_READERS) as pool:
            for done in pool.map(lambda share: FileSystemReader.read_data(self, share, planner), shares):
                done.wait()
        future: Future[None] = Future()
        future.set_result(None)
        return future
