"""What the run of an increment says in the end: told by whoever trained it, or by whoever finds that nobody has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from diurnal.checkpoint.history import History
from diurnal.config import Config
from diurnal.data.ids import IncrementId
from diurnal.errors import CheckpointError
from diurnal.ledger.records import Commit
from diurnal.tracking import names
from diurnal.tracking.mlflow import Committed, Dataset, Tracker
from diurnal.train.commit import (
    COUNTS,
    DROPPED_NEGATIVES,
    EVALUATED,
    PROGRESSIVE,
    QUARANTINED,
    ROWS,
    SKIPPED_STEPS,
    SLICES,
    TASKS,
)

AGAIN = 14
"""Versions that are told again when a process starts."""


def summary_of(
    report: Mapping[str, Any],
    counts: Mapping[str, int],
    skipped_steps: int,
    rows: int,
    evaluated: Mapping[str, Any] | None,
    slices: Iterable[Mapping[str, Any]] = (),
    tasks: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> dict[str, float | None]:
    """Metrics that depend on rows and model alone.

    Args:
        report: of the scores before rows were learned.
        rows: all that were learned.
        evaluated: report of the version before; None without one.
        slices: the same as `report`, for each id (`Slice.to_dict()`).
        tasks: by `EVALUATED` and `PROGRESSIVE` the same as `evaluated` and `report`, for each task.
    """
    return {
        **names.report_metrics(names.PROGRESSIVE, report),
        **names.count_metrics(counts),
        names.TRAIN_SKIPPED_STEPS: skipped_steps,
        names.DATA_ROWS: rows,
        **(names.report_metrics(names.EVAL, evaluated) if evaluated else {}),
        **names.slice_metrics(slices),
        **names.task_metrics(names.PROGRESSIVE, tasks.get(PROGRESSIVE, {})),
        **names.task_metrics(names.EVAL, tasks.get(EVALUATED, {})),
    }


def dataset_of(config: Config, increment: str, fingerprint: str, rows: int) -> Dataset:
    """What tracking is told of an increment's rows."""
    path = config.data.path
    return Dataset(Path(path).name, f"{path}/{IncrementId.parse(increment).folder}", fingerprint, rows)


def retell(tracker: Tracker, config: Config, history: History) -> None:
    """Tells tracking of the last versions what a process that was killed may not have told."""
    newest = {commit.increment: commit for commit in history.standing() if commit.is_final}
    committed = [_committed(config, history, commit) for commit in list(newest.values())[-AGAIN:]]
    if newest:
        tracker.catch_up([one for one in committed if one is not None], newest.keys())


def _committed(config: Config, history: History, commit: Commit) -> Committed | None:
    try:
        metrics = history.store.at(commit.path).manifest().lineage.metrics
    except (OSError, CheckpointError):  # what people see is not worth the training
        return None
    report, rows = metrics[PROGRESSIVE], metrics.get(ROWS, commit.rows)
    left_out = {
        names.DATA_QUARANTINED_FILES: len(metrics.get(QUARANTINED, ())),
        names.DATA_DROPPED_NEGATIVES: metrics.get(DROPPED_NEGATIVES, 0),
    }
    counts, skipped = metrics.get(COUNTS, {}), metrics.get(SKIPPED_STEPS, 0)  # not in those of earlier releases
    shown = metrics.get(EVALUATED), metrics.get(SLICES, ()), metrics.get(TASKS, {})
    summary = summary_of(report, counts, skipped, rows, *shown)
    dataset = dataset_of(config, commit.increment, commit.fingerprint, commit.rows)
    numbers = commit.increment, commit.attempt, commit.parent, commit.number
    return Committed(*numbers, dataset, {**summary, **left_out}, commit.rows)
