"""What is measured on every rank while an increment is fitted, for versions to be judged by.

The version to compare with, and the version that is judged, score the same rows, which neither has learned. Their sums
go into the commit of the version that the increment ends in, so that judging needs no worker, whatever dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist

from diurnal.data.batch import Batch
from diurnal.metrics.blocks import BlockSums, Evidence
from diurnal.metrics.segments import Segment, segment_rows
from diurnal.train.spec import Fit

Who = Literal["baseline", "parent"]
What = Literal["whole", "slice"]

BASELINE, JUDGED = "baseline", "judged"
"""Keys of what was measured: number and evidence of the two versions."""
TABLES = "tables"
"""Key of what was measured: health of the tables and MLPs of the version that the increment ends in."""


def rounds(fit: Fit, has_parent: bool) -> list[tuple[Who, What]]:
    """Which version scores which rows before the increment is learned, in this order."""
    if not has_parent:
        return []
    if fit.trial is None:
        return [("parent", "whole")]
    if fit.trial.slice is not None:
        return [("baseline", "whole"), ("baseline", "slice")]
    is_parent = fit.trial.baseline == fit.parent
    return [("parent", "whole")] if is_parent else [("baseline", "whole"), ("parent", "whole")]


class TrialSums:
    """The sums of one pass on this rank.

    Args:
        num_rows: of the whole pass, all ranks together.
    """

    def __init__(self, num_rows: int, segments: Sequence[Segment], device: torch.device) -> None:
        self._segments = segments
        self._sums = BlockSums(num_rows, [segment.name for segment in segments], device=device)

    def update(self, logits: torch.Tensor, batch: Batch) -> None:
        """Adds the rows of a batch: (B,) logits."""
        masks = segment_rows(batch.sparse, self._segments) if self._segments else None
        self._sums.update(logits, batch.labels, batch.weights, batch.row_index, masks)

    def evidence(self) -> Evidence:
        """The sums of all ranks. A collective call."""
        vector = self._sums.to_vector()
        dist.all_reduce(vector)
        return BlockSums.from_vector(vector, self._sums.num_rows, self._sums.segments[1:]).evidence()
