"""The names inside Ray that the elastic worker group is built on. Where this fails, Ray was changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_rays_internals_are_what_the_policies_assume() -> None:
    """Where this fails, Ray was changed: read the code of the new version, then `train/elastic.py` again."""
    from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import _AutoscalingCoordinatorActor
    from ray.data._internal.stats import get_or_create_stats_actor
    from ray.data._internal.usage.collector import usage_collection_disabled
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.torch.config import _TorchBackend
    from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE
    from ray.train.v2._internal.execution import callback
    from ray.train.v2._internal.execution.controller import controller
    from ray.train.v2._internal.execution.controller.state import ReschedulingState, RestartingState
    from ray.train.v2._internal.execution.failure_handling import DefaultFailurePolicy, FailureDecision
    from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy, NoopDecision, ResizeDecision
    from ray.train.v2._internal.execution.worker_group import worker_group
    from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

    from diurnal.train.elastic import ENVIRONMENT

    policy = ElasticScalingPolicy
    assert set(ENVIRONMENT) <= ENV_VARS_TO_PROPAGATE
    assert parameters(policy.__init__) == ["self", "scaling_config"]
    assert parameters(policy.make_decision_for_non_running_worker_group) == ["self"]
    running = ["self", "worker_group_state", "worker_group_status"]
    assert parameters(policy.make_decision_for_running_worker_group) == running
    assert parameters(policy.after_controller_state_update) == ["self", "previous_state", "current_state"]
    assert parameters(policy.on_controller_start_worker_group) == ["self", "scaling_config", "num_workers"]
    assert parameters(policy._get_resize_decision) == ["self", "num_workers"]
    assert parameters(policy._maybe_send_resource_request) == ["self"]
    assert isinstance(policy._autoscaling_coordinator, property)
    assert parameters(NoopDecision) == []
    assert parameters(ResizeDecision) == ["num_workers", "resources_per_worker"]
    assert "recompute" in parameters(_AutoscalingCoordinatorActor.get_reserved_resources)
    assert parameters(DefaultFailurePolicy.make_decision) == ["self", "training_failed_error"]
    assert {"RETRY", "RAISE"} <= set(FailureDecision.__members__)
    assert parameters(RestartingState) == parameters(ReschedulingState) == ["training_failed_error"]
    assert parameters(WorkerGroupError) == ["error_message", "worker_failures"]
    assert parameters(ControllerError) == ["controller_failure"]
    given = {"scaling_policy", "failure_policy", "callbacks"}
    assert given <= set(parameters(controller.TrainController.__init__))
    source = inspect.getsource(TorchTrainer.fit)
    assert all(f"{name}=" in source for name in given)
    assert parameters(TorchTrainer._initialize_and_run_controller) == ["self", "controller_init_kwargs"]
    for hook in ("before_worker_group_start", "after_worker_group_start", "after_worker_group_training_start"):
        assert hasattr(callback.WorkerGroupCallback, hook)
        assert f"callback.{hook}(" in inspect.getsource(worker_group.WorkerGroup._start_impl)
    assert "self._scaling_policy," in inspect.getsource(controller.TrainController.__init__)
    assert parameters(_TorchBackend.on_shutdown) == ["self", "worker_group", "backend_config"]
    assert "RAY_DATA_USAGE_DISABLED" in inspect.getsource(usage_collection_disabled)
    stats = inspect.getsource(get_or_create_stats_actor)
    assert all(part in stats for part in ("get_if_exists=True", 'lifetime="detached"', "get_node_id()"))
    assert isinstance(TorchConfig.backend_cls, property)


def test_the_leak_of_a_half_started_group_is_still_rays() -> None:
    """Fails once Ray cleans up by itself: then `_Groups.before_worker_group_start` can go."""
    from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

    source = inspect.getsource(WorkerGroup._start)
    assert "if not self.has_started():" in source


def test_the_raylet_starts_processes_ahead_as_assumed() -> None:
    from ray._private.ray_constants import WORKER_PROCESS_SETUP_HOOK_ENV_VAR
    from ray._private.runtime_env.setup_hook import load_and_execute_setup_hook
    from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

    from diurnal.train import spares

    messages: Any = node_manager_pb2
    asked = {"language", "job_id", "runtime_env_info", "keep_alive_duration_secs", "num_workers"}
    assert asked <= set(messages.PrestartWorkersRequest.DESCRIPTOR.fields_by_name)
    assert "PrestartWorkers" in inspect.getsource(node_manager_pb2_grpc.NodeManagerServiceStub)
    name, *_ = spares.environment()
    assert name == WORKER_PROCESS_SETUP_HOOK_ENV_VAR
    assert parameters(load_and_execute_setup_hook) == ["worker_process_setup_hook_key"]
    assert callable(getattr(spares, spares.environment()[name].rpartition(".")[2]))
