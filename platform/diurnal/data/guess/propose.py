"""Puts the guesses together: a schema that fits the files, a run that fits their size, and all that was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from diurnal.config.daily import Gate
from diurnal.config.features import DIM_MULTIPLE, Dense
from diurnal.data.guess import inputs
from diurnal.data.guess.cardinality import count_ids
from diurnal.data.guess.inputs import Ids
from diurnal.data.guess.label import NO_WISH, LabelGuess, Wish, guess_label
from diurnal.data.guess.leaks import MIN_CLASS_ROWS, Association, association, past_effects
from diurnal.data.guess.names import SafeNames, is_weight, words
from diurnal.data.guess.proposal import Entry, Key, LeftOut, Proposal
from diurnal.data.guess.roles import guess_keys, unusable
from diurnal.data.guess.survey import MAX_ROWS, Survey, survey
from diurnal.data.guess.values import Values, read_values
from diurnal.data.ids import IncrementId, folders_between
from diurnal.errors import DataError, Fault

MAX_TABLE_ROWS = 1 << 22
"""Of a table, as guessed: 4 million rows of 32 floats are half a gigabyte."""
MAX_TABLE_FLOATS = 1 << 28
"""Of all tables together: a gigabyte."""

_DIMS = (8, 32)
_ROOMY_ROWS = 1 << 14
"""Up to here a table gets up to sixteen rows for an id, so that few ids share one; twice as many beyond."""
_BATCH_ROWS = (64, 16_384)
_STEPS = 200
"""Of a median increment, about."""
_AGE_S = (3600.0, 60.0)
_LIVE_S = 36 * 3600
"""Files that are written within that of their increment's end come as the days come."""
_WEEKDAYS_FROM = 14
_REMEMBERED_IDS = 20
_MAX_IDEAS = 6
_FEWEST_JUDGED = 100
_MANY_ROWS = 100
"""Of a day: fewer may lack a value by chance."""
_MAX_NULL = 0.995
"""Share of rows without a value from which on a column says next to nothing, and a small day has none at all, which
`daily` holds as a dead input."""


@dataclass
class _Found:
    """Inputs and what is left out, as they are found."""

    survey: Survey
    names: SafeNames = field(default_factory=SafeNames)
    dense: list[Entry] = field(default_factory=list)
    sparse: list[Ids] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    indicated: set[bytes] = field(default_factory=set)
    """Which rows lack a value, of columns that have an indicator."""


def propose(path: str, num_days: int = 7, wish: Wish = NO_WISH, max_rows: int = MAX_ROWS) -> Proposal:
    """Guesses a schema and a run from a dataset's files.

    Raises:
        DataError: nothing is to be found there, no label can be told, or nothing is left to learn from.
    """
    looked = survey(path, num_days, max_rows)
    columns = {f.name: read_values(looked, f) for f in looked.fields if f.kind is not None}
    label = guess_label(columns, wish)
    rest = {name: values for name, values in columns.items() if name != label.column}
    keys = guess_keys(looked, rest)
    found = _Found(looked)
    found.left_out += [LeftOut(f.name, f.types, f.reason) for f in looked.fields if f.kind is None]
    used = {key.column: key.role for key in keys}
    measured: dict[str, Association | None] = {}
    for name, values in rest.items():
        if used.get(name) in (None, "group_id"):
            measured[name] = _sort_in(found, values, label)
    found.sparse = _counted(found, rest)
    _add_clock(found, rest, keys)
    ideas = _ideas(found, rest, label, measured)
    _complete(found, rest, measured, ideas)
    tables = _tables(found)
    return Proposal(
        name=_run_name(path),
        survey=looked,
        label=label,
        keys=tuple(keys),
        readiness=_readiness(looked),
        dense=tuple(found.dense),
        sparse=tuple(_with_table(ids.entry, table) for ids, table in zip(found.sparse, tables, strict=True)),
        tables=tuple(tables),
        ideas=tuple(idea for idea in ideas if idea.settings not in [entry.settings for entry in found.dense]),
        left_out=tuple(found.left_out),
        batch_rows=_batch_rows(looked),
        days=_days(looked),
        gate=_gate(looked),
        notes=tuple(_notes(looked, label, keys) + _doubts(found, measured)),
    )


def _sort_in(found: _Found, values: Values, label: LabelGuess) -> Association | None:
    name, types, looked = values.field.name, values.field.types, found.survey
    if reason := unusable(looked, values):
        found.left_out.append(LeftOut(name, types, reason))
        return None
    is_number = values.field.kind == "float" or (values.field.kind == "int" and inputs.is_quantity(values))
    measured = association(values, label.labels, looked.day_of_row)
    is_leak = measured is not None and measured.is_leak
    reason = ""
    if name in label.others:
        reason = f"perhaps a label: {label.others[name]}"
    elif is_weight(name) and len(words(name)) > 1:
        reason = "named like a weight of rows, but a weight is a finite number of at least 0 in every row"
    elif values.null_share > _MAX_NULL:
        reason = (
            f"null in more than {_MAX_NULL:.1%} of the rows: little to learn from, and a day without any would be held"
        )
    elif gone := _days_without(looked, values):
        reason = f"no value in any row of {gone}, after days that had some: `daily` would hold such a day"
    if measured is not None and is_leak:
        reason = "; ".join(filter(None, [f"known only after the outcome, it seems: {measured.text}", reason]))
    names = SafeNames() if reason else found.names
    beside = "" if measured is None else f"; AUC alone {measured.auc:.3f}"
    if is_number:
        entries = inputs.dense_entries(values, names, beside, set() if reason else found.indicated)
        if not entries:
            reason = reason or "one number in all rows that have one"
        if reason:
            found.left_out.append(LeftOut(name, types, reason, is_leak, tuple(entries)))
        else:
            found.dense += entries
        return measured
    ids = inputs.sparse_ids(values, names, _news(looked, values), beside)
    if reason:
        table = Entry("tables", {"name": names.table(ids.entry.settings["name"]), "rows": _rows(ids), "dim": 0}, "")
        entries = (_with_table(ids.entry, table), table)
        found.left_out.append(LeftOut(name, types, reason, is_leak, entries))
    else:
        found.sparse.append(ids)
    return measured


def _days_without(looked: Survey, values: Values) -> str:
    """Days of many rows that lack a column which an earlier one had; a column that came later is a new one."""
    names = list(dict.fromkeys(folder.increment[:10] for folder in looked.folders))
    rows = np.bincount(looked.day_of_row, minlength=len(names))
    filled = np.bincount(looked.day_of_row[~values.is_null], minlength=len(names))
    lacking = np.flatnonzero((np.cumsum(filled) > 0) & (filled == 0) & (rows >= _MANY_ROWS))
    if not len(lacking):
        return ""
    more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    return f"{names[lacking[0]]}{more}"


def _counted(found: _Found, columns: Mapping[str, Values]) -> list[Ids]:
    counted = count_ids(found.survey, [columns[_column(ids.entry)] for ids in found.sparse])
    numbers = [counted[_column(ids.entry)] for ids in found.sparse]
    return [replace(i, expected=most, counted_rows=rows) for i, (most, rows) in zip(found.sparse, numbers, strict=True)]


def _news(looked: Survey, values: Values) -> str:
    share = values.new_share(looked.day_of_row)
    day = looked.folders[int(looked.folder_of_row[-1])].increment[:10]
    return "" if share is None else f"; {share:.1%} of those of {day} are in no other day that was read"


def _add_clock(found: _Found, columns: Mapping[str, Values], keys: list[Key]) -> None:
    """Hour and weekday of the event time, where they differ from row to row and come again."""
    time = next((key.column for key in keys if key.role == "event_time"), None)
    if time is None:
        return
    have = {_column(entry) for entry in found.dense} | {_column(ids.entry) for ids in found.sparse}
    hours = {
        int(us // (3600 * 10**6) % 24) for us in columns[time].numbers[:: max(1, len(columns[time].codes) // 5000)]
    }
    if len(hours) > 1 and "hour" not in have:
        found.sparse.append(inputs.of_clock("hour", time, found.names))
    if len({name[:10] for name in found.survey.increments}) >= _WEEKDAYS_FROM and "weekday" not in have:
        found.sparse.append(inputs.of_clock("weekday", time, found.names))


def _ideas(
    found: _Found, columns: Mapping[str, Values], label: LabelGuess, measured: Mapping[str, Association | None]
) -> list[Entry]:
    """The past of features with many ids, those first that say most."""
    several = [ids for ids in found.sparse if ids.expected >= _REMEMBERED_IDS and _column(ids.entry) in measured]
    several.sort(key=lambda ids: -_auc(measured[_column(ids.entry)]))
    entries = []
    for ids in several[:_MAX_IDEAS]:
        effects = past_effects(
            columns[_column(ids.entry)], label.labels, found.survey.day_of_row, Dense(name="x").prior
        )
        entries.append(inputs.of_past(ids.entry.settings["name"], effects, found.names))
    return [entry for entry in entries if entry is not None]


def _complete(
    found: _Found,
    columns: Mapping[str, Values],
    measured: Mapping[str, Association | None],
    ideas: list[Entry],
) -> None:
    """A DLRM needs one dense and one sparse input at least.

    Raises:
        DataError: no column is left to learn from.
    """
    if not found.dense and not found.sparse:
        reasons = "; ".join(f"{out.column}: {out.reason}" for out in found.left_out[:8])
        must = "one column or more that is known before the outcome, and differs from row to row"
        fix = "write ids or numbers that are known when the row is shown"
        raise DataError(
            [Fault(found.survey.path, f"nothing to learn from ({reasons or 'no other column'})", must, fix)]
        )
    if not found.sparse:
        best = max(found.dense, key=lambda entry: _auc(measured.get(_column(entry))))
        found.sparse.append(inputs.bucketized(columns[_column(best)], found.names))
    if not found.dense:
        found.dense.append(_some_number(found, columns, ideas))


def _some_number(found: _Found, columns: Mapping[str, Values], ideas: list[Entry]) -> Entry:
    lack = "a DLRM needs a dense input, and no column is a number"
    if ideas:
        return replace(ideas[0], why=f"{lack}: {ideas[0].why}")
    integers = [ids for ids in found.sparse if columns[_column(ids.entry)].field.kind == "int"]
    for ids in sorted(integers, key=lambda ids: ids.expected):
        entries = inputs.dense_entries(columns[_column(ids.entry)], found.names)
        if entries:
            return replace(entries[0], why=f"{lack}: the one with fewest ids. {entries[0].why}")
    why = f"{lack}: a column that is not there counts as 1 in all rows"
    return Entry("dense", {"name": found.names.take("no_number"), "required": False, "fill": 1.0}, why)


def _column(entry: Entry) -> str:
    return str(entry.settings.get("column", entry.settings["name"]))


def _auc(measured: Association | None) -> float:
    return 0.5 if measured is None else measured.auc


def _rows(ids: Ids) -> int:
    """A power of two, with room for all ids that are expected."""
    if ids.exact_rows is not None:
        return ids.exact_rows
    wanted = max(2 * ids.expected, min(16 * ids.expected, _ROOMY_ROWS), 16)
    return min(1 << (wanted - 1).bit_length(), MAX_TABLE_ROWS)


def _tables(found: _Found) -> list[Entry]:
    """One table for each sparse input; all have one width."""
    most = max(ids.expected for ids in found.sparse)
    width = -(-round(most**0.25) // DIM_MULTIPLE) * DIM_MULTIPLE
    dim = min(max(width, _DIMS[0]), _DIMS[1])
    rows = [_rows(ids) for ids in found.sparse]
    while sum(rows) * dim > MAX_TABLE_FLOATS and max(rows) > _ROOMY_ROWS:
        rows[rows.index(max(rows))] //= 2
    tables = []
    for ids, size in zip(found.sparse, rows, strict=True):
        settings = {"name": found.names.table(ids.entry.settings["name"]), "rows": size, "dim": dim}
        pooling = {"pooling": ids.pooling} if ids.pooling != "sum" else {}
        why = f"about {ids.expected:,} ids in all rows"
        if ids.exact_rows is not None:
            why = f"{ids.exact_rows} values"
        elif ids.counted_rows < found.survey.rows_in_all:
            why += f", estimated from {ids.counted_rows:,} of {found.survey.rows_in_all:,} rows"
        if size < ids.expected:
            why += f"; ids share rows, so that all tables together stay small: this one has {size * dim >> 18:,} MiB"
        tables.append(Entry("tables", settings | pooling, why))
    return tables


def _with_table(entry: Entry, table: Entry) -> Entry:
    name = table.settings["name"]
    if name == entry.settings["name"]:
        return entry
    return replace(entry, settings=entry.settings | {"table": name})


def _readiness(looked: Survey) -> Entry:
    """What is in the folder of every increment but perhaps the newest: a marker, else a manifest, else an age."""
    there = [folder for folder in looked.folders if folder.num_files]
    counts = Counter(name for folder in there for name in folder.others)
    of = f"of {len(there)} folders that were looked at"

    def is_rule(name: str) -> bool:
        lacking = [folder for folder in there if name not in folder.others]
        return counts[name] > 0 and (not lacking or lacking == there[-1:])

    marks = [name for name in sorted(counts) if name == "_SUCCESS" or _says_done(name)]
    for name in sorted(marks, key=lambda name: name != "_SUCCESS"):
        if is_rule(name):
            marker = {} if name == "_SUCCESS" else {"marker": name}
            return Entry("readiness", {"rule": "marker", **marker}, f"{name} is in {counts[name]} {of}")
    if is_rule("_manifest.json"):
        return Entry("readiness", {"rule": "manifest"}, f"_manifest.json is in {counts['_manifest.json']} {of}")
    seen = f"_SUCCESS is in {counts['_SUCCESS']} {of}"
    ages = [abs(folder.age_s) for folder in there if folder.age_s is not None]
    if median(ages) <= _LIVE_S:
        why = f"{seen}, and files are written soon after their day or hour: complete an hour after the newest file"
        return Entry("readiness", {"rule": "age", "age_s": _AGE_S[0]}, why)
    why = f"{seen}, and files were not written as the days came: complete a minute after the newest file"
    return Entry("readiness", {"rule": "age", "age_s": _AGE_S[1]}, why)


def _says_done(name: str) -> bool:
    return any(word in name.lower() for word in ("success", "done", "complete", "ready", "committed", "finished"))


def _batch_rows(looked: Survey) -> int:
    low, high = _BATCH_ROWS
    wanted = max(1, looked.median_rows // _STEPS)
    return min(max(1 << (wanted.bit_length() - 1), low), high)


def _days(looked: Survey) -> Entry | None:
    settings: dict[str, str] = {}
    why = []
    names = [IncrementId.parse(name) for name in looked.increments]
    gaps = sum(len(folders_between(a, b)) for a, b in pairwise(names))
    if gaps:
        settings["missing"] = "skip"
        why.append(
            f"{gaps:,} {'increments are' if gaps > 1 else 'increment is'} missing between the first and the last"
        )
    empty = sum(1 for folder in looked.folders if not folder.rows)
    if empty:
        settings["empty"] = "skip"
        why.append(f"{empty:,} of the {len(looked.folders):,} looked at {'have' if empty > 1 else 'has'} no row")
    return Entry("days", settings, "; ".join(why)) if settings else None


def _gate(looked: Survey) -> Entry | None:
    """Judging on whole increments where a slice of them is too small to decide anything."""
    defaults = Gate()
    if looked.median_rows * defaults.slice_share >= defaults.min_rows:
        return None
    why = (
        f"{defaults.slice_share:.0%} of the {looked.median_rows:,} rows of a median increment are fewer than the "
        f"{defaults.min_rows:,} that `daily` judges a version on: judged on the next increment as a whole"
    )
    settings: dict[str, Any] = {"judged_on": "next"}
    if looked.median_rows < 2 * defaults.min_rows:
        settings["min_rows"] = max(_FEWEST_JUDGED, looked.median_rows // 2)
        why += ", and on fewer rows, which decide less often"
    return Entry("gate", settings, why)


def _run_name(path: str) -> str:
    base = path.partition("?")[0].rstrip("/").rpartition("/")[2]
    return SafeNames().take(base or "model").replace(".", "_")


def _doubts(found: _Found, measured: Mapping[str, Association | None]) -> list[str]:
    used = dict.fromkeys(_column(entry) for entry in (*found.dense, *(ids.entry for ids in found.sparse)))
    doubts = [(name, one.doubt) for name in used if (one := measured.get(name)) is not None and one.doubt]
    return [f"{name}: {doubt}. Is it known before the outcome?" for name, doubt in doubts]


def _notes(looked: Survey, label: LabelGuess, keys: list[Key]) -> list[str]:
    fix = 'its day is refused, unless data.on_bad_file = "quarantine" leaves the file out'
    notes = [f"{file} cannot be read ({why}): {fix}" for file, why in looked.bad_files]
    if label.doubt:
        notes.append(f"the label is taken to be {label.column}, by its values alone: {label.doubt}")
    for key in keys:
        if key.role == "weight" and len(words(key.column)) == 1:
            notes.append(
                f"{key.column} is taken as the weight of a row by its name alone: remove it if things weigh it"
            )
    positives = int(label.labels.sum())
    if min(positives, len(label.labels) - positives) < MIN_CLASS_ROWS:
        notes.append(
            f"{positives:,} of the {len(label.labels):,} rows that were read are positive, too few of one kind to "
            "measure whether a column is known only after the outcome: look through them, or read more with --days"
        )
    return notes
