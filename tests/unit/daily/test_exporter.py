"""How a model stands, as Prometheus is told: from a ledger that is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from diurnal.config import Config
from diurnal.daily import exporter
from diurnal.daily.exporter import LedgerCollector, Sample, samples, serve
from diurnal.errors import ConfigError
from diurnal.ledger.claims import Ledger
from diurnal.ledger.database import default_url
from diurnal.ledger.lease import Lease
from diurnal.ledger.records import Commit
from diurnal.testing import tiny_config
from diurnal.tracking import names
from diurnal.tracking.series import SERIES

NOW = datetime(2026, 1, 4, 1, tzinfo=UTC)
"""The third day is over, and not yet late."""

USER = {"name": "user", "rows": 100, "dead_rows": 1, "nonfinite": 0, "max_abs": 2.5, "rms_learned": 0.1}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return tiny_config({"storage": str(tmp_path), "days": {"wait_s": 7200.0}})


@pytest.fixture
def ledger(config: Config) -> Iterator[Ledger]:
    with Ledger(default_url(config.storage), clock=NOW.timestamp) as ledger:
        yield ledger


@pytest.fixture
def lease(config: Config, ledger: Ledger) -> Lease:
    return ledger.claim(config.name, "test", 30.0)


def commit(lease: Lease, number: int, verdict: str = "promote", **evidence: Any) -> None:
    """A version of the day of its number, and what the gate said of it."""
    day = datetime(2026, 1, number, tzinfo=UTC)
    end = day + timedelta(days=1)
    about = {"model": lease.model, "token": lease.token, "increment": f"{day:%Y-%m-%d}", "fingerprint": f"f{number}"}
    steps = {"attempt": 1, "global_step": 10 * number, "steps": 10, "num_steps": 10, "rows": 1000}
    times = {"watermark_us": round(end.timestamp() * 1e6), "created_at": (end + timedelta(hours=2)).isoformat()}
    lease.publish(
        Commit(number=number, path=f"versions/{number}", parent=number - 1 or None, **about, **steps, **times)
    )
    promote = verdict == "promote"
    state: Any = "promoted" if promote else "held"
    champion = number - 1 or None
    more = {"evidence": evidence, "rejected": not promote, "state": state, "promote": promote}
    assert lease.judge(number, verdict, "because", expected_champion=champion, **more)  # pyright: ignore


def of(found: list[Sample], metric: str) -> list[Any]:
    return [(sample.value, *sample.labels) for sample in found if sample.metric == metric]


def test_a_model_of_which_nothing_is_known(config: Config, ledger: Ledger) -> None:
    found = samples(config, ledger, NOW.timestamp())
    assert of(found, names.MODEL_UP) == [(1.0,)]
    assert of(found, names.MODEL_HELD_BY) == [(0.0, "nobody")]
    assert of(found, names.MODEL_CHAMPION) == []
    assert of(found, names.MODEL_LATE) == [(0.0,)]


def test_the_champion_and_what_it_scored(config: Config, ledger: Ledger, lease: Lease) -> None:
    commit(lease, 1)
    lease.mark("2026-01-02", "profiled", fingerprint="f2", rows=1000, scored={"ne": 0.9, "calibration": 1.1})
    commit(lease, 2)
    lease.mark("2026-01-03", "profiled", fingerprint="f3", rows=900, scored={"ne": None, "calibration": None})
    commit(lease, 3)
    found = samples(config, ledger, NOW.timestamp())
    assert of(found, names.MODEL_CHAMPION) == [(3,)]
    assert of(found, names.MODEL_FRESHNESS_S) == [(3600.0,)]
    assert of(found, names.MODEL_NEWEST_STATE) == [(1.0, "2026-01-03", "promoted")]
    assert of(found, names.INCREMENT_NE) == [(0.9, "2026-01-02")], "what is undefined is no number"
    assert of(found, names.INCREMENT_CALIBRATION) == [(1.1, "2026-01-02")]
    assert [row[0] for row in of(found, names.INCREMENT_STATE)] == [1, 2, 3]
    (held_by,) = of(found, names.MODEL_HELD_BY)
    assert held_by[0] == 1.0
    assert "test" in held_by[1]


def test_what_is_held_and_what_is_late(config: Config, ledger: Ledger, lease: Lease) -> None:
    commit(lease, 1)
    lease.mark("2026-01-02", "held", fingerprint="f2", rows=7, reason="rows: 7 " + "x" * 500)
    found = samples(config, ledger, NOW.timestamp())
    ((_, increment, kind, reason),) = of(found, names.MODEL_TROUBLE)
    assert (increment, kind, len(reason)) == ("2026-01-02", "held", 120)
    assert of(found, names.MODEL_NEEDS_A_PERSON) == [(1.0,)]
    assert of(found, names.MODEL_LATE) == [(0.0,)]
    later = NOW + timedelta(hours=2)
    found = samples(config, ledger, later.timestamp())
    assert of(found, names.MODEL_LATE_S) == [(3600.0,)], "the third day was to be there at two in the morning"
    assert (1.0, "2026-01-03", "late", "") in of(found, names.MODEL_TROUBLE)


def test_an_increment_that_is_there_and_is_not_done_is_late_too(config: Config, ledger: Ledger, lease: Lease) -> None:
    commit(lease, 1)
    lease.mark("2026-01-02", "ready", rows=7)
    found = samples(config, ledger, NOW.timestamp())
    assert of(found, names.MODEL_LATE_S) == [(23 * 3600.0,)]


def test_workers_on_an_increment(config: Config, ledger: Ledger, lease: Lease) -> None:
    attempt = lease.begin_attempt("2026-01-01", 1, 2, 0, 0)
    assert of(samples(config, ledger, NOW.timestamp()), names.MODEL_LEARNING) == [(1.0,)]
    lease.end_attempt("2026-01-01", attempt, "failed", "no")
    assert of(samples(config, ledger, NOW.timestamp()), names.MODEL_LEARNING) == [(0.0,)]


def test_tables_and_ids_of_the_newest_version(config: Config, ledger: Ledger, lease: Lease) -> None:
    commit(lease, 1, tables=[{**USER, "learned_rows": 40}])
    counts = {"sparse/user/ids": 50, "sparse/user/unknown": 4, "sparse/user/null": 2, "sparse/user/negative": 1}
    commit(lease, 2, "hold", tables=[{**USER, "learned_rows": 60}], counts=counts)
    found = samples(config, ledger, NOW.timestamp())
    assert of(found, names.TABLE_LEARNED_ROWS) == [(60, "user")]
    assert of(found, names.TABLE_NEW_ROWS) == [(20, "user")]
    assert of(found, names.FEATURE_UNKNOWN_IDS) == [(4, "user")]
    assert of(found, names.FEATURE_NO_ID) == [(3, "user")]


def test_there_are_never_many_series(config: Config, ledger: Ledger, lease: Lease) -> None:
    for day in range(90):
        name = f"{datetime(2025, 6, 1) + timedelta(days=day):%Y-%m-%d}"
        lease.mark(name, "held", fingerprint="f", rows=day, scored={"ne": 1.0, "calibration": 1.0}, reason=f"{day}")
    found = samples(config, ledger, NOW.timestamp())
    assert len(of(found, names.INCREMENT_NE)) == 30
    assert of(found, names.INCREMENT_NE)[-1][1] == "2025-08-29"
    assert len(of(found, names.MODEL_TROUBLE)) == 10
    assert all(len(sample.labels) + 1 == len(SERIES[sample.metric].tags) for sample in found)


def test_what_prometheus_reads(config: Config, ledger: Ledger, lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(lease, 1)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LedgerCollector(config, ledger, NOW.timestamp))  # pyright: ignore[reportArgumentType]
    text = generate_latest(registry).decode()
    assert f'diurnal_model_champion{{model="{config.name}"}} 1.0' in text
    assert "# HELP diurnal_model_champion number of the version that serving should use" in text
    commit(lease, 2)
    assert generate_latest(registry).decode() == text, "the ledger is not asked at every look"
    monkeypatch.setattr(exporter, "REFRESH_S", 0.0)
    assert f'diurnal_model_champion{{model="{config.name}"}} 2.0' in generate_latest(registry).decode()

    def away(*_: object) -> None:
        raise ConfigError([])

    monkeypatch.setattr(ledger, "increments", away)
    lines = generate_latest(registry).decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [f'diurnal_model_up{{model="{config.name}"}} 0.0']


@pytest.mark.parametrize("listen", ["9108", "127.0.0.1:", "127.0.0.1:99999", ":9108"])
def test_an_address_that_is_none(config: Config, ledger: Ledger, listen: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        serve(config, ledger, listen)
