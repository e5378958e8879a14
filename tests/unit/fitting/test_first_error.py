from __future__ import annotations

import pickle

from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from diurnal.errors import DataError, Fault
from diurnal.train.interrupt import WorkerFailed, first_real_error

CLOSED = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242")


def test_the_error_is_the_first_real_one_and_not_its_echo() -> None:
    """ray-project/ray#41973: one worker's error showed up only as its peers' broken connections."""
    boom = ValueError("boom")
    boom.add_note("Traceback: step 3")
    error = first_real_error(WorkerGroupError("text", {0: CLOSED, 1: boom}))
    assert isinstance(error, WorkerFailed)
    assert "rank 1" in str(error)
    assert "boom" in str(error)
    assert "step 3" in str(error)


def test_a_persons_fault_comes_through_as_it_is() -> None:
    fault = DataError([Fault("file: column label", "7", "0 or 1", "mend it")])
    error = first_real_error(WorkerGroupError("text", {0: ValueError("other"), 1: pickle.loads(pickle.dumps(fault))}))
    assert isinstance(error, DataError)
    assert error.faults == fault.faults


def test_what_ray_itself_came_across_is_said() -> None:
    assert "no room" in str(first_real_error(ControllerError(RuntimeError("no room"))))
    other = KeyError("x")
    assert first_real_error(other) is other
