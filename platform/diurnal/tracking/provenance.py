"""Where a run comes from: the code, the libraries, the rows."""

from __future__ import annotations

import getpass
import json
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from diurnal.config import Schema
from diurnal.tracking import names

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput
    from mlflow.types import Schema as MlflowSchema

    from diurnal.tracking.store import Dataset

LIBRARIES = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "ray", "mlflow", "pyarrow", "numpy")
MAX_DIGEST_CHARS = 36


@cache
def source_tags() -> dict[str, str]:
    """Tags of the code and of the libraries' versions; MLflow shows the `mlflow.` ones in columns of their own."""
    tags = {"mlflow.source.name": "diurnal", "mlflow.source.type": "JOB", "mlflow.user": _user()}
    for library in LIBRARIES:
        try:
            tags[names.library_tag(library)] = version(library)
        except PackageNotFoundError:
            continue
    commit = git_commit(Path(__file__).parent)
    if commit is not None:
        tags["mlflow.source.git.commit"] = commit.removesuffix("-dirty")
        tags["diurnal.git_dirty"] = str(commit.endswith("-dirty")).lower()
    return tags


def git_commit(folder: Path) -> str | None:
    """The commit that the code in `folder` was checked out from, `-dirty` if files differ; None outside a repository.

    A package that is installed into an environment inside somebody's repository does not come from that repository.
    """
    if "site-packages" in folder.parts:
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def dataset_entity(dataset: Dataset, schema: Schema) -> DatasetInput:
    """MLflow's record of a dataset that is described and not loaded: name, place, fingerprint, columns, rows."""
    from mlflow.data.dataset_source_registry import get_dataset_source_from_json
    from mlflow.data.meta_dataset import MetaDataset
    from mlflow.entities import Dataset as DatasetEntity
    from mlflow.entities import DatasetInput, InputTag

    scheme = urlsplit(dataset.path).scheme
    kind = scheme if scheme in ("s3", "gs") else "local"
    source = get_dataset_source_from_json(json.dumps({"uri": dataset.path}), kind)
    digest = dataset.fingerprint[:MAX_DIGEST_CHARS]
    described = MetaDataset(source, name=dataset.name, digest=digest, schema=_columns(schema))
    fields = {**described.to_dict(), "profile": json.dumps({"num_rows": dataset.rows})}
    return DatasetInput(DatasetEntity(**fields), [InputTag("mlflow.data.context", "training")])


def _columns(schema: Schema) -> MlflowSchema:
    from mlflow.types import ColSpec, DataType
    from mlflow.types import Schema as MlflowSchema
    from mlflow.types.schema import Array

    kinds = {
        "int64": DataType.long,
        "uint64": DataType.long,
        "string": DataType.string,
        "float": DataType.double,
        "timestamp": DataType.datetime,
    }
    columns = [ColSpec(DataType.string if schema.label.is_spelled else DataType.double, schema.label.column)]
    for task in schema.tasks:
        kind = DataType.string if task.is_spelled else DataType.double
        columns.append(ColSpec(kind, task.source, required=task.missing == "refuse"))
    columns += [ColSpec(DataType.double, f.source, required=f.required) for f in schema.columns_of_numbers]
    for feature in (feature for feature in schema.sparse if not feature.cross):
        kind = kinds[feature.type]
        columns.append(ColSpec(Array(kind) if feature.many else kind, feature.source, required=feature.required))
        if feature.weights:
            columns.append(ColSpec(Array(DataType.double), feature.weights, required=feature.required))
    return MlflowSchema(list({column.name: column for column in columns}.values()))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
