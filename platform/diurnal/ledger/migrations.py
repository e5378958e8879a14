"""How an older ledger becomes a newer one, a step from each schema version to the next.

What stands here was released and is never changed: it is about the tables as they were then, so it does not use those
of `schema`. Each step runs within one transaction, with nobody else in it, and may be killed anywhere.
"""

from __future__ import annotations

import sqlalchemy as sa

_VERSION_2 = (
    "ALTER TABLE ledger_commits ADD COLUMN parent BIGINT",
    # Before this version every commit went on from the one before it.
    "UPDATE ledger_commits SET parent = number - 1 WHERE number > 1",
    """CREATE TABLE ledger_increments (
        model TEXT NOT NULL,
        increment TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        rows BIGINT,
        state TEXT NOT NULL,
        reason TEXT NOT NULL,
        version BIGINT,
        profile TEXT,
        scored TEXT,
        first_seen_us BIGINT NOT NULL,
        updated_us BIGINT NOT NULL,
        actor TEXT NOT NULL,
        PRIMARY KEY (model, increment)
    )""",
    """CREATE TABLE ledger_verdicts (
        model TEXT NOT NULL,
        path TEXT NOT NULL,
        number BIGINT NOT NULL,
        verdict TEXT NOT NULL,
        rejected BOOLEAN NOT NULL,
        reason TEXT NOT NULL,
        evidence TEXT,
        judged_us BIGINT NOT NULL,
        PRIMARY KEY (model, path)
    )""",
    """CREATE TABLE ledger_promotions (
        id {counted} NOT NULL PRIMARY KEY,
        model TEXT NOT NULL,
        number BIGINT NOT NULL,
        previous BIGINT,
        kind TEXT NOT NULL,
        reason TEXT NOT NULL,
        actor TEXT NOT NULL,
        at_us BIGINT NOT NULL,
        ticket TEXT NOT NULL
    )""",
    "CREATE INDEX ix_ledger_promotions_model ON ledger_promotions (model)",
    # One increment may be in several versions where a store was put together by hand: the newest counts.
    """INSERT INTO ledger_increments
            (model, increment, fingerprint, rows, state, reason, version, first_seen_us, updated_us, actor)
        SELECT model, increment, fingerprint, rows, 'trained', '', number, published_us, published_us, ''
        FROM ledger_commits AS newest
        WHERE withdrawn_us IS NULL AND steps = num_steps AND NOT EXISTS (
            SELECT 1 FROM ledger_commits AS newer
            WHERE newer.model = newest.model AND newer.increment = newest.increment
                AND newer.withdrawn_us IS NULL AND newer.steps = newer.num_steps AND newer.number > newest.number
        )""",
)


def to_version_2(connection: sa.Connection) -> None:
    """Increments, verdicts, promotions, and the parent of each commit."""
    counted = "BIGSERIAL" if connection.dialect.name == "postgresql" else "INTEGER"
    for statement in _VERSION_2:
        connection.exec_driver_sql(statement.replace("{counted}", counted))
