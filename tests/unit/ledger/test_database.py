"""Opening a file, and what a person reads when the database cannot be had."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from diurnal.errors import ConfigError
from diurnal.ledger import database, schema
from diurnal.ledger.claims import Ledger
from diurnal.ledger.database import URL_VARIABLE, default_url, url_of, without_passwords
from diurnal.testing import tiny_config


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


def tables(file: str | Path) -> dict[str, list[str]]:
    with closing(sqlite3.connect(file)) as connection:
        names = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        return {
            n: [row[1] for row in connection.execute(f"pragma table_info({n})")] for n in names if "sqlite" not in n
        }


def test_the_default_is_a_file_in_the_storage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_url("build/storage") == f"sqlite:///{tmp_path}/build/storage/ledger.db"
    with Ledger(default_url("build/storage")) as ledger:
        assert ledger.claim("clicks", "", 30.0).token == 1
    with pytest.raises(ConfigError, match=r"ledger\.url\n  found: nothing\n(.*\n)*.*set ledger\.url"):
        default_url("s3://bucket/storage")


def test_a_file_is_made_for_several_processes(ledger, url):
    file = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    assert set(tables(file)) == set(schema.METADATA.tables)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("ledger.db", "Could not parse"),
        ("ann:s3cr@t@db", "Could not parse"),
        ("postgres://ann:s3cret@db/x", "postgres"),
        ("mysql://ann:s3cret@db/x", "mysql://ann:***@db/x: "),
        ("postgresql+nosuch://ann:s3cret@db/x", "nosuch"),
        ("sqlite://", "a file is needed"),
        ("sqlite:///:memory:", "a file is needed"),
        ("sqlite:////dev/null/ledger.db", "File exists: '/dev/null'"),
        ("sqlite:////dev", "unable to open"),
    ],
)
def test_a_wrong_url_is_one_fault(url, found):
    with pytest.raises(ConfigError) as caught:
        Ledger(url)
    (fault,) = caught.value.faults
    assert fault.where == "ledger.url"
    assert found in fault.found
    assert "postgresql+psycopg://" in fault.rule
    assert "s3cr" not in str(caught.value)


def test_a_driver_that_is_not_installed_is_named(monkeypatch):
    def missing(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")

    monkeypatch.setattr(sa, "create_engine", missing)
    with pytest.raises(ConfigError, match="pip install psycopg") as caught:
        Ledger("postgresql+psycopg://ann:s3cret@db/x")
    assert "postgresql+psycopg://ann:***@db/x: no module psycopg" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_password_in_the_driver_s_words_is_hidden(tmp_path, monkeypatch):
    """A driver may quote what it was given, as it was written or decoded."""

    def refuse() -> None:
        raise sqlite3.OperationalError("no: user=ann p=s3/cr%t or s3%2Fcr%25t\nmore")

    engine = sa.create_engine("sqlite://", creator=refuse)
    monkeypatch.setattr(sa, "create_engine", lambda *_, **__: engine)
    with pytest.raises(ConfigError) as caught:
        Ledger("postgresql://ann:s3%2Fcr%25t@db/x")
    assert caught.value.faults[0].found == "postgresql://ann:***@db/x: no: user=ann p=*** or ***"


def test_a_file_that_is_no_database_is_left_alone(tmp_path):
    file = tmp_path / "ledger.db"
    file.write_text("somebody's notes, not a database\n" * 100)
    with pytest.raises(ConfigError, match="file is not a database"):
        Ledger(f"sqlite:///{file}")
    assert file.read_text().startswith("somebody's notes")


def test_a_file_that_cannot_be_written_is_a_fault():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        url = f"sqlite:///{folder}/ledger.db"
        Ledger(url).close()
        os.chmod(f"{folder}/ledger.db", 0o444)
        os.chmod(folder, 0o555)
        me = os.geteuid()
        if me == 0:
            os.seteuid(65534)  # root may write everything
        try:
            with pytest.raises(ConfigError, match=r"the right to write") as caught, Ledger(url) as ledger:
                ledger.claim("clicks", "", 30.0)
        finally:
            os.seteuid(me)
            os.chmod(folder, 0o755)
    assert len(caught.value.faults) == 1


def test_a_file_that_vanishes_does_not_come_back_empty(ledger, url, monkeypatch):
    monkeypatch.setattr(database, "BUSY_S", 0.2)
    ledger.claim("clicks", "", 30.0)
    file = Path(url.removeprefix("sqlite:///"))
    file.unlink()
    with pytest.raises(ConfigError, match="unable to open database file"):
        ledger.commits("clicks")
    assert not file.exists()


def test_passwords_become_stars():
    told = without_passwords("postgresql://u:p@h/d and http://h:80/x mysql://u:a/b@c@h/d?PASSWORD=x&y=1 at 12:30 a@b")
    assert told == "postgresql://u:***@h/d and http://h:80/x mysql://u:***@h/d?PASSWORD=***&y=1 at 12:30 a@b"


def test_a_url_of_the_environment_holds_where_the_configuration_has_none(tmp_path: Path, monkeypatch) -> None:
    """A password is in no file then."""
    plain = tiny_config({"storage": str(tmp_path / "storage")})
    named = tiny_config({"ledger": {"url": f"sqlite:///{tmp_path}/named.db"}})
    assert url_of(plain) == default_url(plain.storage)
    monkeypatch.setenv(URL_VARIABLE, f"sqlite:///{tmp_path}/given.db")
    assert (url_of(plain), url_of(named)) == (f"sqlite:///{tmp_path}/given.db", named.ledger.url)
    with Ledger.of(plain):
        assert (tmp_path / "given.db").exists()
