"""The machines that a model is spread over."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Topology:
    """W ranks, some of which share a machine; a plan can be made for a cluster that is not there."""

    world_size: int
    local_world_size: int = 0
    """Ranks of one machine; all of them, when 0, and on CPU always: where ranks land differs from one start of a run to
    the next, and nothing but estimates of speed would depend on it."""
    device: Literal["cpu", "cuda"] = "cpu"
    table_bytes_per_rank: int = 0
    """Memory for tables and their moments on each rank; when 0, the planner's assumption (32 GiB on a GPU, 128 GiB on a
    CPU)."""

    def __post_init__(self) -> None:
        assert self.world_size >= 1, self
        if not self.local_world_size or self.device == "cpu":
            object.__setattr__(self, "local_world_size", self.world_size)

    @staticmethod
    def of_process_group(device: Literal["cpu", "cuda"] = "cpu") -> Topology:
        """The topology of the process group that this process is in, as its launcher describes it."""
        import torch.distributed as dist

        return Topology(dist.get_world_size(), int(os.environ.get("LOCAL_WORLD_SIZE", "0")), device)
