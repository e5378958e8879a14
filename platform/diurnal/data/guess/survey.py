"""Looks at a dataset that no schema describes: footers of some days, and a sample of their rows.

What is read is bounded: the files' footers of a few days, spread over all of them, and rows from row groups that are
spread over the files, from the start of each and through a small buffer, so that a huge row group costs no more.
The same folder gives the same survey.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from diurnal.data.guess.fields import Field, merge_fields
from diurnal.data.guess.layout import listed
from diurnal.data.ids import IncrementId
from diurnal.data.partitions import open_filesystem
from diurnal.errors import DataError, Fault

MAX_ROWS = 200_000
MAX_CELLS = 8_000_000
"""Rows times columns of the sample."""
MAX_SAMPLE_BYTES = 256 << 20
"""Of the sample, as the footers tell the size of its rows."""
MAX_FOOTERS = 2_000

THREADS = 8
"""That read: most of the time goes into waiting for a store."""
BUFFER_BYTES = 1 << 20
"""Of a column that are read at a time."""

_PLACES = 4
"""Row groups of a day that are read at least, where it has so many."""
_MAX_PLACES = 256
_STRIDE = 4
"""A sample of s rows is spread over the first 4 s of a row group."""


@dataclass(frozen=True)
class Folder:
    """An increment that was looked at."""

    increment: str
    num_files: int
    rows: int
    """Estimated from the files' sizes where there are more files than footers are read."""
    others: frozenset[str]
    """Names of the files beside the data, markers among them."""
    age_s: float | None
    """From the end of the increment's own time to when its newest file was written; None without a file."""


class Group(NamedTuple):
    """A row group."""

    path: str
    index: int
    num_rows: int


@dataclass(frozen=True)
class Survey:
    path: str
    increments: tuple[str, ...]
    """Of the dataset, in order of time."""
    folders: tuple[Folder, ...]
    """Those that were looked at: all that the days looked at have."""
    fields: tuple[Field, ...]
    num_footers: int
    bad_files: tuple[tuple[str, str], ...]
    """Files whose footer cannot be read, and why."""
    groups: tuple[Group, ...]
    """All that were looked at and have rows."""
    pieces: tuple[pa.RecordBatch, ...]
    folder_of_row: np.ndarray
    """(n,) index of the folder that a row of the sample is from."""

    @property
    def num_rows(self) -> int:
        """Of the sample."""
        return len(self.folder_of_row)

    @property
    def rows_looked_at(self) -> int:
        return sum(folder.rows for folder in self.folders)

    @property
    def rows_in_all(self) -> int:
        """Of the dataset, estimated from the folders that were looked at."""
        return round(self.rows_looked_at * len(self.increments) / len(self.folders))

    @property
    def median_rows(self) -> int:
        """Of an increment that has rows."""
        return int(statistics.median(folder.rows for folder in self.folders if folder.rows))

    @property
    def day_of_row(self) -> np.ndarray:
        """(n,) index of the day."""
        days = [folder.increment[:10] for folder in self.folders]
        numbers = {day: number for number, day in enumerate(dict.fromkeys(days))}
        return np.array([numbers[day] for day in days], np.int64)[self.folder_of_row]


class _File(NamedTuple):
    folder: int
    path: str
    size_bytes: int


class _Footer(NamedTuple):
    file: _File
    groups: tuple[tuple[int, int], ...]
    """Rows and bytes of each row group."""
    schema: pa.Schema


class _Place(NamedTuple):
    """Rows to be read from one row group."""

    footer: _Footer
    group: int
    num_rows: int


def survey(path: str, num_days: int = 7, max_rows: int = MAX_ROWS) -> Survey:
    """Looks at `num_days` days spread over the dataset, the first and the last among them.

    Raises:
        DataError: there is no such folder, no day in it, nor a row in the days looked at; with how to lay it out.
    """
    filesystem, increments = listed(path)
    chosen = _spread(sorted({name[:10] for name in increments}), num_days)
    looked = [name for name in increments if name[:10] in chosen]
    listings = [_listing(filesystem, path, index, name) for index, name in enumerate(looked)]
    files = [file for listing in listings for file in listing.files]
    read = [files[i] for i in evenly(len(files), MAX_FOOTERS)]
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda file: _read_footer(filesystem, file), read))
    footers = [one for one in found if isinstance(one, _Footer)]
    bad = tuple((f.path, str(e).strip()) for f, e in zip(read, found, strict=True) if not isinstance(e, _Footer))
    _refuse_nothing(path, looked, files, footers, bad)
    fields = merge_fields([footer.schema for footer in footers])
    names = [field.name for field in fields if field.kind is not None]
    places = _places(footers, looked, _bounded_rows(footers, max_rows, len(fields)))
    with ThreadPoolExecutor(THREADS) as pool:
        files = [list(group) for _, group in groupby(places, lambda place: place.footer.file.path)]
        pieces = [piece for read in pool.map(lambda one: _read_file(filesystem, one, names), files) for piece in read]
    sizes = [piece.num_rows for piece in pieces]
    return Survey(
        path=path,
        increments=tuple(increments),
        folders=tuple(_folder(index, listing, footers) for index, listing in enumerate(listings)),
        fields=fields,
        num_footers=len(footers),
        bad_files=bad,
        groups=tuple(Group(f.file.path, i, rows) for f in footers for i, (rows, _) in enumerate(f.groups) if rows),
        pieces=tuple(pieces),
        folder_of_row=np.repeat([place.footer.file.folder for place in places], sizes),
    )


class _Listing(NamedTuple):
    increment: str
    files: list[_File]
    others: frozenset[str]
    newest_s: float | None


def _listing(filesystem: fs.FileSystem, path: str, index: int, increment: str) -> _Listing:
    root = open_filesystem(path)[1].rstrip("/")
    infos = filesystem.get_file_info(fs.FileSelector(f"{root}/{IncrementId.parse(increment).folder}"))
    there = sorted((info for info in infos if info.type == fs.FileType.File), key=lambda info: info.base_name)
    data = [i for i in there if i.base_name.endswith(".parquet") and i.base_name[:1] not in (".", "_")]
    others = frozenset(info.base_name for info in there) - {info.base_name for info in data}
    newest = max((info.mtime_ns or 0 for info in data), default=None)
    files = [_File(index, info.path, info.size) for info in data]
    return _Listing(increment, files, others, None if newest is None else newest / 1e9)


def _folder(index: int, listing: _Listing, footers: list[_Footer]) -> Folder:
    mine = [footer for footer in footers if footer.file.folder == index]
    rows = sum(rows for footer in mine for rows, _ in footer.groups)
    read_bytes, all_bytes = sum(f.file.size_bytes for f in mine), sum(file.size_bytes for file in listing.files)
    if len(mine) < len(listing.files) and read_bytes:
        rows = round(rows * all_bytes / read_bytes)
    end_s = IncrementId.parse(listing.increment).folder_end.timestamp()
    age_s = None if listing.newest_s is None else listing.newest_s - end_s
    return Folder(listing.increment, len(listing.files), rows, listing.others, age_s)


def _spread(days: list[str], count: int) -> set[str]:
    if count == 1:
        return set(days[-1:])
    return {days[round(i * (len(days) - 1) / (count - 1))] for i in range(count)}


def evenly(size: int, count: int) -> list[int]:
    """`count` of the numbers below `size`, all of them when there are fewer."""
    if size <= count:
        return list(range(size))
    return [(2 * i + 1) * size // (2 * count) for i in range(count)]


def _read_footer(filesystem: fs.FileSystem, file: _File) -> _Footer | Exception:
    try:
        with filesystem.open_input_file(file.path) as source:
            footer = pq.read_metadata(source)
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        return _Footer(file, tuple((g.num_rows, g.total_byte_size) for g in groups), footer.schema.to_arrow_schema())
    except (pa.ArrowException, OSError) as error:
        return error


def _refuse_nothing(
    path: str, looked: list[str], files: list[_File], footers: list[_Footer], bad: Sequence[tuple[str, str]]
) -> None:
    days = f"{looked[0]} to {looked[-1]}" if len(looked) > 1 else looked[0]
    if not files:
        fix = "write files whose names end in .parquet and begin with neither . nor _, or look at more days with --days"
        raise DataError([Fault(path, f"no Parquet file in {days}", "a day has files *.parquet right in it", fix)])
    if not footers:
        must, fix = "a readable Parquet footer", "write the file again, or take it out of the folder"
        raise DataError([Fault(file, why, must, fix) for file, why in bad])
    if not any(rows for footer in footers for rows, _ in footer.groups):
        fix = "look at more days with --days, or choose a dataset with rows"
        raise DataError([Fault(path, f"no row in {days}", "there are rows to guess from", fix)])


def _bounded_rows(footers: list[_Footer], max_rows: int, num_fields: int) -> int:
    groups = [group for footer in footers for group in footer.groups]
    row_bytes = max(1.0, sum(size for _, size in groups) / max(1, sum(rows for rows, _ in groups)))
    return max(1_000, min(max_rows, MAX_CELLS // max(1, num_fields), int(MAX_SAMPLE_BYTES / row_bytes)))


def _places(footers: list[_Footer], looked: list[str], max_rows: int) -> list[_Place]:
    by_day: dict[str, list[_Place]] = {}
    for footer in footers:
        groups = [_Place(footer, i, rows) for i, (rows, _) in enumerate(footer.groups) if rows]
        by_day.setdefault(looked[footer.file.folder][:10], []).extend(groups)
    if sum(place.num_rows for places in by_day.values() for place in places) <= max_rows:
        return [place for places in by_day.values() for place in places]
    quota = max_rows // len(by_day)
    return [place for places in by_day.values() for place in _day_places(places, quota)]


def _day_places(places: list[_Place], quota: int) -> list[_Place]:
    if sum(place.num_rows for place in places) <= quota:
        return places
    usual = statistics.median(place.num_rows for place in places)
    count = min(len(places), _MAX_PLACES, max(_PLACES, -(-quota // max(1, int(usual)))))
    share = -(-quota // count)
    return [places[i]._replace(num_rows=min(share, places[i].num_rows)) for i in evenly(len(places), count)]


def _read_file(filesystem: fs.FileSystem, places: list[_Place], names: list[str]) -> list[pa.RecordBatch]:
    """The places of one file."""
    footer = places[0].footer
    wanted = [name for name in names if name in set(footer.schema.names)]
    try:
        with filesystem.open_input_file(footer.file.path) as source:
            # With pre_buffer, the default, the whole row group is read before its first row.
            file = pq.ParquetFile(source, buffer_size=BUFFER_BYTES, pre_buffer=False)
            return [_read_rows(file, place, wanted) for place in places]
    except (pa.ArrowException, OSError) as error:
        fix = "write the file again, or take it out of the folder"
        raise DataError([Fault(footer.file.path, str(error), "a file that can be read", fix)]) from error


def _read_rows(file: pq.ParquetFile, place: _Place, names: list[str]) -> pa.RecordBatch:
    span = min(place.footer.groups[place.group][0], place.num_rows * _STRIDE)
    batches, rows = [], 0
    for batch in file.iter_batches(span, [place.group], names, use_threads=False):
        batches.append(batch)
        rows += batch.num_rows
        if rows >= span:
            break
    table = pa.Table.from_batches(batches).slice(0, span)
    if span > place.num_rows:
        table = table.take(pa.array(evenly(table.num_rows, place.num_rows)))
    return table.combine_chunks().to_batches()[0]


def window_us(increment: str) -> tuple[int, int]:
    """The time of a folder, [first, stop) in microseconds since 1970 UTC."""
    name = IncrementId.parse(increment)
    length = timedelta(days=1) if name.hour is None else timedelta(hours=1)
    first = int(name.whole.start.timestamp()) * 10**6
    return first, first + length // timedelta(microseconds=1)
