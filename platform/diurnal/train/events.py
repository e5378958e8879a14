"""What workers and their driver tell each other, through one tiny actor on the driver's node.

Telling never waits: points of a curve are dropped, and counted, when the driver does not keep up; what has to arrive
(a report, a commit) is kept. Asking waits for the driver's answer, which it gives after everything that was told
before. The actor also keeps each rank's latest sign of life, and the orders that workers follow at their next step.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

if TYPE_CHECKING:
    from diurnal.ledger.records import Commit

Kind = Literal[
    "timeline",
    "model",
    "increment",
    "progress",
    "evaluated",
    "learned",
    "committed",
    "save_failed",
    "resumed",
    "failed",
    "stalled",
    "note",
]

Question = Literal["start", "more", "held", "scored"]

ASK_TIMEOUT_S = 600.0
BEAT_TIMEOUT_S = 5.0

GAP_S = 10.0
"""What comes after something that did not arrive is handed on after so long."""

CLOSE_TIMEOUT_S = 20.0
"""The desk may wait for a ledger or a storage that is away; a run that ends does not."""


class Event(TypedDict):
    kind: str
    """A `Kind`, or the `Question` of an event that waits for an answer."""
    increment: str
    """Increment id; empty for what concerns none."""
    data: dict[str, Any]
    ask: int
    """Number of the question; 0 for what is only told."""


class Link(Protocol):
    """A worker's way to its driver."""

    def send(self, kind: Kind, increment: str = "", /, **data: Any) -> None:
        """Tells something without waiting. Of curves and commits, rank 0 alone tells."""
        ...

    def ask(self, question: Question, increment: str = "", /, **data: Any) -> Any:
        """Waits for the driver's answer, or raises what the driver raised."""
        ...

    def beat(self, beat: dict[str, Any]) -> dict[str, Any]:
        """Leaves a sign of life; answers those of all ranks, and the orders."""
        ...


class _Turns:
    """Hands on what each sender sent in the order in which it was sent: Ray starts the calls of an actor with
    coroutines in any order."""

    def __init__(self, hand_on: Callable[[Event], None]) -> None:
        self._hand_on = hand_on
        self._next: dict[str, int] = defaultdict(int)
        self._early: dict[str, dict[int, Event]] = defaultdict(dict)

    def arrive(self, sender: str, number: int, event: Event) -> None:
        self._early[sender][number] = event
        if number > self._next[sender]:
            asyncio.get_running_loop().call_later(GAP_S, self._hand_on_until, sender, number)
        self._hand_on_until(sender, self._next[sender])

    def _hand_on_until(self, sender: str, number: int) -> None:
        """What came before `number`, and all that follows it without a gap."""
        early = self._early[sender]
        for one in sorted(early):
            if one <= max(number, self._next[sender]):
                self._hand_on(early.pop(one))
                self._next[sender] = max(self._next[sender], one + 1)


class _Mailbox:
    """All methods are coroutines, which the actor runs one at a time."""

    def __init__(self, max_points: int) -> None:
        self._events: deque[Event] = deque()
        self._turns = _Turns(self._take_in)
        self._max_points = max_points
        self._num_points = 0
        self._num_dropped = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._num_asked = 0
        self._beats: dict[int, tuple[dict[str, Any], float]] = {}
        self._orders: dict[str, str] = {}
        self._generation = 0
        self._is_held = False
        self._num_commits = 0

    async def put(self, sender: str, number: int, event: Event) -> None:
        self._turns.arrive(sender, number, event)

    def _take_in(self, event: Event) -> None:
        if event["kind"] == "progress":
            if self._num_points >= self._max_points:
                self._num_dropped += 1
                return
            self._num_points += 1
        if event["kind"] == "resumed":
            self._is_held = False
        self._events.append(event)

    async def ask(self, sender: str, number: int, event: Event) -> Any:
        self._num_asked += 1
        answered = self._asked[self._num_asked] = asyncio.get_running_loop().create_future()
        self._turns.arrive(sender, number, Event(**{**event, "ask": self._num_asked}))
        answer = await answered
        if event["kind"] == "held":
            self._is_held = True
        return answer

    async def take(self) -> tuple[list[Event], int]:
        events, self._events, self._num_points = list(self._events), deque(), 0
        return events, self._num_dropped

    async def answer(self, number: int, value: Any, num_commits: int) -> None:
        self._num_commits = num_commits
        answered = self._asked.pop(number)
        if not answered.done():
            answered.set_result(value)

    async def committed(self, num_commits: int) -> None:
        self._num_commits = num_commits

    async def new_group(self, generation: int) -> None:
        self._generation, self._beats, self._is_held = generation, {}, False
        self._orders.pop("hold", None)

    async def beat(self, beat: dict[str, Any]) -> dict[str, Any]:
        now_s = time.monotonic()
        if beat["group"] == str(self._generation):
            self._beats[beat["rank"]] = beat, now_s
        beats = {rank: {**latest, "age_s": now_s - at_s} for rank, (latest, at_s) in self._beats.items()}
        return {"beats": beats, "orders": dict(self._orders)}

    async def order(self, name: str, on: bool, reason: str = "") -> None:
        if on:
            self._orders[name] = reason
        else:
            self._orders.pop(name, None)

    async def note(self, kind: str, data: dict[str, Any]) -> None:
        self._events.append(Event(kind="note", increment="", data={"what": kind, **data}, ask=0))

    async def beats(self) -> list[dict[str, Any]]:
        now_s = time.monotonic()
        return [{**beat, "age_s": now_s - at_s} for beat, at_s in self._beats.values()]

    async def status(self) -> dict[str, Any]:
        first = self._beats.get(0, ({}, 0.0))[0]
        return {
            "increment": first.get("increment", ""),
            "learning": bool(first.get("learning")),
            "share": first.get("rows", 0) / max(first.get("num_rows", 0), 1),
            "held": self._is_held,
            "commits": self._num_commits,
        }


class Channel:
    """The workers' end of a mailbox; travels to them."""

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox
        self._sender = uuid4().hex
        self._numbers = itertools.count()

    def __reduce__(self) -> tuple[type[Channel], tuple[Any]]:
        """Another process is another sender."""
        return Channel, (self._mailbox,)

    def send(self, kind: Kind, increment: str = "", /, **data: Any) -> None:
        event = Event(kind=kind, increment=increment, data=data, ask=0)
        self._mailbox.put.remote(self._sender, next(self._numbers), event)

    def ask(self, question: Question, increment: str = "", /, **data: Any) -> Any:
        event = Event(kind=question, increment=increment, data=data, ask=0)
        answer = ray.get(self._mailbox.ask.remote(self._sender, next(self._numbers), event), timeout=ASK_TIMEOUT_S)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def beat(self, beat: dict[str, Any]) -> dict[str, Any]:
        return ray.get(self._mailbox.beat.remote(beat), timeout=BEAT_TIMEOUT_S)


class Desk(Protocol):
    """The driver's side: what is told to it, and what it is asked."""

    @property
    def num_commits(self) -> int:
        """Commits of this run that are visible."""
        ...

    @property
    def generation(self) -> int:
        """Worker groups of this run that have started."""
        ...

    @property
    def adopted(self) -> Sequence[Commit]:
        """Commits that became visible when the newest group started."""
        ...

    def handle(self, event: Event) -> None: ...

    def answer(self, event: Event) -> Any: ...


class Direct:
    """The link of a rank that is its own driver: of worlds without Ray."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        # A commit is told by the thread that wrote it.
        self._lock = threading.Lock()
        self.orders: dict[str, str] = {}

    def send(self, kind: Kind, increment: str = "", /, **data: Any) -> None:
        with self._lock:
            self._desk.handle(Event(kind=kind, increment=increment, data=data, ask=0))

    def ask(self, question: Question, increment: str = "", /, **data: Any) -> Any:
        with self._lock:
            return self._desk.answer(Event(kind=question, increment=increment, data=data, ask=1))

    def beat(self, beat: dict[str, Any]) -> dict[str, Any]:
        return {"beats": {beat["rank"]: {**beat, "age_s": 0.0}}, "orders": self.orders}


class Inbox:
    """The driver's end: a thread hands each event to the desk, in order, until `close`.

    An exception of the desk is kept in `error` and raised by `close`: it must not be lost in a thread.
    """

    def __init__(self, desk: Desk, *, max_points: int = 10_000, poll_s: float = 0.1) -> None:
        # Nodes of workers come and go; this one lives as long as the driver.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": 0, "max_concurrency": 1000, "scheduling_strategy": here}
        self.mailbox: Any = ray.remote(_Mailbox).options(**options).remote(max_points)
        self._desk = desk
        self._poll_s = poll_s
        self._closing = threading.Event()
        self.error: BaseException | None = None
        self.num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="diurnal-inbox", daemon=True)
        self._thread.start()

    def channel(self) -> Channel:
        return Channel(self.mailbox)

    def order(self, name: str, reason: str) -> None:
        """Gives an order that workers follow at their next step."""
        self.mailbox.order.remote(name, True, reason)

    def beats(self) -> list[dict[str, Any]]:
        """The latest sign of life of each rank, and its `age_s`; none when the mailbox does not answer."""
        try:
            return ray.get(self.mailbox.beats.remote(), timeout=BEAT_TIMEOUT_S)
        except RayError:
            return []

    def close(self) -> None:
        """Handles what has arrived, then stops.

        Raises:
            BaseException: the first exception that the desk raised.
        """
        self._closing.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        ray.kill(self.mailbox)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        last_round = False
        while not last_round and self.error is None:
            last_round = self._closing.wait(self._poll_s)
            try:
                events, self.num_dropped = ray.get(self.mailbox.take.remote())
                for event in events:
                    self._handle(event)
            except BaseException as error:
                self.error = error
                if isinstance(error, RayError):
                    return

    def _handle(self, event: Event) -> None:
        before = self._desk.generation
        if not event["ask"]:
            num_commits = self._desk.num_commits
            self._desk.handle(event)
            if self._desk.num_commits != num_commits:
                self.mailbox.committed.remote(self._desk.num_commits)
            return
        try:
            answer = self._desk.answer(event)
        except Exception as error:
            answer = error
        if self._desk.generation != before:
            self.mailbox.new_group.remote(self._desk.generation)
        self.mailbox.answer.remote(event["ask"], answer, self._desk.num_commits)
