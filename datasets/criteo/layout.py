"""The layout of Criteo's click logs: a line is a label, 13 integers and 26 ids of eight hex digits; empty is missing.

The files are tab-separated and have no header; samples of them that are comma-separated, with the header
`label,I1,...,I13,C1,...,C26`, are taken too.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from diurnal.data.arrow import is_null
from diurnal.data.lines import BLOCK_BYTES, LineLog, first_line
from diurnal.errors import DataError, Fault

INTS = tuple(f"I{number}" for number in range(1, 14))
IDS = tuple(f"C{number}" for number in range(1, 27))
COLUMNS = ("label", *INTS, *IDS)
SCHEMA = pa.schema(
    [("label", pa.int8()), *((name, pa.int64()) for name in INTS), *((name, pa.uint32()) for name in IDS)]
)
"""Of the Parquet files. An id is the number that its eight digits spell, null where it is missing."""

_LABEL = re.compile(r"[01]")
_INTEGER = re.compile(r"(-?\d+)?")
_WHOLE_NUMBER = re.compile(r"(-?\d+(\.0*)?)?")
_ID = re.compile(r"([0-9a-fA-F]{8})?")


def log_of(path: Path) -> LineLog:
    """The file as its first line shows it: with tabs or commas, with a header or without.

    Raises:
        DataError: the file is empty or cannot be read, or its header names other columns.
    """
    first = first_line(path)
    delimiter = "\t" if "\t" in first else ","
    names = first.lower().split(delimiter)
    has_header = names[0] == COLUMNS[0]
    if has_header and names != [name.lower() for name in COLUMNS]:
        must = f"{COLUMNS[0]}, {INTS[0]} to {INTS[-1]}, {IDS[0]} to {IDS[-1]}, in this order"
        raise DataError([Fault(f"{path}: line 1", first[:200], must, "bring the columns into this order")])
    number, integer = (pa.int64(), _INTEGER) if delimiter == "\t" else (pa.float64(), _WHOLE_NUMBER)
    rules = (_LABEL, *(integer,) * len(INTS), *(_ID,) * len(IDS))
    types = (pa.int8(), *(number,) * len(INTS), *(pa.binary(),) * len(IDS))

    def check(fields: list[str]) -> str:
        bad = (f"{n} is {f[:40]!r}" for n, r, f in zip(COLUMNS, rules, fields, strict=True) if not r.fullmatch(f))
        return next(bad, "")

    separated = {"\t": "tab", ",": "comma"}[delimiter]
    rule = f"{len(COLUMNS)} {separated}-separated fields: label 0 or 1, 13 integers, 26 ids of 8 hex digits"
    return LineLog(path, delimiter, dict(zip(COLUMNS, types, strict=True)), has_header, check, rule)


def read_rows(log: LineLog, block_bytes: int = BLOCK_BYTES) -> Iterator[pa.RecordBatch]:
    """All rows in file order, as `SCHEMA`; raises what `LineLog.read` does."""
    return log.read(_typed, block_bytes)


def _typed(batch: pa.RecordBatch) -> pa.RecordBatch:
    label = batch.column(0)
    if label.null_count or not np.isin(label.to_numpy(), (0, 1)).all():
        raise ValueError("a label is not 0 or 1")
    columns = [label, *(batch.column(name).cast(pa.int64()) for name in INTS)]
    return pa.record_batch([*columns, *(_ids(batch.column(name)) for name in IDS)], schema=SCHEMA)


def _ids(texts: pa.Array) -> pa.Array:
    """uint32 from texts of eight hex digits."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    missing = is_null(texts)
    if (np.diff(bounds)[~missing] != 8).any():
        raise ValueError("an id has not eight digits")
    ids = np.zeros(len(texts), np.uint32)
    digits = b"" if data is None else bytes(memoryview(data)[bounds[0] : bounds[-1]])
    ids[~missing] = np.frombuffer(binascii.unhexlify(digits), ">u4")
    return pa.array(ids, mask=missing)
