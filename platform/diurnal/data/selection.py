"""The increments of a range of days, each proven complete and readable before anything is started."""

from __future__ import annotations

import re

from diurnal.config import Schema
from diurnal.data.partitions import Increment, is_ready, list_increments, read_increment
from diurnal.errors import DataError, Fault


def select_increments(path: str, schema: Schema, first: str | None = None, last: str | None = None) -> list[Increment]:
    """The increments from `first` to `last`, in order of time, with their footers read and checked.

    Args:
        path: the dataset.
        schema: its declared columns.
        first: a day `YYYY-MM-DD` or an hour `YYYY-MM-DDTHH`; the dataset's first increment when None.
        last: likewise, included; `first` when None, or the dataset's last increment when both are None.

    Raises:
        DataError: with the faults of all increments at once; also when one is not complete, or none is there.
    """
    wanted = [bound for bound in (first, last) if bound is not None]
    faults = [
        Fault("day", bound, "a day YYYY-MM-DD or an hour YYYY-MM-DDTHH", "correct it")
        for bound in wanted
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}(T\d{2})?", bound)
    ]
    if faults:
        raise DataError(faults)
    ids = list_increments(path, schema)
    low = first or ""
    high = last or first or "9999"
    chosen = [i for i in ids if low <= i and (i <= high or i.startswith(high))]
    if not chosen:
        span = f"{ids[0]} to {ids[-1]}" if ids else "none"
        asked = "any" if not wanted else " to ".join(dict.fromkeys(wanted))
        raise DataError([Fault(path, f"no increment for {asked}", f"the dataset has {span}", "choose a day of it")])
    increments = []
    for increment_id in chosen:
        ready, reason = is_ready(path, increment_id, schema)
        if not ready:
            fix = "wait for the writer, or change [readiness] of the schema"
            faults.append(Fault(f"{path}: {increment_id}", reason, "the increment is complete", fix))
            continue
        try:
            increments.append(read_increment(path, increment_id, schema))
        except DataError as error:
            faults += error.faults
    if faults:
        raise DataError(faults)
    return increments
