"""Finds the days of a folder that a person points at, or says how to lay it out."""

from __future__ import annotations

import re
from datetime import date

import pyarrow as pa
from pyarrow import fs

from diurnal.config import Schema
from diurnal.data.partitions import list_increments, open_filesystem
from diurnal.errors import DataError, Fault

LAYOUT = "dt=YYYY-MM-DD/*.parquet, or dt=YYYY-MM-DD/hr=HH/*.parquet when the days come by the hour"

_EXAMPLE = "a folder for each day, as {0}/dt=2026-01-31/part-0.parquet, with an empty file {0}/dt=2026-01-31/_SUCCESS"


def listed(path: str) -> tuple[fs.FileSystem, list[str]]:
    """The file system of a folder or URL, and the ids of its increments in order of time.

    Raises:
        DataError: it cannot be opened, or holds no day.
    """
    if "://" in path and "@" in path.split("://", 1)[1].split("/", 1)[0]:
        fix = "take user and password out of the URL, and set them in the environment"
        raise DataError([Fault(path.split("://", 1)[0] + "://...", "a password", "none in a URL", fix)])
    must = "a folder of days, or the URL of one"
    try:
        filesystem, root = open_filesystem(path)
        kind = filesystem.get_file_info(root).type
        if kind == fs.FileType.Directory:
            increments = list_increments(path, Schema.model_construct())
            if increments:
                return filesystem, increments
            raise DataError([_no_days(filesystem, path, root)])
    except (pa.ArrowException, OSError) as error:
        raise DataError([Fault(path, str(error), must, "correct the folder or URL")]) from error
    if kind == fs.FileType.NotFound:
        fix = "correct the URL" if "://" in path else "correct the folder: paths start at the current directory"
        raise DataError([Fault(path, "nothing", must, fix)])
    raise DataError([Fault(path, "a file", must, f"lay it out as {LAYOUT}, and give the folder above")])


def _no_days(filesystem: fs.FileSystem, path: str, root: str) -> Fault:
    infos = sorted(filesystem.get_file_info(fs.FileSelector(root)), key=lambda info: info.base_name)
    names = [info.base_name for info in infos if info.type == fs.FileType.Directory]
    files = [info.base_name for info in infos if info.base_name.endswith(".parquet")]
    own = root.rstrip("/").rpartition("/")[2]
    where = f"{path}: layout"
    if own.startswith(("dt=", "hr=")):
        return Fault(
            where, f"{own}, a single day or hour", "the folder that holds the days", "give the folder above it"
        )
    keyed = next((name for name in names if re.fullmatch(r"[^=]+=.+", name)), None)
    if keyed is not None:
        key, _, value = keyed.partition("=")
        fix = f"rename each folder, as {keyed} to dt={_as_date(value)}"
        return Fault(where, f"folders such as {keyed}", f"{LAYOUT}: the key is dt, not {key}", fix)
    dated = next((name for name in names if _as_date(name) != _ANY_DAY), None)
    if dated is not None:
        fix = f"rename each folder, as {dated} to dt={_as_date(dated)}"
        return Fault(where, f"folders such as {dated}", LAYOUT, fix)
    for name in names:
        below = filesystem.get_file_info(fs.FileSelector(f"{root.rstrip('/')}/{name}"))
        if any(info.base_name.startswith("dt=") for info in below):
            return Fault(where, f"the days are in {name}", LAYOUT, f"give {path.rstrip('/')}/{name}")
    example = _EXAMPLE.format(path.rstrip("/"))
    if files:
        found = f"{len(files)} Parquet file{'s' * (len(files) > 1)} and no day, as {files[0]}"
        return Fault(where, found, LAYOUT, f"split the rows by their day (UTC) and write {example}")
    return Fault(where, "no folder dt=YYYY-MM-DD and no Parquet file", LAYOUT, f"write {example}")


_ANY_DAY = "YYYY-MM-DD"


def _as_date(text: str) -> str:
    """`2026-01-31` of itself, of 20260131, 2026_01_31 and 2026-01-31T00; `YYYY-MM-DD` of what is none of these."""
    found = re.match(r"(\d{4})[-_/]?(\d{2})[-_/]?(\d{2})(?!\d)", text)
    try:
        return date(*map(int, found.groups())).isoformat() if found else _ANY_DAY
    except ValueError:
        return _ANY_DAY
