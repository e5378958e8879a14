"""The increments of a range of days, each proven complete and readable before anything is started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from diurnal.config import Schema
from diurnal.config.run import OnBadFile
from diurnal.data.ids import ID_RULE, IncrementId
from diurnal.data.partitions import Increment, is_ready, list_increments, read_increment, same_folder
from diurnal.errors import DataError, Fault


def select_increments(
    path: str,
    schema: Schema,
    first: str | None = None,
    last: str | None = None,
    parts: int = 1,
    on_bad_file: OnBadFile = "refuse",
) -> list[Increment]:
    """The increments from `first` to `last`, in order of time, with their footers read and checked.

    Args:
        path: the dataset.
        schema: its declared columns.
        first: a day `YYYY-MM-DD`, an hour `YYYY-MM-DDTHH`, or a part of one; the dataset's first increment when None.
        last: likewise, included, a day with all its hours and a folder with all its parts; `first` when None, or the
            dataset's last increment when both are None.
        parts: into how many increments every folder is cut by rows.
        on_bad_file: as of `read_increment`.

    Raises:
        DataError: with the faults of all increments at once; also when one is not complete, or none is there.
    """
    increments: list[Increment] = []
    faults: list[Fault] = []
    for folder, wanted in choose_folders(list_increments(path, schema), path, first, last, parts).items():
        ready, reason = is_ready(path, folder, schema)
        if not ready:
            faults.append(not_complete(path, folder, reason))
            continue
        try:
            increments += cut_wanted(read_increment(path, folder, schema, on_bad_file), wanted, parts)
        except DataError as error:
            faults += error.faults
    if faults:
        raise DataError(faults)
    return increments


def choose_folders(
    ids: Sequence[str], path: str, first: str | None, last: str | None, parts: int
) -> dict[str, set[str]]:
    """The folders, in order, that have increments from `first` to `last` as of `select_increments`, and which.

    Args:
        ids: of the dataset's folders, in order.

    Raises:
        DataError: there is none, or a bound is no increment's name.
    """
    chosen = _in_range(ids, first, last, parts)
    if not chosen:
        span = f"{ids[0]} to {ids[-1]}" if ids else "none"
        asked = " to ".join(dict.fromkeys(bound for bound in (first, last) if bound is not None)) or "any"
        raise DataError([Fault(path, f"no increment for {asked}", f"the dataset has {span}", "choose a day of it")])
    return chosen


def not_complete(path: str, folder: str, reason: str) -> Fault:
    """An increment that is asked for too early."""
    fix = "wait for the writer, or change [readiness] of the schema"
    return Fault(f"{path}: {folder}", reason, "the increment is complete", fix)


def cut_wanted(folder: Increment, wanted: Set[str], parts: int) -> list[Increment]:
    """The increments that a folder is cut into, as far as they are wanted."""
    return [increment for increment in folder.cut(parts) if increment.id in wanted]


def wait_for_increments(
    path: str,
    schema: Schema,
    first: str | None,
    last: str | None,
    parts: int,
    known: Set[str],
    now: float | None = None,
    on_bad_file: OnBadFile = "refuse",
) -> list[Increment]:
    """One look for those that have become complete: the increments of the range that are not `known`, in order of time.

    It ends before the first folder that is there but not complete, so that no later one overtakes it. A folder that
    does not exist is no gap. Call it again until what is awaited comes; it does not wait itself.

    Args:
        first, last, parts: as of `select_increments`, but a range without an increment is an empty answer.
        known: ids of the increments that were returned before or are trained.
        now: seconds since 1970, for readiness by age; this machine's clock when None.
        on_bad_file: as of `read_increment`.

    Raises:
        DataError: the next increment is complete but cannot be read or breaks the schema. Those before it are
            returned first, and the next look raises.
    """
    increments: list[Increment] = []
    for folder, ids in _in_range(list_increments(path, schema), first, last, parts).items():
        wanted = ids - known
        if not wanted:
            continue
        if not is_ready(path, folder, schema, now)[0]:
            break
        try:
            increments += cut_wanted(read_increment(path, folder, schema, on_bad_file), wanted, parts)
        except DataError:
            if increments:
                break
            raise
    return increments


def cut_faults(trained: Mapping[str, str], wanted: Iterable[Increment]) -> list[Fault]:
    """What would train rows a second time, or lose some, through another cut of a folder than the trained one.

    Args:
        trained: id and fingerprint of every increment that a version of the model was trained on.
        wanted: increments to be trained; those whose id is in `trained` are not looked at.

    Returns:
        At most one fault a folder: it was trained whole and is asked for in parts or the other way round, or in another
        number of parts, or as a day and is asked for by hours; or its files changed between two of its parts.
    """
    by_day: dict[str, list[IncrementId]] = {}
    for name in map(IncrementId.parse, sorted(trained)):
        by_day.setdefault(str(name.day), []).append(name)
    faults: dict[str, Fault] = {}
    for increment in wanted:
        name = IncrementId.parse(increment.id)
        if increment.id in trained or name.folder in faults:
            continue
        for other in by_day.get(str(name.day), []):
            fault = _cut_fault(name, other, same_folder(increment.fingerprint, trained[str(other)]))
            if fault is not None:
                faults[name.folder] = fault
                break
    return list(faults.values())


def _cut_fault(name: IncrementId, other: IncrementId, is_same_folder: bool) -> Fault | None:
    if (name.hour is None) != (other.hour is None):
        rule = "a day is trained either whole or by its hours"
        return Fault(str(name), f"rows that were trained as {other}", rule, "start a new lineage under another name")
    if name.hour != other.hour:
        return None
    if name.parts != other.parts:
        fix = f"set data.parts = {other.parts} for this day, or start a new lineage under another name"
        return Fault(str(name), f"rows that were trained as {other}", "a folder is always cut in the same way", fix)
    if not is_same_folder:
        fix = "put the files back, or start a new lineage under another name"
        return Fault(str(name), f"files that differ from those of {other}", "parts of one folder do not change", fix)
    return None


def _in_range(folders: Iterable[str], first: str | None, last: str | None, parts: int) -> dict[str, set[str]]:
    """The folders, in order, that have increments from `first` to `last`, and which.

    Raises:
        DataError: a bound is no increment's name, or a part of another number of parts.
    """
    faults = [fault for bound in (first, last) if bound is not None for fault in _bound_faults(bound, parts)]
    if faults:
        raise DataError(faults)
    low, high = first or "", last or first or "9999"
    chosen = {}
    for folder in folders:
        ids = map(str, IncrementId.parse(folder).cut(parts))
        inside = {i for i in ids if low <= i and (i <= high or i.startswith(high))}
        if inside:
            chosen[folder] = inside
    return chosen


def _bound_faults(bound: str, parts: int) -> list[Fault]:
    try:
        name = IncrementId.parse(bound)
    except ValueError:
        return [Fault("day", bound, ID_RULE, "correct it")]
    if name.parts in (1, parts):
        return []
    return [Fault("day", bound, f"data.parts = {parts} of the configuration", f"set data.parts = {name.parts}")]
