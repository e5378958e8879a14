"""The gradients of all that every rank holds, in one buffer that is averaged by one all-reduce.

Instead of DistributedDataParallel: it lays its buckets out anew after the first step of a process, and with three ranks
or more another layout adds in another order, so that a resumed run would not repeat an unbroken one bit for bit.
The replicated part of a DLRM is small: there is little to overlap with backward, and one message costs less than many.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist


class FlatGradients:
    """Every parameter's `grad` becomes a view of one buffer, into which backward adds."""

    def __init__(self, parameters: Iterable[torch.Tensor], group: dist.ProcessGroup) -> None:
        parameters = list(parameters)
        self._group = group
        self._world_size = dist.get_world_size(group)
        self._buffer = torch.zeros(sum(p.numel() for p in parameters), device=parameters[0].device)
        for parameter, view in zip(parameters, self._buffer.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = view.view_as(parameter)

    def zero(self) -> None:
        self._buffer.zero_()

    def average(self) -> None:
        """Over the ranks. A collective call."""
        if self._world_size > 1:
            dist.all_reduce(self._buffer, group=self._group)
            self._buffer.div_(self._world_size)
