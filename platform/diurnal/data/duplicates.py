"""Request ids that are there more than once: within an increment, and again in the next one.

Each id is taken as its 64-bit hash. When they are more than `MAX_HASHES` the files are read several times, each time
for the hashes of another remainder: memory is bounded, and counts are exact but for hashes that collide, of which one
is expected among six billion ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from diurnal.data.arrow import column
from diurnal.data.footers import open_parquet
from diurnal.data.holdout import hashed_ids
from diurnal.data.partitions import Increment, open_filesystem
from diurnal.errors import DataError, Fault

MAX_HASHES = 1 << 24
"""Hashes in memory at a time, 8 bytes each, and as many again while they are sorted."""

_BLOCK_ROWS = 1 << 16
_MAX_CHARS = 60
"""Of an id that a message shows."""


@dataclass(frozen=True)
class Duplicates:
    within: int
    """Rows whose request id an earlier row of the increment has."""
    again: int
    """Rows whose request id some row of the increment before has."""
    example: str
    """A request id, and where it is; empty when there is none."""


def find_duplicates(
    increment: Increment,
    before: Increment | None,
    name: str,
    *,
    max_hashes: int = MAX_HASHES,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Duplicates:
    """Counts request ids that come again. Rows without one are not looked at.

    Args:
        increment, before: whole folders, `before` the one that precedes.
        name: column of the request ids.
        max_hashes: that are in memory at a time, on average.
        on_progress: told how many more rows have been read.

    Raises:
        DataError: a file cannot be read, or its request ids have a type that has no hash.
    """
    rows = increment.num_rows + (before.num_rows if before else 0)
    passes = max(1, -(-rows // max_hashes))
    within = again = 0
    example: int | None = None
    for remainder in range(passes):
        hashes = _sorted(increment, name, passes, remainder, on_progress)
        is_repeated = hashes[1:] == hashes[:-1]
        within += int(np.count_nonzero(is_repeated))
        found = hashes[1:][is_repeated]
        if before is not None:
            earlier = _sorted(before, name, passes, remainder, on_progress)
            found = np.concatenate([found, hashes[_is_in(hashes, earlier)]])
            again += len(found) - int(np.count_nonzero(is_repeated))
        if example is None and len(found):
            example = int(found[0])
    places = "" if example is None else _places(example, increment, before, name)
    return Duplicates(within, again, places)


def _sorted(
    increment: Increment, name: str, passes: int, remainder: int, on_progress: Callable[[int], None]
) -> np.ndarray:
    parts = [np.empty(0, np.uint64)]
    for _, ids in _blocks(increment, name):
        hashes, known = hashed_ids(ids, name)
        mine = known if passes == 1 else known & (hashes % np.uint64(passes) == remainder)
        parts.append(hashes[mine])
        on_progress(len(ids))
    joined = np.concatenate(parts)
    joined.sort()
    return joined


def _is_in(values: np.ndarray, sorted_values: np.ndarray) -> np.ndarray:
    if not len(sorted_values):
        return np.zeros(len(values), bool)
    place = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    return sorted_values[place] == values


def _places(wanted: int, increment: Increment, before: Increment | None, name: str) -> str:
    """The id that has this hash, and two rows that have it."""
    found: list[tuple[str, str]] = []
    for each, most in ((before, 1), (increment, 2)):
        if each is not None:
            found += islice(_rows_with(wanted, each, name), most - len(found))
    return f"{found[0][0]!r} in {' and '.join(place for _, place in found)}"


def _rows_with(wanted: int, increment: Increment, name: str) -> Iterator[tuple[str, str]]:
    last_path, start = "", 0
    for path, ids in _blocks(increment, name):
        if path != last_path:
            last_path, start = path, 0
        hashes, known = hashed_ids(ids, name)
        for row in np.flatnonzero(known & (hashes == np.uint64(wanted))).tolist():
            yield str(ids[row].as_py())[:_MAX_CHARS], f"row {start + row} of {path}"
        start += len(ids)


def _blocks(increment: Increment, name: str) -> Iterator[tuple[str, pa.Array]]:
    """Path and request ids of some rows after the other; files without the column have none."""
    filesystem, _ = open_filesystem(increment.path)
    for file in increment.files:
        try:
            with filesystem.open_input_file(file.path) as source:
                parquet = open_parquet(source, [name])
                if name not in parquet.schema_arrow.names:
                    continue
                for batch in parquet.iter_batches(_BLOCK_ROWS, columns=[name], use_threads=False):
                    ids = column(batch, name)
                    if ids is not None and len(ids) and not pa.types.is_null(ids.type):
                        yield file.path, ids
        except (OSError, pa.ArrowException) as error:
            raise DataError([Fault(file.path, str(error), "a file that can be read", "write it again")]) from error
