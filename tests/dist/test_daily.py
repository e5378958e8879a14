"""The daily cycle killed at every transition, and started again: the outcome is that of an unbroken run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diurnal.config import Config
from diurnal.daily.agenda import Asked
from diurnal.testing import WorldError, kill_world
from diurnal.testing_daily import (
    NUM_ROWS,
    Life,
    champion_of,
    config_of,
    daily,
    day_of,
    increments_of,
    ledger_of,
    outcome,
    play,
    rows_learned,
    rows_of,
    same_tensors,
    scales_price,
    states_of,
    versions_of,
    write_days,
)


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five days; the fourth is implausible."""
    return write_days(tmp_path_factory.mktemp("days"), 5, {3: scales_price})


@pytest.fixture(scope="module")
def unbroken(days: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = config_of(days, tmp_path_factory.mktemp("unbroken"))
    daily(config)
    return config


def test_each_row_is_learned_once_and_what_is_implausible_is_held(unbroken: Config) -> None:
    assert states_of(unbroken) == ["promoted", "promoted", "promoted", "held", "promoted"], outcome(unbroken)
    assert "price" in increments_of(unbroken)[day_of(3)].reason
    assert champion_of(unbroken) == 4
    np.testing.assert_array_equal(rows_learned(unbroken, 4), rows_of(unbroken, [0, 1, 2, 4], without_slice=4))


LIVES = [
    ("daily/seen", 1, 0),
    ("daily/claimed", 1, 0),
    ("daily/profiled", 1, 0),
    ("daily/trained", 2, 1),
    ("daily/judged", 1, 1),
    ("daily/mirrored", 1, 2),
    ("daily/claimed", 1, 2),
    ("daily/scored", 1, 2),
    ("daily/profiled", 1, 2),
    ("daily/trained", 2, 3),
    ("daily/judged", 1, 3),
    ("daily/held", 1, 3),
    ("daily/seen", 1, 3),
    ("daily/scored", 1, 3),
    ("daily/trained", 2, 4),
    ("daily/mirrored", 1, 4),
]
"""One after the other, each going on from what is left of the one before: where a life ends, and at which passing of
that point; how many versions there are then."""
WORKER_POINTS = ["checkpoint/before-commit", "checkpoint/committed", "learn/3", "score/3"]


def test_a_kill_at_every_transition_changes_nothing(days: Path, unbroken: Config, tmp_path: Path) -> None:
    config = config_of(days, tmp_path)
    for point, nth, num_versions in LIVES:
        with pytest.raises(WorldError, match="exit code -9"):
            daily(config, kill=(point, nth))
        assert len(versions_of(config)) == num_versions, (point, nth)
    daily(config)
    _is_as_unbroken(config, unbroken)


@pytest.mark.parametrize("point", WORKER_POINTS)
def test_a_kill_while_learning_changes_nothing(days: Path, unbroken: Config, tmp_path: Path, point: str) -> None:
    config = config_of(days, tmp_path)
    kill_world(play, 1, config, Life(asked=Asked(last=day_of(1))), point=point)
    daily(config)
    _is_as_unbroken(config, unbroken)


def _is_as_unbroken(config: Config, unbroken: Config) -> None:
    assert outcome(config) == outcome(unbroken)
    assert same_tensors(config, 4, unbroken, 4)
    np.testing.assert_array_equal(rows_learned(config, 4), rows_learned(unbroken, 4))


def test_nothing_to_do_changes_nothing(unbroken: Config) -> None:
    with ledger_of(unbroken) as ledger:
        before = len(ledger.events(unbroken.name, 10_000))
    was = outcome(unbroken)
    assert daily(unbroken)["done"] == []
    with ledger_of(unbroken) as ledger:
        assert {event.kind for event in ledger.events(unbroken.name, 10_000)[before:]} <= {"claim", "release"}
    assert outcome(unbroken) == was


def test_judged_on_the_next_day_a_version_is_promoted_one_day_later(days: Path, tmp_path: Path) -> None:
    config = config_of(days, tmp_path, {"gate": {"judged_on": "next"}, "profile": {"champion_ne": 100.0}})
    daily(config, asked=Asked(last=day_of(1)))
    assert states_of(config) == ["promoted", "trained"]
    daily(config, asked=Asked(last=day_of(2)))
    assert states_of(config) == ["promoted", "promoted", "trained"]
    versions = versions_of(config)
    with ledger_of(config) as ledger:
        judged = [ledger.evidence(version) for version in versions.values()]
    assert [evidence and evidence["rows"] for evidence in judged] == [NUM_ROWS, NUM_ROWS, None]
    np.testing.assert_array_equal(rows_learned(config, 3), rows_of(config, [0, 1, 2]))
    assert not Path(config.storage, config.name, "slices").exists()
