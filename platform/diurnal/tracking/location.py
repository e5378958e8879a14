"""Where the tracking store of a configuration is, and the links that open it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from diurnal.config import Config
from diurnal.errors import ConfigError, Fault, StackError

MACHINE_LEARNING_MODE = "workflowType=machine_learning"
"""MLflow 3 opens in its mode for language models otherwise, where our runs and charts are hidden."""

CHARTS = "compareRunsMode=CHART"
"""A table would have one line, since the increments' runs are folded up under the lineage's."""


def tracking_uri(config: Config) -> str:
    """The configured URI, or MLflow's own of the environment, or a SQLite file in the storage folder.

    Raises:
        ConfigError: if none is configured and the storage is not a local folder.
    """
    if uri := config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI"):
        return uri
    if "://" in config.storage:
        must = "the tracking database is a local file beside a local storage, or a server"
        fix = "set tracking.uri, to sqlite:///FILE or a server's, or tracking.enabled = false"
        raise ConfigError([Fault("tracking.uri", "nothing", must, fix)])
    return f"sqlite:///{Path(config.storage).absolute() / 'mlflow.db'}"


def is_server(uri: str) -> bool:
    return urlsplit(uri).scheme in ("http", "https")


def database_file(uri: str) -> Path | None:
    """The file of a SQLite URI; None for any other store."""
    prefix = "sqlite:///"
    return Path(uri.removeprefix(prefix)).absolute() if uri.startswith(prefix) else None


def artifact_root(config: Config) -> str | None:
    """Folder of artifacts: beside a database that is a file, or in the storage when that is a URL, or for a database
    server; None when an MLflow server decides."""
    uri = tracking_uri(config)
    if is_server(uri):
        return None
    file = database_file(uri)
    if file is not None and "://" not in config.storage:
        return str(file.parent / "mlflow-artifacts")
    return f"{config.storage.rstrip('/')}/mlflow-artifacts"


def refuse_without_boto3(config: Config) -> None:
    """
    Raises:
        StackError: artifacts go to an object store, and what MLflow reaches it with is not installed.
    """
    if (artifact_root(config) or "").startswith("s3://") and importlib.util.find_spec("boto3") is None:
        rule = f"MLflow needs it to keep artifacts in {artifact_root(config)}"
        fix = "install boto3 (pip install 'diurnal[s3]'), or set tracking.enabled = false"
        raise StackError([Fault("boto3", "not installed", rule, fix)])


def experiment_name(config: Config) -> str:
    return config.tracking.experiment or config.name


def experiment_link(uri: str, experiment_id: str) -> str:
    """Address of the experiment, the lineage's charts open; without a server, what follows the server's address."""
    return f"{_base(uri)}#/experiments/{experiment_id}/runs?{MACHINE_LEARNING_MODE}&{CHARTS}"


def run_link(uri: str, experiment_id: str, run_id: str) -> str:
    """Address of a run's charts; without a server, what follows the server's address."""
    return f"{_base(uri)}#/experiments/{experiment_id}/runs/{run_id}/model-metrics?{MACHINE_LEARNING_MODE}"


def _base(uri: str) -> str:
    if not is_server(uri):
        return ""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/") + "/", "", ""))
