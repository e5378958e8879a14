"""What an increment adds to the past: its rows are read once more and counted, those that are held out excepted.

Negatives that `label.keep_negatives` keeps from being learned are counted like the others: their labels are known, and
rates would be too high without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from diurnal.config import Schema, Sparse
from diurnal.data.arrow import column, read_numbers
from diurnal.data.ids import days_between
from diurnal.data.inputs import hashes_in
from diurnal.data.partitions import Increment
from diurnal.data.past import IMPRESSIONS, POSITIVES, Past
from diurnal.data.past_files import open_past
from diurnal.data.quantiles import NUM_PATTERNS, pattern_counts

Vocabulary = tuple[np.ndarray, np.ndarray]
"""As in `Past.vocabulary`."""

T = TypeVar("T")

_MOST_WAITING = 1 << 22


def extended(increment: Increment, schema: Schema) -> Past:
    """The past after an increment is learned. Sums of whole numbers, so that the order of its rows does not matter."""
    from diurnal.data.encode import encode

    reading, before = only_ids(schema), open_past(increment.past)
    kept = 1.0
    if before.increment and schema.past_half_life_days > 0:
        kept = 0.5 ** (days_between(before.increment, increment.id) / schema.past_half_life_days)
    vocabulary, of_values = _extended_meaning(before, increment, reading, kept)
    now = replace(before, vocabulary=vocabulary, of_values=of_values)
    counts = {name: _aged(before, name, schema, kept) for name in schema.remembered}
    places = [(index, f.name) for index, f in enumerate(reading.sparse) if f.name in counts]
    impressions = positives = 0
    encoded = _seen(increment, reading, lambda rows: encode(rows, reading, now)) if places else ()
    for rows, is_learned in encoded:
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
        of_values=of_values,
    )


def _seen(increment: Increment, reading: Schema, see: Callable[[pa.RecordBatch], T]) -> Iterator[tuple[T, np.ndarray]]:
    from diurnal.data.read import read_rows
    from diurnal.data.streams import plan_increment

    whole = replace(increment, sampled=None)  # negatives that are not learned have been seen, too
    plan = plan_increment(whole, batch_rows=1 << 16, num_streams=1, seed=0, order="file", task_rows=1 << 16)
    for task in plan.read_tasks(0, 1):
        yield from read_rows(task, reading, increment.path, see)


def _extended_meaning(
    before: Past, increment: Increment, reading: Schema, kept: float
) -> tuple[dict[str, Vocabulary], dict[str, np.ndarray]]:
    """What ids and values mean from now on: vocabularies, and values by pattern, of which those before count `kept`."""
    named = {feature.name: _Seen() for feature in reading.sparse if feature.mapping == "vocab"}
    bucketed = [feature for feature in reading.sparse if feature.quantiles]
    spread = {feature.name: np.zeros(NUM_PATTERNS, np.int64) for feature in bucketed}
    for stored, is_learned in _seen(increment, reading, lambda rows: rows) if named or spread else ():
        for feature in reading.sparse:
            if feature.name in named:
                named[feature.name].add(hashes_in(stored, feature, reading, is_learned))
        for feature in bucketed:
            spread[feature.name] += pattern_counts(_values_in(stored, feature, is_learned))
    old = {name: before.of_values.get(name, np.zeros(NUM_PATTERNS)) for name in spread}
    return _grown(before, named, reading), {name: old[name] * kept + counts for name, counts in spread.items()}


def _values_in(rows: pa.RecordBatch, feature: Sparse, is_wanted: np.ndarray) -> np.ndarray:
    """Numbers of the rows that are wanted, (n,) bool; without NaN."""
    chunk = column(rows, feature.source)
    if chunk is None:
        return np.empty(0)
    values, null = read_numbers(chunk)
    is_number = is_wanted & ~np.isnan(values)
    return values[is_number if null is None else is_number & ~null]


def _grown(before: Past, seen: dict[str, _Seen], reading: Schema) -> dict[str, Vocabulary]:
    """Ids that are new in `min_count` rows or more have the next rows, the more frequent ones first."""
    grown = {}
    for feature in (feature for feature in reading.sparse if feature.name in seen):
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
    needed = set(schema.remembered) | {f.name for f in schema.sparse if f.mapping == "vocab" or f.quantiles}
    needed |= {part for feature in schema.sparse if feature.name in needed for part in feature.cross}
    kept = tuple(f.model_copy(update={"weights": ""}) for f in schema.sparse if f.name in needed)
    others = {"tasks": (), "weight": "", "event_time": "", "group_id": ""}
    return schema.model_copy(update={"dense": (), "sparse": kept, **others})
