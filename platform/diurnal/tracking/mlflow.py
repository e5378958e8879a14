"""The driver's mirror of a lineage in MLflow. Nothing here waits for the store, and nothing here raises for it.

    tracker = Tracker(config)
    tracker.begin_lineage()
    with tracker.begin_increment("2026-01-02", attempt=1, parent_version=None, dataset=dataset) as run:
        run.log({"progressive/ne": 0.83}, step_rows=8192)
        run.artifact_text(names.PLAN_ARTIFACT, plan)
        run.finish("FINISHED", version=1, summary={"progressive/ne": 0.81})
    print(tracker.close())

`mlflow` is imported by the background thread alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from diurnal.config import Config, resolved_json
from diurnal.tracking import names
from diurnal.tracking.location import experiment_link, refuse_without_boto3, run_link
from diurnal.tracking.mail import Mail, TrackingError, TrackingReport
from diurnal.tracking.params import as_params, config_params, without_passwords
from diurnal.tracking.registry import RegisteredVersion, RegistryState
from diurnal.tracking.store import Dataset, Finished, Point, RunStart, Store
from diurnal.tracking.sweep import close_dead

__all__ = [
    "Committed",
    "Dataset",
    "IncrementRun",
    "RegisteredVersion",
    "RegistryState",
    "Status",
    "Tracker",
    "TrackingError",
    "TrackingReport",
    "mirror_now",
]

Status = Literal["FINISHED", "FAILED", "KILLED"]

_NO_VERDICT = names.verdict_tags("", "")
"""A retry is judged anew."""

BYTES_PER_UNIT = 256
"""An artifact weighs as much in the outbox as one point per so many bytes."""


@dataclass(frozen=True)
class Committed:
    """What is known of a version long after it was committed."""

    increment_id: str
    attempt: int
    parent_version: int | None
    version: int
    dataset: Dataset
    summary: Mapping[str, float | None]
    """As of `IncrementRun.finish`."""
    step_rows: int


class Tracker:
    """Mirrors one model's lineage: a lineage run, and under it one run per increment. For the driver alone.

    Args:
        config: says where the store is; with `tracking.enabled = false` every method does nothing.
        strict: beginning an increment waits for the store, and `close` does not accept a loss.
        clock: seconds since the epoch.

    Raises:
        ConfigError: if the storage is not a local folder and no `tracking.uri` is set.
        StackError: artifacts go to an object store, and boto3 is not installed.
    """

    def __init__(self, config: Config, *, strict: bool = False, clock: Callable[[], float] = time.time) -> None:
        if config.tracking.enabled:
            refuse_without_boto3(config)
        self._config = config
        self._strict = strict
        self._mail = Mail(Store(config) if config.tracking.enabled else None, clock)
        self._lineage_begun = False
        self._runs: list[IncrementRun] = []
        self._report: TrackingReport | None = None

    def begin_lineage(self) -> None:
        """Opens the model's lineage run, which is created once and found again by its tags."""
        if self._lineage_begun:
            return
        self._lineage_begun = True
        start = self._lineage()
        self._mail.send(lambda store: store.open_run(start), vital=True)

    def _lineage(self) -> RunStart:
        name = self._config.name
        return RunStart(names.LINEAGE, f"lineage {name}", names.identity(name, None), self._mail.now_ms())

    def catch_up(self, committed: Sequence[Committed], trained: Collection[str]) -> None:
        """Repairs what processes that were killed have left: runs of committed increments that do not say so, and
        runs that are RUNNING although nobody works on them. For the one that has the model, before it begins a run.

        Args:
            committed: versions that count, in order.
            trained: all increments that a version was committed for.
        """
        lineage, told = self._lineage(), [self._finished(one) for one in committed]
        named, config = frozenset(trained), self._config

        def call(store: Store) -> None:
            store.complete(told, lineage)
            close_dead(store, config, named)

        self._mail.send(call, weight=1 + len(told), vital=True)

    def _finished(self, one: Committed) -> Finished:
        parent = "none" if one.parent_version is None else str(one.parent_version)
        tags = {names.TAG_PARENT_VERSION: parent, names.TAG_FINGERPRINT: one.dataset.fingerprint}
        start = self._start(one.increment_id, one.attempt, tags, one.dataset)
        place_ms = int(names.increment_time(one.increment_id).timestamp() * 1000)
        metrics = list(names.defined(one.summary))
        return Finished(
            start,
            str(one.version),
            tuple(Point(name, value, start.time_ms, one.step_rows) for name, value in metrics),
            tuple(Point(name, value, place_ms, names.increment_step(one.increment_id)) for name, value in metrics),
        )

    def _start(self, increment_id: str, attempt: int, tags: Mapping[str, str], dataset: Dataset) -> RunStart:
        return RunStart(
            key=increment_id,
            name=names.increment_run_name(increment_id),
            identity=names.identity(self._config.name, increment_id),
            time_ms=self._mail.now_ms(),
            parent=names.LINEAGE,
            attempt=attempt,
            tags=tags,
            params=config_params(self._config),
            dataset=dataset,
        )

    def begin_increment(
        self,
        increment_id: str,
        *,
        attempt: int,
        parent_version: int | None,
        dataset: Dataset,
        config_json: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> IncrementRun:
        """Opens the increment's run; after a retry it is the same one, with the attempt as a tag.

        Args:
            increment_id: a day, an hour or a part of one, as `data.ids` spells it.
            attempt: from 1.
            parent_version: the version that training starts from.
            dataset: the rows.
            config_json: resolved configuration for the artifact; the tracker's own when None.
            tags: more tags of the run.

        Raises:
            ValueError: if `increment_id` is none of these.
            TrackingError: in strict mode, if the store did not take it in `tracking.timeout_s`.
        """
        self.begin_lineage()
        parent = "none" if parent_version is None else str(parent_version)
        told = {names.TAG_PARENT_VERSION: parent, names.TAG_FINGERPRINT: dataset.fingerprint}
        start = self._start(increment_id, attempt, {**_NO_VERDICT, **(tags or {}), **told}, dataset)
        self._mail.send(lambda store: store.open_run(start), weight=1 + len(start.params), vital=True)
        run = IncrementRun(self._mail, increment_id)
        self._runs.append(run)
        run.artifact_text(names.CONFIG_ARTIFACT, without_passwords(config_json or resolved_json(self._config.public())))
        if self._strict:
            self._demand(self._mail.flush(self._config.tracking.timeout_s))
        return run

    def held(
        self,
        increment_id: str,
        *,
        attempt: int,
        reason: str,
        dataset: Dataset,
        parent_version: int | None = None,
        metrics: Mapping[str, float | None] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Gives an increment that was kept from training a run that says so: FAILED, since nothing was committed.

        Its metrics, of the section `profile`, are also on the lineage run. If it is trained later, the run is the same.

        Raises:
            ValueError, TrackingError: as `begin_increment`.
        """
        verdict = names.verdict_tags(names.HELD, reason)
        run = self.begin_increment(
            increment_id,
            attempt=attempt,
            parent_version=parent_version,
            dataset=dataset,
            tags={**(tags or {}), **verdict},
        )
        run.finish("FAILED", summary=metrics)
        self._annotate(None, increment_id, {}, metrics or {}, names.increment_step(increment_id))

    def verdict(
        self,
        increment_id: str,
        tags: Mapping[str, str],
        metrics: Mapping[str, float | None],
        *,
        version: int,
    ) -> None:
        """Says on the runs what the gate said, whether they are open or not.

        Args:
            increment_id: what the version was trained on; it has a run.
            tags: `names.TAG_VERDICT` and its reason, of the increment's run.
            metrics: of the section `gate`: on the increment's run with the version as the step, so that a version that
                is trained again has a point of its own; on the lineage run at the increment's place in time.
            version: what was judged.
        """
        self._annotate(increment_id, increment_id, tags, metrics, version)
        self._annotate(None, increment_id, {}, metrics, names.increment_step(increment_id))

    def mirror(self, state: RegistryState) -> None:
        """Makes MLflow's model registry say what the ledger says. What an outage drops, the next one repairs."""
        self._mail.send(lambda store: store.mirror(state), vital=True)

    def _annotate(
        self,
        run_of: str | None,
        increment_id: str,
        tags: Mapping[str, str],
        metrics: Mapping[str, float | None],
        step: int,
    ) -> None:
        """On the run of an increment or of the lineage; a lineage point bears the increment's own time."""
        time_ms = self._mail.now_ms() if run_of else int(names.increment_time(increment_id).timestamp() * 1000)
        points = [Point(name, value, time_ms, step) for name, value in names.defined(metrics)]
        tags = dict(tags)
        if tags or points:
            self._mail.send(lambda store: store.annotate(run_of, tags, points), weight=1 + len(points), vital=True)

    def link(self) -> str:
        """Where the experiment opens in the right mode: a URL if the store is a server, else what follows the address
        of `diurnal.tracking.ui`. Empty until the store has answered."""
        store = self._mail.store
        return experiment_link(store.uri, store.experiment_id) if store and store.experiment_id else ""

    def close(self, timeout_s: float | None = None) -> TrackingReport:
        """Sends what waits, for at most `timeout_s` (`tracking.timeout_s` when None), and reports.

        A run that nobody finished ends as FAILED. The lineage run ends as its last increment did. Closing again
        answers the same.

        Raises:
            TrackingError: in strict mode, if anything was dropped.
        """
        if self._report is None:
            self._end_runs("FAILED")
            if self._lineage_begun:
                status, at_ms = (self._runs[-1].status if self._runs else None) or "FINISHED", self._mail.now_ms()
                self._mail.send(lambda store: store.close_run(names.LINEAGE, status, at_ms), vital=True)
            self._report = self._mail.close(self._config.tracking.timeout_s if timeout_s is None else timeout_s)
        if self._strict:
            self._demand(self._report)
        return self._report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end_runs(_status_after(kind))
        self.close()

    def _end_runs(self, status: Status) -> None:
        for run in self._runs:
            run.finish(status)

    def _demand(self, report: TrackingReport) -> None:
        if report.dropped:
            raise TrackingError(f"the tracking store did not take everything: {report.reason}")


def mirror_now(config: Config, state: RegistryState, timeout_s: float) -> TrackingReport:
    """Mirrors the registry for a command that ends: waits for at most `timeout_s` and never raises for the store.

    Raises:
        ConfigError: as `Tracker`.
    """
    tracker = Tracker(config)
    tracker.mirror(state)
    return tracker.close(timeout_s)


class IncrementRun:
    """The run of one increment. As a context it ends what was not finished: KILLED if interrupted, else FAILED."""

    def __init__(self, mail: Mail, increment_id: str) -> None:
        self.increment_id = increment_id
        self.status: Status | None = None
        """How it ended; None while it runs."""
        self._mail = mail
        self._place = names.increment_step(increment_id), int(names.increment_time(increment_id).timestamp() * 1000)

    def log(self, metrics: Mapping[str, float | None], step_rows: int) -> None:
        """Points of curves at `step_rows` rows seen of the increment. None and NaN are undefined and not sent."""
        self._mail.send_points(self.increment_id, metrics, step_rows, self._mail.now_ms())

    def params(self, values: Mapping[str, Any]) -> None:
        """More parameters, nested ones joined with dots: `{names.USED: hyper-parameters as really used}`, say."""
        params = as_params(values)
        self._mail.send(lambda store: store.set_params(self.increment_id, params))

    def tags(self, tags: Mapping[str, str]) -> None:
        tags = dict(tags)
        self._mail.send(lambda store: store.set_tags(self.increment_id, tags))

    def artifact_text(self, name: str, text: str) -> None:
        self._artifact(name, text.encode())

    def artifact_json(self, name: str, value: Any) -> None:
        self._artifact(name, json.dumps(value, indent=2, sort_keys=True).encode())

    def figure(self, name: str, png: bytes) -> None:
        self._artifact(name, png)

    def link(self) -> str:
        """Where the run's charts open, as `Tracker.link`. Empty until the store has answered."""
        store = self._mail.store
        run_id = store.run_ids.get(self.increment_id) if store else None
        return run_link(store.uri, store.experiment_id, run_id) if store and store.experiment_id and run_id else ""

    def finish(
        self,
        status: Status,
        *,
        version: int | None = None,
        summary: Mapping[str, float | None] | None = None,
        step_rows: int = 0,
    ) -> None:
        """Ends the run; later calls do nothing.

        Args:
            status: FINISHED only after the commit.
            version: what was committed; FINISHED needs it.
            summary: the increment's metrics: on this run at `step_rows` (a point that is there already stays), and,
                of a FINISHED one, on the lineage run at the increment's place in time.
            step_rows: rows of the increment.
        """
        assert status != "FINISHED" or version is not None, "FINISHED says that a version was committed"
        if self.status is not None:
            return
        self.status = status
        key, now_ms, metrics = self.increment_id, self._mail.now_ms(), summary or {}
        self._mail.send_points(key, metrics, step_rows, now_ms, vital=True)
        if version is not None:
            tags = {names.TAG_VERSION: str(version)}
            self._mail.send(lambda store: store.set_tags(key, tags), vital=True)
        if status == "FINISHED":
            self._mail.send_points(names.LINEAGE, metrics, *self._place, vital=True)
        self._mail.send(lambda store: store.close_run(key, status, now_ms), vital=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.finish(_status_after(kind))

    def _artifact(self, name: str, content: bytes) -> None:
        weight = 1 + len(content) // BYTES_PER_UNIT
        self._mail.send(lambda store: store.put_artifact(self.increment_id, name, content), weight=weight)


def _status_after(kind: type[BaseException] | None) -> Status:
    """How a run ends that nobody finished: a signal shows as one of these two exceptions."""
    return "KILLED" if kind is not None and issubclass(kind, KeyboardInterrupt | SystemExit) else "FAILED"
