"""Tables of the ledger, and how an older database becomes a current one.

Times are microseconds since the epoch, UTC. The names have a prefix because the database may be shared with others.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from diurnal.errors import ConfigError, Fault
from diurnal.ledger import migrations

METADATA = sa.MetaData()

VERSION = sa.Table("ledger_schema", METADATA, sa.Column("version", sa.Integer, nullable=False))

LEASES = sa.Table(
    "ledger_leases",
    METADATA,
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("token", sa.BigInteger, nullable=False),  # of the last claim; only ever grows
    sa.Column("secret", sa.Text, nullable=False),  # one of its own for every claim; empty: nobody holds the model
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.BigInteger, nullable=False),
    sa.Column("place", sa.Text, nullable=False),
    sa.Column("started", sa.BigInteger, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("lease_us", sa.BigInteger, nullable=False),
    sa.Column("claimed_us", sa.BigInteger, nullable=False),
    sa.Column("renewed_us", sa.BigInteger, nullable=False),
)

COMMITS = sa.Table(
    "ledger_commits",
    METADATA,
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("increment", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("global_step", sa.BigInteger, nullable=False),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("num_steps", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("watermark_us", sa.BigInteger),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("published_us", sa.BigInteger, nullable=False),
    sa.Column("withdrawn_us", sa.BigInteger),  # visible while it is null
    sa.Column("parent", sa.BigInteger),
)

ATTEMPTS = sa.Table(
    "ledger_attempts",
    METADATA,
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("increment", sa.Text, primary_key=True),
    sa.Column("attempt", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("world_size", sa.BigInteger, nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("started_us", sa.BigInteger, nullable=False),
    sa.Column("ended_us", sa.BigInteger),  # open while it is null
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("replayed_rows", sa.BigInteger, nullable=False),
)

EVENTS = sa.Table(
    "ledger_events",
    METADATA,
    # SQLite counts by itself in columns of exactly this type only.
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("model", sa.Text, nullable=False, index=True),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("increment", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("data", sa.Text, nullable=False),  # JSON
)

INCREMENTS = sa.Table(
    "ledger_increments",
    METADATA,
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("increment", sa.Text, primary_key=True),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("rows", sa.BigInteger),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger),
    sa.Column("profile", sa.Text),  # JSON, and so is `scored`
    sa.Column("scored", sa.Text),
    sa.Column("first_seen_us", sa.BigInteger, nullable=False),
    sa.Column("updated_us", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
)

VERDICTS = sa.Table(
    "ledger_verdicts",
    METADATA,
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("path", sa.Text, primary_key=True),  # of a final commit; there is no row before it is judged
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("verdict", sa.Text, nullable=False),
    sa.Column("rejected", sa.Boolean, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("evidence", sa.Text),  # JSON
    sa.Column("judged_us", sa.BigInteger, nullable=False),
)

PROMOTIONS = sa.Table(
    "ledger_promotions",
    METADATA,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("model", sa.Text, nullable=False, index=True),
    sa.Column("number", sa.BigInteger, nullable=False),  # the champion from then on
    sa.Column("previous", sa.BigInteger),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("ticket", sa.Text, nullable=False),  # of the call, so that one that is tried again counts once
)

MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = (migrations.to_version_2,)
"""The first leads from version 1 to 2, and so on; what was released is never changed or taken out. A fresh database
gets the tables above as they are, so a change belongs into both."""

_UPGRADE_LOCK = 0x6469_7572_6E61_6C01
"""Key of PostgreSQL's advisory lock: two processes that create the same table at once would fail there."""


def newest_version() -> int:
    return 1 + len(MIGRATIONS)


def is_current(connection: sa.Connection) -> bool:
    """
    Raises:
        ConfigError: a newer release has made this database.
    """
    return _found_version(connection) == newest_version()


def upgrade(connection: sa.Connection) -> None:
    """Creates the tables, or brings them up to date, within the caller's transaction.

    Raises:
        ConfigError: a newer release has made this database.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK)))
    version = _found_version(connection)
    if version is None:
        METADATA.create_all(connection)
        connection.execute(VERSION.insert().values(version=newest_version()))
        return
    for migrate in MIGRATIONS[version - 1 :]:
        migrate(connection)
    connection.execute(VERSION.update().values(version=newest_version()))


def _found_version(connection: sa.Connection) -> int | None:
    if not sa.inspect(connection).has_table(VERSION.name):
        return None
    version = connection.scalar(sa.select(VERSION.c.version))
    if version is not None and version > newest_version():
        rule = f"at most {newest_version()}, the one that this release of diurnal knows"
        fix = "use the release that wrote it, or a newer one"
        raise ConfigError([Fault("ledger.url", f"a ledger of schema version {version}", rule, fix)])
    return version
