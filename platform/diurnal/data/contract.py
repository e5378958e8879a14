"""The declared columns against what files have: which are missing, renamed or of another type, and how files differ."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyarrow import types as t

from diurnal.config import Schema
from diurnal.data.columns import Column, declared_columns, is_list, is_string, storage_type
from diurnal.data.footers import Footer
from diurnal.errors import Fault

_ALIKE = 0.75
"""Ratio of `difflib` from which on two names look alike."""
_SHOWN = 20


@dataclass(frozen=True)
class Note:
    """Something that a person may want to know, and that stops nothing."""

    where: str
    """A column, a folder or a file."""
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


def column_faults(path: str, footer: Footer, schema: Schema) -> list[Fault]:
    """What keeps a file from being read as the schema declares it.

    A required column that is missing: the fault names an undeclared column of the file that looks like it.
    """
    stored = _stored(footer)
    columns = list(declared_columns(schema))
    spare = {name: found[0] for name, found in stored.items() if name not in {column.name for column in columns}}
    faults = [fault for column in columns for fault in _faults(path, footer, column, stored, spare)]
    return list(dict.fromkeys(faults))


def missing_optional(footer: Footer, schema: Schema) -> set[str]:
    """Declared columns that the file lacks and may lack."""
    return {c.name for c in declared_columns(schema) if not c.required} - set(footer.schema.names)


def look_alike(name: str, candidates: Collection[str]) -> str | None:
    """The candidate that is probably the same column under another name: other case or punctuation, a few letters
    more, fewer or changed, or a word more."""
    plain = {_plain(candidate): candidate for candidate in reversed(list(candidates))}
    close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=_ALIKE)
    longer = [other for other in plain if len(name) > 2 and other.startswith(_plain(name))]
    return plain[(close + longer)[0]] if close or longer else None


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _stored(footer: Footer) -> dict[str, list[pa.DataType]]:
    """Types of the columns of each name, without dictionaries and extensions."""
    stored: dict[str, list[pa.DataType]] = {}
    for each in footer.schema:
        stored.setdefault(each.name, []).append(storage_type(each.type))
    return stored


def _faults(
    path: str,
    footer: Footer,
    column: Column,
    stored: dict[str, list[pa.DataType]],
    spare: dict[str, pa.DataType],
) -> Iterator[Fault]:
    where, found = f"{path}: column {column.name}", stored.get(column.name, [])
    if not found:
        if column.required:
            yield Fault(where, "no such column", f"required, {column.declared}", _fix_of_missing(column, spare))
    elif len(found) > 1:
        yield Fault(where, f"{len(found)} columns of this name", "one column", "write it once")
    elif t.is_null(found[0]):
        if column.role in ("label", "task", "weight") and column.required and footer.num_rows:
            found_none = f"no value in any of its {footer.num_rows:,} rows (the type is null)"
            fix = column.fix if column.role == "task" else f"write the {column.role}s, or take the file out"
            yield Fault(where, found_none, column.declared, fix)
    elif column.role == "request_id" and t.is_nested(found[0]):
        fix = "write it as a string or an integer, or take request_id out of the schema"
        yield Fault(where, str(found[0]), "declared as request_id: a single value a row", fix)
    elif not column.accepts(found[0]):
        yield Fault(where, str(found[0]), column.declared, _fix_of_type(column, found[0]))


def _fix_of_missing(column: Column, spare: dict[str, pa.DataType]) -> str:
    fits = [name for name, kind in spare.items() if t.is_null(kind) or column.accepts(kind)]
    alike = look_alike(column.name, fits)
    if alike is not None:
        return f'"{alike}" of this file looks like it: rename one, in the file or in the schema'
    if column.role == "weights":
        return column.fix
    otherwise = {"dense": "required = false", "sparse": "required = false", "task": 'missing = "skip"'}
    return (
        f"write the column, or declare it {otherwise[column.role]}" if column.role in otherwise else "write the column"
    )


def _fix_of_type(column: Column, found: pa.DataType) -> str:
    wants_list = column.type.startswith("list of")
    if t.is_map(found):
        return "write its keys, or its values, as a list column of its own"
    if t.is_struct(found):
        fields = ", ".join(found.field(i).name for i in range(min(found.num_fields, 3)))
        return f"write its fields ({fields}) as columns of their own, and declare those that matter"
    if t.is_list_view(found) or t.is_large_list_view(found):
        return "write a list, as pa.list_ in place of pa.list_view"
    if is_list(found) and t.is_nested(storage_type(found.value_type)):
        return "write one flat list a row, or its parts as columns of their own"
    if is_list(found) and not wants_list:
        return "declare many = true" if column.role == "sparse" else "write one value a row"
    if wants_list and not is_list(found) and column.role == "sparse":
        return "write a list a row, or declare many = false"
    return (column.role == "sparse" and _fix_of_ids(storage_type(found.value_type) if is_list(found) else found)) or (
        column.fix
    )


def _fix_of_ids(found: pa.DataType) -> str:
    """What fits ids that are stored as another type than the declared one; empty where nothing more is to be said."""
    if is_string(found):
        return 'declare type = "string", or write it as declared'
    if t.is_floating(found) or t.is_decimal(found):
        return 'write integers or strings, since floats are exact to 2^53 only; a quantity takes mapping = "bucketize"'
    if t.is_integer(found) or t.is_boolean(found):
        return f'declare type = "{"uint64" if t.is_uint64(found) else "int64"}", or write it as declared'
    return ""


def _told_type(kind: pa.DataType) -> str:
    """Without what says nothing of the values: whether they are a dictionary, large, or views."""
    kind = storage_type(kind)
    if is_list(kind):
        return f"list<{_told_type(kind.value_type)}>"
    return str(kind).removeprefix("large_").removesuffix("_view")


def _is_zone_missing(types: Iterable[str]) -> bool:
    return any(kind.startswith("timestamp") and "tz=" not in kind for kind in types)


@dataclass
class _Seen:
    """Files that have something in common."""

    files: int = 0
    rows: int = 0
    first: str = ""
    alike: str | None = None

    def add(self, path: str, rows: int) -> None:
        self.first = self.first or path
        self.files += 1
        self.rows += rows


@dataclass
class Drift:
    """How the columns of a dataset's files differ, file by file, in the order of time."""

    schema: Schema
    files: int = 0
    types: dict[str, dict[str, _Seen]] = field(default_factory=dict)
    """Stored types of each declared column."""
    extra: dict[str, _Seen] = field(default_factory=dict)
    """Columns that the schema does not mention."""
    missing: dict[str, _Seen] = field(default_factory=dict)
    """Optional columns that files lack."""

    def add(self, path: str, footer: Footer, is_sound: bool = True) -> None:
        """Takes a file in. Only types of a sound file, which keeps the contract, are looked at, and only if it has
        rows."""
        self.files += 1
        declared = {column.name for column in declared_columns(self.schema)}
        kinds = Counter(footer.schema.names)
        extra = [name for name in kinds if name not in declared]
        for name in extra:
            self.extra.setdefault(name, _Seen()).add(path, footer.num_rows)
        for each in footer.schema if is_sound and footer.num_rows else ():
            if each.name in declared:
                self.types.setdefault(each.name, {}).setdefault(_told_type(each.type), _Seen()).add(
                    path, footer.num_rows
                )
        for name in missing_optional(footer, self.schema):
            seen = self.missing.setdefault(name, _Seen())
            seen.add(path, footer.num_rows)
            seen.alike = seen.alike or look_alike(name, extra)

    def notes(self) -> Iterator[Note]:
        """Optional columns that are missing, types that change, columns that nobody reads."""
        for name, seen in sorted(self.missing.items()):
            beside = f'; "{seen.alike}" looks like it' if seen.alike else ""
            text = f"optional, and missing in {self._of_all(seen)}: {seen.rows:,} rows are learned without it"
            yield Note(f"column {name}", f"{text}{beside}")
        for name, types in self.types.items():
            if len(types) > 1:
                told = "; ".join(f"{kind} in {self._of_all(one)}, first {one.first}" for kind, one in types.items())
                told += "; null is a file without a value" if "null" in types else ""
                told += "; times without a zone are taken as UTC" if _is_zone_missing(types) else ""
                yield Note(f"column {name}", f"stored in {len(types)} types, all read as declared: {told}")
        if self.extra:
            told = [f"{name} ({self._of_all(seen)})" for name, seen in list(self.extra.items())[:_SHOWN]]
            more = f" and {len(self.extra) - _SHOWN} more" if len(self.extra) > _SHOWN else ""
            yield Note("columns", f"not in the schema, so that nobody reads them: {', '.join(told)}{more}")

    def _of_all(self, seen: _Seen) -> str:
        return f"{seen.files:,} of {self.files:,} files"


def grouped(names: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
