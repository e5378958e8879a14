"""Messages come to the desk in the order in which a worker sent them, whatever order Ray starts calls in."""

from __future__ import annotations

import asyncio
import pickle
from itertools import permutations

import pytest

from diurnal.train import events
from diurnal.train.events import Channel, Event, _Mailbox


def told(number: int) -> Event:
    return Event(kind="learned", increment=str(number), data={}, ask=0)


async def taken(mailbox: _Mailbox) -> list[str]:
    return [event["increment"] for event in (await mailbox.take())[0]]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_what_overtakes_waits_for_what_was_sent_before(order: tuple[int, ...]) -> None:
    """A question that overtakes the commit before it would be answered as if there was none."""

    async def play() -> None:
        mailbox = _Mailbox(10)
        more = mailbox.ask("a", 2, Event(**{**told(2), "kind": "more"}))
        calls = {number: mailbox.put("a", number, told(number)) for number in (0, 1, 3)} | {2: more}
        started = {}
        for number in order:
            started[number] = asyncio.create_task(calls[number])
            await asyncio.sleep(0)
        await mailbox.put("b", 0, told(9))
        found, _ = await mailbox.take()
        assert [event["increment"] for event in found if event["increment"] != "9"] == ["0", "1", "2", "3"]
        assert [event["ask"] for event in found if event["kind"] == "more"] == [1]
        await mailbox.answer(1, "nothing", 0)
        assert await started[2] == "nothing"

    asyncio.run(play())


def test_what_never_arrives_is_waited_for_a_while_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "GAP_S", 0.05)

    async def play() -> None:
        mailbox = _Mailbox(10)
        for number in (0, 2, 3):
            await mailbox.put("a", number, told(number))
        assert await taken(mailbox) == ["0"]
        await asyncio.sleep(0.2)
        assert await taken(mailbox) == ["2", "3"]
        await mailbox.put("a", 1, told(1))
        await mailbox.put("a", 4, told(4))
        assert await taken(mailbox) == ["1", "4"]

    asyncio.run(play())


def test_a_channel_that_travels_is_another_sender() -> None:
    channel = Channel("mailbox")
    there = pickle.loads(pickle.dumps(channel))
    assert vars(there)["_sender"] != vars(channel)["_sender"]
