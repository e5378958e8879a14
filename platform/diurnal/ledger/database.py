"""The database below the ledger: opening it, transactions, and what a person reads when it does not answer.

SQLite is for processes of one machine, or for few where the file system locks across machines; PostgreSQL is for all
else. What differs between them stands here and in `schema.upgrade`, nowhere else.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.pool import NullPool

from diurnal.config import Config
from diurnal.errors import ConfigError, DiurnalError, Fault
from diurnal.ledger import schema

URL_VARIABLE = "DIURNAL_LEDGER_URL"
"""Environment variable that has the URL where the configuration has none, so that no file needs to hold a password."""
BUSY_S = 30.0
"""How long a transaction waits for others, and is tried again while the database is away."""

_RULE = "a database that can be reached and written: sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/NAME"
_PASSWORD = re.compile(r"(://[^/:@\s]*):\S*@|(\bpassword=)[^&\s]+", re.IGNORECASE)
_PASSING = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
)
_OUR_BUGS = (exc.IntegrityError, exc.ProgrammingError, exc.DataError, exc.NotSupportedError)

T = TypeVar("T")


def url_of(config: Config) -> str:
    """`ledger.url`, or that of the environment, or a SQLite file in the storage.

    Raises:
        ConfigError: there is none, and the storage is not a local folder.
    """
    return config.ledger.url or os.environ.get(URL_VARIABLE) or default_url(config.storage)


def default_url(storage: str) -> str:
    """The SQLite file in a storage folder.

    Raises:
        ConfigError: the storage is not a local folder, so that a URL has to be given.
    """
    if "://" in storage:
        fix = f"set ledger.url, to sqlite:///FILE or a server's, or {URL_VARIABLE} in the environment"
        raise ConfigError([Fault("ledger.url", "nothing", "a URL, for a storage that is no local folder", fix)])
    return f"sqlite:///{Path(storage).absolute() / 'ledger.db'}"


def without_passwords(text: str) -> str:
    """`text` with the password of every URL in it replaced by stars."""
    return _PASSWORD.sub(lambda match: f"{match[1]}:***@" if match[1] else f"{match[2]}***", text)


class Database:
    """An open database with current tables. May be used by several threads.

    Args:
        clock: seconds since the epoch; the database's own clock when left out, so that with PostgreSQL one clock
            judges all leases.

    Raises:
        ConfigError: the URL is wrong, the database does not answer, cannot be written, or is of a newer release.
    """

    def __init__(self, url: str, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._secrets: tuple[str, ...] = ()
        self._shown, self._engine = self._engine_of(url)
        try:
            if not self._once(schema.is_current, False, BUSY_S):
                self._once(schema.upgrade, True, BUSY_S)
        except exc.DBAPIError as error:
            self.close()
            raise self._fault(error) from None
        except DiurnalError:
            self.close()
            raise

    def close(self) -> None:
        self._engine.dispose()

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """What `work` returns, all of it from one transaction.

        Raises:
            ConfigError: the database does not answer.
        """
        return self._patiently(work, False, BUSY_S)

    def write(self, work: Callable[[sa.Connection], T], patience_s: float = BUSY_S) -> T:
        """Calls `work` in one transaction, which ends with its exception or is committed when it returns.

        Is tried again while the database is away, also when it went away in the middle of the commit: `work` has to
        be one that may be done twice.

        Raises:
            ConfigError: the database did not answer for `patience_s`, or cannot be written.
        """
        return self._patiently(work, True, patience_s)

    def now_us(self, connection: sa.Connection) -> int:
        """The time by which leases are judged."""
        if self._clock is not None:
            return round(self._clock() * 1e6)
        if connection.dialect.name == "postgresql":
            # Not now(), which is when the transaction began: it may have waited for others since.
            seconds = sa.extract("epoch", sa.func.clock_timestamp())
            return int(connection.scalar(sa.select(sa.cast(seconds * 1_000_000, sa.BigInteger))) or 0)
        return time.time_ns() // 1000

    def tell(self, text: str) -> str:
        """`text` as it may be stored and shown: no password, and no character that a database refuses."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return without_passwords(text).replace("\0", "").encode("utf-8", "replace").decode("utf-8")

    def _patiently(self, work: Callable[[sa.Connection], T], writes: bool, patience_s: float) -> T:
        until_s = time.monotonic() + patience_s
        pause_s = 0.05
        while True:
            try:
                return self._once(work, writes, max(0.0, until_s - time.monotonic()))
            except exc.DBAPIError as error:
                if isinstance(error, _OUR_BUGS) and not error.connection_invalidated:
                    raise
                if not _may_pass(error) or time.monotonic() + pause_s > until_s:
                    raise self._fault(error) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def _once(self, work: Callable[[sa.Connection], T], writes: bool, wait_s: float) -> T:
        options: dict[str, Any] = {"writes": writes, "wait_ms": max(1, round(1000 * wait_s))}
        with self._engine.connect().execution_options(**options) as connection, connection.begin():
            return work(connection)

    def _engine_of(self, text: str) -> tuple[str, sa.Engine]:
        shown = without_passwords(text) if "://" in text else text.rpartition("@")[2]
        try:
            url = sa.make_url(text)
            shown = self._hide(url)
            name = url.get_backend_name()
            if name == "sqlite":
                engine = _sqlite_engine(url)
            elif name == "postgresql":
                engine = sa.create_engine(url, pool_pre_ping=True, pool_size=2, connect_args=_libpq(url))
            else:
                raise exc.ArgumentError(f"no ledger is kept in {name}")
        except ModuleNotFoundError as error:
            fix = f"pip install {error.name}"
            raise ConfigError([Fault("ledger.url", f"{shown}: no module {error.name}", _RULE, fix)]) from None
        except (exc.ArgumentError, ValueError, OSError) as error:
            raise ConfigError([Fault("ledger.url", f"{shown}: {self._line(error)}", _RULE, "correct it")]) from None
        event.listen(engine, "begin", _begin)
        return shown, engine

    def _hide(self, url: sa.URL) -> str:
        passwords = {url.password, *(str(v) for k, v in url.query.items() if "password" in k)} - {None, ""}
        self._secrets = tuple({form for p in map(str, passwords) for form in (p, quote(p, safe=""))})
        return self.tell(url.render_as_string(hide_password=True))

    def _fault(self, error: exc.DBAPIError) -> ConfigError:
        fix = "correct it, let the database start, or give it the right to write"
        return ConfigError([Fault("ledger.url", f"{self._shown}: {self._line(error.orig or error)}", _RULE, fix)])

    def _line(self, error: BaseException) -> str:
        lines = str(error).strip().splitlines()
        return self.tell(lines[0] if lines else type(error).__name__)[:300]


def _sqlite_engine(url: sa.URL) -> sa.Engine:
    if not url.database or url.database == ":memory:" or url.query:
        raise exc.ArgumentError("a file is needed, without options")
    file = Path(url.database).absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        file.touch()

    def connect() -> sqlite3.Connection:
        # Only opened, never created: a file that was moved away must not come back empty.
        # Transactions are begun by `_begin`; the module's own would begin too late, and not for all statements.
        path = f"file:{quote(str(file))}?mode=rw"
        connection = sqlite3.connect(path, BUSY_S, uri=True, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    _write_ahead(connect)
    # A connection for each transaction: the file may be moved, and costs a fraction of a millisecond to open.
    return sa.create_engine(url, creator=connect, poolclass=NullPool)


def _write_ahead(connect: Callable[[], sqlite3.Connection]) -> None:
    """Readers and a writer then do not wait for each other. It stays with the file; where the file system or its
    rights do not allow it, the file works without."""
    until_s = time.monotonic() + BUSY_S
    while True:
        try:
            connection = connect()
        except sqlite3.Error:
            return  # the first transaction says what is wrong
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.Error as error:
            # SQLite does not wait by itself when two processes change the mode at once.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                return
            time.sleep(0.02)
        else:
            return
        finally:
            connection.close()


def _libpq(url: sa.URL) -> dict[str, Any]:
    """Options that notice within half a minute that a server is gone, unless the URL has its own."""
    if url.get_driver_name() not in ("psycopg", "psycopg2"):
        return {}
    ours = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
    return {name: value for name, value in {**ours, "tcp_user_timeout": 20_000}.items() if name not in url.query}


def _begin(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    wait_ms = options["wait_ms"]
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {wait_ms}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options["writes"] else "BEGIN")
        return
    for name in ("lock_timeout", "statement_timeout"):
        connection.exec_driver_sql(f"SET LOCAL {name} = {wait_ms}")
    # A process that is frozen in a transaction lets go of what it has locked before others give up.
    connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {round(1000 * BUSY_S / 2)}")


def _may_pass(error: exc.DBAPIError) -> bool:
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _PASSING or code == sqlite3.SQLITE_READONLY_DBMOVED
    return error.connection_invalidated or isinstance(error, exc.OperationalError | exc.InterfaceError)
