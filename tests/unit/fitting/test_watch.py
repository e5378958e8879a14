"""What the driver keeps and shows of an increment's quality, from the events that workers tell."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest

from diurnal.metrics.report import report_from_sums
from diurnal.metrics.slices import Slice
from diurnal.testing import tiny_config
from diurnal.tracking import names
from diurnal.tracking.mlflow import Dataset, Tracker
from diurnal.train.progress import Progress
from diurnal.train.watch import Watch

DAY = "2026-01-02"
REPORT = {**report_from_sums([30, 10, 0, 30.0, 10.0, 9.0, 20.0]).to_dict(), "gauc": 0.61, "gauc_groups": 4}
SLICE = Slice("country", "NZ", 40, 10, 0, 40.0, 0.25, 0.5, 0.89, 0.9, None).to_dict()
COMMITTED = {"is_final": True, "stall_s": 0.1, "save_s": 0.1, "bytes": 1, "increment_s": 1.0, "watermark_us": None}


class Run:
    """An increment's run that remembers what it was told."""

    def __init__(self) -> None:
        self.artifacts: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}

    def figure(self, name: str, png: bytes) -> None:
        self.artifacts[name] = png

    artifact_text = figure

    def finish(self, _: str, *, summary: dict[str, Any], **__: Any) -> None:
        self.summary = summary

    def tags(self, _: Any) -> None: ...

    params = tags


class Runs:
    def __init__(self) -> None:
        self.run = Run()

    def begin_increment(self, *_: Any, **__: Any) -> Run:
        return self.run


def totals(slices: list[dict[str, Any]], report: dict[str, Any]) -> dict[str, Any]:
    curve = {"prediction": [0.1, 0.4], "rate": [0.2, 0.3], "weight": [20.0, 20.0]}
    numbers = {"rows": 40, "counts": {}, "num_skipped_steps": 0, "rows_per_s": 9.0, "wait_share": 0.0}
    return {"report": report, "slices": slices, "reliability": curve, **numbers}


def told(
    group_id: str, evaluated: dict[str, Any], slices: list[dict[str, Any]], learned: dict[str, Any] | None = None
) -> tuple[Run, str, Watch]:
    """The run and the table's lines of an increment that was scored, learned and committed."""
    out, runs = io.StringIO(), Runs()
    config = tiny_config({"dataset": {"group_id": group_id}})
    dataset = Dataset("days", "days", "f", 40)
    watch = Watch(config, cast(Tracker, runs), Progress(out), lambda _: dataset)
    begun = {"rows": 40, "rows_done": 0, "parent": 1, "attempt": 1, "number": 2}
    for kind, data in (
        ("model", {"loaded": "", "hyperparameters": {}, "plan": "", "world_size": 1}),
        ("increment", begun),
        ("evaluated", evaluated),
        ("learned", learned or totals(slices, REPORT)),
        ("committed", {**COMMITTED, "version": 2, "directory": "v/2"}),
    ):
        watch.handle({"kind": kind, "increment": DAY, "data": data, "ask": 0})
    return runs.run, out.getvalue(), watch


def test_a_run_gets_curves_slices_and_gauc() -> None:
    run, shown, watch = told("user", totals([SLICE], REPORT), [SLICE])
    assert set(run.artifacts) >= {names.CALIBRATION_ARTIFACT, names.LIFT_ARTIFACT, names.SLICES_ARTIFACT}
    table = run.artifacts[names.SLICES_ARTIFACT].splitlines()
    assert [line.split(",")[:3] for line in table[1:]] == [["eval", "country", "NZ"], ["progressive", "country", "NZ"]]
    assert run.summary["slice/country.NZ.ne"] == 0.89
    assert (run.summary["progressive/gauc"], run.summary["eval/gauc_groups"]) == (0.61, 4)
    header, line = shown.splitlines()
    assert "GAUC before  GAUC learning" in header
    assert line.count("0.6100") == 2
    assert watch.outcomes[DAY].to_dict()["progressive_gauc"] == 0.61


def test_other_tasks_are_told_beside_the_label() -> None:
    learned = totals([], REPORT) | {"tasks": {"bought": REPORT | {"ne": 0.77}}}
    evaluated = totals([], REPORT) | {"tasks": {"bought": REPORT | {"auc": 0.66}}}
    run, shown, _ = told("", evaluated, [], learned)
    assert run.summary["progressive/bought.ne"] == 0.77
    assert run.summary["eval/bought.auc"] == 0.66
    assert run.summary["progressive/bought.rows"] == REPORT["rows"]
    header, line = shown.splitlines()
    assert header.endswith("  NE bought")
    assert line.endswith("   0.7700")


@pytest.mark.parametrize("group_id", ["", "user"])
def test_what_was_scored_by_an_earlier_release_has_neither(group_id: str) -> None:
    """A resume point keeps what was told before an upgrade."""
    old = {name: value for name, value in REPORT.items() if "gauc" not in name}
    evaluated = {name: value for name, value in totals([], old).items() if name != "slices"}
    run, shown, watch = told(group_id, evaluated, [])
    assert names.SLICES_ARTIFACT not in run.artifacts
    assert ("GAUC" in shown) == bool(group_id)
    assert watch.outcomes[DAY].to_dict()["gauc"] is None
    assert "eval/gauc" not in run.summary
