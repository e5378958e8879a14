"""Which rows of a batch belong to a segment: those with one certain id of a feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass(frozen=True)
class Segment:
    """The rows whose first id of a sparse feature lies at one row of its table."""

    name: str
    feature: str
    table_row: int


def segment_rows(sparse: KeyedJaggedTensor, segments: Sequence[Segment]) -> torch.Tensor:
    """(len(segments), B) bool on the batch's device; a row without an id is in no segment. Never waits for the device.

    Raises:
        KeyError: when a feature is not in the batch.
    """
    lengths, values = sparse.lengths(), sparse.values()
    stride = sparse.stride()
    rows = torch.zeros((len(segments), stride), dtype=torch.bool, device=values.device)
    if not stride or not len(values):
        return rows
    starts = lengths.cumsum(0) - lengths
    column = {key: slice(k * stride, (k + 1) * stride) for k, key in enumerate(sparse.keys())}
    for s, segment in enumerate(segments):
        mine = column[segment.feature]
        first = values[starts[mine].clamp_max(len(values) - 1)]
        rows[s] = (lengths[mine] > 0) & (first == segment.table_row)
    return rows
