"""A lease: what its holder may do, and how it notices that it holds it no more.

The newest token may write, nobody else: this is looked up in the same transaction as each write, so that a process
that was frozen or cut off for longer than its lease changes nothing when it comes back, whatever it believes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa

from diurnal.errors import DiurnalError, LeaseLost
from diurnal.ledger import decisions, increments, records
from diurnal.ledger.database import Database
from diurnal.ledger.holders import Holder
from diurnal.ledger.records import Commit, IncrementState, Outcome, Verdict, Writer
from diurnal.ledger.schema import ATTEMPTS, LEASES

_log = logging.getLogger(__name__)

T = TypeVar("T")


def lease_row(connection: sa.Connection, model: str, *, lock: bool) -> sa.RowMapping | None:
    """The model's row of leases; `lock` keeps it from all others until the transaction ends."""
    query = sa.select(LEASES).where(LEASES.c.model == model)
    # SQLite has no such lock and needs none: its writers come one after the other.
    return connection.execute(query.with_for_update() if lock else query).mappings().first()


def holder_of(row: sa.RowMapping) -> Holder:
    return Holder(row["host"], row["pid"], row["place"], row["started"])


def who(row: sa.RowMapping) -> str:
    """`process 4711 on host since 2026-01-02T03:04:05.678+00:00 (what: 2026-01-02)`"""
    what = f" (what: {row['what']})" if row["what"] else ""
    return f"{holder_of(row)} since {records.iso_time(row['claimed_us'])}{what}"


class Lease:
    """Made by `Ledger.claim`. May be used by several threads.

    Whatever writes raises LeaseLost, and has changed nothing, once the model belongs to somebody else; and ConfigError
    when the database does not answer for a while. Both are tried again by nobody.
    """

    def __init__(
        self, database: Database, model: str, token: int, secret: str, holder: Holder, lease_s: float, begun_s: float
    ) -> None:
        self.model = model
        self.token = token
        self.holder = str(holder)
        self.lost = threading.Event()
        """Set as soon as this process knows that the lease is not its own any more."""
        self.lost_reason = ""
        self._database = database
        self._secret = secret
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._until_s = begun_s + lease_s
        self._patience_s = 0.0

    @contextmanager
    def heartbeat(self, patience_s: float = 0.0) -> Iterator[Lease]:
        """Renews the lease in the background, every quarter of its time, and sets `lost` when that is over.

        A database that is away for a while is asked again and again. The lease is lost when the database says so, or
        when its time and `patience_s` have run out by this process's clock: somebody else may have it by then, which
        whatever writes finds out. A process that was frozen meanwhile asks first.
        """
        self._patience_s = patience_s
        ended = threading.Event()
        threads = [
            threading.Thread(target=body, args=(ended,), name=f"diurnal-lease-{name}", daemon=True)
            for name, body in (("renew", self._keep_renewing), ("watch", self._watch_the_time))
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            ended.set()
            for thread in threads:
                thread.join(1.0)

    def renew(self) -> None:
        """Gives the lease its whole time again."""
        begun_s = time.monotonic()
        self._write(self._renew, patience_s=self._lease_s / 4)
        with self._lock:
            self._until_s = begun_s + self._lease_s

    def release(self, reason: str = "") -> None:
        """Lets the model go. May be called twice, and when the lease is lost; a database that is away is left alone,
        since the lease of a process that ends is free all the same."""

        def work(connection: sa.Connection) -> None:
            if connection.execute(LEASES.update().where(self._mine()).values(secret="")).rowcount:
                self._add_event(connection, "release", reason=reason)

        try:
            self._database.write(work, patience_s=self._lease_s / 4)
        except DiurnalError as error:
            _log.warning("ledger: model %s could not be released: %s", self.model, _line(error))
        self._lose(f"model {self.model} was released by {self.holder}")

    def publish(self, commit: Commit) -> None:
        """Makes a commit visible, if and only if its token is still the newest. Doing so twice changes nothing.

        The increment of a final one is `trained` from then on.

        Raises:
            LeaseLost: also for a commit that was written under an older lease; this one stays as it is then.
            ValueError: another commit, or one that was withdrawn, had this path.
        """
        assert commit.model == self.model, commit
        if commit.token != self.token:
            raise LeaseLost(
                f"{commit.path} was written under token {commit.token} of model {self.model}, "
                f"which {self.holder} has under token {self.token} since"
            )

        def work(connection: sa.Connection) -> None:
            added = records.add_commits(connection, [commit], self._database.now_us(connection))
            increments.keep_trained(self._writer(connection), added)
            if added:
                data = {"path": commit.path, "number": commit.number, "attempt": commit.attempt, "rows": commit.rows}
                data |= {"steps": commit.steps, "num_steps": commit.num_steps, "global_step": commit.global_step}
                self._add_event(connection, "version" if commit.is_final else "commit", commit.increment, data=data)

        self._write(work)

    def withdraw(self, paths: Iterable[str], *, final: bool = False) -> None:
        """Hides commits whose folders are about to be deleted; what is not visible is passed over.

        Args:
            final: whether versions may be among them.

        Raises:
            ValueError: one is a version; nothing has changed then.
        """
        wanted = sorted(paths)

        def work(connection: sa.Connection) -> None:
            now_us = self._database.now_us(connection)
            hidden = records.withdraw_commits(connection, self.model, wanted, now_us, final)
            if hidden:
                self._add_event(connection, "withdraw", data={"paths": hidden})

        self._write(work)

    def mark(
        self,
        increment: str,
        state: IncrementState,
        *,
        fingerprint: str | None = None,
        rows: int | None = None,
        reason: str = "",
        version: int | None = None,
        profile: Mapping[str, Any] | None = None,
        scored: Mapping[str, Any] | None = None,
    ) -> None:
        """Says where an increment stands; what is left out stays as it was.

        With another fingerprint than before, `rows`, `profile` and `scored` are forgotten, since they were those of
        other files. An event is kept when the state, its reason or the fingerprint changes.
        """
        given = {"fingerprint": fingerprint, "rows": rows, "version": version, "profile": profile, "scored": scored}
        self._write(lambda connection: increments.mark(self._writer(connection), increment, state, reason, **given))

    def judge(
        self,
        number: int,
        verdict: Verdict,
        reason: str,
        *,
        evidence: Mapping[str, Any],
        rejected: bool,
        state: IncrementState,
        expected_champion: int | None,
        promote: bool,
    ) -> bool:
        """Keeps the verdict on a version, the state of its increment, and the promotion, all or nothing.

        Args:
            evidence: what the verdict was made from.
            rejected: nothing is to go on from it.
            state: of its increment from then on.
            expected_champion: the one that it was compared with.
            promote: make it the champion.

        Returns:
            False, and nothing has changed, when another champion was promoted meanwhile. True for a version that was
            judged before, by the gate or by a person: what was decided then stands, and nothing has changed either.

        Raises:
            ValueError: there is no such version.
        """

        def work(connection: sa.Connection) -> bool:
            decision = decisions.Decision(verdict, reason, evidence, rejected, state, expected_champion, promote)
            return decisions.judge(self._writer(connection), number, decision)

        return self._write(work)

    def supersede(self, numbers: Iterable[int], days: Iterable[str], reason: str) -> None:
        """Takes versions back that are about to be trained again: nothing goes on from them, they are not promoted any
        more, and resume points from the first of them on are withdrawn. The champion stays who it is.

        Raises:
            ValueError: there is no such version.
        """
        versions, again = sorted(set(numbers)), sorted(set(days))
        self._write(lambda connection: decisions.supersede(self._writer(connection), versions, again, reason))

    def begin_attempt(self, increment: str, number: int, world_size: int, rows: int = 0, replayed_rows: int = 0) -> int:
        """The number of a new attempt at an increment, from 1; it is kept before this returns.

        Args:
            number: of the version that it is to make.
            rows: of the increment that are learned already.
            replayed_rows: that it learns again.
        """

        def work(connection: sa.Connection) -> int:
            attempt = records.next_attempt(connection, self.model, increment)
            records.begin_attempt(
                connection,
                model=self.model,
                increment=increment,
                attempt=attempt,
                number=number,
                world_size=world_size,
                token=self.token,
                actor=self.holder,
                started_us=self._database.now_us(connection),
                rows=rows,
                replayed_rows=replayed_rows,
            )
            data = {"attempt": attempt, "world_size": world_size, "rows": rows, "replayed_rows": replayed_rows}
            self._add_event(connection, "begin", increment, data=data)
            return attempt

        return self._write(work)

    def has_learned(self, increment: str, attempt: int, rows: int) -> None:
        """Keeps how far an attempt has come, commit or not, so that what is lost with it can be counted."""
        which = self._attempt(increment, attempt)
        self._write(lambda connection: connection.execute(ATTEMPTS.update().where(which).values(rows=rows)))

    def end_attempt(self, increment: str, attempt: int, outcome: Outcome, reason: str = "") -> None:
        """Says how an attempt ended; the first word counts."""
        which = self._attempt(increment, attempt)
        values = {"outcome": outcome, "reason": self._database.tell(reason)}

        def work(connection: sa.Connection) -> None:
            if records.end_attempts(connection, which, self._database.now_us(connection), **values):
                data = {"attempt": attempt, "outcome": outcome}
                self._add_event(connection, "end", increment, reason, data)

        self._write(work)

    def note(self, kind: str, increment: str = "", reason: str = "", data: Mapping[str, Any] | None = None) -> None:
        """Keeps an event; also of a lease that is lost, since it happened all the same."""
        self._database.write(lambda connection: self._add_event(connection, kind, increment, reason, data))

    def rebuild(self, commits: Iterable[Commit]) -> int:
        """Registers commits that were found in the store, if the ledger has never known one of this model.

        The increments of versions are `trained` then; verdicts and promotions are not in the store.
        `token` gets above theirs, so that it goes on growing in a ledger that was lost. Says how many there were.
        """
        found = sorted(commits, key=lambda commit: (commit.number, commit.global_step, commit.attempt))
        assert all(commit.model == self.model for commit in found), self.model

        def work(connection: sa.Connection) -> tuple[int, int]:
            if not found or records.is_known(connection, self.model):
                return 0, self.token
            token = max(self.token, 1 + max(commit.token for commit in found))
            connection.execute(LEASES.update().where(self._mine()).values(token=token))
            added = records.add_commits(connection, found, self._database.now_us(connection))
            increments.keep_trained(self._writer(connection), added)
            self._add_event(connection, "rebuild", data={"commits": len(found), "token": token})
            return len(found), token

        count, self.token = self._write(work)
        return count

    def _attempt(self, increment: str, attempt: int) -> sa.ColumnElement[bool]:
        return (ATTEMPTS.c.model == self.model) & (ATTEMPTS.c.increment == increment) & (ATTEMPTS.c.attempt == attempt)

    def _mine(self) -> sa.ColumnElement[bool]:
        """The secret, not the token: tokens start again from 1 when a ledger is lost."""
        return (LEASES.c.model == self.model) & (LEASES.c.secret == self._secret)

    def _renew(self, connection: sa.Connection) -> None:
        now_us = self._database.now_us(connection)
        connection.execute(LEASES.update().where(self._mine()).values(renewed_us=now_us))

    def _write(self, work: Callable[[sa.Connection], T], **options: float) -> T:
        """Compare and set: `work` and the look at the lease are one transaction."""

        def guarded(connection: sa.Connection) -> T:
            row = lease_row(connection, self.model, lock=True)
            if row is None or row["secret"] != self._secret:
                raise LeaseLost(self._why_lost(row))
            return work(connection)

        if self.lost.is_set():
            self._lose(self._database.read(lambda c: self._why_lost(lease_row(c, self.model, lock=False))))
            raise LeaseLost(self.lost_reason)
        try:
            return self._database.write(guarded, **options)
        except LeaseLost as error:
            self._lose(str(error))
            raise

    def _why_lost(self, row: sa.RowMapping | None) -> str:
        if row is None:
            return f"model {self.model} is not in the ledger any more: it is another database"
        if not row["secret"]:
            return f"model {self.model} was released"
        return f"model {self.model} was taken over by {who(row)}; what {self.holder} does no longer counts"

    def _lose(self, reason: str) -> None:
        with self._lock:
            if not self.lost.is_set():
                self.lost_reason = reason
                self.lost.set()

    def _writer(self, connection: sa.Connection) -> Writer:
        return Writer(self._database, connection, self.model, self.holder)

    def _add_event(self, connection: sa.Connection, kind: str, *about: Any, **more: Any) -> None:
        records.add_event(self._database, connection, self.model, self.holder, kind, *about, **more)

    def _keep_renewing(self, ended: threading.Event) -> None:
        wait_s, is_away = self._lease_s / 4, False
        while not ended.wait(wait_s) and not self.lost.is_set():
            try:
                self.renew()
            except LeaseLost:
                return
            except Exception as error:  # only the database's word or time ends a lease
                if not is_away:
                    _log.warning(
                        "ledger: model %s: the lease could not be renewed, trying again: %s", self.model, error
                    )
                wait_s, is_away = min(self._lease_s / 8, 1.0), True
            else:
                if is_away:
                    _log.warning("ledger: model %s: the database answers again", self.model)
                wait_s, is_away = self._lease_s / 4, False

    def _watch_the_time(self, ended: threading.Event) -> None:
        # In a thread of its own: the other one may be waiting for a database that does not answer.
        while not ended.wait(max(0.0, self._until_s + self._patience_s - time.monotonic())):
            with self._lock:
                late_s = time.monotonic() - self._until_s - self._patience_s
                if late_s > self._lease_s / 8:
                    # This thread did not run when it was due, nor did the other: the process was frozen.
                    self._until_s = time.monotonic() + self._lease_s / 4
                    continue
            if late_s >= 0:
                silent_s = self._lease_s + self._patience_s
                self._lose(f"model {self.model}: the lease ran out, the ledger did not answer for {silent_s:g} s")
                return


def _line(error: Exception) -> str:
    faults = error.faults if isinstance(error, DiurnalError) else ()
    return "; ".join(fault.found for fault in faults) or str(error) or type(error).__name__
