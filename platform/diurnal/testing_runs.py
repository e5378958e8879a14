"""What MLflow shows of a model, for tests."""

from __future__ import annotations

from typing import Any

from diurnal.config import Config


def runs_of(config: Config) -> dict[str, Any]:
    """The model's MLflow runs by increment, and `lineage` for the one above them. Fails if two have one name."""
    from mlflow.tracking import MlflowClient

    from diurnal.tracking import names
    from diurnal.tracking.location import experiment_name, tracking_uri

    client = MlflowClient(tracking_uri(config))
    experiment = client.get_experiment_by_name(experiment_name(config))
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    found = {run.data.tags.get(names.TAG_INCREMENT, "lineage"): run for run in runs}
    assert len(found) == len(runs), [run.data.tags for run in runs]
    return found
