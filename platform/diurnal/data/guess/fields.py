"""The columns of files that no schema describes: one kind for each, whatever file is opened first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pyarrow import types as t

from diurnal.data.columns import is_list, is_string, storage_type

Kind = Literal["int", "float", "text", "time", "ints", "texts"]
"""Integers and bools; floats and decimals; strings and bytes; timestamps; lists of integers; lists of strings."""


@dataclass(frozen=True)
class Field:
    """A column, over all files whose footers were read."""

    name: str
    types: str
    """As Arrow spells them, for a person."""
    kind: Kind | None
    """None when no schema can declare it."""
    reason: str = ""
    """Why there is no kind, and what to do about it."""
    is_unsigned: bool = False
    """Whether some file has it as uint64."""
    is_decimal: bool = False
    num_files: int = 0
    """That have it."""
    num_missing: int = 0
    """Files that lack it."""

    @property
    def is_bag(self) -> bool:
        return self.kind in ("ints", "texts")


def merge_fields(schemas: Sequence[pa.Schema]) -> tuple[Field, ...]:
    """One field for each name, in the order in which the files have them first."""
    names = dict.fromkeys(name for schema in schemas for name in schema.names)
    found: dict[str, list[pa.DataType]] = {name: [] for name in names}
    twice = {name for schema in schemas for name, count in Counter(schema.names).items() if count > 1}
    for schema in schemas:
        for field in schema:
            found[field.name].append(field.type)
    return tuple(_merge(name, types, len(schemas), name in twice) for name, types in found.items())


def _merge(name: str, types: list[pa.DataType], num_files: int, is_twice: bool) -> Field:
    counts = Counter(map(_spelled, types))
    shown = (
        " and ".join(counts)
        if len(counts) == 1
        else ", ".join(f"{kind} in {n} file{'s' * (n > 1)}" for kind, n in counts.items())
    )
    if is_twice:
        return Field(name, shown, None, "a file has several columns of this name: write each under its own")
    if not name:
        return Field(name, shown, None, "a column without a name: give it one")
    stored = [storage_type(kind) for kind in types]
    leaves = [storage_type(kind.value_type) if is_list(kind) else kind for kind in stored]
    kinds, reasons = _kinds(stored)
    given = Field(
        name,
        shown,
        None,
        is_unsigned=any(t.is_uint64(leaf) for leaf in leaves),
        is_decimal=any(t.is_decimal(leaf) for leaf in leaves),
        num_files=len(types),
        num_missing=num_files - len(types),
    )
    if reasons:
        return _with(given, None, reasons[0])
    if kinds == {"int", "float"}:
        return _with(given, "float", "")
    if not kinds:
        return _with(given, None, "null in every file")
    if len(kinds) == 1:
        return _with(given, next(iter(kinds)), "")
    return _with(given, None, f"{shown}: files do not agree on its type; write it as one type in all of them")


def _spelled(kind: pa.DataType) -> str:
    return f"dictionary<{kind.value_type}>" if isinstance(kind, pa.DictionaryType) else str(kind)


def _with(field: Field, kind: Kind | None, reason: str) -> Field:
    return Field(**{**vars(field), "kind": kind, "reason": reason})


def _kinds(stored: Iterable[pa.DataType]) -> tuple[set[Kind], list[str]]:
    """The kinds of the types, null aside, and what is to be said of types without one."""
    kinds: set[Kind] = set()
    reasons: list[str] = []
    for kind in stored:
        plain = _plain_kind(kind)
        if t.is_null(kind):
            continue
        if plain is not None:
            kinds.add(plain)
        elif is_list(kind):
            leaf = storage_type(kind.value_type)
            of = _plain_kind(leaf)
            if of == "int" or of == "text":
                kinds.add("ints" if of == "int" else "texts")
            elif not t.is_null(leaf):
                reasons.append(_list_reason(leaf))
        else:
            reasons.append(_reason(kind))
    return kinds, reasons


def _plain_kind(kind: pa.DataType) -> Kind | None:
    if t.is_integer(kind) or t.is_boolean(kind):
        return "int"
    if t.is_floating(kind) or t.is_decimal(kind):
        return "float"
    if is_string(kind):
        return "text"
    return "time" if t.is_timestamp(kind) else None


def _list_reason(leaf: pa.DataType) -> str:
    if t.is_floating(leaf) or t.is_decimal(leaf):
        return "a list of numbers is no bag of ids: write each number as a column, or the ids as integers"
    return f"a list of {leaf} is no bag of ids: write a list of integers or strings"


def _reason(kind: pa.DataType) -> str:
    if t.is_struct(kind):
        return "a struct is no column of numbers or ids: write each of its fields as a column"
    if t.is_map(kind):
        return "a map is no column of numbers or ids: write what matters of it as columns, or its keys as a list"
    if t.is_list_view(kind) or t.is_large_list_view(kind):
        return "a list view is no list that can be read: write a list, as pa.list_ in place of pa.list_view"
    if t.is_date(kind):
        return "a date is neither a number nor an id: write the days since something as an integer"
    if t.is_fixed_size_binary(kind):
        return "bytes of fixed size cannot be declared: write them as a string"
    return f"the type {kind} cannot be declared: write a number, a string or a list of ids"
