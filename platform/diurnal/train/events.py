"""What rank 0 tells the driver while workers train: small dictionaries through one tiny actor on the driver's node.

Sending never waits. Points of a curve are dropped, and counted, when the driver does not keep up; what has to arrive
(a report, a commit) is kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypedDict

import ray
from ray.exceptions import RayError

Kind = Literal["timeline", "model", "increment", "progress", "evaluated", "learned", "committed"]


class Event(TypedDict):
    kind: Kind
    increment: str
    """Increment id; empty for the timeline."""
    data: dict[str, Any]


class _Mailbox:
    def __init__(self, max_points: int) -> None:
        self._events: deque[Event] = deque()
        self._max_points = max_points
        self._num_points = 0
        self._num_dropped = 0

    def put(self, event: Event) -> None:
        if event["kind"] == "progress":
            if self._num_points >= self._max_points:
                self._num_dropped += 1
                return
            self._num_points += 1
        self._events.append(event)

    def take(self) -> tuple[list[Event], int]:
        events, self._events, self._num_points = list(self._events), deque(), 0
        return events, self._num_dropped


class Channel:
    """The sending end; travels to the workers. Only rank 0 sends."""

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox

    def send(self, kind: Kind, increment: str = "", /, **data: Any) -> None:
        self._mailbox.put.remote(Event(kind=kind, increment=increment, data=data))


class Inbox:
    """The driver's end: a thread hands each event to `handle`, in order, until `close`.

    An exception of `handle` is kept and raised by `close`: it must not be lost in a thread.
    """

    def __init__(self, handle: Callable[[Event], None], *, max_points: int = 10_000, poll_s: float = 0.1) -> None:
        self._mailbox: Any = ray.remote(num_cpus=0)(_Mailbox).remote(max_points)
        self._handle = handle
        self._poll_s = poll_s
        self._closing = threading.Event()
        self._error: BaseException | None = None
        self.num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="diurnal-inbox", daemon=True)
        self._thread.start()

    def channel(self) -> Channel:
        return Channel(self._mailbox)

    def close(self) -> None:
        """Handles what has arrived, then stops.

        Raises:
            BaseException: the first exception that `handle` raised.
        """
        self._closing.set()
        self._thread.join()
        ray.kill(self._mailbox)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        last_round = False
        while not last_round:
            last_round = self._closing.wait(self._poll_s)
            try:
                events, self.num_dropped = ray.get(self._mailbox.take.remote())
                for event in events:
                    self._handle(event)
            except BaseException as error:
                self._error = self._error or error
                if isinstance(error, RayError):
                    return
