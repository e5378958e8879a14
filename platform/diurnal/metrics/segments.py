"""Which rows of a batch belong to a segment: those with one certain id of a feature; and which id each row has."""

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
    ids = {feature: first_ids(sparse, feature) for feature in {segment.feature for segment in segments}}
    rows = torch.zeros((len(segments), sparse.stride()), dtype=torch.bool, device=sparse.values().device)
    for s, segment in enumerate(segments):
        rows[s] = ids[segment.feature] == segment.table_row
    return rows


def first_ids(sparse: KeyedJaggedTensor, feature: str) -> torch.Tensor:
    """(B,) int64 table row of the first id of each row, -1 where it has none; never waits for the device.

    Raises:
        KeyError: when the feature is not in the batch.
    """
    lengths, values, stride = sparse.lengths(), sparse.values(), sparse.stride()
    place = {key: k * stride for k, key in enumerate(sparse.keys())}[feature]
    if not stride or not len(values):
        return torch.full((stride,), -1, dtype=torch.int64, device=values.device)
    starts = lengths.cumsum(0) - lengths
    mine = slice(place, place + stride)
    first = values[starts[mine].clamp_max(len(values) - 1)].to(torch.int64)
    return first.where(lengths[mine] > 0, -1)
