"""Worker groups of one command: they share a cluster, a tracker and a folder for Ray's own records."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Literal
from uuid import uuid4

from diurnal.config import Config, resolved_json
from diurnal.data.objects import ObjectPath, place_of
from diurnal.errors import CheckpointError, DiurnalError, LeaseLost
from diurnal.ledger.lease import Lease
from diurnal.stack import library_versions
from diurnal.tracking.mlflow import Dataset, Tracker, TrackingReport
from diurnal.train.desk import ScoringDesk, TrainingDesk
from diurnal.train.interrupt import Interrupted, fit_until_interrupted
from diurnal.train.meters import DriverMeters
from diurnal.train.progress import Progress
from diurnal.train.resources import cluster
from diurnal.train.spec import Spec
from diurnal.train.watch import Driver, Watch

Mode = Literal["train", "evaluate"]


class Groups:
    """Runs worker groups, one after the other. Made by `worker_groups`."""

    def __init__(
        self,
        config: Config,
        mode: Mode,
        progress: Progress,
        started_s: float,
        lease: Lease | None,
        tracker: Tracker,
        scratch: str,
    ) -> None:
        self.tracker = tracker
        self._config = config
        self._mode: Mode = mode
        self._progress = progress
        self._started_s = started_s
        self._lease = lease
        self._scratch = scratch

    def run(self, desk: TrainingDesk | ScoringDesk, dataset: Callable[[str], Dataset | None]) -> Watch:
        """Starts workers and serves them until they have no more to do.

        Args:
            dataset: what an increment's run is told of its rows; None where there is no run.
        """
        from diurnal.train.elastic import elastic_trainer
        from diurnal.train.events import Inbox
        from diurnal.train.silence import Silence
        from diurnal.train.worker import work

        config, mode = self._config, self._mode
        watch = Watch(config, self.tracker, self._progress, dataset)
        meters = [DriverMeters(config, desk.restarts)] if isinstance(desk, TrainingDesk) else []
        inbox = Inbox(Driver(desk, watch, *meters))
        spec = Spec(mode, resolved_json(config), library_versions(), inbox.channel(), self._scratch, self._started_s)
        trainer = elastic_trainer(work, config, {"spec": spec}, self._scratch, inbox.mailbox)
        if isinstance(desk, TrainingDesk):
            desk.beats = inbox.beats
            watch.restarts, watch.replayed_rows = desk.restarts, desk.replayed_rows

        silence = Silence(inbox)

        def check() -> None:
            if inbox.error is not None:
                raise inbox.error
            silence.end()
            if self._lease is not None and self._lease.lost.is_set():
                raise LeaseLost(self._lease.lost_reason)

        grace_s = config.workers.grace_s if mode == "train" else 0.0
        try:
            fit_until_interrupted(trainer, grace_s, lambda reason: inbox.order("stop", reason), check)
            inbox.close()
        except BaseException as error:
            is_interrupted = isinstance(error, Interrupted)
            with suppress(BaseException):
                inbox.close()
            if isinstance(desk, TrainingDesk):
                with suppress(DiurnalError):
                    desk.close("interrupted" if is_interrupted else "failed", f"{type(error).__name__}: {error}")
            watch.end("KILLED" if is_interrupted else "FAILED")
            raise
        finally:
            for meter in meters:
                meter.end()
        watch.end("FAILED")
        if inbox.num_dropped:
            self._progress.say(f"progress: {inbox.num_dropped} points dropped, since the driver did not keep up")
        if (freshness := watch.freshness()) is not None:
            self._progress.say(freshness)
        return watch

    def close(self) -> TrackingReport:
        """Sends what tracking still has, and says where it is to be seen."""
        report = self.tracker.close()
        if report.dropped:
            self._progress.say(str(report))
        if self._mode == "train" and self._config.tracking.enabled:
            self._progress.say(_where_it_is_tracked(self.tracker.link()))
        return report


@contextmanager
def worker_groups(
    config: Config,
    mode: Mode,
    progress: Progress,
    started_s: float,
    lease: Lease | None = None,
    tracker: Tracker | None = None,
) -> Iterator[Groups]:
    """A cluster, which is started if none is named, a folder, and a tracker, unless the caller has one."""
    with (
        cluster(config),
        _scratch(config, mode) as scratch,
        nullcontext(tracker) if tracker is not None else Tracker(config) as used,
    ):
        yield Groups(config, mode, progress, started_s, lease, used, scratch)


def _where_it_is_tracked(link: str) -> str:
    if link.startswith("http"):
        return f"MLflow: {link}"
    return "MLflow: `python -m diurnal.tracking.ui` with the same --config serves the runs and prints the link"


@contextmanager
def _scratch(config: Config, mode: Mode) -> Iterator[str]:
    """A folder for Ray Train's own records of one run; ours are elsewhere, so it goes with the run."""
    parent = place_of(config.storage, config.name, "ray", mode)
    if isinstance(parent, ObjectPath):
        with _scratch_objects(parent, mode) as url:
            yield url
        return
    if mode == "train":
        # Who holds the lease is the only one; a driver that was killed has left its own.
        shutil.rmtree(parent, ignore_errors=True)
    folder = parent / uuid4().hex
    folder.mkdir(parents=True)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # a second run has its own folder beside it
            parent.rmdir()
            parent.parent.rmdir()


@contextmanager
def _scratch_objects(parent: ObjectPath, mode: Mode) -> Iterator[str]:
    """The same in an object store, where Ray Train puts a few small objects by itself.

    Raises:
        CheckpointError: the store does not answer, or may not be written: before any worker starts.
    """
    folder = parent / uuid4().hex
    try:
        if mode == "train":
            parent.remove()
        (folder / "begun").write_bytes(b"")
    except OSError as error:
        raise CheckpointError([folder.fault(error)]) from None
    try:
        yield str(folder)
    finally:
        with suppress(OSError):
            folder.remove()
