"""A finished local batch as tensors: the one file of this room that imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from diurnal.data.packed import PackedBatch


@dataclass
class Batch:
    """B rows of one rank and step; B is the same on every rank and in every step of an increment.

    The first `num_rows` rows are real, the others padding: weight 0, label 0, no ids, row index -1.
    """

    dense: torch.Tensor
    """(B, num_dense) float32."""
    sparse: KeyedJaggedTensor
    """Keys are the names of `schema.sparse`, in that order; int64 values (table rows), int32 lengths, stride B; and
    float32 weights where the ids of some feature have them."""
    labels: torch.Tensor
    """(B,) float32: 0 or 1."""
    weights: torch.Tensor
    """(B,) float32; 0 in padding, and in no real row unless the dataset says so."""
    row_index: torch.Tensor
    """(B,) int64 position in the increment, in file order; -1 in padding. It stays on the host."""
    step: int
    """Global step within the increment, from 0."""
    num_rows: int
    """Real rows, 0 to B."""
    counts: np.ndarray
    """int64, in the order of `encode.count_names(schema)`: what encoding these rows came across."""
    watermark_us: int | None = None
    """Newest event time of the real rows, microseconds since 1970 UTC; None without rows or event times."""
    groups: np.ndarray | None = None
    """(B,) uint64 hashes of the groups that GAUC is about, or `encoded.NO_GROUP`; None without rows or groups. They
    stay on the host."""
    task_labels: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0))
    """(T, B) float32, in the order of `schema.tasks`: 0, 1, or NaN where a row lacks the outcome, and in padding."""
    kept_negatives: float = 1.0
    """Share of the increment's negatives that is among the rows it learns, on average; see `data.negatives`."""

    @property
    def metric_weights(self) -> torch.Tensor:
        """(B,) float32: `weights`, and more for negatives that stand for others, which are not learned: sums over these
        rows estimate those over all rows, without bias."""
        if self.kept_negatives == 1:
            return self.weights
        return torch.where(self.labels > 0.5, self.weights, self.weights / self.kept_negatives)

    @property
    def batch_rows(self) -> int:
        return self.labels.shape[0]

    @staticmethod
    def from_packed(packed: PackedBatch, keys: Sequence[str], kept_negatives: float = 1.0) -> Batch:
        """Copies what lies in read-only shared memory, so that tensors are writable and that memory is free again."""
        return Batch(
            dense=_tensor(packed.dense),
            sparse=KeyedJaggedTensor(
                keys=list(keys),
                values=_tensor(packed.values, np.int64),
                weights=_tensor(packed.id_weights[0]) if len(packed.id_weights) else None,
                lengths=_tensor(packed.lengths, np.int32).view(-1),
                stride=len(packed.labels),
            ),
            labels=_tensor(packed.labels),
            task_labels=_tensor(packed.task_labels),
            weights=_tensor(packed.weights),
            row_index=_tensor(packed.row_index),
            step=packed.step,
            num_rows=packed.num_rows,
            counts=packed.counts.copy(),
            watermark_us=packed.watermark_us,
            groups=packed.groups.copy() if len(packed.groups) else None,
            kept_negatives=kept_negatives,
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        device = torch.device(device)
        return replace(
            self,
            dense=self.dense.to(device, non_blocking=non_blocking),
            sparse=self.sparse.to(device, non_blocking=non_blocking),
            labels=self.labels.to(device, non_blocking=non_blocking),
            task_labels=self.task_labels.to(device, non_blocking=non_blocking),
            weights=self.weights.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Batch:
        return replace(
            self,
            dense=self.dense.pin_memory(),
            sparse=self.sparse.pin_memory(),
            labels=self.labels.pin_memory(),
            task_labels=self.task_labels.pin_memory(),
            weights=self.weights.pin_memory(),
        )

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Tells the allocator that `stream` still reads these tensors (TorchRec's `Pipelineable`)."""
        for tensor in (self.dense, self.labels, self.task_labels, self.weights):
            tensor.record_stream(stream)
        self.sparse.record_stream(stream)


def _tensor(array: np.ndarray, dtype: type[np.generic] | None = None) -> torch.Tensor:
    return torch.from_numpy(array.astype(dtype or array.dtype, copy=not array.flags.writeable))
