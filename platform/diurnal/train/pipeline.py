"""Batches on the device, a little ahead of the model, and how long the model waited for them.

One feed serves one pass over one increment and is closed with it, so that a batch can never run in another mode or
another day than its own (meta-pytorch/torchrec#3751).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

import torch

from diurnal.data.batch import Batch
from diurnal.train.pulse import Phase, Pulse


class Source(Protocol):
    """An iterator of batches that started to work when it was made."""

    def __iter__(self) -> Iterator[Batch]: ...

    def close(self) -> None: ...


class Feed(Iterable[Batch]):
    """Hands out the batches of one pass; on a GPU the next one is copied while the model works on this one."""

    def __init__(self, source: Source, device: torch.device, first_step: int = 0) -> None:
        self.first_step = first_step
        self._source = source
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.wait_s = 0.0
        """Seconds that the model stood still for want of data."""

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self._source)
        ahead = self._next(batches)
        while ahead is not None:
            batch = self._arrived(ahead)
            ahead = self._next(batches) if self._stream is not None else None
            yield batch
            if self._stream is None:
                ahead = self._next(batches)

    def _next(self, batches: Iterator[Batch]) -> Batch | None:
        start = time.perf_counter()
        batch = next(batches, None)
        self.wait_s += time.perf_counter() - start
        if batch is None or self._stream is None:
            return batch
        with torch.cuda.stream(self._stream):
            return batch.pin_memory().to(self._device, non_blocking=True)

    def _arrived(self, batch: Batch) -> Batch:
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream)
            batch.record_stream(current)
        return batch

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()


def followed(feed: Feed, pulse: Pulse) -> Iterator[Batch]:
    """The batches of a feed; the pulse says when the model waits for one, and when it has it."""
    batches, step = iter(feed), feed.first_step
    while True:
        pulse.mark(Phase.DATA, step)
        batch = next(batches, None)
        if batch is None:
            return
        pulse.mark(Phase.EXCHANGE, step)
        yield batch
        step += 1


@contextmanager
def one_ahead(starts: Iterable[Callable[[], Feed]]) -> Iterator[Iterator[Feed]]:
    """The feeds of passes that follow each other: the next one starts to read when the one before it is taken.

    A pass still has its feed for itself, and each feed is closed when the next is taken.
    """
    opened: list[Feed] = []

    def feeds() -> Iterator[Feed]:
        upcoming = iter(starts)
        _open_next(upcoming, opened)
        while opened:
            _open_next(upcoming, opened)
            yield opened[0]
            opened.pop(0).close()

    try:
        yield feeds()
    finally:
        for feed in opened:
            feed.close()


def _open_next(upcoming: Iterator[Callable[[], Feed]], opened: list[Feed]) -> None:
    start = next(upcoming, None)
    if start is not None:
        opened.append(start())
