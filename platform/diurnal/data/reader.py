"""The batches of one rank: read and encoded by a small Ray Data pipeline of its own, or in a thread of this process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from diurnal.config import Schema
from diurnal.data.batch import Batch
from diurnal.data.packed import PackedBatch
from diurnal.data.read import read_batches
from diurnal.data.streams import ReadTask, StreamPlan


class BatchReader(Iterator[Batch]):
    """Starts reading when built; gives one batch a step, in order, the same number on every rank."""

    def __init__(
        self,
        plan: StreamPlan,
        schema: Schema,
        *,
        rank: int,
        world_size: int,
        start_step: int = 0,
        stop_step: int | None = None,
        read_cpus: float = 1.0,
        use_ray: bool | None = None,
        prefetch_batches: int = 4,
    ) -> None:
        self._keys = [f.name for f in schema.sparse]
        self._tasks = plan.read_tasks(rank, world_size, start_step, stop_step)
        self._schema, self._dataset = schema, plan.increment.path
        self._queue: queue.Queue[PackedBatch | BaseException | None] = queue.Queue(prefetch_batches)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for task in self._tasks:
                for packed in read_batches(task, self._schema, self._dataset):
                    if not self._put(packed):
                        return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: PackedBatch | BaseException | None) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def __next__(self) -> Batch:
        item = self._queue.get()
        if isinstance(item, PackedBatch):
            return Batch.from_packed(item, self._keys)
        self._queue.put(item)
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
