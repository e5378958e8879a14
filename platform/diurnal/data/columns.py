"""Which Arrow types a declared column may be stored as: those that are cast without loss, whatever file comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types as t

from diurnal.config import Outcome, Schema


@dataclass(frozen=True)
class Column:
    """A column that the schema declares, and what it accepts."""

    name: str
    """In the Parquet files."""
    role: str
    """`label`, `task`, `weight`, `event_time`, `request_id`, `group_id`, `dense`, `sparse` or `weights`."""
    type: str
    """What it holds, in words."""
    accepts: Callable[[pa.DataType], bool]
    fix: str
    """What to do about a column of another type."""
    required: bool = True

    @property
    def declared(self) -> str:
        return f"declared as {self.role} of type {self.type}"

    @property
    def is_encoded(self) -> bool:
        return self.role != "request_id"


def declared_columns(schema: Schema) -> Iterator[Column]:
    """Every column that the schema names, once for each mention."""
    yield _outcome(schema.label.column, "label", schema.label)
    for task in schema.tasks:
        yield _outcome(task.source, "task", task, task.missing == "refuse")
    if schema.weight:
        yield Column(schema.weight, "weight", "number", _is_number, "write it as a number")
    if schema.event_time:
        yield Column(schema.event_time, "event_time", "timestamp", _is_time, "write it as a timestamp")
    if schema.request_id:
        yield Column(schema.request_id, "request_id", "any", lambda _: True, "")
    if schema.group_id:
        fix = "write it as integers or strings"
        yield Column(schema.group_id, "group_id", "integer or string", _is_group, fix)
    for dense in schema.columns_of_numbers:
        fix = "write it as a number, or declare it as a sparse feature"
        yield Column(dense.source, "dense", "number", _is_number, fix, dense.required)
    for sparse in schema.sparse:
        if sparse.cross:
            continue
        accepts = _ACCEPTS[sparse.type]
        fix = 'write it as declared, or declare the type that it has ("uint64" takes int64 too)'
        if sparse.many:
            yield Column(sparse.source, "sparse", f"list of {sparse.type}", _list_of(accepts), fix, sparse.required)
        else:
            yield Column(sparse.source, "sparse", sparse.type, accepts, fix, sparse.required)
        if sparse.weights:
            fix = f"write a number for each id, or take weights out of {sparse.name}"
            yield Column(sparse.weights, "weights", "list of number", _list_of(_is_number), fix, sparse.required)


def _outcome(name: str, role: str, outcome: Outcome, required: bool = True) -> Column:
    if outcome.is_spelled:
        fix = "write it as text or numbers"
        return Column(name, role, "text or number", lambda f: is_string(f) or _is_number(f), fix, required)
    fix = "write it as 0 and 1" if outcome.at_least is None else "write it as a number"
    fix += f', or declare {role}.positive and {role}.negative, as "yes" and "no"'
    return Column(name, role, "integer, float or bool", _is_number, fix, required)


def encoded_columns(schema: Schema) -> list[str]:
    """Names of the columns that are read from the files, each once."""
    return list(dict.fromkeys(c.name for c in declared_columns(schema) if c.is_encoded))


def storage_type(found: pa.DataType) -> pa.DataType:
    """The type below dictionaries and extensions."""
    while isinstance(found, pa.DictionaryType | pa.BaseExtensionType):
        found = found.value_type if isinstance(found, pa.DictionaryType) else found.storage_type
    return found


def is_list(found: pa.DataType) -> bool:
    return t.is_list(found) or t.is_large_list(found) or t.is_fixed_size_list(found)


def _is_number(found: pa.DataType) -> bool:
    return t.is_integer(found) or t.is_floating(found) or t.is_boolean(found) or t.is_decimal(found)


def _is_integer(found: pa.DataType) -> bool:
    """uint64 takes signed columns too: what it cannot hold, the negative ones, is no id anyway."""
    return t.is_integer(found) or t.is_boolean(found)


def _is_group(found: pa.DataType) -> bool:
    return t.is_integer(found) or is_string(found)


def _is_int64(found: pa.DataType) -> bool:
    """uint64 is refused: half of its values would turn negative, and a negative id is no id."""
    return _is_integer(found) and not t.is_uint64(found)


def is_string(found: pa.DataType) -> bool:
    text = t.is_string(found) or t.is_large_string(found) or t.is_string_view(found)
    return text or t.is_binary(found) or t.is_large_binary(found) or t.is_binary_view(found)


def _is_time(found: pa.DataType) -> bool:
    return t.is_timestamp(found) or t.is_date(found)


def _list_of(accepts: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    def accepts_list(found: pa.DataType) -> bool:
        if not is_list(found):
            return False
        element = storage_type(found.value_type)
        return t.is_null(element) or accepts(element)

    return accepts_list


_ACCEPTS = {
    "int64": _is_int64,
    "uint64": _is_integer,
    "string": is_string,
    "float": _is_number,
    "timestamp": _is_time,
}
"""By the declared type of a sparse feature."""
