"""A worker's model: built and placed on its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from diurnal.checkpoint.state import TrainState
from diurnal.config import Config
from diurnal.data.encode import count_names
from diurnal.data.objects import Place
from diurnal.data.reader import BatchReader
from diurnal.data.streams import StreamPlan
from diurnal.model.dlrm import build_dlrm
from diurnal.model.optim import Schedule
from diurnal.sharding.parallel import Parallel, parallelize
from diurnal.sharding.planned import planned
from diurnal.sharding.topology import Topology
from diurnal.train.pipeline import Feed


@dataclass
class Learner:
    """One rank's share of a model in training."""

    config: Config
    state: TrainState
    device: torch.device
    schedule: Schedule

    @property
    def parallel(self) -> Parallel:
        return self.state.parallel

    @property
    def rank(self) -> int:
        return self.state.rank

    @property
    def world_size(self) -> int:
        return self.state.world_size

    @property
    def count_names(self) -> tuple[str, ...]:
        return count_names(self.config.dataset)

    def lr_factor(self) -> float:
        return self.schedule.factor(self.state.global_step)

    def feed(self, plan: StreamPlan, first_step: int = 0) -> Feed:
        """Starts to read this rank's batches of an increment, or of the rest of it."""
        reader = BatchReader(
            plan,
            self.config.dataset,
            rank=self.rank,
            world_size=self.world_size,
            start_step=first_step,
            read_cpus=self.config.data.read_cpus,
            node_labels=self.config.data.node_labels,
        )
        return Feed(reader, self.device, first_step)

    def describe(self) -> dict[str, Any]:
        """The plan and the hyper-parameters that are really used, of all ranks. A collective call."""
        used: list[dict[str, Any]] = [{}] * self.world_size
        dist.all_gather_object(used, self.parallel.hyperparameters())
        merged = {kind: numbers for ranks in reversed(used) for kind, numbers in ranks.items()}
        return {
            "plan": str(self.parallel.plan.report),
            "hyperparameters": merged,
            "world_size": self.world_size,
        }


def build_learner(config: Config, device: torch.device, plans: Place | None = None) -> Learner:
    """A model with its starting values, spread over the ranks of the process group. A collective call.

    Args:
        plans: folder of the plans that were made before.
    """
    if config.workers.threads:
        torch.set_num_threads(config.workers.threads)
    topology = Topology.of_process_group("cuda" if device.type == "cuda" else "cpu")
    plan = planned(config, topology, plans)
    model = build_dlrm(config, device)
    parallel = parallelize(config, model, device, plan)
    return Learner(config, TrainState(parallel), device, Schedule(config.optim.schedule))
