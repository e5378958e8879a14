"""How a model stands, read from a ledger that is written by hand."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from diurnal.config import Config
from diurnal.daily.status import Trouble, status
from diurnal.ledger.claims import Ledger
from diurnal.ledger.database import default_url
from diurnal.ledger.lease import Lease
from diurnal.ledger.records import Commit
from diurnal.testing import tiny_config

NOW = datetime(2026, 1, 4, 1, tzinfo=UTC)
"""The third day is over, and not yet late."""


def now_s() -> float:
    return NOW.timestamp()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return tiny_config({"storage": str(tmp_path), "days": {"wait_s": 7200.0}})


@pytest.fixture
def ledger(config: Config) -> Iterator[Ledger]:
    with Ledger(default_url(config.storage), clock=now_s) as ledger:
        yield ledger


@pytest.fixture
def lease(config: Config, ledger: Ledger) -> Lease:
    return ledger.claim(config.name, "test", 30.0)


def commit(lease: Lease, number: int) -> None:
    """A version of the day of its number, which ends with its last row."""
    day = datetime(2026, 1, number, tzinfo=UTC)
    lease.publish(
        Commit(
            model=lease.model,
            number=number,
            increment=f"{day:%Y-%m-%d}",
            fingerprint=f"f{number}",
            attempt=1,
            token=lease.token,
            global_step=10 * number,
            steps=10,
            num_steps=10,
            rows=1000 + number,
            path=f"versions/{number}",
            watermark_us=round((day + timedelta(days=1)).timestamp() * 1e6),
            parent=number - 1 or None,
            created_at=(day + timedelta(days=1, hours=2)).isoformat(),
        )
    )


def judge(lease: Lease, number: int, verdict: str, champion: int | None) -> None:
    assert lease.judge(
        number,
        verdict,  # pyright: ignore[reportArgumentType]
        f"because of {number}",
        evidence={},
        rejected=verdict == "hold",
        state={"promote": "promoted", "hold": "held", "undecided": "judged"}[verdict],  # pyright: ignore[reportArgumentType]
        expected_champion=champion,
        promote=verdict == "promote",
    )


def test_a_model_of_which_nothing_is_known(config: Config, ledger: Ledger) -> None:
    found = status(config, ledger, now_s)
    assert (found.champion, found.newest, found.next_increment, found.troubles) == (None, None, None, ())
    assert not found.needs_a_person
    assert "champion    none" in found.text()


def test_the_champion_and_how_old_it_is(config: Config, ledger: Ledger, lease: Lease) -> None:
    for number in (1, 2, 3):
        commit(lease, number)
        judge(lease, number, "promote", number - 1 or None)
    found = status(config, ledger, now_s)
    assert found.champion is not None
    assert found.champion.number == 3
    assert found.freshness_s == 3600.0
    assert found.next_increment == "2026-01-04"
    assert found.troubles == ()
    assert "nothing needs a person" in found.text()
    assert "version 3 of 2026-01-03" in found.text()


def test_what_was_due_and_was_not_seen_is_late(config: Config, ledger: Ledger, lease: Lease) -> None:
    commit(lease, 1)
    judge(lease, 1, "promote", None)
    due_s = datetime(2026, 1, 3, 2, tzinfo=UTC).timestamp()
    assert not status(config, ledger, lambda: due_s).troubles
    (late,) = status(config, ledger, lambda: due_s + 60).troubles
    assert (late.increment, late.needs_a_person) == ("2026-01-02", True)
    assert "0:01:00 after it was due" in late.what


def test_a_version_that_is_held_is_named_with_its_reason(config: Config, ledger: Ledger, lease: Lease) -> None:
    for number, verdict, champion in ((1, "promote", None), (2, "promote", 1), (3, "hold", 2)):
        commit(lease, number)
        judge(lease, number, verdict, champion)
    found = status(config, ledger, now_s)
    (trouble,) = found.troubles
    assert (trouble.increment, trouble.what) == ("2026-01-03", "held: because of 3")
    assert "diurnal promote 3" in trouble.what_to_do
    assert found.needs_a_person
    assert found.champion is not None
    assert found.champion.number == 2
    assert "version 3 of 2026-01-03: hold" in found.text()
    assert found.to_dict()["needs_a_person"] is True


def test_files_that_a_version_has_not_learned_are_named_as_long_as_it_is_that_of_the_day(
    config: Config, ledger: Ledger, lease: Lease
) -> None:
    for number in (1, 2):
        commit(lease, number)
        judge(lease, number, "promote", number - 1 or None)
    files = [f"part-{index}.parquet" for index in range(4)]
    for number in (1, 2, 2):  # told once more by each restart
        lease.note("left_out", f"2026-01-0{number}", data={"version": 7 if number == 1 else number, "files": files})
    found = status(config, ledger, now_s)
    (trouble,) = found.troubles
    assert (trouble.increment, trouble.kind, trouble.needs_a_person) == ("2026-01-02", "left_out", False)
    assert trouble.what == "learned without 4 damaged files: part-0.parquet, part-1.parquet, part-2.parquet, ..."
    assert f"- 2026-01-02: {trouble.what}" in found.text()


def test_an_increment_that_is_held_may_be_tried_again(config: Config, ledger: Ledger, lease: Lease) -> None:
    commit(lease, 1)
    judge(lease, 1, "promote", None)
    lease.mark("2026-01-02", "held", fingerprint="f2", rows=7, reason="rows: 7 (usually 1000)")
    (held,) = status(config, ledger, now_s).troubles
    assert held.what == "held: rows: 7 (usually 1000)"
    assert "--retry 2026-01-02" in held.what_to_do
    commit(lease, 3)
    judge(lease, 3, "promote", 1)
    assert not status(config, ledger, now_s).troubles, "a later version is promoted"


def test_an_undecided_version_needs_nobody(config: Config, ledger: Ledger, lease: Lease) -> None:
    for number, verdict in ((1, "promote"), (2, "undecided"), (3, "undecided")):
        commit(lease, number)
        judge(lease, number, verdict, None if number == 1 else 1)
    found = status(config, ledger, now_s)
    assert [(t.increment, t.needs_a_person) for t in found.troubles] == [("2026-01-02", False), ("2026-01-03", False)]
    assert not found.needs_a_person


def test_hours_of_a_gap_are_told_together_and_old_ones_are_counted(
    config: Config, ledger: Ledger, lease: Lease
) -> None:
    found = status(config, ledger, now_s)
    hours = [f"2026-01-01T{hour:02}" for hour in range(24)]
    skipped = [Trouble(hour, "skipped", f"skipped: gap {i // 2}", "nothing", False) for i, hour in enumerate(hours)]
    held = Trouble("2026-01-01T00", "held", "held: rows", "look", True)
    text = replace(found, troubles=(held, *skipped)).text()
    assert "! 2026-01-01T00: held: rows" in text
    assert "- 2026-01-01T22 to 2026-01-01T23 (2): skipped: gap 11" in text
    assert "gap 1\n" not in text
    assert "and 4 earlier ones that need nobody" in text


LOOK = """
import sys
from pathlib import Path
from diurnal.cli.main import main
try:
    main(["status", "--config", sys.argv[1]])
except SystemExit as error:
    assert error.code in (0, None), error.code
heavy = {"torch", "torchrec", "ray", "mlflow", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
"""


def test_it_needs_no_heavy_library(tmp_path: Path) -> None:
    schema = "[[dense]]\nname = 'age'\n[[sparse]]\nname = 'user'\n[[tables]]\nname = 'user'\nrows = 10\ndim = 4\n"
    (tmp_path / "schema.toml").write_text(schema)
    run = 'name = "tiny"\nstorage = "storage"\n[data]\npath = "days"\nschema_file = "schema.toml"\nbatch_rows = 4\n'
    (tmp_path / "run.toml").write_text(run + "[model]\nbottom = [4]\nover = [4]\n")
    arguments = [sys.executable, "-c", LOOK, str(tmp_path / "run.toml")]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "champion    none" in done.stdout


def test_it_costs_little(config: Config, ledger: Ledger, lease: Lease) -> None:
    for day in range(90):
        lease.mark(f"{datetime(2025, 6, 1) + timedelta(days=day):%Y-%m-%d}", "ready", rows=day)
    begun_s = time.process_time()
    found = status(config, ledger, now_s)
    assert time.process_time() - begun_s < 1.0
    assert (found.num_pending, len(found.increments)) == (90, 10)
