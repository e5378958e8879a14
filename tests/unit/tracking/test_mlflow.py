"""The tracker against a real SQLite store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mlflow
import mlflow.data
import pytest

from diurnal.config import Config
from diurnal.config.run import Tracking
from diurnal.tracking import names
from diurnal.tracking.location import tracking_uri
from diurnal.tracking.mlflow import Dataset, IncrementRun, Tracker
from diurnal.tracking.store import connect


def begin(tracker: Tracker, dataset: Dataset, increment_id: str = "2026-01-02", attempt: int = 1) -> IncrementRun:
    return tracker.begin_increment(increment_id, attempt=attempt, parent_version=None, dataset=dataset)


def test_a_lineage_has_a_point_per_increment_and_a_run_below_it(sqlite_config: Config, dataset, runs_of, points_of):
    uri = tracking_uri(sqlite_config)
    for days, first in ((["2026-01-01", "2026-01-02"], 1), (["2026-01-03"], 3)):
        with Tracker(sqlite_config) as tracker:
            for version, day in enumerate(days, first):
                with begin(tracker, dataset, day) as run:
                    for rows in (8, 16, 24):
                        run.log({"progressive/ne": 0.9 + rows / 1000, "progressive/auc": None}, rows)
                    run.finish("FINISHED", version=version, summary={"progressive/ne": version / 4}, step_rows=32)
    runs = runs_of(uri)
    lineage = runs.pop("lineage ctr")
    assert sorted(runs) == ["daily-2026-01-01", "daily-2026-01-02", "daily-2026-01-03"]
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {lineage.info.run_id}
    assert {run.info.status for run in (*runs.values(), lineage)} == {"FINISHED"}
    assert points_of(uri, runs["daily-2026-01-02"]) == [
        ("progressive/ne", 8, 0.908),
        ("progressive/ne", 16, 0.916),
        ("progressive/ne", 24, 0.924),
        ("progressive/ne", 32, 0.5),
    ]
    first = names.increment_step("2026-01-01")
    assert points_of(uri, lineage) == [("progressive/ne", first + n, (n + 1) / 4) for n in range(3)]
    times = [m.timestamp for m in connect(uri).get_metric_history(lineage.info.run_id, "progressive/ne")]
    assert sorted(times) == [int(names.increment_time(f"2026-01-0{n}").timestamp()) * 1000 for n in (1, 2, 3)]


def test_a_run_says_what_it_was_made_of(sqlite_config: Config, dataset: Dataset, runs_of) -> None:
    tracker = Tracker(sqlite_config)
    run = tracker.begin_increment(
        "2026-01-02", attempt=1, parent_version=4, dataset=dataset, tags={"ray.job_id": "raysubmit_1"}
    )
    run.params({"optimizer": {"sparse": {"lr": 0.05, "eps": 1e-8}}})
    run.artifact_text(names.PLAN_ARTIFACT, "user: rank 0")
    run.artifact_json("reports/eval.json", {"ne": None})
    run.figure(names.CALIBRATION_ARTIFACT, b"\x89PNG\r\n")
    run.tags(names.report_tags(names.EVAL, {"reason": "no rows"}))
    run.finish("FINISHED", version=5)
    report = tracker.close()
    assert (report.dropped, report.reason) == (0, None)

    uri = tracking_uri(sqlite_config)
    tracked = runs_of(uri)["daily-2026-01-02"]
    expected = {"parent_version": "4", "version": "5", "attempt": "1", "fingerprint": dataset.fingerprint}
    assert expected.items() <= {k.removeprefix("diurnal."): v for k, v in tracked.data.tags.items()}.items()
    assert tracked.data.tags["ray.job_id"] == "raysubmit_1"
    assert tracked.data.tags["diurnal.undefined.eval"] == "no rows"
    assert tracked.data.tags["diurnal.library.mlflow"] == mlflow.__version__
    assert tracked.data.params["optimizer.sparse.lr"] == "0.05"
    assert tracked.data.params["data.batch_rows"] == "8"

    def artifact(path: str) -> bytes:
        folder = Path(sqlite_config.storage) / "mlflow-artifacts" / "ctr" / tracked.info.run_id / "artifacts"
        return (folder / path).read_bytes()

    assert Config.model_validate_json(artifact("config.json")) == sqlite_config
    assert artifact("plan.txt") == b"user: rank 0"
    assert json.loads(artifact("reports/eval.json")) == {"ne": None}
    assert artifact("calibration.png").startswith(b"\x89PNG")

    (entry,) = tracked.inputs.dataset_inputs
    assert (entry.dataset.name, entry.dataset.digest) == ("movielens", dataset.fingerprint)
    assert entry.tags[0].value == "training"
    assert json.loads(entry.dataset.profile) == {"num_rows": 160}
    columns = {c["name"]: c["type"] for c in json.loads(entry.dataset.schema)["mlflow_colspec"]}
    assert columns == {"label": "double", "age": "double", "user": "long", "genres": "array"}
    assert json.loads(mlflow.data.get_source(entry.dataset).to_json()) == {"uri": dataset.path}


def test_a_retry_is_the_same_run_and_writes_each_point_once(sqlite_config: Config, dataset, runs_of, points_of) -> None:
    """mlflow#8238: a run per retry, metrics in one and parameters in another."""
    uri = tracking_uri(sqlite_config)
    lost = Tracker(sqlite_config, strict=True)  # its process dies: nothing is closed
    run = begin(lost, dataset)
    run.log({"progressive/ne": 0.9}, 8)
    begin(lost, dataset, "2026-01-09")  # strict: everything before has arrived
    first = runs_of(uri)["daily-2026-01-02"]
    assert first.info.status == "RUNNING"

    for attempt in (2, 3):
        with Tracker(sqlite_config.model_copy(update={"seed": attempt})) as tracker:
            run = begin(tracker, dataset, attempt=attempt)
            run.params({names.USED: {"sparse": {"lr": attempt}}})
            for step in range(8, 8 * attempt + 1, 8):
                run.log({"progressive/ne": 0.9, "lr/dense": 0.01}, step)
            summary = {"progressive/ne": 0.7}
            if attempt == 3:
                run.finish("FINISHED", version=7, summary=summary, step_rows=40)
            else:
                run.finish("FAILED", summary=summary, step_rows=40)
        assert tracker.close().dropped == 0

    again = runs_of(uri)["daily-2026-01-02"]
    assert again.info.run_id == first.info.run_id
    assert again.info.status == "FINISHED"
    tags = again.data.tags
    assert (tags["diurnal.attempt"], tags["diurnal.attempt.1"], tags["diurnal.attempt.2"]) == (
        "3",
        "never closed",
        "FAILED",
    )
    assert again.data.params["seed"] == "0"
    assert again.data.params["used.sparse.lr"] == "2"
    assert json.loads(tags["diurnal.changed_params"]) == {"seed": ["0", "3"], "used.sparse.lr": ["2", "3"]}
    points = [(key, step) for key, step, _ in points_of(uri, again)]
    assert points == [*(("lr/dense", s) for s in (8, 16, 24)), *(("progressive/ne", s) for s in (8, 16, 24, 40))]
    lineage = runs_of(uri)["lineage ctr"]
    assert points_of(uri, lineage) == [("progressive/ne", names.increment_step("2026-01-02"), 0.7)]


def test_repeated_points_are_counted(sqlite_config: Config, dataset: Dataset) -> None:
    tracker = Tracker(sqlite_config)
    run = begin(tracker, dataset)
    for value in (0.9, 0.8):
        run.log({"progressive/ne": value}, 8)
    report = tracker.close()
    assert (report.repeated, report.dropped) == (1, 0)


@pytest.mark.parametrize(
    ("error", "status"),
    [(RuntimeError("boom"), "FAILED"), (KeyboardInterrupt(), "KILLED"), (SystemExit(143), "KILLED")],
)
def test_a_run_that_ends_in_an_error_says_so(sqlite_config: Config, dataset, runs_of, error, status) -> None:
    """mlflow#5963: an exception that ends as FINISHED."""
    tracker = Tracker(sqlite_config)
    with pytest.raises(type(error)), begin(tracker, dataset):
        raise error
    tracker.close()
    runs = runs_of(tracking_uri(sqlite_config))
    assert {run.info.status for run in runs.values()} == {status}
    assert "diurnal.version" not in runs["daily-2026-01-02"].data.tags


def test_a_tracker_that_is_left_in_an_error_ends_its_runs(sqlite_config: Config, dataset, runs_of) -> None:
    tracker = Tracker(sqlite_config)
    begin(tracker, dataset)
    with pytest.raises(KeyboardInterrupt), tracker:
        raise KeyboardInterrupt
    runs = runs_of(tracking_uri(sqlite_config))
    assert {run.info.status for run in runs.values()} == {"KILLED"}


def test_a_run_that_nobody_ended_is_failed(sqlite_config: Config, dataset: Dataset, runs_of) -> None:
    tracker = Tracker(sqlite_config)
    begin(tracker, dataset).log({"progressive/ne": 0.9}, 8)
    tracker.close()
    assert runs_of(tracking_uri(sqlite_config))["daily-2026-01-02"].info.status == "FAILED"


def test_an_increment_without_a_date_is_refused_at_once(sqlite_config: Config, dataset: Dataset) -> None:
    tracker = Tracker(sqlite_config)
    with pytest.raises(ValueError, match="YYYY-MM-DD"):
        begin(tracker, dataset, "yesterday")
    tracker.close()


def test_finished_needs_a_committed_version(sqlite_config: Config, dataset: Dataset) -> None:
    tracker = Tracker(sqlite_config)
    run = begin(tracker, dataset)
    with pytest.raises(AssertionError, match="committed"):
        run.finish("FINISHED")
    tracker.close()


def test_a_deleted_experiment_is_reported_and_nothing_else(sqlite_config: Config, dataset: Dataset) -> None:
    client = connect(tracking_uri(sqlite_config))
    client.delete_experiment(client.create_experiment("ctr"))
    tracker = Tracker(sqlite_config)
    begin(tracker, dataset).finish("FAILED")
    report = tracker.close()
    assert report.sent == 0
    assert "experiment ctr was deleted" in str(report)


def test_links_are_known_once_the_store_has_answered(sqlite_config: Config, dataset: Dataset) -> None:
    tracker = Tracker(sqlite_config)
    run = begin(tracker, dataset)
    tracker.close()
    assert tracker.link().startswith("#/experiments/1/runs?")
    assert run.link().endswith("/model-metrics?workflowType=machine_learning")


def test_without_tracking_nothing_is_written(make_config, dataset: Dataset) -> None:
    config = make_config(tracking=Tracking(enabled=False), storage="s3://bucket/models")
    tracker = Tracker(config, strict=True)
    with begin(tracker, dataset) as run:
        run.log({"progressive/ne": 0.9}, 8)
        run.finish("FINISHED", version=1)
    report = tracker.close()
    assert (report.sent, report.dropped, tracker.link(), run.link()) == (0, 0, "", "")


def test_mlflow_is_not_imported_with_the_tracker() -> None:
    code = "import sys, diurnal.tracking.mlflow; sys.exit('mlflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
