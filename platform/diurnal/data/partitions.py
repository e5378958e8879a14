"""Which increments a dataset has, whether one is complete, and what is in it: from folders and Parquet footers alone.

An increment is a folder `dt=YYYY-MM-DD`, or `dt=YYYY-MM-DD/hr=HH` when the day is hourly. Its data are the `*.parquet`
files right in it; names that begin with `.` or `_` and files of another ending are never opened. A folder may be cut by
rows into equal parts, each an increment of its own (`Increment.cut`); `ids` says how they are named.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from pyarrow import fs

from diurnal.config import Schema
from diurnal.config.run import OnBadFile
from diurnal.data.contract import column_faults, missing_optional
from diurnal.data.files import HeldOut, ParquetFile, Sampled
from diurnal.data.footers import Footer, read_footer
from diurnal.data.ids import ID_RULE, IncrementId
from diurnal.errors import DataError, Fault

_FOOTER_THREADS = 8
_FOLDER_DIGITS = 16


JOINED_ROW = 1 << 62
"""Position of the first joined row: they are told from an increment's own rows, whatever their numbers are."""


@dataclass(frozen=True)
class Increment:
    """The unit that is trained and committed: a day, an hour of an hourly day, or a part of such a folder."""

    id: str
    """As `ids.IncrementId` spells it."""
    path: str
    """The dataset's folder or URL, which file paths start with."""
    files: tuple[ParquetFile, ...]
    """All files of the folder, sorted by name."""
    fingerprint: str
    """32 hex digits over the files' names, sizes and row counts, and over the rows that a part has of them; another
    one means that the increment changed. `same_folder` compares those of two parts."""
    quarantined_files: tuple[str, ...] = ()
    """Files that could not be read and were left out, as the caller allowed."""
    missing_optional: tuple[str, ...] = ()
    """Optional columns that some file lacks; their rows are counted when they are encoded."""
    first_row: int = 0
    """The increment is the rows [first_row, stop_row) of its folder, in file order."""
    stop_row: int | None = None
    """None is the folder's end."""
    joined: tuple[ParquetFile, ...] = ()
    """Rows that were held out of increments before: they are learned here, before its own."""
    held_out: HeldOut | None = None
    """Rows of its own that are read, and not learned."""
    sampled: Sampled | None = None
    """What is learned where some negatives are not; None: all rows but those that are held out."""
    past: str = ""
    """Folder of what the increments before say of ids, see `data.past`; empty for nothing."""

    @property
    def folder_rows(self) -> int:
        return sum(file.num_rows for file in self.files)

    @property
    def num_own_rows(self) -> int:
        return (self.folder_rows if self.stop_row is None else self.stop_row) - self.first_row

    @property
    def num_joined_rows(self) -> int:
        return sum(file.num_rows for file in self.joined)

    @property
    def num_rows(self) -> int:
        """Joined ones and its own, also those that are held out, or dropped as negatives."""
        return self.num_joined_rows + self.num_own_rows

    def own(self) -> Increment:
        """Its own rows, all of them, and no others."""
        is_own = not (self.joined or self.held_out or self.sampled)
        return self if is_own else replace(self, joined=(), held_out=None, sampled=None)

    def cut(self, parts: int) -> list[Increment]:
        """Parts of the whole folder, whose rows are each in one of them, and whose sizes differ by at most one.

        With more parts than rows the last ones are empty: increments without a step, so that the number of versions
        and their names follow from `parts` alone. One part is the increment itself.
        """
        assert (self.first_row, self.stop_row) == (0, None), f"{self.id} is cut already"
        assert self.own() is self, f"{self.id} has rows joined, held out or dropped"
        if parts == 1:
            return [self]
        size, longer = divmod(self.folder_rows, parts)
        bounds = [i * size + min(i, longer) for i in range(parts + 1)]
        return [
            replace(
                self,
                id=str(name),
                fingerprint=self.fingerprint[:_FOLDER_DIGITS] + _digest([self.fingerprint, first, stop], 8),
                first_row=first,
                stop_row=stop,
            )
            for name, (first, stop) in zip(IncrementId.parse(self.id).cut(parts), pairwise(bounds), strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Increment:
        files, joined = (tuple(map(ParquetFile.from_json, data.get(key, ()))) for key in ("files", "joined"))
        lists = {key: tuple(data[key]) for key in ("quarantined_files", "missing_optional")}
        rows = {key: data[key] for key in ("first_row", "stop_row") if key in data}
        held_out = HeldOut.from_json(data["held_out"]) if data.get("held_out") else None
        sampled = Sampled.from_json(data["sampled"]) if data.get("sampled") else None
        rest = {**lists, **rows, "joined": joined, "held_out": held_out, "past": data.get("past", "")}
        return Increment(data["id"], data["path"], files, data["fingerprint"], **rest, sampled=sampled)


def same_folder(fingerprint: str, other: str) -> bool:
    """Whether two increments were cut from a folder with the same files: fingerprints begin with that of the folder."""
    return fingerprint[:_FOLDER_DIGITS] == other[:_FOLDER_DIGITS]


def open_filesystem(path: str) -> tuple[fs.FileSystem, str]:
    """The file system that a folder or URL is on, and the path on it."""
    if "://" in path:
        return fs.FileSystem.from_uri(path)
    return fs.LocalFileSystem(), path


def list_increments(path: str, schema: Schema, since: str = "") -> list[str]:
    """Ids of the folders of increments, complete or not, in order of time.

    Args:
        since: a day `YYYY-MM-DD`: earlier ones are left out, and their folders not opened.

    Raises:
        DataError: the dataset does not exist; a `dt=` or `hr=` folder is no date or hour; a day has files beside
            hours.
    """
    ids, faults = survey_dataset(path, since)
    if faults:
        raise DataError(faults)
    return ids


def survey_dataset(path: str, since: str = "") -> tuple[list[str], list[Fault]]:
    """What `list_increments` answers, and what it raises when there is any of it.

    Raises:
        DataError: the dataset does not exist.
    """
    filesystem, root = open_filesystem(path)
    if filesystem.get_file_info(root).type != fs.FileType.Directory:
        raise DataError([Fault(path, "no folder", "the dataset's folder exists", "correct data.path")])
    faults: list[Fault] = []
    ids: list[str] = []
    for day in _folders(filesystem, root, "dt="):
        date = day.base_name.removeprefix("dt=")
        if not _is_date(date):
            must = "dt=YYYY-MM-DD, a date of the calendar"
            faults.append(Fault(day.path, day.base_name, must, "rename the folder, or move it out of the dataset"))
            continue
        if date < since:
            continue
        hours = _folders(filesystem, day.path, "hr=")
        if hours and _data_files(filesystem, day.path):
            must = "a day has either Parquet files or hr=HH folders"
            faults.append(
                Fault(day.path, "Parquet files beside hr=HH folders", must, "move the files into their hours")
            )
        wrong = [hour for hour in hours if not re.fullmatch(r"hr=([01]\d|2[0-3])", hour.base_name)]
        faults += [Fault(hour.path, hour.base_name, "hr=00 to hr=23", "rename the folder") for hour in wrong]
        ids += [f"{date}T{hour.base_name.removeprefix('hr=')}" for hour in hours if hour not in wrong]
        ids += [] if hours else [date]
    return sorted(ids), faults


def list_files(path: str, increment_id: str) -> tuple[tuple[str, int, int], ...]:
    """Name, bytes and time of change (ns since 1970) of each data file of the folder, by name."""
    filesystem, folder = _increment_folder(path, increment_id)
    return tuple((info.base_name, info.size, info.mtime_ns or 0) for info in _data_files(filesystem, folder))


def is_ready(path: str, increment_id: str, schema: Schema, now: float | None = None) -> tuple[bool, str]:
    """Whether the increment is complete by the schema's readiness rule, and why or why not; a part is with its folder.

    Args:
        now: seconds since 1970, for the rule `age`; this machine's clock when None.
    """
    filesystem, folder = _increment_folder(path, increment_id)
    if filesystem.get_file_info(folder).type != fs.FileType.Directory:
        return False, f"there is no folder {folder}"
    rule = schema.readiness
    if rule.rule == "marker":
        there = filesystem.get_file_info(f"{folder}/{rule.marker}").type == fs.FileType.File
        return there, f"{rule.marker} is {'there' if there else 'not there yet'}"
    files = _data_files(filesystem, folder)
    if rule.rule == "manifest":
        return _matches_manifest(filesystem, f"{folder}/{rule.manifest}", files)
    if not files:
        return False, "there is no Parquet file yet"
    age_s = (time.time() if now is None else now) - max(file.mtime_ns for file in files) / 1e9
    return age_s >= rule.age_s, f"the newest file is {age_s:.0f} s old, {rule.age_s:.0f} s are asked for"


def read_increment(path: str, increment_id: str, schema: Schema, on_bad_file: OnBadFile = "refuse") -> Increment:
    """Reads every footer of the folder and checks every declared column against its declared type.

    Args:
        increment_id: a folder's, or a part's, which is cut from what the folder holds.
        on_bad_file: what happens when a file has no readable footer: the increment is refused, or the file is left
            out and named in `quarantined_files`. A readable file that breaks the contract is refused either way, and so
            is one that the storage does not give.

    Raises:
        DataError: with all faults of all files at once: file, column, found and declared type.
    """
    survey = survey_increment(path, increment_id, schema, on_bad_file)
    if survey.faults:
        raise DataError(survey.faults)
    name = IncrementId.parse(increment_id)
    return survey.increment.cut(name.parts)[name.part - 1]


@dataclass(frozen=True)
class Survey:
    """What a folder holds, and what is wrong with it."""

    increment: Increment
    """The whole folder, with all files that have a footer."""
    footers: tuple[Footer, ...]
    """Of each file of the increment."""
    broken: frozenset[str]
    """Paths of files that have a footer and break the contract."""
    faults: tuple[Fault, ...]


def survey_increment(path: str, increment_id: str, schema: Schema, on_bad_file: OnBadFile = "refuse") -> Survey:
    """As `read_increment`, but for the whole folder, and faults are told, not raised.

    Raises:
        DataError: there is no such folder.
    """
    filesystem, folder = _increment_folder(path, increment_id)
    if filesystem.get_file_info(folder).type != fs.FileType.Directory:
        raise DataError([Fault(folder, "no folder", "the increment's folder exists", "correct the day")])
    infos = _data_files(filesystem, folder)
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        found = list(pool.map(lambda info: read_footer(filesystem, info), infos))
    faults = _unexpected_folders(filesystem, folder, increment_id)
    files: list[ParquetFile] = []
    footers: list[Footer] = []
    quarantined: list[str] = []
    broken: set[str] = set()
    missing: set[str] = set()
    for info, footer in zip(infos, found, strict=True):
        if isinstance(footer, Footer):
            files.append(ParquetFile(info.path, info.size, footer.row_group_rows))
            footers.append(footer)
            missing |= missing_optional(footer, schema)
            if of_columns := column_faults(info.path, footer, schema):
                broken.add(info.path)
                faults += of_columns
        elif on_bad_file == "quarantine" and footer.is_content:
            quarantined.append(info.path)
        else:
            fix = 'write the file again, take it out of the folder, or leave it out by data.on_bad_file = "quarantine"'
            fix = fix if footer.is_content else "see whether the storage answers, and lets you read the file"
            faults.append(
                Fault(info.path, footer.reason, "a whole file, with a readable Parquet footer at its end", fix)
            )
    facts = [
        (i.base_name, i.size, f.num_rows if isinstance(f, Footer) else -1) for i, f in zip(infos, found, strict=True)
    ]
    increment = Increment(
        id=str(IncrementId.parse(increment_id).whole),
        path=path,
        files=tuple(files),
        fingerprint=_digest(facts, 16),
        quarantined_files=tuple(quarantined),
        missing_optional=tuple(sorted(missing)),
    )
    return Survey(increment, tuple(footers), frozenset(broken), tuple(faults))


def _matches_manifest(filesystem: fs.FileSystem, manifest: str, files: list[fs.FileInfo]) -> tuple[bool, str]:
    name = manifest.rpartition("/")[2]
    try:
        with filesystem.open_input_file(manifest) as source:
            promised = json.loads(source.read())
    except FileNotFoundError:
        return False, f"{name} is not there yet"
    except ValueError as error:
        return False, f"{name} is not readable yet: {error}"
    if not isinstance(promised, dict):
        return False, f"{name} is not a map of file names to row counts"
    found = {info.base_name: info for info in files}
    for file in sorted(promised.keys() | found.keys()):
        if file not in found:
            return False, f"{file} of {name} is not there yet"
        if file not in promised:
            return False, f"{file} is not in {name}"
        footer = read_footer(filesystem, found[file])
        if not isinstance(footer, Footer):
            return False, f"{file} is not readable yet: {footer}"
        if footer.num_rows != promised[file]:
            return False, f"{file} has {footer.num_rows} rows, {name} says {promised[file]}"
    return True, f"all {len(promised)} files have the rows of {name}"


def _increment_folder(path: str, increment_id: str) -> tuple[fs.FileSystem, str]:
    filesystem, root = open_filesystem(path)
    try:
        name = IncrementId.parse(increment_id)
    except ValueError:
        raise DataError([Fault("increment", increment_id, ID_RULE, "correct the day")]) from None
    return filesystem, f"{root.rstrip('/')}/{name.folder}"


def _unexpected_folders(filesystem: fs.FileSystem, folder: str, increment_id: str) -> list[Fault]:
    """Rows below a folder that nobody reads would be lost in silence."""
    must = f"the files of {increment_id} lie right in its folder"
    return [
        Fault(info.path, "a folder", must, "move its files up, or let its name begin with _")
        for info in _folders(filesystem, folder, "")
    ]


def _folders(filesystem: fs.FileSystem, folder: str, prefix: str) -> list[fs.FileInfo]:
    infos = visible_in(filesystem, folder)
    return [info for info in infos if info.type == fs.FileType.Directory and info.base_name.startswith(prefix)]


def _data_files(filesystem: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    infos = visible_in(filesystem, folder)
    return [info for info in infos if info.type == fs.FileType.File and info.base_name.endswith(".parquet")]


def visible_in(filesystem: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    """What is right in a folder, by name, without names that begin with `.` or `_`."""
    infos = filesystem.get_file_info(fs.FileSelector(folder))
    return sorted((i for i in infos if i.base_name[:1] not in (".", "_")), key=lambda i: i.base_name)


def _digest(facts: list[Any], size_bytes: int) -> str:
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=size_bytes).hexdigest()


def _is_date(text: str) -> bool:
    try:
        return str(IncrementId.parse(text).day) == text
    except ValueError:
        return False
