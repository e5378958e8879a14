"""The batches of one rank: read and encoded by a small Ray Data pipeline of its own, or in a thread of this process.

Ray's own split is not used: it drops rows to make ranks equal, or starves ranks to keep all rows
(ray-project/ray#63285). Here the plan says which rows a rank reads in which step: a read task is one input of the
pipeline and comes out as finished batches, so that no column crosses a process by itself.
"""

from __future__ import annotations

import logging
import pickle
import queue
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from diurnal.config import Schema
from diurnal.data.batch import Batch
from diurnal.data.packed import PackedBatch, read_block
from diurnal.data.read import read_batches, run_read_tasks
from diurnal.data.streams import ReadTask, StreamPlan

if TYPE_CHECKING:
    import ray.data

INPROCESS_ROWS = 16384
"""Up to so many rows a rank reads them itself, in milliseconds; a Ray Data pipeline takes 0.1 to 0.2 s to start."""

_BLOCK_BYTES = 8 << 20
"""Batches cross processes in blocks of about this size: each block costs Ray Data milliseconds, whatever its size."""

_WAIT_S = 30.0
_CLOSE_S = 10.0
_QUIET = {
    "ray.data._internal.execution.streaming_executor": logging.WARNING,
    "ray.data._internal.progress": logging.ERROR,
}
"""What Ray Data tells about each execution: a model that learns hundreds of increments would drown in it."""

_context_lock = threading.Lock()
_log = logging.getLogger(__name__)


class BatchReader(Iterator[Batch]):
    """Gives one batch a step, in order: as many on every rank, and all of the same size.

    Reading starts when the reader is built, so that the next pass can warm up while this one ends. Close it, or use
    it as a context manager: it may be left early.
    """

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
        node_labels: Mapping[str, str] = MappingProxyType({}),
        use_ray: bool | None = None,
        prefetch_batches: int = 4,
    ) -> None:
        """Starts to read the steps [start_step, stop_step).

        Args:
            plan: of the whole increment.
            schema: what the columns mean.
            rank: whose streams are read.
            world_size: over how many ranks the streams are dealt.
            start_step: first step.
            stop_step: the step before which it ends; the increment's end when None.
            read_cpus: CPUs that this rank's tasks may use at a time, beside the worker's own.
            node_labels: Ray labels of the nodes that these tasks may run on; all nodes when empty.
            use_ray: True reads in Ray Data's tasks, False in a thread of this process; None through Ray when this
                process has joined a cluster and the rank has more than `INPROCESS_ROWS` rows to read.
            prefetch_batches: batches that wait here, ready, for the step that needs them.
        """
        tasks = plan.read_tasks(rank, world_size, start_step, stop_step)
        if use_ray is None:
            use_ray = sum(lane.num_rows for task in tasks for lane in task.lanes) > INPROCESS_ROWS and _has_joined()
        self.uses_ray = use_ray and bool(tasks)
        self._what = f"{plan.increment_id}, rank {rank}"
        self._source = f"Ray Data with {read_cpus:g} CPUs" if self.uses_ray else "this process"
        self._kept_negatives = plan.kept_negatives
        self._keys = [feature.name for feature in schema.sparse]
        self._next_step = start_step
        self._stop_step = start_step + sum(task.num_steps for task in tasks)
        if self.uses_ray:
            packed = _through_ray(tasks, schema, plan.increment.path, read_cpus, node_labels)
        else:
            packed = _in_process(tasks, schema, plan.increment.path)
        self._queue: queue.Queue[Batch | BaseException] = queue.Queue(prefetch_batches)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(packed,), daemon=True, name=f"read {self._what}")
        self._thread.start()

    def __next__(self) -> Batch:
        """The batch of the next step.

        Raises:
            DataError: what reading or encoding its rows, or rows soon after, came across.
        """
        if self._closed.is_set():
            raise StopIteration
        if self._next_step == self._stop_step:
            self.close()
            raise StopIteration
        item = self._wait()
        if isinstance(item, BaseException):
            self.close()
            raise item
        assert item.step == self._next_step, f"step {item.step} came in the place of {self._next_step}"
        self._next_step += 1
        return item

    def close(self) -> None:
        """Stops reading and lets go of what was read ahead."""
        self._closed.set()
        self._thread.join(_CLOSE_S)
        self._queue.queue.clear()

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self) -> Batch | BaseException:
        while True:
            try:
                return self._queue.get(timeout=_WAIT_S)
            except queue.Empty:
                is_reading = self._thread.is_alive() or not self._queue.empty()
                assert is_reading, f"reading ended before step {self._next_step}"
                _log.warning("%s: still waiting for step %d from %s", self._what, self._next_step, self._source)

    def _fill(self, packed: Generator[PackedBatch, None, None]) -> None:
        try:
            for one in packed:
                if not self._put(Batch.from_packed(one, self._keys, self._kept_negatives)):
                    break
        except BaseException as error:
            self._put(error)
        finally:
            packed.close()

    def _put(self, item: Batch | BaseException) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False


def _has_joined() -> bool:
    import ray

    return ray.is_initialized()


def _in_process(tasks: Sequence[ReadTask], schema: Schema, dataset: str) -> Generator[PackedBatch, None, None]:
    for task in tasks:
        yield from read_batches(task, schema, dataset)


def _through_ray(
    tasks: Sequence[ReadTask], schema: Schema, dataset: str, read_cpus: float, node_labels: Mapping[str, str]
) -> Generator[PackedBatch, None, None]:
    """Builds the pipeline at once, under a context of its own; it runs when the first batch is asked for."""
    import ray.data

    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(level)
    with _context_lock:
        context = ray.data.DataContext.get_current().copy()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        context.target_max_block_size = _BLOCK_BYTES
        context.execution_options.preserve_order = True
        context.execution_options.resource_limits = ray.data.ExecutionResources(cpu=read_cpus)
        context.execution_options.label_selector = dict(node_labels) or None
        with ray.data.DataContext.current(context):
            pickled = [{"task": pickle.dumps(task)} for task in tasks]
            pipeline = ray.data.from_items(pickled, override_num_blocks=len(tasks)).map_batches(
                partial(run_read_tasks, schema=schema, dataset=dataset),
                batch_size=None,
                batch_format="pyarrow",
                zero_copy_batch=True,
                num_cpus=min(1.0, read_cpus),
            )
    return _unpacked(pipeline)


def _unpacked(pipeline: ray.data.Dataset) -> Generator[PackedBatch, None, None]:
    blocks: Any = iter(pipeline.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))
    with closing(blocks):  # left early, it stops Ray's tasks
        for block in blocks:
            yield from read_block(block)
