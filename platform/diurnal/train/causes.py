"""What is behind the errors that Ray Train's controller hands on."""

from __future__ import annotations

from typing import Any

from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError, WorkerGroupError

from diurnal.train.interrupt import is_echo


def causes(error: TrainingFailedError) -> list[BaseException]:
    """What was raised; what only says that another rank went away comes last."""
    if isinstance(error, WorkerGroupError):
        failures: Any = error.worker_failures
        return sorted((getattr(failure, "_base_exc", failure) for failure in failures.values()), key=is_echo)
    return [error.controller_failure] if isinstance(error, ControllerError) else [error]


def in_short(error: BaseException) -> str:
    # Of a process that died, Ray says why last.
    died = getattr(error, "health_check_failure", None)
    lines = str(died or error).strip().splitlines() or [""]
    return f"worker died: {lines[-1]}"[:300] if died else f"{type(error).__name__}: {lines[0]}"[:300]
