"""What each Ray Train worker runs. Heavy imports come after the versions were compared."""

from __future__ import annotations

import time
import traceback
from typing import Any

import ray.train

from diurnal.errors import Fault, StackError
from diurnal.stack import library_versions
from diurnal.train.spec import Spec


def work(task: dict[str, Any]) -> None:
    """Fits or scores all increments of `task["spec"]`."""
    entered_s = time.time()
    spec: Spec = task["spec"]
    _refuse_mixed_versions(spec.versions)
    from diurnal.train.sequence import Sequence

    sequence = Sequence(spec, ray.train.get_context().get_world_rank(), entered_s, imported_s=time.time())
    try:
        sequence.evaluate() if spec.mode == "evaluate" else sequence.train()
    except Exception as error:
        # Ray Train hands the driver the bare exception; where it was raised would be lost.
        error.add_note(traceback.format_exc())
        raise


def _refuse_mixed_versions(driver: dict[str, str]) -> None:
    here = library_versions()
    faults = [
        Fault(f"worker: {name}", here.get(name, "not installed"), f"the driver's version, {version}", "use one image")
        for name, version in driver.items()
        if here.get(name) != version
    ]
    if faults:
        raise StackError(faults)
