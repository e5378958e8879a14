"""Runs that nobody ends since their process was killed."""

from __future__ import annotations

import pytest

from diurnal.config import Config
from diurnal.tracking import names
from diurnal.tracking.location import tracking_uri
from diurnal.tracking.mlflow import Committed, Dataset, Tracker, TrackingError
from diurnal.tracking.store import connect
from diurnal.tracking.sweep import sweep_runs


def abandon(config: Config, dataset: Dataset, days: list[str], finished: tuple[str, ...] = ()) -> None:
    """What a killed driver leaves: nothing is closed but what was finished."""
    tracker = Tracker(config, strict=True)
    for day in days:
        run = tracker.begin_increment(day, attempt=1, parent_version=None, dataset=dataset)
        if day in finished:
            run.finish("FINISHED", version=1)
    tracker._mail.flush(60)


def test_runs_of_a_killed_driver_end_as_the_ledger_says(sqlite_config: Config, dataset, runs_of) -> None:
    """mlflow#10510: a killed run shows RUNNING for ever."""
    days = ["2026-01-01", "2026-01-02", "2026-01-03"]
    abandon(sqlite_config, dataset, days, finished=("2026-01-01",))
    committed = {"2026-01-01", "2026-01-02"}
    assert sweep_runs(sqlite_config, lambda _: False, committed) == [
        "daily-2026-01-02: FINISHED",
        "daily-2026-01-03: KILLED",
        "lineage ctr: KILLED",
    ]
    statuses = {name: run.info.status for name, run in runs_of(tracking_uri(sqlite_config)).items()}
    assert statuses == {
        "daily-2026-01-01": "FINISHED",
        "daily-2026-01-02": "FINISHED",
        "daily-2026-01-03": "KILLED",
        "lineage ctr": "KILLED",
    }
    assert sweep_runs(sqlite_config, lambda _: False, committed) == []
    assert sweep_runs(sqlite_config, lambda _: False, {*days}) == ["daily-2026-01-03: FINISHED"]


def test_what_somebody_works_on_goes_on(sqlite_config: Config, dataset, runs_of) -> None:
    abandon(sqlite_config, dataset, ["2026-01-01", "2026-01-02"])
    alive = {"2026-01-02", names.LINEAGE}
    assert sweep_runs(sqlite_config, alive.__contains__, set()) == ["daily-2026-01-01: KILLED"]
    runs = runs_of(tracking_uri(sqlite_config))
    assert runs["daily-2026-01-02"].info.status == runs["lineage ctr"].info.status == "RUNNING"


def test_what_a_killed_driver_had_committed_is_told_by_the_next_one(sqlite_config: Config, dataset, runs_of) -> None:
    """One day's run is whole, one is open without its numbers, of one there is none, and one was not committed."""
    days = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
    abandon(sqlite_config, dataset, [days[0], days[1], days[3]], finished=(days[0],))
    told = [
        Committed(day, 1, version - 1 or None, version, dataset, {"eval/ne": version / 10, "eval/auc": None}, 500)
        for version, day in enumerate(days[:3], 1)
    ]
    for _ in range(2):
        tracker = Tracker(sqlite_config)
        tracker.catch_up(told, days[:3])
        assert tracker.close().dropped == 0
        runs = runs_of(tracking_uri(sqlite_config))
        assert {name: run.info.status for name, run in runs.items()} == {
            "daily-2026-01-01": "FINISHED",
            "daily-2026-01-02": "FINISHED",
            "daily-2026-01-03": "FINISHED",
            "daily-2026-01-04": "KILLED",
            "lineage ctr": "FINISHED",
        }
        found = [runs[f"daily-{day}"].data for day in days]
        assert [data.tags.get(names.TAG_VERSION) for data in found] == ["1", "2", "3", None]
        assert [data.metrics.get("eval/ne") for data in found] == [None, 0.2, 0.3, None], "what is whole is left alone"
        history = connect(tracking_uri(sqlite_config)).get_metric_history(runs["lineage ctr"].info.run_id, "eval/ne")
        assert [(point.step, point.value) for point in history] == [
            (names.increment_step(days[1]), 0.2),
            (names.increment_step(days[2]), 0.3),
        ]


def test_runs_of_other_models_are_not_touched(server, make_config, dataset, runs_of) -> None:
    """They may even share the experiment."""
    configs = [make_config(name, server.address) for name in ("one", "two")]
    shared = [c.model_copy(update={"tracking": c.tracking.model_copy(update={"experiment": "both"})}) for c in configs]
    for config, day in zip(shared, ("2026-01-01", "2026-01-02"), strict=True):
        abandon(config, dataset, [day])
    closed = sweep_runs(shared[0], lambda _: False, {"2026-01-01", "2026-01-02"})
    assert closed == ["daily-2026-01-01: FINISHED", "lineage one: FINISHED"]
    runs = runs_of(server.address, "both")
    assert runs["daily-2026-01-02"].info.status == runs["lineage two"].info.status == "RUNNING"


def test_there_may_be_nothing_to_sweep(make_config, sqlite_config: Config) -> None:
    assert sweep_runs(sqlite_config, lambda _: False, set()) == []
    other = make_config(storage=f"{sqlite_config.storage}-elsewhere")
    assert sweep_runs(other, lambda _: False, set()) == []


def test_a_store_that_is_away_is_said(make_config) -> None:
    with pytest.raises(TrackingError, match="not swept"):
        sweep_runs(make_config(uri="http://127.0.0.1:9"), lambda _: False, set())
