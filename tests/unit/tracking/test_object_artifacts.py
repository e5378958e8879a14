"""Artifacts of runs in an S3-compatible object store, served by a real process; the database is a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diurnal.config import Config
from diurnal.config.run import Tracking
from diurnal.data.objects import ObjectPath
from diurnal.errors import StackError
from diurnal.tracking.location import artifact_root, database_file
from diurnal.tracking.mlflow import Dataset, Tracker
from diurnal.tracking.registry import RegisteredVersion, RegistryState
from diurnal.tracking.store import connect

STORAGE = "s3://log/models"


@pytest.fixture
def there(sqlite_config: Config) -> Config:
    """The database is a file that is there already."""
    uri = f"sqlite:///{sqlite_config.storage}/mlflow.db"
    return sqlite_config.model_copy(update={"storage": STORAGE, "tracking": Tracking(uri=uri)})


@pytest.mark.parametrize("uri", ["sqlite:////srv/mlflow.db", "postgresql://u:p@db/mlflow"])
def test_a_storage_that_is_a_url_has_the_artifacts_of_any_database(there: Config, uri: str) -> None:
    config = there.model_copy(update={"tracking": Tracking(uri=uri)})
    assert artifact_root(config) == f"{STORAGE}/mlflow-artifacts"


def test_artifacts_are_in_the_bucket_and_no_secret_is_in_the_database(
    object_store: Path, there: Config, dataset: Dataset
) -> None:
    path = f"{STORAGE}/ctr/versions/1/1-1.5"
    with Tracker(there, strict=True) as tracker:
        with tracker.begin_increment("2026-01-01", attempt=1, parent_version=None, dataset=dataset) as run:
            run.artifact_text("notes/what.txt", "what came of it")
            run.finish("FINISHED", version=1)
        tracker.mirror(RegistryState((RegisteredVersion(1, "2026-01-01", None, path, "", "", None, ""),)))
    artifacts = ObjectPath.of(f"{STORAGE}/mlflow-artifacts")
    (found,) = [name for name in artifacts.files() if name.endswith("/artifacts/notes/what.txt")]
    assert (artifacts / found).read_text() == "what came of it"
    (version,) = connect(there.tracking.uri).search_model_versions("name = 'ctr'")
    assert (version.source, version.tags["diurnal.path"]) == (path, path)
    database = database_file(there.tracking.uri)
    assert database is not None
    assert os.environ["AWS_SECRET_ACCESS_KEY"].encode() not in database.read_bytes()
    assert [file.name for file in database.parent.iterdir() if "artifacts" in file.name] == []


def test_without_boto3_it_says_what_to_install(there: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StackError, match=r"boto3\n  found: not installed(.|\n)*diurnal\[s3\]"):
        Tracker(there)
