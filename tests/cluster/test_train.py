"""The driver and its workers on a real local Ray cluster, with a real MLflow store."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from diurnal.checkpoint.store import Store
from diurnal.config import Config
from diurnal.errors import DataError, ResourceError, TrainingError
from diurnal.testing import tensors_of
from diurnal.testing_runs import runs_of
from diurnal.tracking import names
from diurnal.tracking.location import tracking_uri
from diurnal.train.progress import Progress
from diurnal.train.run import Result, evaluate, train

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def quiet() -> Progress:
    return Progress(table=False)


@dataclass(frozen=True)
class Trained:
    """Five days that were trained: three plain ones, one without rows, one of a single class."""

    world: Any
    config: Config
    days: list[str]
    result: dict[str, Any]


@pytest.fixture(scope="module")
def trained(ray_cluster: None, new_world: Callable[[], Any]) -> Trained:
    world = new_world()
    days = [
        world.write_day(0, 400),
        world.write_day(1, 331),
        world.write_day(2, 60),
        world.write_day(3, 0, num_files=1),
        world.write_day(4, 50, change=lambda c: c.update(label=[0] * 50)),
    ]
    config = world.config("metrics.slices=['item']")
    return Trained(world, config, days, train(config, days[0], days[-1], quiet()).to_dict())


def test_days_are_scored_learned_committed_and_tracked(trained: Trained) -> None:
    days, result = trained.days, trained.result
    rows = [400, 331, 60, 0, 50]
    assert [(d["day"], d["rows"], d["version"]) for d in result["days"]] == list(
        zip(days, rows, range(1, 6), strict=True)
    )
    assert result["days"][0]["evaluated"] is None, "no version before the first"
    for day in result["days"][1:]:
        assert day["evaluated"]["report"]["rows"] == day["learned"]["report"]["rows"] == day["rows"]
    assert all(0 < d["progressive_ne"] < 2 and math.isfinite(d["running_rate_ne"]) for d in result["days"][:3])
    assert result["tracking"]["dropped"] == 0
    assert result["timeline"]["first_step_s"] > result["timeline"]["imported_s"] > 0
    lineages = [v.manifest().lineage for v in Store(trained.config.storage, trained.config.name).versions()]
    assert [(x.number, x.increment, x.parent) for x in lineages] == [
        (number, day, number - 1 or None) for number, day in enumerate(days, start=1)
    ]
    assert json.loads(json.dumps(result, allow_nan=False))["days"][2]["version"] == 3

    runs = runs_of(trained.config)
    assert set(runs) == {"lineage", *days}
    assert {runs[day].info.status for day in days} == {"FINISHED"}


def test_a_run_has_gauc_and_slices_and_their_figures_and_tables(trained: Trained) -> None:
    from mlflow.tracking import MlflowClient

    client, run = MlflowClient(tracking_uri(trained.config)), runs_of(trained.config)[trained.days[1]]
    learned = trained.result["days"][1]["learned"]
    metrics = run.data.metrics
    assert metrics["progressive/gauc"] == pytest.approx(learned["report"]["gauc"])
    assert (metrics["eval/gauc_share"], metrics["eval/gauc_error"]) == (1.0, 0.0)
    first = learned["slices"][0]
    assert sum(one["rows"] for one in learned["slices"]) == 331
    assert metrics[f"slice/item.{first['id']}.ne"] == pytest.approx(first["ne"])
    files = {file.path: file.file_size or 0 for file in client.list_artifacts(run.info.run_id)}
    assert {names.CALIBRATION_ARTIFACT, names.LIFT_ARTIFACT, names.SLICES_ARTIFACT} <= set(files)
    assert sum(files.values()) < 200_000
    table = Path(client.download_artifacts(run.info.run_id, names.SLICES_ARTIFACT)).read_text()
    assert [line.split(",")[0] for line in table.splitlines()] == ["section"] + ["eval"] * 9 + ["progressive"] * 9


def test_an_empty_day_and_a_day_of_one_class_have_undefined_numbers(trained: Trained) -> None:
    """Lightning-AI/torchmetrics#2494: undefined is neither 0 nor 0.5, in no store either."""
    for day in trained.result["days"][3:]:
        assert day["ne"] is None
        assert day["auc"] is None
        assert day["learned"]["report"]["reason"]
    metrics = runs_of(trained.config)[trained.days[4]].data.metrics
    assert metrics["progressive/rows"] == 50
    assert not {"progressive/ne", "progressive/auc", "eval/ne", "eval/auc"} & metrics.keys()


def test_evaluate_scores_a_day_with_a_frozen_version_and_writes_nothing(trained: Trained) -> None:
    before = sorted(Path(trained.config.storage).rglob("*"))
    scored = evaluate(trained.config, 1, trained.days[1], quiet()).to_dict()["days"][0]
    for name in ("ne", "auc"):
        assert scored[name] == pytest.approx(trained.result["days"][1][name], abs=1e-9)
    assert scored["version"] is None
    assert sorted(Path(trained.config.storage).rglob("*")) == before


def test_a_trained_day_is_a_no_op_and_days_out_of_order_or_changed_are_refused(trained: Trained) -> None:
    world, config, days = trained.world, trained.config, trained.days
    again = train(config, days[0], days[-1], quiet())
    assert (again.outcomes, again.already) == ((), tuple(days))
    early = world.write_day(-1, 60)
    with pytest.raises(DataError, match=f"later than {days[-1]}"):
        train(config, early, None, quiet())
    extra = world.root / "days" / f"dt={days[1]}" / "part-9.parquet"
    extra.write_bytes((extra.parent / "part-0.parquet").read_bytes())
    with pytest.raises(DataError, match="differ from those that version 2 was trained on"):
        train(config, days[1], None, quiet())
    assert len(Store(config.storage, config.name).versions()) == 5


def test_any_number_of_workers_gives_the_same_model_and_the_same_number_the_same_bits(world) -> None:
    """A day of 11 rows and one of 1 row too: each is scored whole at any world size (ray-project/ray#63285).

    The last run repeats the one of two workers under a tracking server that takes connections and never answers
    (radixark/miles#2571): it ends in bounded time, says what was dropped, and its model is the same to the bit.
    """
    days = [world.write_day(0, 400), world.write_day(1, 11), world.write_day(2, 1)]
    runs: dict[str, tuple[Result, dict[str, torch.Tensor]]] = {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"tracking.uri='http://127.0.0.1:{server.getsockname()[1]}'"
        for name, num_workers, tracking in (
            ("one", 1, ["tracking.enabled=false"]),
            ("two", 2, ["tracking.enabled=false"]),
            ("again", 2, [silent, "tracking.timeout_s=3.0", "tracking.every_steps=1"]),
        ):
            config = world.config(f"name='{name}'", f"workers.max={num_workers}", *tracking)
            runs[name] = train(config, days[0], days[-1], quiet()), tensors_of(config)
    alone, weights = runs["one"][0].to_dict()["days"], runs["one"][1]
    assert [d["evaluated"]["report"]["rows"] for d in alone[1:]] == [11, 1]
    assert alone[2]["ne"] is None, "one row has one class"
    result, others = runs["two"]
    for mine, other in zip(result.to_dict()["days"], alone, strict=True):
        for name in ("auc", "ne", "progressive_auc", "progressive_ne", "calibration"):
            assert mine[name] == pytest.approx(other[name], abs=1e-6), name
    for name, tensor in weights.items():
        torch.testing.assert_close(others[name], tensor, atol=1e-5, rtol=1e-4)
    report = runs["again"][0].tracking
    assert report is not None
    assert (report.dropped > 0, bool(report.reason)) == (True, True)
    for name, tensor in runs["two"][1].items():
        assert torch.equal(tensor, runs["again"][1][name]), name


def test_a_day_that_cannot_be_learned_commits_nothing_keeps_what_was_and_ends_as_failed(world) -> None:
    world.dense_options = 'nonfinite = "keep"'
    good = world.write_day(0, 200)
    bad = world.write_day(1, 200, change=lambda c: c.update(price=[math.nan] * 200))
    config = world.config("optim.max_skipped_steps=2")
    with pytest.raises(TrainingError, match="max_skipped_steps = 2"):
        train(config, good, bad, quiet())
    assert [v.manifest().lineage.increment for v in Store(config.storage, config.name).versions()] == [good]
    runs = runs_of(config)
    assert runs[good].info.status == "FINISHED"
    assert runs[bad].info.status == "FAILED"


def test_a_value_that_breaks_the_contract_is_reported_as_it_is_and_the_retry_finds_its_run(world) -> None:
    """mlflow/mlflow#8238: one run a day, found again by its tag after a retry."""
    good = world.write_day(0, 200)
    bad = world.write_day(1, 200, change=lambda c: c["label"].__setitem__(150, 7))
    config = world.config()
    with pytest.raises(DataError, match="label"):
        train(config, good, bad, quiet())
    for file in (world.root / "days" / f"dt={bad}").glob("*.parquet"):
        file.unlink()
    (world.root / "days" / f"dt={bad}" / "_SUCCESS").unlink()
    (world.root / "days" / f"dt={bad}").rmdir()
    world.write_day(1, 200)
    result = train(config, bad, None, quiet())
    assert result.outcomes[0].version == 2
    runs = runs_of(config)
    assert set(runs) == {"lineage", good, bad}
    tags = runs[bad].data.tags
    assert (tags[names.TAG_ATTEMPT], tags[names.TAG_VERSION]) == ("2", "2")


def test_more_than_the_cluster_has_is_refused_with_the_numbers(world) -> None:
    world.write_day(0, 60)
    with pytest.raises(ResourceError, match=r"16 CPUs.*(?s:.)*6 CPUs"):
        train(world.config("workers.cpus=7"), "2026-01-01", None, quiet())
