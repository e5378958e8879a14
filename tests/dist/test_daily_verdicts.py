"""The daily cycle judges, holds, goes back and waits: which version comes of which rows, and which is promoted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diurnal.checkpoint.store import Store
from diurnal.config import Config, resolved_json
from diurnal.daily.agenda import Asked
from diurnal.errors import LeaseHeld, LeaseLost
from diurnal.testing import run_world
from diurnal.testing_daily import (
    NUM_ROWS,
    SHARE,
    champion_of,
    config_of,
    daily,
    day_of,
    flips_labels,
    increments_of,
    inverts_what_is_learned,
    ledger_of,
    play,
    rows_learned,
    rows_of,
    same_tensors,
    scales_price,
    states_of,
    versions_of,
    write_day,
    write_days,
)
from diurnal.train.commit import TRIAL


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five days; the fourth is implausible."""
    return write_days(tmp_path_factory.mktemp("days"), 5, {3: scales_price})


BAD = {"gate": {"max_ne_rise": 0.05, "after_hold": "champion"}, "profile": {"enabled": False, "champion_ne": 100.0}}


def _with_a_bad_day(tmp_path: Path, after_hold: str) -> Config:
    """The labels of the third of four days are inverted, but for the rows that are held out."""
    gate = {"min_rows": 50, "slice_share": SHARE, "max_ne_rise": 0.05, "calibration": [0.3, 3.0]}
    config = config_of(tmp_path / "days", tmp_path / "storage", {**BAD, "gate": {**gate, "after_hold": after_hold}})
    write_days(tmp_path / "days", 4, {2: inverts_what_is_learned(config, 2)})
    return config


def test_nothing_goes_on_from_a_version_that_is_held(tmp_path: Path) -> None:
    config = _with_a_bad_day(tmp_path, "champion")
    daily(config)
    versions = versions_of(config)
    assert (versions[3].verdict, versions[3].rejected) == ("hold", True), versions[3].reason
    champion = max(n for n in (1, 2) if versions[n].verdict == "promote")
    assert versions[4].parent == 2, "the newest that is not rejected"
    assert champion == 2, versions[2].reason
    np.testing.assert_array_equal(rows_learned(config, 4), rows_of(config, [0, 1, 3], without_slice=3))


def test_the_next_version_may_go_on_from_the_one_that_is_held(tmp_path: Path) -> None:
    """It is compared with the champion, which is another one than its parent: both are loaded, one after the other."""
    config = _with_a_bad_day(tmp_path, "challenger")
    daily(config)
    versions = versions_of(config)
    assert (versions[3].verdict, versions[3].rejected) == ("hold", False), versions[3].reason
    assert versions[4].parent == 3
    manifest = Store(config.storage, config.name).at(versions[4].path).manifest()
    assert manifest.lineage.metrics[TRIAL]["baseline"]["number"] == 2
    np.testing.assert_array_equal(rows_learned(config, 4), rows_of(config, [0, 1, 2, 3], without_slice=3))
    chain = _chain_without_a_gate(config, tmp_path)
    assert same_tensors(config, 4, chain, 4), "the champion that was loaded to score has left nothing in memory"


def _chain_without_a_gate(config: Config, tmp_path: Path) -> Config:
    """The same versions, each compared with its parent, since whatever is trained is promoted."""
    gate = config.gate.model_copy(update={"max_ne_rise": 1e6, "calibration": (1e-6, 1e6)})
    chain = config.model_copy(update={"storage": str(tmp_path / "chain"), "gate": gate})
    daily(chain)
    assert [v.verdict for v in versions_of(chain).values()] == ["promote"] * 4
    return chain


def test_the_next_version_goes_on_from_what_was_rolled_back_to(days: Path, tmp_path: Path) -> None:
    config = config_of(days, tmp_path)
    daily(config, asked=Asked(last=day_of(1)))
    with ledger_of(config) as ledger:
        assert ledger.rollback(config.name, "clicks fell") == 1
    daily(config, asked=Asked(last=day_of(2)))
    versions = versions_of(config)
    assert (versions[2].rejected, versions[3].parent, champion_of(config)) == (True, 1, 3)
    np.testing.assert_array_equal(rows_learned(config, 3), rows_of(config, [0, 2], without_slice=2))


def _promote_the_first(config: Config) -> None:
    with ledger_of(config) as ledger:
        ledger.promote(config.name, 1, "by hand")


def test_a_version_is_not_promoted_over_a_champion_that_it_was_not_compared_with(days: Path, tmp_path: Path) -> None:
    config = config_of(days, tmp_path)
    daily(config, asked=Asked(last=day_of(1)))
    daily(config, asked=Asked(last=day_of(2)), before_judging=_promote_the_first)
    version = versions_of(config)[3]
    assert version.verdict == "undecided"
    assert "compared with version 2, and version 1 is the champion now" in version.reason
    assert champion_of(config) == 1


def test_labels_that_mean_something_else_are_held_before_a_step(tmp_path: Path) -> None:
    """Where no profile sees it, the champion does."""
    config = config_of(tmp_path / "days", tmp_path / "storage", {"profile": {"min_history": 2, "enabled": False}})
    write_days(tmp_path / "days", 5, {3: flips_labels})
    daily(config)
    record = increments_of(config)[day_of(3)]
    assert (record.state, record.version) == ("held", None)
    assert record.reason.startswith("NE of the champion")
    assert states_of(config)[4] == "promoted"
    with ledger_of(config) as ledger:
        assert not ledger.events(config.name, 1000, "commit", day_of(3)), "no step was learned"
        assert None not in [attempt.outcome for attempt in ledger.attempts(config.name, day_of(3))]
    np.testing.assert_array_equal(rows_learned(config, 4), rows_of(config, [0, 1, 2, 4], without_slice=4))


def test_what_the_champion_has_held_is_learned_when_a_person_asks_for_it(tmp_path: Path) -> None:
    config = config_of(tmp_path / "days", tmp_path / "storage", {"profile": {"min_history": 1, "enabled": False}})
    write_days(tmp_path / "days", 3, {2: flips_labels})
    daily(config)
    assert increments_of(config)[day_of(2)].reason.startswith("NE of the champion")
    daily(config, asked=Asked(retry=frozenset({day_of(2)})))
    assert increments_of(config)[day_of(2)].version == 3
    np.testing.assert_array_equal(rows_learned(config, 3), rows_of(config, [0, 1, 2], without_slice=2))


def test_a_day_that_is_asked_for_again_is_trained_again_with_all_after_it(tmp_path: Path) -> None:
    config = config_of(tmp_path / "days", tmp_path / "storage")
    write_days(tmp_path / "days", 3)
    daily(config)
    write_day(tmp_path / "days", 1, num_rows=NUM_ROWS - 100)
    said = daily(config)["said"]
    assert any("100 fewer rows" in line and "days.changed is skip" in line for line in said)
    assert len(versions_of(config)) == 3
    daily(config, asked=Asked(retrain=frozenset({day_of(1)})))
    versions = versions_of(config)
    assert [v.verdict for v in versions.values()][1:3] == ["superseded", "superseded"]
    assert [(v.increment, v.parent) for v in list(versions.values())[3:]] == [(day_of(1), 1), (day_of(2), 4)]
    assert states_of(config) == ["promoted"] * 3
    assert champion_of(config) == 5
    assert daily(config)["done"] == []


NOW = datetime(2026, 1, 10, tzinfo=UTC)


def test_a_missing_day_is_waited_for_and_a_late_one_skipped(tmp_path: Path) -> None:
    """drt-hub/drt#759."""
    config = config_of(tmp_path / "days", tmp_path / "storage", {"days": {"wait_s": 1e9}})
    for index in (0, 2):
        write_day(tmp_path / "days", index)
    first = daily(config, now=NOW)
    assert first["done"] == [day_of(0)]
    assert any(line.startswith(f"{day_of(1)}: is missing before {day_of(2)}") for line in first["said"])
    assert daily(config, now=NOW)["done"] == []
    later = daily(config, now=datetime(2070, 1, 1, tzinfo=UTC))
    assert later["done"] == [day_of(2)]
    assert increments_of(config)[day_of(1)].state == "skipped"
    write_day(tmp_path / "days", 1)
    said = daily(config, now=datetime(2070, 1, 2, tzinfo=UTC))["said"]
    assert any("days.late is skip" in line for line in said), said
    assert len(versions_of(config)) == 2


def test_days_without_rows_and_of_one_class_are_skipped_with_a_reason(tmp_path: Path) -> None:
    def of_one_class(columns: dict[str, Any]) -> None:
        columns["label"] = np.ones_like(columns["label"])

    config = config_of(tmp_path / "days", tmp_path / "storage", {"days": {"empty": "skip", "one_class": "skip"}})
    write_day(tmp_path / "days", 0)
    write_day(tmp_path / "days", 1, num_rows=0)
    write_day(tmp_path / "days", 2, of_one_class)
    write_day(tmp_path / "days", 3)
    daily(config)
    records = increments_of(config)
    assert [record.state for record in records.values()] == ["promoted", "skipped", "skipped", "promoted"]
    assert (records[day_of(1)].reason, records[day_of(2)].reason) == ("has no row", "all its labels are the same")
    assert daily(config)["done"] == []


def claim_twice(rank: int, world_size: int, config: Config) -> str:
    with ledger_of(config) as ledger:
        ledger.claim(config.name, "other", 30.0)
        try:
            play(rank, world_size, config)
        except LeaseHeld as error:
            return str(error)
    return "went on"


def test_the_second_of_two_is_refused(days: Path, tmp_path: Path) -> None:
    config = config_of(days, tmp_path)
    (answer,) = run_world(claim_twice, 1, config)
    assert "other" in answer
    assert states_of(config) == []


TAKE_OVER = """
import os, signal, sys, time
from diurnal.config import from_resolved
from diurnal.errors import LeaseHeld
from diurnal.ledger.claims import Ledger

config = from_resolved(sys.argv[1])
with Ledger.of(config) as ledger:
    while True:
        try:
            ledger.claim(config.name, "fast", 30.0)
            break
        except LeaseHeld:
            time.sleep(0.1)
os.kill(int(sys.argv[2]), signal.SIGCONT)
"""


def freeze(config: Config) -> None:
    """This process, whose heart beats, is stopped, and goes on when another one has taken its model over."""
    other = subprocess.Popen([sys.executable, "-c", TAKE_OVER, resolved_json(config), str(os.getpid())])
    os.kill(os.getpid(), signal.SIGSTOP)
    assert other.wait() == 0


def test_who_was_frozen_past_its_lease_cannot_judge(days: Path, tmp_path: Path) -> None:
    config = config_of(days, tmp_path)
    daily(config, asked=Asked(last=day_of(0)))
    with pytest.raises(LeaseLost, match="taken over by"):
        daily(config, asked=Asked(last=day_of(1)), before_judging=freeze, lease_s=3.0)
    assert [v.verdict for v in versions_of(config).values()] == ["promote", ""]
    assert champion_of(config) == 1
    daily(config, asked=Asked(last=day_of(1)))
    assert [v.verdict for v in versions_of(config).values()] == ["promote", "promote"]
