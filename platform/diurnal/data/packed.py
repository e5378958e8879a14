"""A finished local batch: NumPy views of one buffer, which crosses processes as a single value of an Arrow block."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

import numpy as np
import pyarrow as pa

from diurnal.data.encoded import NO_GROUP, NO_TIME, Encoded

_HEADER = ("step", "num_rows", "watermark_us", "B", "D", "F", "N", "C", "G", "T", "W", "length_bytes")
_ALIGN = 64
_BLOCK = pa.schema([("batch", pa.large_binary()), ("error", pa.large_binary())])


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """What one rank trains on in one step: B rows, first the real ones, then padding of weight 0 without ids.

    Legend: B rows, D dense features, F sparse features, N ids, C counts, T tasks, G rows with the hash of a group: B or
    0, W weights of an id: 1, or 0 where none has weights.
    """

    buffer: np.ndarray
    """uint8: a header and the arrays below."""
    step: int
    """Global step within the increment, from 0."""
    num_rows: int
    """Real rows, 0 to B."""
    watermark_us: int | None
    """Newest event time of the real rows, microseconds since 1970 UTC; None without one."""
    dense: np.ndarray
    """(B, D) float32."""
    values: np.ndarray
    """(N,) int32 table rows: all ids of the first feature, row by row, then those of the next."""
    id_weights: np.ndarray
    """(W, N) float32 weights of the ids in `values`."""
    lengths: np.ndarray
    """(F, B) ids per row: uint8, or int32 if a row has more than 255."""
    labels: np.ndarray
    """(B,) float32: 0 or 1."""
    task_labels: np.ndarray
    """(T, B) float32: 0, 1, or NaN where a row lacks the outcome, and in padding."""
    weights: np.ndarray
    """(B,) float32; 0 in padding."""
    row_index: np.ndarray
    """(B,) int64 position in the increment, in file order; -1 in padding."""
    groups: np.ndarray
    """(G,) uint64 hashes of groups, or `NO_GROUP`; none when the schema declares no group, or no row is real."""
    counts: np.ndarray
    """(C,) int64, in the order of `encode.count_names`."""

    @staticmethod
    def pack(parts: Sequence[tuple[Encoded, np.ndarray]], step: int, batch_rows: int) -> PackedBatch:
        """Joins one or more parts, each with the positions of its rows, and pads."""
        encoded = [part for part, _ in parts]
        marks = [mark for part in encoded if (mark := part.watermark_us) is not None]
        ids = [part.ids[f] for f in range(len(encoded[0].ids)) for part in encoded]
        counts = [part.counts for part in encoded]
        groups = [part.groups for part in encoded if part.groups is not None]
        header: dict[str, int] = {
            "step": step,
            "num_rows": sum(part.num_rows for part in encoded),
            "watermark_us": max(marks, default=NO_TIME),
            "B": batch_rows,
            "D": encoded[0].dense.shape[1],
            "F": len(encoded[0].ids),
            "N": sum(map(len, ids)),
            "C": len(counts[0]),
            "G": batch_rows if groups else 0,
            "T": len(encoded[0].task_labels),
            "W": int(bool(encoded[0].id_weights)),
            "length_bytes": max(part.lengths.itemsize for part in encoded),
        }
        layout, size = _layout(header)
        buffer = np.empty(size, np.uint8)
        buffer[: 8 * len(_HEADER)].view(np.int64)[:] = list(header.values())
        packed = _view(buffer, header, layout)
        _join([part.dense for part in encoded], packed.dense)
        np.concatenate(ids, out=packed.values)
        for of_ids in packed.id_weights:
            features = range(len(encoded[0].ids))
            np.concatenate([part.id_weights[f] for f in features for part in encoded], out=of_ids)
        _join([part.lengths.T for part in encoded], packed.lengths.T)
        _join([part.labels for part in encoded], packed.labels)
        _join([part.task_labels.T for part in encoded], packed.task_labels.T, padding=np.nan)
        _join([part.weights for part in encoded], packed.weights)
        _join([row_index for _, row_index in parts], packed.row_index, padding=-1)
        _join(groups, packed.groups, padding=NO_GROUP)
        np.sum(counts, axis=0, out=packed.counts)
        return packed

    @staticmethod
    def from_buffer(buffer: np.ndarray) -> PackedBatch:
        header: dict[str, int] = dict(zip(_HEADER, buffer[: 8 * len(_HEADER)].view(np.int64).tolist(), strict=True))
        return _view(buffer, header, _layout(header)[0])

    def to_block(self) -> pa.Table:
        """One row, around the buffer's own memory."""
        offsets = pa.py_buffer(np.array([0, len(self.buffer)], np.int64))
        value = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(self.buffer)])
        return pa.Table.from_arrays([value, pa.nulls(1, pa.large_binary())], schema=_BLOCK)


def error_block(error: Exception) -> pa.Table:
    """A row that carries an error in the place of a batch."""
    return pa.Table.from_pylist([{"error": pickle.dumps(error)}], schema=_BLOCK)


def read_block(block: pa.Table) -> Iterator[PackedBatch]:
    """The batches of a block, read-only views of its memory.

    Raises:
        Exception: the one that a row carries in the place of a batch.
    """
    for rows in block.to_batches():
        batches, errors = rows.columns
        _, offsets, data = batches.buffers()  # to ask for a value would copy it
        stops = np.frombuffer(offsets, np.int64, len(batches) + 1, batches.offset * 8)
        for error, (start, stop) in zip(errors, pairwise(stops), strict=True):
            if error.is_valid:
                raise pickle.loads(error.as_py())
            yield PackedBatch.from_buffer(np.frombuffer(data, np.uint8, stop - start, start))


Layout = dict[str, tuple[int, np.dtype, tuple[int, ...]]]


def _layout(header: dict[str, int]) -> tuple[Layout, int]:
    """Where each array begins in the buffer, its type and shape; and the size of the buffer."""
    b, d, f, n, c, g, t, w = (header[name] for name in "BDFNCGTW")
    arrays: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        "dense": (np.float32, (b, d)),
        "values": (np.int32, (n,)),
        "id_weights": (np.float32, (w, n)),
        "lengths": (np.uint8 if header["length_bytes"] == 1 else np.int32, (f, b)),
        "labels": (np.float32, (b,)),
        "task_labels": (np.float32, (t, b)),
        "weights": (np.float32, (b,)),
        "row_index": (np.int64, (b,)),
        "groups": (np.uint64, (g,)),
        "counts": (np.int64, (c,)),
    }
    sizes = [prod(shape) * np.dtype(dtype).itemsize for dtype, shape in arrays.values()]
    starts = list(accumulate([0, 8 * len(_HEADER), *sizes], lambda at, size: -(-(at + size) // _ALIGN) * _ALIGN))[1:]
    places = zip(arrays.items(), starts, strict=False)
    return {name: (start, np.dtype(dtype), shape) for (name, (dtype, shape)), start in places}, starts[-1]


def _view(buffer: np.ndarray, header: dict[str, int], layout: Layout) -> PackedBatch:
    watermark_us = header["watermark_us"]
    return PackedBatch(
        buffer=buffer,
        step=header["step"],
        num_rows=header["num_rows"],
        watermark_us=None if watermark_us == NO_TIME else watermark_us,
        **{
            name: buffer[start : start + prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
            for name, (start, dtype, shape) in layout.items()
        },
    )


def _join(parts: list[np.ndarray], out: np.ndarray, padding: float = 0) -> None:
    """Lays the parts one after the other along the first axis, and pads."""
    stop = 0
    for part in parts:
        start, stop = stop, stop + len(part)
        out[start:stop] = part
    out[stop:] = padding
