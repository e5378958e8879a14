"""Work of the driver that takes long, done in a thread while it listens to its workers."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Takes what an iterable gives as fast as it comes, and keeps it, in order, until it is asked for."""

    def __init__(self, source: Iterable[T]) -> None:
        self._source = source
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._has_ended = self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._make, name="diurnal-ahead", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """All was taken, and nothing more will come."""
        with self._changed:
            return self._has_ended and not self._made

    def take(self, timeout_s: float | None) -> list[T]:
        """All that is there; waits for the first. Empty when that takes longer, or when nothing more will come.

        Raises:
            what the source has raised, once all before it was taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._made or self._has_ended, timeout_s)
            made, self._made = self._made, []
            error = self._error
            if not made and error is not None:
                self._error = None
                raise error
            return made

    def take_all(self) -> list[T]:
        """Everything, however long it takes."""
        self._thread.join()
        return self.take(None)

    def close(self) -> None:
        """Ends it with what is being made now, and waits for that; errors go nowhere."""
        self._is_closed = True
        self._thread.join()

    def _make(self) -> None:
        error = None
        try:
            for one in self._source:
                with self._changed:
                    self._made.append(one)
                    self._changed.notify_all()
                if self._is_closed:
                    break
        except BaseException as raised:
            error = raised
        with self._changed:
            self._error, self._has_ended = error, True
            self._changed.notify_all()
