from __future__ import annotations

from pathlib import Path

import pytest

from diurnal.errors import ConfigError
from diurnal.tracking import location


def test_a_sqlite_file_in_the_storage_is_the_default(make_config) -> None:
    config = make_config()
    assert location.database_file(location.tracking_uri(config)) == Path(config.storage) / "mlflow.db"
    assert location.artifact_root(config) == f"{config.storage}/mlflow-artifacts"


def test_a_server_decides_where_artifacts_are(make_config) -> None:
    config = make_config(uri="http://mlflow:5000")
    assert location.artifact_root(config) is None
    assert location.database_file(location.tracking_uri(config)) is None


def test_artifacts_of_a_database_server_are_in_the_storage(make_config) -> None:
    config = make_config(uri="postgresql://u:p@db/mlflow")
    assert location.artifact_root(config) == f"{config.storage}/mlflow-artifacts"


def test_a_remote_storage_needs_a_tracking_uri(make_config) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.uri"):
        location.tracking_uri(make_config(storage="s3://bucket/models"))


def test_links_open_the_mode_that_shows_runs_and_keep_passwords_out() -> None:
    assert (
        location.experiment_link("sqlite:////x/mlflow.db", "3")
        == "#/experiments/3/runs?workflowType=machine_learning&compareRunsMode=CHART"
    )
    uri = "https://user:secret@mlflow.example/base/"
    assert location.experiment_link(uri, "3") == (
        "https://mlflow.example/base/#/experiments/3/runs?workflowType=machine_learning&compareRunsMode=CHART"
    )
    assert location.run_link(uri, "3", "abc") == (
        "https://mlflow.example/base/#/experiments/3/runs/abc/model-metrics?workflowType=machine_learning"
    )
