"""Logs of delimited text, for converters: read in bounded memory, and refused by the number of the first bad line."""

from __future__ import annotations

import bz2
import gzip
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
import pyarrow.csv

from diurnal.errors import DataError, Fault

BLOCK_BYTES = 8 << 20
MAX_LINE_BYTES = 1 << 16
_OPENERS = {".gz": gzip.open, ".bz2": bz2.open}
_UNREADABLE = (OSError, EOFError)


def open_log(path: Path) -> IO[bytes]:
    """The file's own bytes, taken out of gzip or bzip2 when its name ends so."""
    return cast(IO[bytes], _OPENERS.get(path.suffix, open)(path, "rb"))


def first_line(path: Path) -> str:
    """Without its line break.

    Raises:
        DataError: the file cannot be read, or has none.
    """
    try:
        with open_log(path) as source:
            line = source.readline(MAX_LINE_BYTES).rstrip(b"\r\n")
    except _UNREADABLE as error:
        raise DataError(
            [Fault(str(path), str(error), "a readable file", "correct the path, or fetch it again")]
        ) from None
    if not line:
        raise DataError([Fault(f"{path}: line 1", "nothing", "the first row, or a header", "fetch the file again")])
    return line.decode(errors="replace")


@dataclass(frozen=True)
class LineLog:
    """One file of rows without quotes; the empty text is null."""

    path: Path
    delimiter: str
    columns: dict[str, pa.DataType]
    """Names and types of the fields of a line, in order."""
    has_header: bool
    check: Callable[[list[str]], str]
    """Says what is wrong with the fields of a line, as many as there are columns; empty when nothing is."""
    rule: str
    """What a line has to be, in words."""

    def count_rows(self) -> int:
        """From line breaks alone.

        Raises:
            DataError: the file is cut off: its last line has no line break, or its compressed stream does not end.
        """
        num_lines, last = 0, b"\n"
        try:
            with open_log(self.path) as source:
                while block := source.read(BLOCK_BYTES):
                    num_lines, last = num_lines + block.count(b"\n"), block[-1:]
        except _UNREADABLE as error:
            raise self.first_fault(str(error)) from None
        if last != b"\n":
            raise self.first_fault("no line break at its end")
        return num_lines - self.has_header

    def read(
        self, convert: Callable[[pa.RecordBatch], pa.RecordBatch], block_bytes: int = BLOCK_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """All rows in file order, block by block, each made into what `convert` makes of it.

        Raises:
            DataError: a line breaks the layout, `convert` raises ValueError, or the file is cut off; with the number of
                the first line that `check` finds fault with.
        """
        reading = pyarrow.csv.ReadOptions(
            block_size=block_bytes, skip_rows=int(self.has_header), column_names=list(self.columns)
        )
        parsing = pyarrow.csv.ParseOptions(delimiter=self.delimiter, quote_char=False, ignore_empty_lines=False)
        typing = pyarrow.csv.ConvertOptions(column_types=self.columns, null_values=[""], strings_can_be_null=True)
        try:
            with open_log(self.path) as opened:
                source = _Watched(opened)
                for batch in pyarrow.csv.open_csv(pa.PythonFile(source, mode="r"), reading, parsing, typing):
                    yield convert(batch)
        except (pa.ArrowException, ValueError, *_UNREADABLE) as error:
            raise self.first_fault(str(error)) from None
        if source.last != b"\n":
            raise self.first_fault("no line break at its end")

    def first_fault(self, error: str) -> DataError:
        """What is wrong with the file, by its first bad line, or `error` when no line shows it.

        Looks at line after line: slow, for files that are known to be bad.
        """
        number = 0
        try:
            with open_log(self.path) as source:
                while line := source.readline(MAX_LINE_BYTES):
                    number += 1
                    found = "" if number == 1 and self.has_header else self._what_is_wrong(line)
                    if found:
                        fix = "mend or remove the line; is it the last one, the file may be cut off: fetch it again"
                        return DataError([Fault(f"{self.path}: line {number}", found, self.rule, fix)])
        except _UNREADABLE as cut_off:
            must = "a compressed stream that ends"
            where = f"{self.path}: line {number + 1}"
            return DataError([Fault(where, str(cut_off), must, "fetch the file again")])
        return DataError([Fault(str(self.path), error, self.rule, "mend the file")])

    def _what_is_wrong(self, line: bytes) -> str:
        ends = line.endswith(b"\n")
        try:
            fields = line.rstrip(b"\r\n").decode().split(self.delimiter)
        except UnicodeDecodeError:
            return "bytes that are not UTF-8"
        if len(fields) != len(self.columns):
            return f"{len(fields)} field{'s' * (len(fields) != 1)}{'' if ends else ', and no line break'}"
        return self.check(fields) or ("" if ends else "no line break at its end")


class _Watched(io.RawIOBase):
    """Remembers the last byte: that a file is cut off within its last line may show there alone."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self.last = source, b"\n"

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._source.read(size)
        self.last = block[-1:] or self.last
        return block
