"""A worker's model: built and placed on its ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from diurnal.config import Config
from diurnal.data.encode import count_names
from diurnal.data.reader import BatchReader
from diurnal.data.streams import StreamPlan
from diurnal.model.dlrm import build_dlrm
from diurnal.model.optim import Schedule
from diurnal.sharding.parallel import Parallel, parallelize
from diurnal.sharding.plan import make_plan
from diurnal.sharding.topology import Topology
from diurnal.train.pipeline import Feed


@dataclass
class Learner:
    """One rank's share of a model in training."""

    config: Config
    parallel: Parallel
    rank: int
    world_size: int
    device: torch.device
    schedule: Schedule
    global_step: int = 0
    """Steps that changed the model, over the whole lineage of versions."""

    @property
    def count_names(self) -> tuple[str, ...]:
        return count_names(self.config.dataset)

    def lr_factor(self) -> float:
        return self.schedule.factor(self.global_step)

    def feed(self, plan: StreamPlan) -> Feed:
        """Starts to read this rank's batches of an increment."""
        reader = BatchReader(
            plan,
            self.config.dataset,
            rank=self.rank,
            world_size=self.world_size,
            read_cpus=self.config.data.read_cpus,
        )
        return Feed(reader, self.device)
