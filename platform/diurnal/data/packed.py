"""A finished local batch as NumPy arrays, and as the one row of an Arrow block that crosses processes uncopied."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from diurnal.data.encoded import Encoded

_SCALARS = ("step", "num_rows", "num_features", "watermark_us")
_ARRAYS: dict[str, type[np.generic]] = {
    "dense": np.float32,
    "values": np.int32,
    "lengths": np.uint8,
    "labels": np.float32,
    "weights": np.float32,
    "row_index": np.int64,
    "counts": np.int64,
}
_BLOCK = pa.schema([(n, pa.int64()) for n in _SCALARS] + [(n, pa.large_binary()) for n in (*_ARRAYS, "error")])


@dataclass(frozen=True)
class PackedBatch:
    """What one rank trains on in one step: B rows, first the real ones, then padding of weight 0 without ids.

    Legend: B rows, D dense features, F sparse features, N ids.
    """

    step: int
    """Global step within the increment, from 0."""
    num_rows: int
    """Real rows, 0 to B."""
    dense: np.ndarray
    """(B, D) float32."""
    values: np.ndarray
    """(N,) int32 table rows: all ids of the first feature, row by row, then those of the next."""
    lengths: np.ndarray
    """(F, B) ids per row: uint8, or int32 if a row has more than 255."""
    labels: np.ndarray
    """(B,) float32: 0 or 1."""
    weights: np.ndarray
    """(B,) float32; 0 in padding."""
    row_index: np.ndarray
    """(B,) int64 position in the increment, in file order; -1 in padding."""
    counts: np.ndarray
    """int64, in the order of `encode.count_names`."""
    watermark_us: int | None
    """Newest event time of the real rows, microseconds since 1970 UTC; None without one."""

    @property
    def num_features(self) -> int:
        return len(self.lengths)

    @staticmethod
    def pack(parts: Sequence[tuple[Encoded, np.ndarray]], step: int, batch_rows: int) -> PackedBatch:
        """Joins one or more parts, each with the positions of its rows, and pads."""
        encoded = [part for part, _ in parts]
        marks = [mark for part in encoded if (mark := part.watermark_us) is not None]
        num_rows = sum(part.num_rows for part in encoded)
        return PackedBatch(
            step=step,
            num_rows=num_rows,
            dense=_padded([part.dense for part in encoded], batch_rows),
            values=np.concatenate([part.ids[f] for f in range(len(encoded[0].ids)) for part in encoded]),
            lengths=_padded([part.lengths for part in encoded], batch_rows, axis=1),
            labels=_padded([part.labels for part in encoded], batch_rows),
            weights=_padded([part.weights for part in encoded], batch_rows),
            row_index=_padded([index for _, index in parts], batch_rows, fill=-1),
            counts=np.sum([part.counts for part in encoded], axis=0),
            watermark_us=max(marks, default=None),
        )

    def to_block(self) -> pa.Table:
        """One row; each array is one binary value around the array's own memory."""
        columns: list[pa.Array] = [pa.array([getattr(self, name)], pa.int64()) for name in _SCALARS]
        for name in _ARRAYS:
            array: np.ndarray = getattr(self, name)
            offsets = pa.py_buffer(np.array([0, array.nbytes], np.int64))
            columns.append(pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(array)]))
        return pa.Table.from_arrays([*columns, pa.nulls(1, pa.large_binary())], schema=_BLOCK)

    @staticmethod
    def from_block(block: pa.Table) -> PackedBatch:
        """Views of the block's memory, which is read-only.

        Raises:
            Exception: the one that the block carries in the place of a batch.
        """
        error = block["error"][0].as_py()
        if error is not None:
            raise pickle.loads(error)
        fields: dict[str, Any] = {name: block[name][0].as_py() for name in _SCALARS}
        for name, dtype in _ARRAYS.items():
            fields[name] = np.frombuffer(block[name][0].as_buffer(), dtype)
        rows, num_features, lengths = len(fields["labels"]), fields.pop("num_features"), fields["lengths"]
        if len(lengths) > rows * num_features:
            lengths = lengths.view(np.int32)
        fields["dense"] = fields["dense"].reshape(rows, -1)
        fields["lengths"] = lengths.reshape(num_features, rows)
        return PackedBatch(**fields)


def error_block(error: Exception) -> pa.Table:
    """A block that carries an error in the place of a batch."""
    return pa.Table.from_pylist([{"error": pickle.dumps(error)}], schema=_BLOCK)


def _padded(parts: list[np.ndarray], rows: int, axis: int = 0, fill: int = 0) -> np.ndarray:
    shape = list(parts[0].shape)
    shape[axis] = rows
    joined = np.empty(shape, np.result_type(*parts))
    along = np.moveaxis(joined, axis, 0)
    stop = 0
    for part in parts:
        start, stop = stop, stop + part.shape[axis]
        along[start:stop] = np.moveaxis(part, axis, 0)
    along[stop:] = fill
    return joined
