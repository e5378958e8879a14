"""The driver and its workers on a real local Ray cluster, with a real MLflow store."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path

import pytest
import torch

from diurnal.checkpoint.store import Store
from diurnal.checkpoint.tensors import Folder, Named
from diurnal.config import Config
from diurnal.errors import DataError, ResourceError, TrainingError
from diurnal.train.progress import Progress
from diurnal.train.run import Result, evaluate, train

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def quiet() -> Progress:
    return Progress(table=False)


def weights_of(config: Config) -> dict[str, torch.Tensor]:
    """All tensors of the newest version, moments included, read in this process without a process group."""
    version = Store(config.storage, config.name).versions()[-1]
    tensors = {}
    for section in ("model", "optimizer"):
        folder = Folder(version.directory / section)
        whole = {name: torch.zeros(shape) for name, shape in folder.shapes.items()}
        folder.read({name: Named.whole(tensor) for name, tensor in whole.items()})
        tensors |= {f"{section}/{name}": tensor for name, tensor in whole.items()}
    assert len(tensors) > 10
    return tensors


def runs_of(config: Config) -> dict[str, object]:
    """Runs by increment; `lineage` for the one above them."""
    from mlflow.tracking import MlflowClient

    from diurnal.tracking import names
    from diurnal.tracking.location import experiment_name, tracking_uri

    client = MlflowClient(tracking_uri(config))
    experiment = client.get_experiment_by_name(experiment_name(config))
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    return {run.data.tags.get(names.TAG_INCREMENT, "lineage"): run for run in runs}


def test_days_are_scored_learned_committed_and_tracked_and_a_second_call_is_a_no_op(world) -> None:
    days = [world.write_day(0, 400), world.write_day(1, 331), world.write_day(2, 60)]
    config = world.config()
    result = train(config, days[0], days[-1], quiet()).to_dict()
    assert [(d["day"], d["rows"], d["version"]) for d in result["days"]] == [
        (days[0], 400, 1),
        (days[1], 331, 2),
        (days[2], 60, 3),
    ]
    assert result["days"][0]["evaluated"] is None, "no version before the first"
    for day in result["days"][1:]:
        assert day["evaluated"]["report"]["rows"] == day["learned"]["report"]["rows"] == day["rows"]
    assert all(0 < d["progressive_ne"] < 2 and math.isfinite(d["running_rate_ne"]) for d in result["days"])
    assert result["tracking"]["dropped"] == 0
    assert result["timeline"]["first_step_s"] > result["timeline"]["imported_s"] > 0
    versions = Store(config.storage, config.name).versions()
    assert [(v.number, v.manifest().lineage.increment, v.manifest().lineage.parent) for v in versions] == [
        (1, days[0], None),
        (2, days[1], 1),
        (3, days[2], 2),
    ]
    assert json.loads(json.dumps(result, allow_nan=False))["days"][2]["version"] == 3

    runs = runs_of(config)
    assert set(runs) == {"lineage", *days}
    assert {runs[day].info.status for day in days} == {"FINISHED"}  # pyright: ignore[reportAttributeAccessIssue]

    again = train(config, days[0], days[-1], quiet())
    assert (again.outcomes, again.already) == ((), tuple(days))
    assert len(Store(config.storage, config.name).versions()) == 3


def test_one_two_and_three_workers_give_the_same_numbers_and_the_same_model(world) -> None:
    """A day of 11 rows and one of 1 row too: each is scored whole at any world size (ray-project/ray#63285)."""
    days = [world.write_day(0, 400), world.write_day(1, 11), world.write_day(2, 1)]
    results: dict[int, Result] = {}
    tensors: dict[int, dict[str, torch.Tensor]] = {}
    for num_workers in (1, 2, 3):
        config = world.config(f"workers.max={num_workers}", f"name='w{num_workers}'", "tracking.enabled=false")
        results[num_workers] = train(config, days[0], days[-1], quiet())
        tensors[num_workers] = weights_of(config)
    alone = results[1].to_dict()["days"]
    assert [d["evaluated"]["report"]["rows"] for d in alone[1:]] == [11, 1]
    assert alone[2]["ne"] is None, "one row has one class"
    for num_workers in (2, 3):
        for mine, other in zip(results[num_workers].to_dict()["days"], alone, strict=True):
            for name in ("auc", "ne", "progressive_auc", "progressive_ne", "calibration"):
                assert mine[name] == pytest.approx(other[name], abs=1e-6), name
        for name, tensor in tensors[1].items():
            torch.testing.assert_close(tensors[num_workers][name], tensor, atol=1e-5, rtol=1e-4)


def test_the_same_seed_and_data_give_the_same_model_to_the_bit(world) -> None:
    days = [world.write_day(0, 400), world.write_day(1, 130)]
    models = []
    for name in ("first", "second"):
        config = world.config(f"name='{name}'", "tracking.enabled=false")
        train(config, days[0], days[-1], quiet())
        models.append(weights_of(config))
    assert models[0].keys() == models[1].keys()
    for name, tensor in models[0].items():
        assert torch.equal(tensor, models[1][name]), name


def test_a_day_that_cannot_be_learned_commits_nothing_keeps_what_was_and_ends_as_failed(world) -> None:
    world.dense_options = 'nonfinite = "keep"'
    good = world.write_day(0, 200)
    bad = world.write_day(1, 200, change=lambda c: c.update(price=[math.nan] * 200))
    config = world.config("optim.max_skipped_steps=2")
    with pytest.raises(TrainingError, match="max_skipped_steps = 2"):
        train(config, good, bad, quiet())
    assert [v.manifest().lineage.increment for v in Store(config.storage, config.name).versions()] == [good]
    runs = runs_of(config)
    assert runs[good].info.status == "FINISHED"  # pyright: ignore[reportAttributeAccessIssue]
    assert runs[bad].info.status == "FAILED"  # pyright: ignore[reportAttributeAccessIssue]


def test_a_value_that_breaks_the_contract_is_reported_as_it_is_and_the_retry_finds_its_run(world) -> None:
    """mlflow/mlflow#8238: one run a day, found again by its tag after a retry."""
    from diurnal.tracking import names

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
    tags = runs[bad].data.tags  # pyright: ignore[reportAttributeAccessIssue]
    assert (tags[names.TAG_ATTEMPT], tags[names.TAG_VERSION]) == ("2", "2")


def test_evaluate_scores_a_day_with_a_frozen_version_and_writes_nothing(world) -> None:
    days = [world.write_day(0, 400), world.write_day(1, 331)]
    config = world.config("tracking.enabled=false")
    trained = train(config, days[0], days[1], quiet()).to_dict()["days"]
    before = sorted(Path(config.storage).rglob("*"))
    scored = evaluate(config, 1, days[1], quiet()).to_dict()["days"]
    assert scored[0]["ne"] == pytest.approx(trained[1]["ne"], abs=1e-9)
    assert scored[0]["auc"] == pytest.approx(trained[1]["auc"], abs=1e-9)
    assert scored[0]["version"] is None
    assert sorted(Path(config.storage).rglob("*")) == before


def test_an_empty_day_and_a_day_of_one_class_are_committed_with_undefined_numbers(world) -> None:
    """Lightning-AI/torchmetrics#2494: undefined is neither 0 nor 0.5, in no store either."""
    days = [
        world.write_day(0, 200),
        world.write_day(1, 0, num_files=1),
        world.write_day(2, 50, change=lambda c: c.update(label=[0] * 50)),
    ]
    config = world.config()
    result = train(config, days[0], days[-1], quiet()).to_dict()["days"]
    assert [d["version"] for d in result] == [1, 2, 3]
    for day in result[1:]:
        assert day["ne"] is None
        assert day["auc"] is None
        assert day["learned"]["report"]["reason"]
    run = runs_of(config)[days[2]]
    metrics = run.data.metrics  # pyright: ignore[reportAttributeAccessIssue]
    assert metrics["progressive/rows"] == 50
    assert not {"progressive/ne", "progressive/auc", "eval/ne", "eval/auc"} & metrics.keys()


def test_a_tracking_server_that_never_answers_costs_telemetry_and_nothing_else(world) -> None:
    """radixark/miles#2571: the run ends and commits in bounded time, and says what was dropped."""
    day = world.write_day(0, 400)
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        config = world.config(f"tracking.uri='{uri}'", "tracking.timeout_s=3.0", "tracking.every_steps=1")
        result = train(config, day, None, quiet())
    assert result.outcomes[0].version == 1
    assert result.tracking is not None
    assert result.tracking.dropped > 0
    assert result.tracking.reason


def test_more_than_the_cluster_has_is_refused_with_the_numbers(world) -> None:
    world.write_day(0, 60)
    with pytest.raises(ResourceError, match=r"16 CPUs.*(?s:.)*6 CPUs"):
        train(world.config("workers.cpus=7"), "2026-01-01", None, quiet())


def test_days_out_of_order_and_days_that_changed_are_refused(world) -> None:
    days = [world.write_day(0, 60), world.write_day(1, 60)]
    config = world.config("tracking.enabled=false")
    train(config, days[1], None, quiet())
    with pytest.raises(DataError, match="later than 2026-01-02"):
        train(config, days[0], None, quiet())
    extra = world.root / "days" / f"dt={days[1]}" / "part-9.parquet"
    extra.write_bytes((extra.parent / "part-0.parquet").read_bytes())
    with pytest.raises(DataError, match="differ from those that version 1 was trained on"):
        train(config, days[1], None, quiet())
