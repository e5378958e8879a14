"""Which Arrow types a declared column may be stored as: those that are cast without loss, whatever file comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types as t

from diurnal.config import Schema


@dataclass(frozen=True)
class Column:
    """A column that the schema declares, and what it accepts."""

    name: str
    """In the Parquet files."""
    declared: str
    """The declaration in words, for messages."""
    accepts: Callable[[pa.DataType], bool]
    fix: str
    required: bool = True
    encoded: bool = True
    """False when the column is only declared, and read by nobody who encodes."""


def declared_columns(schema: Schema) -> Iterator[Column]:
    """Every column that the schema names, once for each mention."""
    yield Column(schema.label.column, "label (integer, float or bool)", _is_number, "write it as 0 and 1")
    if schema.weight:
        yield Column(schema.weight, "weight (number)", _is_number, "write it as a number")
    if schema.event_time:
        yield Column(schema.event_time, "event_time (timestamp)", _is_time, "write it as a timestamp")
    for name, use in ((schema.request_id, "request_id"), (schema.group_id, "group_id")):
        if name:
            yield Column(name, use, lambda _: True, "", encoded=False)
    for dense in schema.dense:
        fix = f"cast the column, or declare {dense.name} as a sparse feature"
        yield Column(dense.source, "dense (number)", _is_number, fix, dense.required)
    for sparse in schema.sparse:
        accepts = {"int64": _is_int64, "uint64": _is_integer, "string": is_string, "float": _is_number}[sparse.type]
        declared = f"sparse {'list of ' if sparse.many else ''}{sparse.type}"
        fix = "cast the column, or declare the type that it has"
        yield Column(sparse.source, declared, _list_of(accepts) if sparse.many else accepts, fix, sparse.required)


def encoded_columns(schema: Schema) -> list[str]:
    """Names of the columns that are read from the files, each once."""
    return list(dict.fromkeys(c.name for c in declared_columns(schema) if c.encoded))


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
