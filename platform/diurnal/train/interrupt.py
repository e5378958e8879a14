"""Runs Ray Train's trainer: a signal ends it in bounded time, and the first real error is the one that is seen."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from diurnal.config import Config
from diurnal.errors import DiurnalError
from diurnal.train.spec import Spec


class Interrupted(KeyboardInterrupt):
    """The driver was asked to stop by SIGTERM or SIGINT."""


class WorkerFailed(RuntimeError):
    """A worker raised something that is no person's fault."""


def fit_until_interrupted(config: Config, spec: Spec, scratch: str) -> None:
    """Runs one worker group to its end.

    Raises:
        DiurnalError: what a worker raised, when it is a person's fault.
        WorkerFailed: the first other error of a worker, with its rank and traceback.
        Interrupted: on SIGTERM or SIGINT; ending the Ray session ends the workers.
    """
    trainer = _trainer(config, spec, scratch)
    raised: list[BaseException] = []

    def fit() -> None:
        try:
            trainer.fit()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=fit, name="diurnal-fit", daemon=True)
    with _signals_raise():
        thread.start()
        while thread.is_alive():
            thread.join(0.2)
    if raised:
        raise first_real_error(raised[0]) from None


def _trainer(config: Config, spec: Spec, scratch: str) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.config import LoggingConfig

    from diurnal.train.worker import work

    workers = config.workers
    resources = {"CPU": workers.cpus, "GPU": float(workers.gpus)}
    return TorchTrainer(
        work,
        train_loop_config={"spec": spec},
        scaling_config=ScalingConfig(num_workers=workers.max, use_gpu=workers.gpus > 0, resources_per_worker=resources),
        run_config=RunConfig(
            name="group",
            storage_path=scratch,
            failure_config=FailureConfig(max_failures=0),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )


def first_real_error(error: BaseException) -> BaseException:
    """A person's fault before anything else, and a broken connection to a dead peer last."""
    from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

    if isinstance(error, ControllerError):
        return WorkerFailed(f"Ray Train's controller: {error.controller_failure}")
    if not isinstance(error, WorkerGroupError):
        return error
    failures = sorted(error.worker_failures.items())
    causes = [(rank, getattr(failure, "_base_exc", failure), failure) for rank, failure in failures]
    for _, cause, _ in causes:
        if isinstance(cause, DiurnalError):
            return cause
    rank, _, failure = min(causes, key=lambda c: _is_echo(c[1]))
    shown = getattr(failure, "_traceback_str", None) or "".join(traceback.format_exception(failure))
    return WorkerFailed(f"rank {rank} failed first (of {len(failures)}):\n{shown}")


def _is_echo(cause: BaseException) -> bool:
    """Whether an error says no more than that another rank went away."""
    text = str(cause).lower()
    return any(sign in text for sign in ("connection closed by peer", "connection reset by peer", "broken pipe"))


@contextmanager
def _signals_raise() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        raise Interrupted(f"stopped by {signal.Signals(number).name}")

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
