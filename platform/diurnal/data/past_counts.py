"""What an increment adds to the past: its rows are read once more and counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from diurnal.config import Schema
from diurnal.data.ids import days_between
from diurnal.data.inputs import hashes_in
from diurnal.data.partitions import Increment
from diurnal.data.past import IMPRESSIONS, POSITIVES, Past
from diurnal.data.past_files import open_past

_MOST_WAITING = 1 << 22


def extended(increment: Increment, schema: Schema) -> Past:
    """The past after an increment is learned. Sums of whole numbers, so that the order of its rows does not matter."""
    from diurnal.data.encode import encode

    reading, before = only_ids(schema), open_past(increment.past)
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
    np.add.at(counts[IMPRESSIONS], ids, 1.0)
    np.add.at(counts[POSITIVES], ids[labels[row_of_id] > 0.5], 1.0)


def _aged(before: Past, name: str, schema: Schema, kept: float) -> np.ndarray:
    """(2, table rows) of the past before, as much as still counts; a copy."""
    (feature,) = (feature for feature in schema.sparse if feature.name == name)
    counts = np.zeros((2, schema.table(feature.table_name).rows))
    old = before.of_feature.get(name)
    if old is not None:
        shared = min(old.shape[1], counts.shape[1])
        np.multiply(old[:, :shared], kept, out=counts[:, :shared])
    return counts


def only_ids(schema: Schema) -> Schema:
    """The schema without what does not matter to the past: fewer columns are read."""
    needed = set(schema.remembered) | {feature.name for feature in schema.sparse if feature.mapping == "vocab"}
    needed |= {part for feature in schema.sparse if feature.name in needed for part in feature.cross}
    kept = tuple(f.model_copy(update={"weights": ""}) for f in schema.sparse if f.name in needed)
    others = {"tasks": (), "weight": "", "event_time": "", "group_id": ""}
    return schema.model_copy(update={"dense": (), "sparse": kept, **others})
