"""Named tensors in torch's distributed checkpoint format, written and read in the parts that each rank holds.

A name belongs to one tensor, however it was cut when it was written: reading takes from each file what overlaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from diurnal.checkpoint.media import FileRecord
from diurnal.checkpoint.shards import ObjectReader, ObjectWriter
from diurnal.data.objects import ObjectPath, Place

MAX_CHUNK_BYTES = 16 * 1024**2
"""Parts are written in chunks of rows of this size, so that a rank which needs some of them reads no others."""

SMALL_BYTES = 1024**2
"""Replicas up to this size are written by the first rank alone."""


@dataclass(frozen=True)
class Part:
    """A block of a named tensor: `tensor` begins at `offsets` of the whole. Live memory, not a copy."""

    offsets: tuple[int, ...]
    tensor: torch.Tensor

    def rows(self, start: int, stop: int) -> Part:
        first, *others = self.offsets
        return Part((first + start, *others), self.tensor[start:stop])

    def chunks(self) -> list[Part]:
        """The same in parts of `MAX_CHUNK_BYTES`, or of one row where that is more."""
        if self.tensor.nbytes <= MAX_CHUNK_BYTES:
            return [self]
        total = len(self.tensor)
        step = max(1, MAX_CHUNK_BYTES * total // self.tensor.nbytes)
        return [self.rows(start, min(start + step, total)) for start in range(0, total, step)]


class Named:
    """The parts of one tensor that this rank holds."""

    def __init__(self, shape: tuple[int, ...], parts: list[Part], is_replica: bool = False) -> None:
        self.shape = shape
        """Of the whole."""
        self.parts = [part for part in parts if part.tensor.numel() > 0]
        self.is_replica = is_replica
        """All ranks hold the same parts."""

    @staticmethod
    def whole(tensor: torch.Tensor, is_replica: bool = True) -> Named:
        tensor = tensor.detach()
        return Named(tuple(tensor.shape), [Part((0,) * tensor.dim(), tensor)], is_replica)

    def share(self, rank: int, world_size: int) -> Named:
        """What one rank has to write so that all together write everything once: of a replica a range of rows, or,
        of a small one, all or nothing."""
        parts = self.parts
        if self.is_replica and sum(part.tensor.nbytes for part in parts) <= SMALL_BYTES:
            parts = parts if rank == 0 else []
        elif self.is_replica:
            cuts = [[len(part.tensor) * r // world_size for r in (rank, rank + 1)] for part in parts]
            parts = [part.rows(start, stop) for part, (start, stop) in zip(parts, cuts, strict=True)]
        return Named(self.shape, [chunk for part in parts for chunk in part.chunks()])

    def copied(self) -> Named:
        """The same in memory of its own, on the host: what happens to the original changes it no more."""
        parts = [Part(part.offsets, part.tensor.detach().to("cpu", copy=True)) for part in self.parts]
        return Named(self.shape, parts, self.is_replica)

    def at(self, index: MetadataIndex) -> torch.Tensor:
        return next(part.tensor for part in self.parts if part.offsets == tuple(index.offset or ()))


def write(folder: Place, tensors: Mapping[str, Named], group: dist.ProcessGroup | None = None) -> dict[str, FileRecord]:
    """Writes the parts of all ranks into a fresh folder, and waits until they are on disk. A collective call.

    Returns:
        What this rank has sent to an object store, by name; nothing where it can be read again from a disk.
    """
    writer = ObjectWriter(folder) if isinstance(folder, ObjectPath) else dcp.FileSystemWriter(folder, overwrite=False)
    dcp.save(dict(tensors), storage_writer=writer, planner=_SavePlanner(), process_group=group)
    return writer.sent if isinstance(writer, ObjectWriter) else {}


class Folder:
    """Tensors that were written, by any number of ranks. No collective calls: each rank reads what it wants."""

    def __init__(self, folder: Place) -> None:
        self._reader = ObjectReader(folder) if isinstance(folder, ObjectPath) else dcp.FileSystemReader(folder)
        self._metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        self.shapes: dict[str, tuple[int, ...]] = {
            name: tuple(tensor.size)
            for name, tensor in self._metadata.state_dict_metadata.items()
            if isinstance(tensor, TensorStorageMetadata)
        }

    def read_whole(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Tensors that were written, as they are."""
        tensors = {}
        for name in names:
            written = self._metadata.state_dict_metadata[name]
            assert isinstance(written, TensorStorageMetadata), name
            tensors[name] = torch.empty(written.size, dtype=written.properties.dtype)
        self.read({name: Named.whole(tensor) for name, tensor in tensors.items()})
        return tensors

    def read(self, tensors: Mapping[str, Named]) -> None:
        """Fills the parts, each as far as the written tensor goes; every name has to be in `shapes`."""
        planner = _LoadPlanner(tensors, self._metadata)
        self._reader.read_data(self._reader.prepare_local_plan(planner.create_local_plan()), planner).wait()


def _chunk(part: Part) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(part.offsets), part.tensor.size())


def _write_item(name: str, tensor: Named, part: Part) -> WriteItem:
    properties = TensorProperties.create_from_tensor(part.tensor)
    data = TensorWriteData(_chunk(part), properties, torch.Size(tensor.shape))
    return WriteItem(MetadataIndex(name, part.offsets), WriteItemType.SHARD, tensor_data=data)


class _SavePlanner(dcp.DefaultSavePlanner):
    """Plans a mapping of `Named`."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> dcp.SavePlan:
        named = self.state_dict.items()
        self.plan = dcp.SavePlan([_write_item(name, tensor, part) for name, tensor in named for part in tensor.parts])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        return self.state_dict[index.fqn].at(index)


class _LoadPlanner(dcp.DefaultLoadPlanner):
    """Plans a mapping of `Named`, whose shapes may be greater than what was written."""

    def __init__(self, tensors: Mapping[str, Named], metadata: dcp.Metadata) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._tensors = tensors
        self._written = metadata.state_dict_metadata

    def create_local_plan(self) -> dcp.LoadPlan:
        items = []
        for name, tensor in self._tensors.items():
            written = self._written[name]
            assert isinstance(written, TensorStorageMetadata), name
            items += create_read_items_for_chunk_list(name, written, [_chunk(part) for part in tensor.parts])
        return dcp.LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return self._tensors[index.fqn].at(index)
