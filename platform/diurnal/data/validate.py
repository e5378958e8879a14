"""Everything that can be said of a dataset before it costs anything: its folders, footers, and a sample of its values.

A fault is what a command would refuse, or what the daily cycle would hold for the values alone; a note is what a person
may want to know. Whatever an increment has beside those before it is for the profile to say, when its day comes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from diurnal.config import Config
from diurnal.data.contract import Drift, Note
from diurnal.data.duplicates import Duplicates, find_duplicates
from diurnal.data.partitions import Increment, is_ready, survey_dataset, survey_increment
from diurnal.data.remarks import Remarks
from diurnal.data.row_groups import RowGroups, available_bytes
from diurnal.data.selection import choose_folders, cut_wanted, not_complete
from diurnal.data.strays import strays
from diurnal.data.values import look_at_values, slices
from diurnal.errors import DataError, Fault

SAMPLE_ROWS = 20_000
"""Rows of a file that are looked at, at most, unless another number is asked for."""

_INCREMENT_ROWS = 400_000
"""Rows of an increment that are looked at, about: less of each file when there are many."""
_FEWEST_ROWS = 500
"""Rows of a file that are looked at, however many files there are."""


class OnProgress(Protocol):
    def __call__(self, what: str, done: int, of: int) -> None: ...


@dataclass(frozen=True)
class Validation:
    """What was found."""

    increments: tuple[Increment, ...]
    """Those whose footers keep the contract."""
    faults: tuple[Fault, ...]
    notes: tuple[Note, ...]
    rows_looked_at: int
    """Rows whose values were looked at."""

    @property
    def num_rows(self) -> int:
        return sum(increment.num_rows for increment in self.increments)


def validate(
    config: Config,
    first: str | None = None,
    last: str | None = None,
    *,
    rows: int | None = None,
    full: bool = False,
    duplicates: bool = False,
    memory_bytes: int | None = None,
    on_progress: OnProgress = lambda what, done, of: None,
) -> Validation:
    """Looks at the complete increments from `first` to `last`, as `selection.select_increments` chooses them.

    The last folders of a dataset are noted, not refused, while they are not complete, unless a range was asked for.

    Args:
        rows: of each file whose values are looked at; `SAMPLE_ROWS`, or fewer in an increment of many files, when None.
        full: whether the values of all rows are looked at.
        duplicates: whether request ids that are there more than once are a fault.
        memory_bytes: that readers share; what the machine has left when None.

    Raises:
        DataError: the dataset does not exist, or has no increment in this range.
    """
    run = _Validating(config, rows, full, on_progress)
    chosen, before = run.choose(first, last)
    run.survey(chosen, available_bytes() if memory_bytes is None else memory_bytes)
    run.look_at_values()
    if duplicates:
        run.find_duplicates(before)
    increments = [part for one in run.sound for part in cut_wanted(one, chosen[one.id], config.data.parts)]
    return Validation(tuple(increments), tuple(run.faults), tuple(run.notes), run.rows_looked_at)


@dataclass
class _Validating:
    config: Config
    rows: int | None
    full: bool
    on_progress: OnProgress
    faults: list[Fault] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    folders: list[tuple[Increment, frozenset[str]]] = field(default_factory=list)
    """Increments, and files of them whose values cannot be looked at."""
    sound: list[Increment] = field(default_factory=list)
    rows_looked_at: int = 0

    def choose(self, first: str | None, last: str | None) -> tuple[dict[str, set[str]], str | None]:
        """The complete folders and what is wanted of them, and the folder before."""
        data, schema = self.config.data, self.config.dataset
        ids, faults = survey_dataset(data.path)
        self.faults += faults
        if not ids and faults:
            return {}, None
        try:
            chosen = choose_folders(ids, data.path, first, last, data.parts)
        except DataError as error:
            raise DataError([*faults, *error.faults]) from error
        readiness = {folder: is_ready(data.path, folder, schema) for folder in chosen}
        complete = {folder: wanted for folder, wanted in chosen.items() if readiness[folder][0]}
        newest = max(complete, default="9999")
        for folder in sorted(chosen.keys() - complete.keys()):
            why = readiness[folder][1]
            if first is None and folder > newest:
                self.notes.append(Note(f"{data.path}: {folder}", f"not complete, so not looked at: {why}"))
            else:
                self.faults.append(not_complete(data.path, folder, why))
        earlier = [folder for folder in ids if folder < next(iter(chosen))]
        return complete, earlier[-1] if earlier else None

    def survey(self, folders: dict[str, set[str]], memory_bytes: int | None) -> None:
        """Folders and footers."""
        data, schema = self.config.data, self.config.dataset
        self.notes += strays(data.path, folders)
        drift = Drift(schema)
        groups = None if memory_bytes is None else RowGroups(schema, memory_bytes, self.config.num_streams)
        for done, folder in enumerate(folders):
            self.on_progress("footers", done, len(folders))
            survey = survey_increment(data.path, folder, schema, data.on_bad_file)
            self.faults += survey.faults
            for file, footer in zip(survey.increment.files, survey.footers, strict=True):
                drift.add(file.path, footer, file.path not in survey.broken)
                if groups is not None:
                    groups.add(file.path, footer)
            for path in survey.increment.quarantined_files:
                self.notes.append(Note(path, "left out, since it cannot be read (data.on_bad_file)"))
            self.folders.append((survey.increment, survey.broken))
            if not survey.faults:
                self.sound.append(survey.increment)
        self.notes += drift.notes()
        if groups is not None:
            self.faults += groups.faults
            self.notes += groups.notes()

    def look_at_values(self) -> None:
        """A sample of the values of each file, and what follows from all of them together."""
        sizes = {one.id: self._rows_of_a_file(one) for one, _ in self.folders}
        total = sum(
            piece.stop - piece.start
            for one, broken in self.folders
            for file in one.files
            if file.path not in broken and file.num_rows
            for piece in slices(file, sizes[one.id])
        )
        remarks = Remarks(self.config)

        def progress(rows: int) -> None:
            self.rows_looked_at += rows
            self.on_progress("values", self.rows_looked_at, total)

        for one, broken in self.folders:
            values = look_at_values(one, self.config.dataset, sizes[one.id], but=broken, on_progress=progress)
            self.faults += [fault for of_file in values for fault in of_file.faults()]
            # A day whose only file is damaged is not one without rows.
            if one.num_rows or one in self.sound:
                self.faults += remarks.add(one, values)
        self.notes += remarks.notes()

    def find_duplicates(self, before: str | None) -> None:
        """Request ids within an increment, and again in the next one."""
        data, schema = self.config.data, self.config.dataset
        if not schema.request_id:
            must = "the schema names the column of request ids"
            self.faults.append(Fault("request_id", "nothing", must, 'set request_id = "..." in the schema'))
            return
        previous = None
        if before is not None and is_ready(data.path, before, schema)[0]:
            survey = survey_increment(data.path, before, schema, data.on_bad_file)
            previous = None if survey.faults else survey.increment
        total, done = sum(one.num_rows for one in self.sound), 0

        def progress(rows: int) -> None:
            nonlocal done
            done += rows
            self.on_progress("request ids", min(done, total), total)

        for one in self.sound:
            try:
                found = find_duplicates(one, previous, schema.request_id, on_progress=progress)
            except DataError as error:
                self.faults += error.faults
            else:
                if found.within or found.again:
                    self.faults.append(_duplicate_fault(one, found, schema.request_id))
            previous = one

    def _rows_of_a_file(self, increment: Increment) -> int | None:
        """None is all of them."""
        if self.full or self.rows is not None:
            return None if self.full else self.rows
        return min(SAMPLE_ROWS, max(_FEWEST_ROWS, _INCREMENT_ROWS // max(1, len(increment.files))))


def _duplicate_fault(increment: Increment, found: Duplicates, name: str) -> Fault:
    told = [f"{found.within:,} with the request id of an earlier row"] * (found.within > 0)
    told += [f"{found.again:,} with one of the increment before"] * (found.again > 0)
    where = f"{increment.path}: {increment.id}: column {name} (request_id)"
    fix = "take the copies out; where one request has several rows, leave --duplicates out"
    return Fault(where, f"rows: {', '.join(told)}, as {found.example}", "each request id once", fix)
