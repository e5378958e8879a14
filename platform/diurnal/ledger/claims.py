"""The ledger of one database, and how a model is claimed in it: one process trains a model at a time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Self

import sqlalchemy as sa
from sqlalchemy import exc

from diurnal.errors import LeaseHeld
from diurnal.ledger import records
from diurnal.ledger.database import Database
from diurnal.ledger.holders import Holder
from diurnal.ledger.lease import Lease, holder_of, lease_row, who
from diurnal.ledger.records import Attempt, Commit, Event
from diurnal.ledger.schema import ATTEMPTS, LEASES


class Ledger:
    """Who trains which model, and which commits count. May be used by several threads.

    Args:
        url: SQLAlchemy URL of a SQLite file, which is created with its folder, or of a PostgreSQL database.
        clock: seconds since the epoch, for tests. PostgreSQL's own clock judges the leases in it, however the clocks
            of its clients differ; a SQLite file is judged by the clock of whoever asks.

    Raises:
        ConfigError: the URL is wrong, the database does not answer or cannot be written, or a newer release made it.
            So do all methods when the database does not answer for a while.
    """

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        self._database = Database(url, clock)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def claim(self, model: str, what: str, lease_s: float) -> Lease:
        """Makes this process the one that trains the model.

        A holder that has certainly ended (a process of this machine that is gone) is replaced at once, any other one
        when it gave no sign of life for the time of its own lease. What attempts it left open are ended as `killed`.

        Args:
            what: the holder is about to do; shown to whoever comes second.

        Raises:
            LeaseHeld: another process has it; says which, since when, for what.
        """
        secret, holder, begun_s = secrets.token_hex(16), Holder.here(), time.monotonic()
        self._database.write(lambda connection: self._add_model(connection, model))
        token = self._database.write(lambda connection: self._claim(connection, model, what, lease_s, secret, holder))
        return Lease(self._database, model, token, secret, holder, lease_s, begun_s)

    def held(self, model: str) -> str | None:
        """Which process has the model, since when, for what; None when it is free for everybody. A holder that has
        died, or does not answer any more, has it until somebody else claims it."""
        row = self._database.read(lambda connection: lease_row(connection, model, lock=False))
        return who(row) if row is not None and row["secret"] else None

    def commits(self, model: str) -> list[Commit]:
        """Those that count, in the order in which they were learned."""
        return self._database.read(lambda connection: records.visible_commits(connection, model))

    def attempts(self, model: str, increment: str | None = None) -> list[Attempt]:
        """In the order in which they began."""
        return self._database.read(lambda connection: records.attempts_of(connection, model, increment))

    def events(self, model: str | None = None, limit: int | None = None) -> list[Event]:
        """The newest `limit`, oldest first."""
        return self._database.read(lambda connection: records.events_of(connection, model, limit))

    def _add_model(self, connection: sa.Connection, model: str) -> None:
        if lease_row(connection, model, lock=False) is not None:
            return
        nobody = asdict(Holder("", 0, "", 0))
        numbers = dict.fromkeys(("token", "lease_us", "claimed_us", "renewed_us"), 0)
        try:
            with connection.begin_nested():
                connection.execute(LEASES.insert().values(model=model, secret="", what="", **nobody, **numbers))
        except exc.IntegrityError:
            pass  # somebody else was faster, and all that follows is about this row

    def _claim(
        self, connection: sa.Connection, model: str, what: str, lease_s: float, secret: str, holder: Holder
    ) -> int:
        row = lease_row(connection, model, lock=True)
        assert row is not None
        if row["secret"] == secret:
            return row["token"]  # claimed by this very call, whose answer was lost on its way
        now_us = self._database.now_us(connection)
        reason = self._why_free(row, now_us)
        token = row["token"] + 1
        values = {"token": token, "secret": secret, "what": self._database.tell(what), "lease_us": round(lease_s * 1e6)}
        values |= {"claimed_us": now_us, "renewed_us": now_us, **asdict(holder)}
        connection.execute(LEASES.update().where(LEASES.c.model == model).values(**values))
        left = (ATTEMPTS.c.model == model) & (ATTEMPTS.c.token < token)
        told = reason or "its holder released the model before its end"
        killed = records.end_attempts(connection, left, now_us, outcome="killed", reason=told)
        data = {"token": token, "lease_s": lease_s, "what": what, "killed_attempts": killed}
        records.add_event(self._database, connection, model, holder, "claim", reason=reason, data=data)
        return token

    def _why_free(self, row: sa.RowMapping, now_us: int) -> str:
        """Empty for a model that nobody holds.

        Raises:
            LeaseHeld: somebody does.
        """
        if not row["secret"]:
            return ""
        silent_us = now_us - row["renewed_us"]
        if silent_us >= row["lease_us"]:
            return f"{who(row)} gave no sign of life for {silent_us / 1e6:.1f} s"
        if holder_of(row).is_dead():
            return f"{who(row)} has ended"
        last = f"last sign of life {silent_us / 1e6:.1f} s ago, of {row['lease_us'] / 1e6:g} s that its lease lasts"
        raise LeaseHeld(f"model {row['model']} is being trained by {who(row)}; {last}")
