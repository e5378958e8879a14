"""Runs Ray Train's trainer: a signal ends it in bounded time, and the first real error is the one that is seen."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from diurnal.errors import DiurnalError


class Interrupted(KeyboardInterrupt):
    """The driver was asked to stop by SIGTERM or SIGINT."""


class WorkerFailed(RuntimeError):
    """A worker raised something that is no person's fault."""


def fit_until_interrupted(trainer: Any, grace_s: float, stop: Callable[[str], None], check: Callable[[], None]) -> None:
    """Runs worker groups to their end.

    Args:
        trainer: Ray Train's.
        grace_s: after a signal, how long workers may take to commit what they have learned.
        stop: orders them to.
        check: called a few times a second; what it raises ends the run.

    Raises:
        DiurnalError: what a worker raised, when it is a person's fault.
        WorkerFailed: the first other error of a worker, with its rank and traceback.
        Interrupted: on SIGTERM or SIGINT; ending the Ray session ends the workers.
    """
    raised: list[BaseException] = []

    def fit() -> None:
        try:
            trainer.fit()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=fit, name="diurnal-fit", daemon=True)
    with _signals() as received:
        thread.start()
        until_s: float | None = None
        while thread.is_alive():
            thread.join(0.1)
            check()
            if received and until_s is None:
                until_s = time.monotonic() + grace_s
                stop(received[0])
            if until_s is not None and (time.monotonic() > until_s or len(received) > 1):
                break
        if received:
            raise Interrupted(f"stopped by {received[0]}")
    check()
    if raised:
        raise first_real_error(raised[0]) from None


def first_real_error(error: BaseException) -> BaseException:
    """A person's fault before anything else, and a broken connection to a dead peer last."""
    from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

    if isinstance(error, ControllerError):
        cause = error.controller_failure
        return cause if isinstance(cause, DiurnalError) else WorkerFailed(f"Ray Train's controller: {cause}")
    if not isinstance(error, WorkerGroupError):
        return error
    failures = sorted(error.worker_failures.items())
    causes = [(rank, getattr(failure, "_base_exc", failure), failure) for rank, failure in failures]
    for _, cause, _ in causes:
        if isinstance(cause, DiurnalError):
            return cause
    rank, _, failure = min(causes, key=lambda c: is_echo(c[1]))
    shown = getattr(failure, "_traceback_str", None) or "".join(traceback.format_exception(failure))
    return WorkerFailed(f"rank {rank} failed first (of {len(failures)}):\n{shown}")


def is_echo(cause: BaseException) -> bool:
    """Whether an error says no more than that another rank went away."""
    text = str(cause).lower()
    return any(sign in text for sign in ("connection closed by peer", "connection reset by peer", "broken pipe"))


@contextmanager
def _signals() -> Iterator[list[str]]:
    """The names of the signals that arrive meanwhile."""
    received: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _: FrameType | None) -> None:
        received.append(signal.Signals(number).name)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
