"""What lies beside the data and is never read: said, since it may be data under a name that nobody expects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyarrow import fs

from diurnal.data.contract import Note, grouped
from diurnal.data.ids import IncrementId
from diurnal.data.partitions import open_filesystem, visible_in


def strays(path: str, increments: Iterable[str]) -> Iterator[Note]:
    """Visible files and folders of a dataset that no increment has: beside its days, beside the hours of hourly days,
    and beside the Parquet files of the increments. One listing a folder.

    Args:
        increments: names of the folders that are looked at.
    """
    filesystem, root = open_filesystem(path)
    root = root.rstrip("/")
    folders = list(dict.fromkeys(IncrementId.parse(name).whole for name in increments))
    yield from _beside(filesystem, root, "dt=")
    for day in dict.fromkeys(name.day for name in folders if name.hour is not None):
        yield from _beside(filesystem, f"{root}/dt={day}", "hr=")
    others: dict[str, list[str]] = {}
    for name in folders:
        for info in visible_in(filesystem, f"{root}/{name.folder}"):
            if _is_file(info) and not info.base_name.endswith(".parquet"):
                others.setdefault(info.base_name.partition(".")[2], []).append(info.path)
    for paths in others.values():
        yield Note(paths[0], f"not read, as only *.parquet is (files of this ending: {len(paths):,})")


def _beside(filesystem: fs.FileSystem, folder: str, prefix: str) -> Iterator[Note]:
    infos = visible_in(filesystem, folder)
    others = [i.base_name for i in infos if not _is_file(i) and not i.base_name.startswith(prefix)]
    if others:
        shown = "dt=YYYY-MM-DD" if prefix == "dt=" else "hr=HH"
        yield Note(folder, f"not read, as only folders {shown} are: {grouped(others)}")
    files = [i.base_name for i in infos if _is_file(i) and i.base_name.endswith(".parquet")]
    if files:
        yield Note(folder, f"not read, as it is in no folder {prefix}...: {grouped(files)}")


def _is_file(info: fs.FileInfo) -> bool:
    return info.type == fs.FileType.File
