"""The MLflow side: runs that are found by tag, points that are written once. Used by the sender's thread alone.

Every method may be called again with the same arguments after it failed half-way, and then completes the work.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from diurnal.config import Config
from diurnal.tracking import names
from diurnal.tracking.database import ensure_database, exclusive
from diurnal.tracking.location import artifact_root, database_file, experiment_name, is_server, tracking_uri
from diurnal.tracking.outbox import Refused, describe
from diurnal.tracking.provenance import dataset_entity, source_tags
from diurnal.tracking.registry import RegistryState, reconcile

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

MAX_TAG_CHARS = 8000
PARAMS_PER_CALL = 100
REQUEST_TIMEOUT_S = 10

_DESCRIPTION = """One run per increment is nested under the lineage run, which has a point per increment:
its step is the days (hourly data: hours; cut data: parts) since 1970-01-01, its wall time the increment's own date.
On an increment's run the step is the rows seen."""


@dataclass(frozen=True)
class Dataset:
    """What an increment's run was trained on; nothing of it is read here."""

    name: str
    path: str
    """Folder or URL of the increment."""
    fingerprint: str
    """At most 36 characters."""
    rows: int


@dataclass(frozen=True)
class Point:
    """One value of a curve. `time_ms` is taken when it is measured, so that sending it twice changes nothing."""

    key: str
    value: float
    time_ms: int
    step: int


@dataclass(frozen=True)
class RunStart:
    """Everything that a run needs to be found or created."""

    key: str
    """The lineage or an increment's id: names the run inside this process."""
    name: str
    identity: Mapping[str, str]
    """Tags by which the run is found again."""
    time_ms: int
    parent: str | None = None
    """Key of the run above, which is open."""
    attempt: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    dataset: Dataset | None = None


@dataclass(frozen=True)
class Finished:
    """A run that has ended well, whoever was to tell of it."""

    start: RunStart
    version: str
    points: tuple[Point, ...]
    lineage_points: tuple[Point, ...]


@dataclass
class _OpenRun:
    run_id: str
    seen: set[tuple[str, int]]
    """(key, step) of the points that the run has."""
    params: dict[str, str]
    """Parameters that the run has."""
    changed: dict[str, list[str]] = field(default_factory=dict)
    """Parameters that are different now: [what the run has, what it should have]."""


class Store:
    """Opens the store of a configuration on first use. `experiment_id` and `run_ids` can be read by any thread."""

    def __init__(self, config: Config) -> None:
        self.uri = tracking_uri(config)
        self.experiment_id: str | None = None
        self.run_ids: dict[str, str] = {}
        self.repeated = 0
        """Points that were not written since the run has one of that key and step."""
        self._config = config
        self._artifact_root = artifact_root(config)
        self._file = database_file(self.uri)
        self._client: MlflowClient | None = None
        self._open: dict[str, _OpenRun] = {}
        self._writer = uuid4().hex
        self._unsure: dict[str, RunStart] = {}
        """Runs whose creation failed without an answer: the store may have created them all the same."""

    def is_alive(self) -> bool:
        """Asks the store something small.

        Raises:
            Exception: whatever the client raises if it does not answer.
        """
        if self._client is None and not is_server(self.uri):
            return False
        self._connected().search_experiments(max_results=1)
        return True

    def open_run(self, start: RunStart) -> None:
        """Finds the run by its identity, or creates it, and gives it tags, parameters and dataset."""
        with refusals():
            client = self._ready()
            with exclusive(self._file) if self._file else nullcontext():
                found = self._find(start)
                run = found[0] if found else self._create(start)
            run_id = run.info.run_id
            if found:
                self._reopen(run, start)
            opened = _OpenRun(run_id, self._points_of(run) if found else set(), dict(run.data.params))
            self._open[start.key] = opened
            self.run_ids[start.key] = run_id
            self._set_params(opened, start.params)
            if start.dataset is not None:
                client.log_inputs(run_id, datasets=[dataset_entity(start.dataset, self._config.dataset)])

    def log_points(self, key: str, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        run = self._run(key)
        fresh = {(p.key, p.step): p for p in reversed(points) if (p.key, p.step) not in run.seen}
        metrics = [Metric(p.key, p.value, p.time_ms, p.step) for p in fresh.values()]
        if metrics:
            with refusals():
                self._ready().log_batch(run.run_id, metrics=metrics)
        run.seen.update(fresh)
        self.repeated += len(points) - len(fresh)

    def set_tags(self, key: str, tags: Mapping[str, str]) -> None:
        with refusals():
            self._set_tags(self._run(key).run_id, tags)

    def set_params(self, key: str, params: Mapping[str, str]) -> None:
        with refusals():
            self._set_params(self._run(key), params)

    def put_artifact(self, key: str, path: str, content: bytes) -> None:
        """Writes `content` as the artifact `path` (folders with slashes); an older one is replaced."""
        with refusals(), tempfile.TemporaryDirectory(prefix="diurnal-artifact-") as folder:
            file = Path(folder) / Path(path).name
            file.write_bytes(content)
            parent = str(Path(path).parent)
            run_id = self._run(key).run_id
            self._ready().log_artifact(run_id, str(file), None if parent == "." else parent)

    def close_run(self, key: str, status: str, time_ms: int) -> None:
        with refusals():
            client = self._ready()
            client.set_terminated(self._run(key).run_id, status, end_time=time_ms)
            if key in self._unsure:
                self._delete_ghosts(self._unsure[key])
        self._unsure.pop(key, None)
        self._open.pop(key)

    def complete(self, finished: Sequence[Finished], lineage: RunStart) -> None:
        """Makes runs of committed increments that do not say so say it."""
        missing = [one for one in finished if not self._says_so(one)]
        if not missing:
            return
        is_open = names.LINEAGE in self._open
        if not is_open:
            self.open_run(lineage)
        try:
            for one in missing:
                key = one.start.key
                self.open_run(one.start)
                self.log_points(key, one.points)
                self.log_points(names.LINEAGE, one.lineage_points)
                self.set_tags(key, {names.TAG_VERSION: one.version})
                self.close_run(key, "FINISHED", one.start.time_ms)
            if not is_open:
                self.close_run(names.LINEAGE, "FINISHED", lineage.time_ms)
        except Exception:
            if not is_open:  # or the next try would take it for a run that somebody else closes
                self._open.pop(names.LINEAGE, None)
            raise

    def _says_so(self, one: Finished) -> bool:
        with refusals():
            found = self._find(one.start)
        return (
            bool(found)
            and found[0].info.status == "FINISHED"
            and found[0].data.tags.get(names.TAG_VERSION) == one.version
        )

    def is_open(self, key: str) -> bool:
        return key in self._open

    def client(self) -> MlflowClient:
        """Connected, with an experiment."""
        return self._ready()

    def mirror(self, state: RegistryState) -> int:
        """Makes the registered model of the configuration's name say what `state` says; number of writes."""
        with refusals():
            client = self._ready()
            with exclusive(self._file) if self._file else nullcontext():
                return reconcile(client, self._config.name, state, self.find_run, by_server=is_server(self.uri))

    def find_run(self, increment_id: str) -> str | None:
        """Id of the increment's run, the oldest one if there are several; None if it has none."""
        if increment_id not in self.run_ids:
            found = self._find(RunStart(increment_id, "", names.identity(self._config.name, increment_id), 0))
            if not found:
                return None
            self.run_ids[increment_id] = found[0].info.run_id
        return self.run_ids[increment_id]

    def annotate(self, increment_id: str | None, tags: Mapping[str, str], points: Sequence[Point]) -> None:
        """Adds to a run that need not be open, without opening it again: an increment's, or the lineage's for None.

        A point whose key and step the run has already is not written.
        """
        from mlflow.entities import Metric

        with refusals():
            start = RunStart("", "", names.identity(self._config.name, increment_id), 0)
            found = self._find(start)
            if not found:
                raise Refused(f"there is no run of {increment_id or names.LINEAGE}")
            run_id = found[0].info.run_id
            if tags:
                self._set_tags(run_id, tags)
            has = found[0].data.metrics.keys() & {point.key for point in points}
            seen = {(m.key, m.step) for key in has for m in self._ready().get_metric_history(run_id, key)}
            fresh = [Metric(p.key, p.value, p.time_ms, p.step) for p in points if (p.key, p.step) not in seen]
            if fresh:
                self._ready().log_batch(run_id, metrics=fresh)

    def _run(self, key: str) -> _OpenRun:
        if key not in self._open:
            raise Refused(f"the run of {key} could not be opened")
        return self._open[key]

    def _connected(self) -> MlflowClient:
        if self._client is None:
            if self._file is not None and self._artifact_root is not None:
                ensure_database(self._file, self._artifact_root)
            self._client = connect(self.uri)
        return self._client

    def _ready(self) -> MlflowClient:
        """The client, once there is an `experiment_id`."""
        client = self._connected()
        if self.experiment_id is None:
            self.experiment_id = self._find_or_create_experiment(client)
        return client

    def _find_or_create_experiment(self, client: MlflowClient) -> str:
        from mlflow.exceptions import MlflowException

        name = experiment_name(self._config)
        location = None if self._artifact_root is None else f"{self._artifact_root}/{name}"
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            tags = {"mlflow.note.content": _DESCRIPTION}
            try:
                return client.create_experiment(name, artifact_location=location, tags=tags)
            except MlflowException as error:
                experiment = client.get_experiment_by_name(name)
                if experiment is None:
                    raise error
        if experiment.lifecycle_stage != "active":
            raise Refused(f"experiment {name} was deleted: restore it in MLflow, or set tracking.experiment")
        return experiment.experiment_id

    def _find(self, start: RunStart) -> list[Run]:
        """Runs of that identity that are not deleted, oldest first."""
        client = self._ready()
        query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in start.identity.items())
        return list(client.search_runs([str(self.experiment_id)], query, order_by=["attributes.start_time ASC"]))

    def _create(self, start: RunStart) -> Run:
        parent = {"mlflow.parentRunId": self._run(start.parent).run_id} if start.parent else {}
        tags = {**_changing_tags(start), **start.identity, **parent, names.TAG_WRITER: self._writer}
        tags = {key: value[:MAX_TAG_CHARS] for key, value in tags.items()}
        try:
            return self._ready().create_run(
                str(self.experiment_id), start_time=start.time_ms, tags=tags, run_name=start.name
            )
        except Exception as error:
            if _is_unanswered(error):
                self._unsure[start.key] = start
            raise

    def _reopen(self, run: Run, start: RunStart) -> None:
        """A retry: RUNNING again; how the attempt before ended stays readable."""
        tags = _changing_tags(start)
        before, status = run.data.tags.get(names.TAG_ATTEMPT), run.info.status
        if before is not None and (before != tags.get(names.TAG_ATTEMPT) or status != "RUNNING"):
            tags[names.attempt_tag(before)] = "never closed" if status == "RUNNING" else status
        if names.TAG_CHANGED_PARAMS in run.data.tags:
            tags[names.TAG_CHANGED_PARAMS] = "{}"
        self._set_tags(run.info.run_id, tags)
        self._ready().update_run(run.info.run_id, status="RUNNING")

    def _points_of(self, run: Run) -> set[tuple[str, int]]:
        client = self._ready()
        return {(m.key, m.step) for key in run.data.metrics for m in client.get_metric_history(run.info.run_id, key)}

    def _set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        for part in _cut(list(tags.items()), PARAMS_PER_CALL):
            entities = [RunTag(key, value[:MAX_TAG_CHARS]) for key, value in part]
            self._ready().log_batch(run_id, tags=entities)

    def _set_params(self, run: _OpenRun, params: Mapping[str, str]) -> None:
        """Writes new parameters; one that has another value already goes into a tag, since it cannot change."""
        from mlflow.entities import Param

        new = {key: value for key, value in params.items() if key not in run.params}
        for part in _cut(list(new.items()), PARAMS_PER_CALL):
            self._ready().log_batch(run.run_id, params=[Param(key, value) for key, value in part])
            run.params.update(part)
        run.changed |= {key: [run.params[key], value] for key, value in params.items() if run.params[key] != value}
        if run.changed:
            self._set_tags(run.run_id, {names.TAG_CHANGED_PARAMS: json.dumps(run.changed)})

    def _delete_ghosts(self, start: RunStart) -> None:
        """Runs that this process created without getting an answer, and then found or created again."""
        used = self._run(start.key).run_id
        for run in self._find(start):
            if run.info.run_id != used and run.data.tags.get(names.TAG_WRITER) == self._writer:
                self._ready().delete_run(run.info.run_id)


def _changing_tags(start: RunStart) -> dict[str, str]:
    """Tags that a retry writes anew."""
    attempt = {} if start.attempt is None else {names.TAG_ATTEMPT: str(start.attempt)}
    return {**source_tags(), **start.tags, **attempt}


def connect(uri: str) -> MlflowClient:
    """A client that fails fast: whoever calls does the retrying. What a person has set in the environment stays."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(REQUEST_TIMEOUT_S))
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _is_unanswered(error: BaseException) -> bool:
    from mlflow.exceptions import MlflowException

    if not isinstance(error, MlflowException):
        return True
    status = error.get_http_status_code()
    return not 400 <= status < 500 or status in (408, 429)


@contextmanager
def refusals() -> Iterator[None]:
    """Turns the store's definite answers into `Refused`; what may be better next time passes through."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        if _is_unanswered(error):
            raise
        raise Refused(describe(error)) from error


def _cut(values: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(values), size):
        yield list(values[start : start + size])
