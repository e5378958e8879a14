"""Bad days that are learned all the same: what is left out or filled is counted in the version and told to tracking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from diurnal.checkpoint.history import History
from diurnal.checkpoint.store import Store
from diurnal.config import Config, resolved_json
from diurnal.data.selection import select_increments
from diurnal.errors import DataError
from diurnal.ledger.claims import Ledger
from diurnal.testing import run_world
from diurnal.testing_bad_days import BEFORE, DAY, FILE_ROWS, SCHEMA, truncated, write_day
from diurnal.testing_bad_values import missing_col, missing_optional_col
from diurnal.tracking import names
from diurnal.train.commit import COUNTS, QUARANTINED, ROWS
from diurnal.train.desk import TrainingDesk
from diurnal.train.events import Direct
from diurnal.train.orders import Orders
from diurnal.train.pulse import Pulse
from diurnal.train.sequence import WorkerSequence, ask
from diurnal.train.spec import Spec
from diurnal.train.summary import retell
from diurnal.train.watch import Driver, Watch


def config_of(days: Path, storage: Path, **data: Any) -> Config:
    raw = {
        "name": "bad",
        "storage": str(storage),
        "data": {"path": str(days), "schema_file": "nowhere", "batch_rows": 8, **data},
        "model": {"bottom": [4], "over": [4]},
        "metrics": {"auc_bins": 1024},
        "tracking": {"enabled": False},
        "dataset": dict(SCHEMA),
    }
    return Config.model_validate_json(json.dumps(raw))


def learn(rank: int, world_size: int, config: Config) -> dict[str, Any]:
    """One life of `diurnal train` over all days, without Ray: what the driver says and sends."""
    ledger, progress, tracker, again = Ledger.of(config), MagicMock(), MagicMock(), MagicMock()
    history = History(Store(config.storage, config.name), ledger, config.name)
    lease = ledger.claim(config.name, "test", 30.0)
    increments = select_increments(config.data.path, config.dataset, on_bad_file=config.data.on_bad_file)
    desk = TrainingDesk(config, history, ledger, lease, increments)
    watch = Watch(config, tracker, progress, lambda name: name)  # pyright: ignore[reportArgumentType]
    link, pulse = Direct(Driver(desk, watch)), Pulse()
    spec = Spec("train", resolved_json(config), {}, link, config.storage, 0.0)
    start = ask(link, "start", world_size=1)
    WorkerSequence(spec, start, torch.device("cpu"), {}, pulse, Orders(link, pulse), lambda *_: None).train()
    retell(again, config, history)
    lease.release()
    metrics = [history.store.at(commit.path).manifest().lineage.metrics for commit in history.standing()]
    return {
        "said": [call.args[0] for call in progress.say.call_args_list],
        "metrics": metrics,
        "summaries": [c.kwargs["summary"] for c in tracker.begin_increment.return_value.finish.call_args_list],
        "told_again": [one.summary for one in again.catch_up.call_args.args[0]],
    }


def test_a_file_that_is_left_out_is_told_and_counted(tmp_path: Path) -> None:
    """ray-project/ray#57704: a truncated file is refused, or, as the run asks for it, left out for all to see."""
    days = tmp_path / "days"
    write_day(days, lambda rows: rows, lambda rows: rows)
    truncated(days)
    with pytest.raises(DataError, match=r"b\.parquet"):
        select_increments(str(days), config_of(days, tmp_path).dataset)
    [done] = run_world(learn, 1, config_of(days, tmp_path, on_bad_file="quarantine"))
    [metrics] = done["metrics"]
    assert metrics[ROWS] == FILE_ROWS
    assert [Path(path).name for path in metrics[QUARANTINED]] == ["b.parquet"]
    assert [summary[names.DATA_QUARANTINED_FILES] for summary in done["summaries"] + done["told_again"]] == [1, 1]
    [said] = [text for text in done["said"] if "left out" in text]
    with Ledger.of(config_of(days, tmp_path)) as ledger:
        (event,) = ledger.events(kind="left_out")
    assert (event.increment, event.data) == (DAY, {"version": 1, "files": ["b.parquet"]})
    assert said.startswith(f"{DAY}: left out, since it cannot be read: ")


def test_an_optional_column_that_is_missing_is_filled_and_counted(tmp_path: Path) -> None:
    """apache/arrow#35569: without a required one, the later day is refused before a step is taken."""
    days, storage = tmp_path / "days", tmp_path / "storage"
    write_day(days, lambda rows: rows, day=BEFORE)
    write_day(days, missing_optional_col)
    [done] = run_world(learn, 1, config_of(days, storage))
    counts = [metrics[COUNTS]["dense/bonus/missing_column_rows"] for metrics in done["metrics"]]
    assert counts == [0, FILE_ROWS]
    assert done["summaries"][1]["data/missing_column_rows"] == FILE_ROWS
    assert done["summaries"][1][names.DATA_QUARANTINED_FILES] == 0
    spoilt = tmp_path / "spoilt"
    write_day(spoilt, lambda rows: rows, day=BEFORE)
    write_day(spoilt, missing_col)
    with pytest.raises(DataError, match=r"dt=2026-01-02/a\.parquet: column price"):
        select_increments(str(spoilt), config_of(spoilt, storage).dataset)
