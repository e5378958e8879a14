"""The sample of one column, whatever its files store it as: which rows have a value, and codes of equal values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from diurnal.data.arrow import column, is_null, read_ids, read_numbers, read_times_us
from diurnal.data.encoded import NO_TIME
from diurnal.data.guess.fields import Field
from diurnal.data.guess.survey import Survey

_SHOWN_CHARS = 40


@dataclass(frozen=True, eq=False)
class Values:
    """n rows of a sample with N values: one for a row that has any, or the elements of its list."""

    field: Field
    is_absent: np.ndarray
    """(n,) bool: the row's file lacks the column."""
    is_null: np.ndarray
    """(n,) bool: null, NaN, the empty string or an empty list; absent ones too."""
    codes: np.ndarray
    """(N,) int64, the same for equal values: their place in `distinct`."""
    row_of_code: np.ndarray
    """(N,) int64 ascending."""
    distinct: np.ndarray | pa.Array
    """(d,) numbers ascending, microseconds since 1970, or large_binary in order of appearance."""
    counts: np.ndarray
    """(d,) how often each occurs."""
    num_null_elements: int = 0
    """Of lists: nulls and empty strings among their elements."""

    @property
    def num_rows(self) -> int:
        return len(self.is_null)

    @property
    def null_share(self) -> float:
        """Of the rows whose file has the column."""
        there = self.num_rows - int(np.count_nonzero(self.is_absent))
        return np.count_nonzero(self.is_null & ~self.is_absent) / there if there else 1.0

    @property
    def numbers(self) -> np.ndarray:
        """(N,) the values themselves, of numbers and times."""
        assert isinstance(self.distinct, np.ndarray)
        return self.distinct[self.codes]

    @property
    def lengths(self) -> np.ndarray:
        """(n,) values of each row."""
        return np.bincount(self.row_of_code, minlength=self.num_rows)

    def spelled(self, code: int) -> str:
        """For a person, on one line."""
        if isinstance(self.distinct, np.ndarray):
            return f"{self.distinct[code]:.10g}" if self.field.kind == "float" else str(self.distinct[code])
        text = self.exact(code)
        return text.encode("unicode_escape").decode()[:_SHOWN_CHARS] if not text.isprintable() else text[:_SHOWN_CHARS]

    def exact(self, code: int) -> str:
        """As a label's spelling is declared."""
        value = self.distinct[code]
        if isinstance(value, pa.Scalar):
            return value.as_py().decode(errors="replace")
        return str(int(value)) if float(value).is_integer() else repr(float(value))

    def new_share(self, day_of_row: np.ndarray) -> float | None:
        """Share of the last day's values that no earlier day of the sample has; None with one day, or no value."""
        days = day_of_row[self.row_of_code]
        is_last = days == day_of_row[-1]
        if is_last.all() or not is_last.any():
            return None
        seen = np.zeros(len(self.counts), bool)
        seen[self.codes[~is_last]] = True
        return float(1 - seen[self.codes[is_last]].mean())


def read_values(survey: Survey, field: Field) -> Values:
    """The sample of a column that has a kind."""
    chunks = [column(piece, field.name) for piece in survey.pieces]
    sizes = [piece.num_rows for piece in survey.pieces]
    is_absent = np.repeat([chunk is None for chunk in chunks], sizes)
    if field.kind in ("text", "texts"):
        return _texts(field, chunks, sizes, is_absent)
    return _numbers(field, chunks, sizes, is_absent)


def _numbers(field: Field, chunks: list[pa.Array | None], sizes: list[int], is_absent: np.ndarray) -> Values:
    values: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    first, missing = 0, 0
    for chunk, size in zip(chunks, sizes, strict=True):
        leaf, row = _leaf(chunk, field)
        if leaf is not None:
            found, no_value = _read(leaf, field)
            missing += int(np.count_nonzero(no_value))
            values.append(found[~no_value])
            rows.append(row[~no_value] + first)
        first += size
    distinct, codes, counts = np.unique(_joined(values), return_inverse=True, return_counts=True)
    row_of_code = _joined(rows).astype(np.int64)
    is_empty = np.bincount(row_of_code, minlength=first) == 0
    return Values(field, is_absent, is_empty, codes, row_of_code, distinct, counts, missing if field.is_bag else 0)


def _texts(field: Field, chunks: list[pa.Array | None], sizes: list[int], is_absent: np.ndarray) -> Values:
    texts: list[pa.Array] = []
    rows: list[np.ndarray] = []
    first, missing = 0, 0
    for chunk, size in zip(chunks, sizes, strict=True):
        leaf, row = _leaf(chunk, field)
        if leaf is not None and not t.is_null(leaf.type):
            plain = leaf.dictionary_decode() if t.is_dictionary(leaf.type) else leaf
            plain = plain.cast(pa.large_binary())
            is_text = pc.call_function(
                "greater", [pc.call_function("binary_length", [plain]), pa.scalar(0, pa.int64())]
            )
            kept = is_text.fill_null(False)
            mask = kept.to_numpy(zero_copy_only=False)
            missing += int(np.count_nonzero(~mask))
            texts.append(plain.filter(kept))
            rows.append(row[mask] + first)
        first += size
    joined = pa.concat_arrays(texts) if texts else pa.array([], pa.large_binary())
    encoded = joined.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    row_of_code = _joined(rows).astype(np.int64)
    is_empty = np.bincount(row_of_code, minlength=first) == 0
    counts = np.bincount(codes, minlength=len(encoded.dictionary))
    none_in_lists = missing if field.is_bag else 0
    return Values(field, is_absent, is_empty, codes, row_of_code, encoded.dictionary, counts, none_in_lists)


def _leaf(chunk: pa.Array | None, field: Field) -> tuple[pa.Array | None, np.ndarray]:
    """Elements of lists, or the values themselves, and the row of each."""
    nothing = np.empty(0, np.int64)
    if chunk is None or t.is_null(chunk.type):
        return None, nothing
    ids = read_ids(chunk, field.is_bag)
    if ids.leaf is None:
        return None, nothing
    return ids.leaf, np.repeat(np.arange(len(chunk)), ids.lengths)


def _read(leaf: pa.Array, field: Field) -> tuple[np.ndarray, np.ndarray]:
    """Values, and which are none."""
    if t.is_null(leaf.type):
        return np.zeros(len(leaf), np.int64), np.ones(len(leaf), bool)
    if field.kind == "time":
        times = read_times_us(leaf)
        return times, times == NO_TIME
    if field.kind == "float":
        numbers, null = read_numbers(leaf)
        no_number = np.isnan(numbers)
        return numbers.astype(np.float64), no_number if null is None else no_number | null
    null = is_null(leaf) if leaf.null_count else np.zeros(len(leaf), bool)
    if field.is_unsigned and not t.is_uint64(leaf.type):
        # A file with signed ids beside others with uint64: a negative one is no id in either.
        signed = leaf.cast(pa.int64()).fill_null(0).to_numpy()
        return np.maximum(signed, 0).astype(np.uint64), null | (signed < 0)
    wide = pa.uint64() if field.is_unsigned else pa.int64()
    return leaf.cast(wide).fill_null(0).to_numpy(), null


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
