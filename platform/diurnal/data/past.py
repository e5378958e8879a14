"""What the increments before have left: in how many rows each id has been, how many of these were positives, and which
ids have a row of their own in a table.

Counts are kept for each row of a feature's table, so that ids that share a row share their past too, and looking one
up costs no second hash. A version's past covers exactly the rows that its lineage has learned: rows that are held out
of an increment come in with the increment that learns them. So no row ever meets its own label in an input.

A past is a folder whose name tells its content: the same rows under the same schema give the same name again, and a
folder that is there is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePath
from uuid import uuid4

import numpy as np
import pyarrow as pa

from diurnal.config import HASH_NAME, Config, Dense, Schema
from diurnal.data.ids import days_between
from diurnal.data.inputs import hashes_in
from diurnal.data.partitions import Increment
from diurnal.errors import CheckpointError, Fault

_FACTS = "past.json"
_IMPRESSIONS, _POSITIVES = 0, 1
_VOCABULARY = ("hashes", "rows")
_MOST_WAITING = 1 << 22


@dataclass(frozen=True, eq=False)
class Past:
    """Sums over the rows that were learned."""

    increment: str = ""
    """The newest one; empty when nothing was learned."""
    impressions: float = 0.0
    """Rows."""
    positives: float = 0.0
    of_feature: dict[str, np.ndarray] = field(default_factory=dict)
    """By name of a sparse feature (2, table rows) float64: impressions and positives of each row of its table; a
    feature that is not there has no past."""
    vocabulary: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """By name of a feature: (K,) uint64 hashes of ids, ascending, and (K,) int32 their rows, from 1."""

    def vocabulary_rows(self, feature: str, hashes: np.ndarray) -> np.ndarray:
        """(N,) rows of the ids with these uint64 hashes; 0 for those that have none of their own."""
        known, rows = self.vocabulary.get(feature, (np.empty(0, np.uint64), np.empty(0, np.int32)))
        if not len(known):
            return np.zeros(len(hashes), np.int32)
        places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        return np.where(known[places] == hashes, rows[places], 0)

    @property
    def rate(self) -> float:
        return self.positives / self.impressions if self.impressions else 0.0

    def value(self, feature: Dense, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """What an input is before clip and transform, (n,) float64.

        Args:
            ids: (N,) rows of the table, row by row.
            lengths: (n,) ids per row.
        """
        counts = self.of_feature.get(feature.past)
        if counts is None:
            return np.zeros(len(lengths))
        of_ids = _looked_up(counts[_IMPRESSIONS], ids)
        if feature.value == "effect":
            impressions, of_ids = of_ids, _looked_up(counts[_POSITIVES], ids)
            of_ids -= self.rate * impressions
            of_ids /= impressions + feature.prior
        if len(ids) == len(lengths) and (lengths == 1).all():
            return of_ids
        row_of_id = np.repeat(np.arange(len(lengths)), lengths)
        return np.bincount(row_of_id, of_ids, minlength=len(lengths)) / np.maximum(lengths, 1)


def _looked_up(counts: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """A copy; 0 for rows that a table has got since it was counted."""
    if ids.max(initial=0) < len(counts):
        return counts.take(ids)
    return np.where(ids < len(counts), counts.take(ids, mode="clip"), 0.0)


NOTHING = Past()


class Pasts:
    """The folder of a model's pasts.

    Args:
        folder: local path, made when there is something to write.
    """

    def __init__(self, folder: str | Path, schema: Schema) -> None:
        self._folder = Path(folder)
        self._schema = schema

    @staticmethod
    def of(config: Config) -> Pasts:
        """Those of a model, in the storage that it has now."""
        return Pasts(Path(config.storage, config.name, "past").absolute(), config.dataset)

    def path(self, name: str) -> str:
        """Where readers find a past, and empty for none.

        Raises:
            CheckpointError: it is not there.
        """
        if not name:
            return ""
        folder = self._folder / name
        if not (folder / _FACTS).exists():
            must = "what the rows of a version are seen with is kept as long as the version"
            fix = "restore it from a copy of the storage, or start a new lineage under another name"
            raise CheckpointError([Fault(str(folder), "no such folder", must, fix)])
        return str(folder)

    def after(self, increment: Increment) -> str:
        """Name of the past after an increment is learned, which is made if it is not there yet; empty when the schema
        asks for none.

        Args:
            increment: with its past, the rows that are joined, and those that are held out.

        Raises:
            DataError: a file of the increment cannot be read, or has a value that encoding refuses.
        """
        if not self._schema.has_past:
            return ""
        name = f"{increment.id}-{_digest(increment, self._schema)}"
        target = self._folder / name
        if not target.exists():
            self._write(extended(increment, self._schema), target)
        return name

    def sweep(self, named: Collection[str], increments: Collection[str]) -> int:
        """Deletes what no version names, and says how many.

        Args:
            increments: names of those that are at work, whose pasts stay too.
        """
        at_work = tuple(f"{increment}-" for increment in increments)
        found = list(self._folder.iterdir()) if self._folder.exists() else []
        gone = [entry for entry in found if entry.name not in named and not entry.name.startswith(at_work)]
        for entry in gone:
            shutil.rmtree(entry, ignore_errors=True)
        return len(gone)

    def _write(self, past: Past, target: Path) -> None:
        for left in self._folder.glob(f".{target.name}.*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        half = target.with_name(f".{target.name}.{uuid4().hex[:8]}")
        half.mkdir(parents=True)
        try:
            facts = {"increment": past.increment, "impressions": past.impressions, "positives": past.positives}
            counted, known = list(past.of_feature), list(past.vocabulary)
            for index, feature in enumerate(counted):
                np.save(half / f"{index}.npy", past.of_feature[feature])
            for index, feature in enumerate(known):
                for part, values in zip(_VOCABULARY, past.vocabulary[feature], strict=True):
                    np.save(half / f"{part}-{index}.npy", values)
            (half / _FACTS).write_text(json.dumps({**facts, "counted": counted, "known": known}))
            for entry in half.iterdir():
                with entry.open("rb") as file:
                    os.fsync(file.fileno())
            half.rename(target)
        except OSError:
            shutil.rmtree(half, ignore_errors=True)
            if not target.exists():  # else somebody else has written the same
                raise


@lru_cache(maxsize=4)
def open_past(path: str) -> Past:
    """A past whose counts stay on disk until they are asked for; an empty path is the past of a new model."""
    if not path:
        return NOTHING
    facts = json.loads(Path(path, _FACTS).read_text())
    counted, known = facts.pop("counted"), facts.pop("known")

    def stored(name: str) -> np.ndarray:
        return np.load(Path(path, f"{name}.npy"), mmap_mode="r")

    return Past(
        **facts,
        of_feature={name: stored(str(index)) for index, name in enumerate(counted)},
        vocabulary={
            name: (stored(f"{_VOCABULARY[0]}-{index}"), stored(f"{_VOCABULARY[1]}-{index}"))
            for index, name in enumerate(known)
        },
    )


def extended(increment: Increment, schema: Schema) -> Past:
    """The past after an increment is learned. Sums of whole numbers, so that the order of its rows does not matter."""
    from diurnal.data.encode import encode

    reading, before = _only_ids(schema), open_past(increment.past)
    vocabulary = _extended_vocabulary(before, increment, reading)
    kept = 1.0
    if before.increment and schema.past_half_life_days > 0:
        kept = 0.5 ** (days_between(before.increment, increment.id) / schema.past_half_life_days)
    counts = {name: _aged(before, name, schema, kept) for name in schema.remembered}
    places = [(index, f.name) for index, f in enumerate(reading.sparse) if f.name in counts]
    impressions = positives = 0
    for stored, is_learned in _rows(increment, reading) if places else ():
        rows = encode(stored, reading, replace(before, vocabulary=vocabulary))
        impressions += int(np.count_nonzero(is_learned))
        positives += int(np.count_nonzero(rows.labels[is_learned]))
        for index, name in places:
            _count(counts[name], rows.ids[index], rows.lengths[index], is_learned, rows.labels)
    return Past(
        increment=increment.id,
        impressions=before.impressions * kept + impressions,
        positives=before.positives * kept + positives,
        of_feature=counts,
        vocabulary=vocabulary,
    )


def _rows(increment: Increment, reading: Schema) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    from diurnal.data.read import read_rows
    from diurnal.data.streams import plan_increment

    plan = plan_increment(increment, batch_rows=1 << 16, num_streams=1, seed=0, order="file", task_rows=1 << 16)
    for task in plan.read_tasks(0, 1):
        yield from read_rows(task, reading, increment.path)


def _extended_vocabulary(
    before: Past, increment: Increment, reading: Schema
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Ids that are new in `min_count` rows or more have the next rows, the more frequent ones first."""
    features = [feature for feature in reading.sparse if feature.mapping == "vocab"]
    seen = {feature.name: _Seen() for feature in features}
    for stored, is_learned in _rows(increment, reading) if features else ():
        for feature in features:
            seen[feature.name].add(hashes_in(stored, feature, reading, is_learned))
    grown = {}
    for feature in features:
        known, rows = before.vocabulary.get(feature.name, (np.empty(0, np.uint64), np.empty(0, np.int32)))
        hashes, counts = seen[feature.name].counted()
        is_new = (counts >= feature.min_count) & ~np.isin(hashes, known)
        hashes, counts = hashes[is_new], counts[is_new]
        room = reading.table(feature.table_name).rows - 1 - len(known)
        hashes = hashes[np.lexsort((hashes, -counts))][: max(0, room)]
        added = np.arange(len(known) + 1, len(known) + 1 + len(hashes), dtype=np.int32)
        order = np.argsort(joined := np.concatenate([known, hashes]))
        grown[feature.name] = (joined[order], np.concatenate([rows, added])[order])
    return grown


class _Seen:
    """How often each hash was there, in the memory of the distinct ones and of `_MOST_WAITING` more."""

    def __init__(self) -> None:
        self._hashes, self._counts = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._waiting: list[np.ndarray] = []

    def add(self, hashes: np.ndarray) -> None:
        self._waiting.append(hashes)
        if sum(map(len, self._waiting)) > _MOST_WAITING:
            self.counted()

    def counted(self) -> tuple[np.ndarray, np.ndarray]:
        """Distinct hashes, ascending, and how often each was there."""
        new, counts = np.unique(np.concatenate([*self._waiting, self._hashes[:0]]), return_counts=True)
        self._waiting = []
        both, places = np.unique(np.concatenate([self._hashes, new]), return_inverse=True)
        sums = np.zeros(len(both), np.int64)
        np.add.at(sums, places, np.concatenate([self._counts, counts]))
        self._hashes, self._counts = both, sums
        return both, sums


def _count(
    counts: np.ndarray, ids: np.ndarray, lengths: np.ndarray, is_learned: np.ndarray, labels: np.ndarray
) -> None:
    row_of_id = np.repeat(np.arange(len(lengths)), lengths)
    if not is_learned.all():
        kept = is_learned[row_of_id]
        ids, row_of_id = ids[kept], row_of_id[kept]
    np.add.at(counts[_IMPRESSIONS], ids, 1.0)
    np.add.at(counts[_POSITIVES], ids[labels[row_of_id] > 0.5], 1.0)


def _aged(before: Past, name: str, schema: Schema, kept: float) -> np.ndarray:
    """(2, table rows) of the past before, as much as still counts; a copy."""
    (feature,) = (feature for feature in schema.sparse if feature.name == name)
    counts = np.zeros((2, schema.table(feature.table_name).rows))
    old = before.of_feature.get(name)
    if old is not None:
        shared = min(old.shape[1], counts.shape[1])
        np.multiply(old[:, :shared], kept, out=counts[:, :shared])
    return counts


def _only_ids(schema: Schema) -> Schema:
    """The schema without what does not matter to the past: fewer columns are read."""
    needed = set(schema.remembered) | {feature.name for feature in schema.sparse if feature.mapping == "vocab"}
    needed |= {part for feature in schema.sparse if feature.name in needed for part in feature.cross}
    kept = tuple(feature for feature in schema.sparse if feature.name in needed)
    return schema.model_copy(update={"dense": (), "sparse": kept, "weight": "", "event_time": "", "group_id": ""})


def _digest(increment: Increment, schema: Schema) -> str:
    """32 hex digits over all that the past follows from."""
    rows = [
        PurePath(increment.past).name,
        increment.fingerprint,
        [file.path.rpartition("/")[2] for file in increment.joined],
    ]
    held_out = increment.held_out and [increment.held_out.key, increment.held_out.threshold, increment.held_out.column]
    meaning = _only_ids(schema).model_dump(mode="json", exclude={"readiness"})
    facts = [1, HASH_NAME, rows, held_out, list(increment.quarantined_files), meaning]
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
