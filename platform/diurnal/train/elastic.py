"""The worker group that grows, shrinks and starts again by itself. All use of Ray Train's internals stands here.

Ray Train's controller asks two policies. The one for the size looks at the nodes as they are now, not as they were up
to 20 s ago; leaves out nodes that are being taken away or do not answer; and never ends a healthy group before its
ranks have said that nothing would be lost. The one for failures tells a person's fault, a node that was taken away,
and everything else apart. Both run in the controller's process, where any exception would end the run: what is ours
is guarded, and where it fails Ray's own decision is taken.

The names that are used here are internal to Ray: the version is pinned, and `tests/unit/fitting/test_ray_contract.py`
fails with a clear message where another version differs.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.torch.config import _TorchBackend
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.controller.state import ReschedulingState, RestartingState, RunningState
from ray.train.v2._internal.execution.failure_handling import DefaultFailurePolicy, FailureDecision
from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy, NoopDecision, ScalingDecision
from ray.train.v2.api.config import LoggingConfig
from ray.train.v2.api.exceptions import PreemptionError, TrainingFailedError, WorkerGroupError

from diurnal.config import Config
from diurnal.errors import DiurnalError, ResourceError
from diurnal.train.causes import causes, in_short
from diurnal.train.places import Places, draining_nodes, fits, lost_nodes
from diurnal.train.post import Post
from diurnal.train.spares import Spares, environment, serialized_environment

ENVIRONMENT = {
    # The controller looks at its workers, and asks its policies, this often.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # Of a worker process that no longer answers at all; a step that hangs is found by `workers.stall_s`.
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "120",
    # How long placing may take. The size was chosen because it fits, a longer wait means that it no longer does.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "12",
    # The size policy looks after nodes that are taken away; Ray's watcher would train on until their last second.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
"""To be set before Ray is started or joined."""

LOOK_S = 1.0
"""Between two looks at the nodes while the group is healthy."""
SETTLE_S = 8.0
"""A group trains at least so long before it is ended only to grow."""
SPARES_S = 20.0
"""How long growing waits for processes on the new nodes that have imported everything."""
MARGIN_S = 2.0
"""Before a node's deadline: the group is ended, held or not."""
ALMOST_DONE = 0.99
"""Of an increment's rows: the rest is not worth a new group."""

_log = logging.getLogger(__name__)


def elastic_trainer(
    work: Callable[[dict[str, Any]], None],
    config: Config,
    train_loop_config: dict[str, Any],
    scratch: str,
    mailbox: Any,
) -> TorchTrainer:
    """A trainer whose `fit` runs `work` on `workers.min` to `workers.max` workers until it is done.

    Args:
        scratch: folder for Ray Train's own files.
        mailbox: actor with `status()`, `order(name, on, reason)` and `note(kind, data)`. Notes are of kind "resize",
            "restart" and "waiting", with "from" and "to" (workers), "reason" and "seconds" (since the wish or the
            failure).

    `fit` raises what Ray Train raises: a WorkerGroupError with the workers' errors, or a ControllerError, whose
    `controller_failure` is a ResourceError when `workers.min` found no place within `workers.wait_s`.
    """
    workers = config.workers
    least, most = workers.least, workers.max
    return _Trainer(
        work,
        config=config,
        mailbox=mailbox,
        train_loop_config=train_loop_config,
        torch_config=_Torch(timeout_s=max(60, math.ceil(2 * workers.stall_s))),
        scaling_config=ScalingConfig(
            num_workers=most if least == most else (least, most),
            use_gpu=workers.gpus > 0,
            resources_per_worker={"CPU": workers.cpus, "GPU": float(workers.gpus)},
            elastic_resize_monitor_interval_s=LOOK_S,
        ),
        run_config=RunConfig(
            name="group",
            storage_path=scratch,
            failure_config=FailureConfig(max_failures=workers.max_failures),
            logging_config=LoggingConfig(log_level="ERROR"),
            worker_runtime_env={"env_vars": environment()},
        ),
    )


class _Trainer(TorchTrainer):
    def __init__(self, *args: Any, config: Config, mailbox: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._config = config
        self._mailbox = mailbox

    def _initialize_and_run_controller(self, **controller: Any) -> Any:
        post = Post(self._mailbox)
        controller["scaling_policy"] = SizePolicy(self.scaling_config, self._config, post)
        controller["failure_policy"] = CountedFailures(self._config.workers.max_failures, post)
        # Before the callback that sets up process groups: a group that fails there has to be known.
        controller["callbacks"].insert(0, _Groups(self._config.workers.spares))
        return super()._initialize_and_run_controller(**controller)


class _Backend(_TorchBackend):
    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        """Nothing: the processes end anyway, and a frozen or dead rank would be waited for."""


class _Torch(TorchConfig):
    @property
    def backend_cls(self) -> type[_Backend]:
        return _Backend


@dataclass
class _Wish:
    to: int
    """Workers; 0 when there is no room for a group without the nodes that go: then only to save what is learned."""
    reason: str
    going: frozenset[str] = frozenset()
    """Nodes of the group that are being taken away."""
    by_s: float = math.inf
    """Unix time of the first deadline."""
    since_s: float = 0.0
    is_ordered: bool = False


class SizePolicy(ElasticScalingPolicy):
    """Chooses sizes for elastic and for fixed groups."""

    def __init__(self, scaling_config: ScalingConfig, config: Config, post: Post) -> None:
        super().__init__(scaling_config)
        self._config = config
        self._post = post
        self._wish: _Wish | None = None
        self._saved: frozenset[str] = frozenset()
        self._looked_s = -math.inf
        self._running_since_s = -math.inf
        self._down_since_s: float | None = None
        self._noted_s = -math.inf
        self._reason = "start"
        self._size = 0
        self._has_timed_out = False
        self._num_reserved: tuple[float, int | None] = (-math.inf, None)
        self._spares = Spares()
        self._new_since_s: dict[str, float] = {}

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> ScalingDecision:
        try:
            return self._while_running(worker_group_state)
        except Exception:
            _log.exception("no look at the nodes")
            self._wish_for(None)
            return NoopDecision()

    def make_decision_for_non_running_worker_group(self) -> ScalingDecision:
        try:
            return self._while_down()
        except ResourceError:
            raise
        except Exception:
            _log.exception("no size from the nodes")
            time.sleep(LOOK_S)
            return super().make_decision_for_non_running_worker_group()

    def on_controller_start_worker_group(self, *, scaling_config: Any, num_workers: int) -> None:
        # The ranks that hold are gone only now; the next ones must not find the order.
        self._post.order_hold(False)

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        try:
            self._see(previous_state, current_state)
        except Exception:
            _log.exception("a change of state was not understood")

    def _see(self, previous_state: Any, current_state: Any) -> None:
        if isinstance(current_state, RestartingState | ReschedulingState) and current_state is not previous_state:
            cause = causes(current_state.training_failed_error)[0]
            self._reason = in_short(cause)
            self._has_timed_out = isinstance(cause, WorkerGroupStartupTimeoutError)
        if isinstance(current_state, RunningState) and not isinstance(previous_state, RunningState):
            self._running_since_s = time.monotonic()
            self._down_since_s, self._has_timed_out, self._wish = None, False, None
            self._post.forget()

    def _while_running(self, group: Any) -> ScalingDecision:
        self._maybe_send_resource_request()
        self._size = group.num_workers
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._looked_s = time.monotonic()
            self._wish_for(self._look(Counter(worker.metadata.node_id for worker in group.workers)))
        wish = self._wish
        if wish is None:
            return NoopDecision()
        status = self._post.status()
        is_held = wish.is_ordered and status is not None and status["held"]
        if wish.to and (is_held or time.time() >= wish.by_s - MARGIN_S):
            seconds = time.monotonic() - wish.since_s
            self._post.note("resize", before=self._size, after=wish.to, reason=wish.reason, seconds=seconds)
            self._wish, self._down_since_s, self._reason = None, time.monotonic(), wish.reason
            return self._get_resize_decision(wish.to)
        if is_held:
            self._saved |= wish.going
            self._wish_for(None)
        elif status is not None and status["learning"] and status["share"] < ALMOST_DONE:
            self._order()
        elif status is not None:
            self._withdraw()
        return NoopDecision()

    def _look(self, here: Counter[str]) -> _Wish | None:
        """What a healthy group that has so many workers on these nodes should become."""
        size, draining = here.total(), draining_nodes()
        going = frozenset(here.keys() & draining.keys())
        may_grow = size < self.scaling_config.max_workers and time.monotonic() - self._running_since_s > SETTLE_S
        if not going and not may_grow:
            return None
        places = Places.now(self._config, left_out=draining.keys())
        # Reading tasks come and go on free CPUs: what was ordered is not taken back because of them.
        free_only = self._wish is None or not self._wish.is_ordered
        if size != places.most(here, free_only):
            places = places.answering()
        room = min(places.most(here, free_only), self._limit_of_others(), self.scaling_config.max_workers)
        if going:
            by_s = min((draining[node] / 1000 for node in going if draining[node]), default=math.inf)
            to = room if room >= self.scaling_config.min_workers else 0
            if not to and going <= self._saved:
                return None
            return _Wish(to, f"{len(going)} of {len(here)} nodes are taken away", going, by_s)
        if room > size and self._spares_are_ready(places, here):
            return _Wish(room, f"room for {room - size} more")
        return None

    def _wish_for(self, wish: _Wish | None) -> None:
        """Keeps what was ordered and since when, as long as the wish stays."""
        before = self._wish
        if wish is None:
            self._withdraw()
        else:
            wish.since_s = before.since_s if before is not None else time.monotonic()
            wish.is_ordered = before is not None and before.is_ordered
        self._wish = wish

    def _order(self) -> None:
        wish = self._wish
        if wish is not None and not wish.is_ordered:
            wish.is_ordered = True
            self._post.order_hold(True, wish.reason)
            self._post.forget()

    def _withdraw(self) -> None:
        if self._wish is not None and self._wish.is_ordered:
            self._wish.is_ordered = False
            self._post.order_hold(False)

    def _spares_are_ready(self, places: Places, here: Counter[str]) -> bool:
        """Growing pauses the whole group: it waits until the new nodes have a process that has imported everything."""
        if not self._config.workers.spares:
            return True
        new = [node for node in places.ids() if node not in here]
        for node in new:
            if node not in self._new_since_s:
                self._new_since_s[node] = time.monotonic()
                self._spares.keep(places.nodes[node], places.num_at(node, self.scaling_config.max_workers))
        waited_s = min((time.monotonic() - self._new_since_s[node] for node in new), default=0.0)
        return waited_s > SPARES_S or all(self._spares.ready(node) for node in new)

    def _while_down(self) -> ScalingDecision:
        self._maybe_send_resource_request()
        now_s = time.monotonic()
        self._down_since_s = down_since_s = self._down_since_s or now_s
        scaling = self.scaling_config
        places = Places.now(self._config, left_out=draining_nodes().keys()).answering()
        # Right after a group has ended its places are not free yet in Ray's books, unless placing has just failed.
        most = places.most(Counter(), free_only=self._has_timed_out)
        size = min(most, self._limit_of_others(), scaling.max_workers)
        waited_s = now_s - down_since_s
        if size >= scaling.min_workers and not (self._has_timed_out and waited_s > self._config.workers.wait_s):
            if self._size:
                self._post.note("restart", before=self._size, after=size, reason=self._reason, seconds=waited_s)
            self._has_timed_out = False
            return self._get_resize_decision(size)
        if waited_s > self._config.workers.wait_s:
            raise ResourceError([places.too_few(size, waited_s)])
        if now_s - self._noted_s > 30.0:
            self._noted_s = now_s
            reason = f"room for {size} of at least {scaling.min_workers}"
            self._post.note("waiting", before=self._size, after=size, reason=reason, seconds=waited_s)
        time.sleep(0.3)
        return NoopDecision()

    def _limit_of_others(self) -> int:
        """Workers that other runs and datasets on the cluster leave room for; no limit where that is not known."""
        asked_s, number = self._num_reserved
        if time.monotonic() - asked_s >= LOOK_S:
            try:
                coordinator = self._autoscaling_coordinator
                reference = coordinator.get_reserved_resources.remote(self._requester_id, recompute=True)
                need: Any = self.scaling_config._resources_per_worker_not_none
                reserved: Any = ray.get(reference, timeout=2.0)
                number = sum(fits(node, need) for node in reserved.values())
            except Exception as error:
                _log.warning("no answer from the coordinator: %s", error)
                number = None
            self._num_reserved = (time.monotonic(), number)
        return number or self.scaling_config.max_workers


class CountedFailures(DefaultFailurePolicy):
    """Counts failures since the last commit; neither a lost node nor a lack of room is one."""

    def __init__(self, max_failures: int, post: Post) -> None:
        super().__init__(FailureConfig(max_failures=max_failures))
        self._max_failures = max_failures
        self._post = post
        self._num_failures = 0
        self._num_commits = 0
        self._gone = lost_nodes()

    def make_decision(self, training_failed_error: TrainingFailedError) -> FailureDecision:
        try:
            return self._decide(training_failed_error)
        except Exception:
            _log.exception("no judgement of a failure")
            return super().make_decision(training_failed_error)

    def _decide(self, error: TrainingFailedError) -> FailureDecision:
        behind = causes(error)
        if any(isinstance(cause, DiurnalError) for cause in behind):
            return FailureDecision.RAISE
        before, self._gone = self._gone, self._gone | lost_nodes()
        if self._gone - before or isinstance(error, PreemptionError):
            return FailureDecision.RETRY
        if any(isinstance(cause, WorkerGroupStartupTimeoutError) for cause in behind):
            return FailureDecision.RETRY
        if not isinstance(error, WorkerGroupError) and not isinstance(
            behind[0], WorkerGroupStartupFailedError | RayError
        ):
            return FailureDecision.RAISE
        status = self._post.status(wait_s=2.0) or {}
        if status.get("commits", 0) > self._num_commits:
            self._num_failures, self._num_commits = 0, status["commits"]
        self._num_failures += 1
        is_enough = self._num_failures > self._max_failures
        return FailureDecision.RAISE if is_enough else FailureDecision.RETRY


class _Groups(WorkerGroupCallback):
    """Sees each group start: ends one that failed half-way, and has spare processes made for the next one."""

    def __init__(self, makes_spares: bool) -> None:
        self._group: Any = None
        self._makes_spares = makes_spares
        self._spares = Spares()

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        # Ray forgets a group whose process group could not be set up, with its places still taken.
        group, self._group = self._group, None
        try:
            if group is not None and group.has_started():
                group.get_worker_group_state().shutdown()
        except Exception as error:
            _log.warning("a half-started group was not ended: %s", error)

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._group = worker_group

    def after_worker_group_training_start(self, worker_group: Any) -> None:
        if not self._makes_spares:
            return
        try:
            workers = [(worker.metadata.node_id, worker.metadata.pid) for worker in worker_group.get_workers()]
            asked = worker_group.get_workers()[0].execute_async(serialized_environment)
            self._spares.taken(workers, ray.get(asked, timeout=5.0))
        except Exception as error:
            _log.warning("no spare processes: %s", error)
