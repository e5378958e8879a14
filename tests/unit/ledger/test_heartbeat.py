"""The threads that keep a lease: in real time, with databases that are locked, away, or somebody else's."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from diurnal.errors import LeaseLost
from diurnal.ledger.claims import Ledger
from diurnal.ledger.schema import LEASES


def renewed_us(ledger: Ledger) -> int:
    return ledger._database.read(lambda c: c.scalar(sa.select(LEASES.c.renewed_us))) or 0


def wait_for_renewal(ledger: Ledger, after_us: int, timeout_s: float = 20.0) -> None:
    until_s = time.monotonic() + timeout_s
    while renewed_us(ledger) <= after_us:
        assert time.monotonic() < until_s, "the lease was not renewed"
        time.sleep(0.02)


def wait_for_message(caplog: pytest.LogCaptureFixture, text: str, timeout_s: float = 20.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not any(text in message for message in caplog.messages):
        assert time.monotonic() < until_s, f"nobody said: {text}"
        time.sleep(0.02)


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Another process in the middle of a transaction, as it were."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
    else:
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            connection.execute("LOCK TABLE ledger_leases IN ACCESS EXCLUSIVE MODE")
            yield
            connection.rollback()


@pytest.fixture(params=["locked", "away"])
def trouble(request: pytest.FixtureRequest, url: str) -> Callable[[], AbstractContextManager[None]]:
    """`with trouble():` the database is not to be had."""
    if request.param == "locked":
        return lambda: locked(url)
    return request.getfixturevalue("away")


@pytest.fixture
def away(request: pytest.FixtureRequest, url: str) -> Callable[[], AbstractContextManager[None]]:
    if not url.startswith("sqlite"):
        return lambda: request.getfixturevalue("server").away(url)

    @contextmanager
    def moved() -> Iterator[None]:
        folder = Path(url.removeprefix("sqlite:///")).parent
        elsewhere = folder.rename(folder.with_name("elsewhere"))
        yield
        elsewhere.rename(folder)

    return moved


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("diurnal-lease")]


def test_a_lease_with_a_heartbeat_outlives_its_time(url):
    with Ledger(url) as ledger:
        lease = ledger.claim("clicks", "", 2.0)
        claimed_us = renewed_us(ledger)
        with lease.heartbeat():
            wait_for_renewal(ledger, claimed_us + 2_000_000)
            assert not lease.lost.is_set()
            assert sorted(our_threads()) == ["diurnal-lease-renew", "diurnal-lease-watch"]
        assert our_threads() == []


def test_a_database_that_is_in_trouble_for_a_while_costs_no_lease(url, trouble, caplog):
    with Ledger(url) as ledger:
        lease = ledger.claim("clicks", "", 5.0)
        with lease.heartbeat():
            with trouble():
                wait_for_message(caplog, "could not be renewed")
            wait_for_renewal(ledger, time.time_ns() // 1000)
            assert not lease.lost.is_set()
            wait_for_message(caplog, "answers again")


def test_a_database_that_is_in_trouble_for_too_long_costs_the_lease(url, trouble, commit):
    """Nobody else may have it, but this process cannot know."""
    with Ledger(url) as ledger:
        lease = ledger.claim("clicks", "", 1.5)
        with trouble(), lease.heartbeat():
            assert lease.lost.wait(15)
            assert "the lease ran out, the ledger did not answer for 1.5 s" in lease.lost_reason
        with pytest.raises(LeaseLost, match="the lease ran out"):
            lease.publish(commit(1))
        assert ledger.commits("clicks") == []
        lease.release("over")
        assert ledger.held("clicks") is None


def test_the_heartbeat_tells_who_took_over(url, ledger, clock):
    lease = ledger.claim("clicks", "", 2.0)
    clock.now_s += 3
    with Ledger(url, clock=clock) as other, lease.heartbeat():
        other.claim("clicks", "2026-01-05", 30.0)
        assert lease.lost.wait(15)
        assert "taken over by" in lease.lost_reason
        assert "(what: 2026-01-05)" in lease.lost_reason


def test_a_release_under_a_database_that_is_away_ends_quietly(url, away, caplog):
    with Ledger(url) as ledger:
        lease = ledger.claim("clicks", "", 1.5)
        with away():
            lease.release("done")
        assert [m for m in caplog.messages if "could not be released" in m]
        assert lease.lost.is_set()


def test_threads_of_one_holder_may_write_at_once(url, commit):
    with Ledger(url) as ledger:
        lease = ledger.claim("clicks", "", 30.0)
        errors: list[BaseException] = []

        def write(number: int) -> None:
            try:
                for step in range(10):
                    lease.publish(commit(1, number=number, steps=step))
                    lease.renew()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert len(ledger.commits("clicks")) == 40
