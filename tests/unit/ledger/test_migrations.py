"""Ledgers that an older release made, in files and on a server: brought up to date in place, whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from diurnal.errors import ConfigError
from diurnal.ledger import migrations, schema
from diurnal.ledger.claims import Ledger

VERSION_1 = (
    """CREATE TABLE ledger_attempts (
        model TEXT NOT NULL, increment TEXT NOT NULL, attempt BIGINT NOT NULL, number BIGINT NOT NULL,
        world_size BIGINT NOT NULL, token BIGINT NOT NULL, actor TEXT NOT NULL, started_us BIGINT NOT NULL,
        ended_us BIGINT, outcome TEXT NOT NULL, reason TEXT NOT NULL, rows BIGINT NOT NULL,
        replayed_rows BIGINT NOT NULL, PRIMARY KEY (model, increment, attempt))""",
    """CREATE TABLE ledger_commits (
        model TEXT NOT NULL, path TEXT NOT NULL, number BIGINT NOT NULL, increment TEXT NOT NULL,
        fingerprint TEXT NOT NULL, attempt BIGINT NOT NULL, token BIGINT NOT NULL, global_step BIGINT NOT NULL,
        steps BIGINT NOT NULL, num_steps BIGINT NOT NULL, rows BIGINT NOT NULL, watermark_us BIGINT,
        created_at TEXT NOT NULL, published_us BIGINT NOT NULL, withdrawn_us BIGINT, PRIMARY KEY (model, path))""",
    """CREATE TABLE ledger_events (
        id {counted} NOT NULL, at_us BIGINT NOT NULL, model TEXT NOT NULL, actor TEXT NOT NULL, kind TEXT NOT NULL,
        increment TEXT NOT NULL, reason TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (id))""",
    "CREATE INDEX ix_ledger_events_model ON ledger_events (model)",
    """CREATE TABLE ledger_leases (
        model TEXT NOT NULL, token BIGINT NOT NULL, secret TEXT NOT NULL, host TEXT NOT NULL, pid BIGINT NOT NULL,
        place TEXT NOT NULL, started BIGINT NOT NULL, what TEXT NOT NULL, lease_us BIGINT NOT NULL,
        claimed_us BIGINT NOT NULL, renewed_us BIGINT NOT NULL, PRIMARY KEY (model))""",
    "CREATE TABLE ledger_schema (version INTEGER NOT NULL)",
    "INSERT INTO ledger_schema VALUES (1)",
    "INSERT INTO ledger_leases VALUES ('clicks', 3, '', '', 0, '', 0, '', 0, 0, 0)",
    # Versions 1 and 2, the resume point before version 3, one of version 2 that is gone, and another model.
    """INSERT INTO ledger_commits VALUES
        ('clicks', '1/1-40', 1, 'd1', 'f1', 1, 1, 40, 40, 40, 400, NULL, 'then', 1000000, NULL),
        ('clicks', '2/1-60', 2, 'd2', 'f2', 1, 1, 60, 20, 40, 200, NULL, 'then', 2000000, 2500000),
        ('clicks', '2/1-80', 2, 'd2', 'f2', 1, 1, 80, 40, 40, 410, NULL, 'then', 3000000, NULL),
        ('clicks', '3/1-100', 3, 'd3', 'f3', 1, 2, 100, 20, 40, 200, NULL, 'then', 4000000, NULL),
        ('others', '1/1-10', 1, 'e1', 'g1', 1, 1, 10, 10, 10, 90, NULL, 'then', 5000000, NULL),
        ('others', '2/1-20', 2, 'e2', 'g2', 1, 1, 20, 10, 10, 90, NULL, 'then', 6000000, 7000000)""",
)

OPEN = """
import sys
from diurnal.ledger.claims import Ledger
print("ready", flush=True)
sys.stdin.readline()
Ledger(sys.argv[1]).claim(sys.argv[2], "", 30.0)
"""

STOP_AFTER = """
import sys, time
from diurnal.ledger import migrations
from diurnal.ledger.claims import Ledger

migrations._VERSION_2 = migrations._VERSION_2[:int(sys.argv[2])]
migrate = migrations.to_version_2

def half_way(connection):
    migrate(connection)
    print("ready", flush=True)
    time.sleep(600)

from diurnal.ledger import schema
schema.MIGRATIONS = (half_way,)
Ledger(sys.argv[1])
"""


@pytest.fixture
def ask(url: str):
    """`ask("SELECT ...")` -> its rows, of a connection that knows nothing of the ledger."""
    with ExitStack() as stack:

        def run(*statements: str) -> list[tuple]:
            engine = sa.create_engine(url)
            stack.callback(engine.dispose)
            with engine.begin() as connection:
                for statement in statements:
                    result = connection.exec_driver_sql(statement)
                return [tuple(row) for row in result] if result.returns_rows else []

        yield run


@pytest.fixture
def old_url(url: str, tmp_path, ask) -> str:
    """A ledger as the release with schema version 1 made it."""
    (tmp_path / "a folder").mkdir()
    counted = "INTEGER" if url.startswith("sqlite") else "BIGSERIAL"
    ask(*(statement.replace("{counted}", counted) for statement in VERSION_1))
    return url


def shape(url: str) -> dict[str, object]:
    """Tables, their columns, keys and indices."""
    engine = sa.create_engine(url)
    inspector = sa.inspect(engine)
    found = {}
    for name in inspector.get_table_names():
        columns = {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns(name)}
        keys = inspector.get_pk_constraint(name)["constrained_columns"]
        found[name] = (columns, keys, [(i["name"], i["column_names"]) for i in inspector.get_indexes(name)])
    engine.dispose()
    return found


def check_is_migrated(url: str) -> None:
    with Ledger(url) as ledger:
        assert [(c.number, c.parent) for c in ledger.commits("clicks")] == [(1, None), (2, 1), (3, 2)]
        found = [(i.increment, i.state, i.fingerprint, i.rows, i.version) for i in ledger.increments("clicks")]
        assert found == [("d1", "trained", "f1", 400, 1), ("d2", "trained", "f2", 410, 2)]
        assert [i.increment for i in ledger.increments("others")] == ["e1"]
        assert [(v.number, v.parent, v.verdict, v.rejected) for v in ledger.versions("clicks")] == [
            (1, None, "", False),
            (2, 1, "", False),
        ]
        assert (ledger.champion("clicks"), ledger.promotions("clicks"), ledger.events("clicks")) == (None, [], [])


def test_version_1_becomes_what_a_fresh_ledger_is(old_url, ask, request):
    check_is_migrated(old_url)
    assert ask("SELECT version FROM ledger_schema") == [(schema.newest_version(),)] == [(2,)]
    migrated = shape(old_url)
    ask(*(f"DROP TABLE {name}" for name in migrated))
    Ledger(old_url).close()
    assert migrated == shape(old_url)


def test_what_was_migrated_is_used_like_any_other(old_url, commit):
    with Ledger(old_url) as ledger:
        lease = ledger.claim("clicks", "", 30.0)
        assert lease.token == 4
        lease.publish(commit(4, number=3, steps=40, increment="d3", attempt=2, parent=2))
        assert ledger.promote("clicks", 2)
        told = {"evidence": {"a": 1}, "rejected": False, "state": "promoted", "expected_champion": 2, "promote": True}
        assert lease.judge(3, "promote", "better", **told)
        assert (ledger.champion("clicks"), ledger.rollback_target("clicks")) == (3, 2)
        assert [i.state for i in ledger.increments("clicks")] == ["trained", "promoted", "promoted"]


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "old"])
def test_two_processes_at_once(fresh, request, url):
    if not fresh:
        request.getfixturevalue("old_url")
    with ExitStack() as stack:
        pipe = subprocess.PIPE
        processes = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", OPEN, url, n], stdin=pipe, stdout=pipe))
            for n in "abc"
        ]
        assert [p.stdout and p.stdout.readline() for p in processes] == [b"ready\n"] * 3
        for process in processes:
            assert process.stdin
            process.stdin.write(b"go\n")
            process.stdin.flush()
        assert [process.wait(60) for process in processes] == [0, 0, 0]
    with Ledger(url) as ledger:
        assert sorted(event.model for event in ledger.events()) == ["a", "b", "c"]
    if not fresh:
        check_is_migrated(url)


@pytest.mark.parametrize("statements", [1, 4, len(migrations._VERSION_2)])
def test_a_migration_that_is_killed_has_not_begun(old_url, ask, statements):
    before = shape(old_url)
    command = [sys.executable, "-c", STOP_AFTER, old_url, str(statements)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    wait_for_the_server_to_notice(old_url, ask)
    assert shape(old_url) == before
    assert ask("SELECT version FROM ledger_schema") == [(1,)]
    check_is_migrated(old_url)


def wait_for_the_server_to_notice(url: str, ask: Callable[..., list[tuple]]) -> None:
    """A server rolls back when it reads from the connection of a process that is gone, which may take a moment."""
    if not url.startswith("sqlite"):
        ask("BEGIN", "LOCK TABLE ledger_commits IN ACCESS EXCLUSIVE MODE")


def test_a_migration_that_fails_changes_nothing(url, ask, monkeypatch):
    Ledger(url).close()
    before, newest = shape(url), schema.newest_version()

    def break_half_way(connection: sa.Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE ledger_leases ADD COLUMN note TEXT")
        raise RuntimeError("power")

    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, break_half_way))
    with pytest.raises(RuntimeError, match="power"):
        Ledger(url)
    assert shape(url) == before
    assert ask("SELECT version FROM ledger_schema") == [(newest,)]


def test_migrations_are_done_in_order_and_once(old_url, ask, monkeypatch):
    seen = []

    def add_note(connection: sa.Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE ledger_increments ADD COLUMN note TEXT")
        seen.append("3")

    def add_index(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE INDEX by_note ON ledger_increments (note)")
        seen.append("4")

    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, add_note, add_index))
    for _ in range(2):
        Ledger(old_url).close()
    assert seen == ["3", "4"]
    assert ask("SELECT version FROM ledger_schema") == [(4,)]


def test_a_newer_database_is_refused(url, ask):
    Ledger(url).close()
    ask("UPDATE ledger_schema SET version = 99")
    says = r"found: a ledger of schema version 99\n  rule:  at most 2, .*\n.*the release"
    with pytest.raises(ConfigError, match=says):
        Ledger(url)
