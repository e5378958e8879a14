"""The ledger of one database, and how a model is claimed in it: one process trains a model at a time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from diurnal.config import Config
from diurnal.errors import LeaseHeld
from diurnal.ledger import decisions, increments, records
from diurnal.ledger.database import Database, url_of
from diurnal.ledger.decisions import ANY
from diurnal.ledger.holders import Holder
from diurnal.ledger.lease import Lease, holder_of, lease_row, who
from diurnal.ledger.records import Attempt, Commit, Event, IncrementRecord, Promotion, VersionRecord, Writer
from diurnal.ledger.schema import ATTEMPTS, LEASES

T = TypeVar("T")


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

    @classmethod
    def of(cls, config: Config) -> Self:
        """The one that a configuration names."""
        return cls(url_of(config))

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

    def events(
        self, model: str | None = None, limit: int | None = None, kind: str | None = None, increment: str | None = None
    ) -> list[Event]:
        """The newest `limit` of those asked for, oldest first."""
        return self._database.read(lambda connection: records.events_of(connection, model, limit, kind, increment))

    def increments(self, model: str) -> list[IncrementRecord]:
        """All that the model has ever heard of, by name."""
        return self._database.read(lambda connection: increments.increments_of(connection, model))

    def increment(self, model: str, increment: str) -> IncrementRecord | None:
        """What is known of one of them."""
        found = self._database.read(lambda connection: increments.increments_of(connection, model, increment))
        return found[0] if found else None

    def profile(self, model: str, increment: str) -> dict[str, Any] | None:
        """What was counted in its rows (`data.profile`)."""
        return self._database.read(lambda connection: increments.profile_of(connection, model, increment))

    def versions(self, model: str) -> list[VersionRecord]:
        """The visible ones, by number."""
        return self._database.read(lambda connection: decisions.versions_of(connection, model))

    def evidence(self, version: VersionRecord) -> dict[str, Any] | None:
        """What the gate's verdict on it was made from; None before there is one."""
        return self._database.read(lambda connection: decisions.evidence_of(connection, version.model, version.path))

    def promotions(self, model: str) -> list[Promotion]:
        """Every change of the champion, in order."""
        return self._database.read(lambda connection: decisions.promotions_of(connection, model))

    def champion(self, model: str) -> int | None:
        return self._database.read(lambda connection: decisions.champion_of(connection, model))

    def rollback_target(self, model: str) -> int | None:
        """The champion after a rollback: the last one before this one that is there and was not taken back."""
        return self._database.read(lambda connection: decisions.rollback_target_of(connection, model))

    def promote(self, model: str, number: int, reason: str = "", expected: object = ANY) -> bool:
        """Makes a version the champion, whatever the gate said; also while somebody else trains the model.

        Args:
            expected: the champion that it is to replace, or None for no champion; any when left out.

        Returns:
            Whether it was not the champion already.

        Raises:
            PromotionError: there is no such version, it is superseded, or another one than `expected` is the champion.
        """
        return self._decide(model, lambda writer: decisions.promote(writer, number, reason, expected))

    def rollback(self, model: str, reason: str = "") -> int:
        """Makes `rollback_target` the champion again, and says which it is; also while somebody else trains the model.
        Nothing goes on from the version that it leaves, until a person promotes that one again.

        Raises:
            PromotionError: there is none to go back to.
        """
        ticket = secrets.token_hex(16)
        return self._decide(model, lambda writer: decisions.roll_back(writer, reason, ticket))

    def _decide(self, model: str, work: Callable[[Writer], T]) -> T:
        """Without the lease, but after or before whatever its holder writes, never in the middle of it."""
        actor = str(Holder.here())

        def locked(connection: sa.Connection) -> T:
            lease_row(connection, model, lock=True)
            return work(Writer(self._database, connection, model, actor))

        return self._database.write(locked)

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
