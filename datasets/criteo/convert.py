"""Criteo's click logs as days of Parquet, in bounded memory.

`python datasets/criteo/convert.py --out build/data/criteo train.txt.gz` cuts the Kaggle file, which has no days, in its
own order into seven; `day_0.gz day_1.gz ...` of the 1 TB log are a day each. A day that is there already is left alone,
so that what was cut off goes on where it stood.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import sys
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path

import layout
import pyarrow as pa
from tqdm import tqdm

from diurnal.data.write import DayWriter, is_written, made_of
from diurnal.errors import DataError, Fault

HERE = Path(__file__).resolve().parent
SCRIPTS = (HERE / "convert.py", HERE / "layout.py")
DAY_FILE = re.compile(r"day_(\d+)(\.(gz|bz2|tsv|txt|csv))*")


def convert(files: list[Path], out: Path, first_day: dt.date, num_days: int) -> Iterator[tuple[str, int, bool]]:
    """Writes day after day; yields a day's date, its rows, and whether it was written now.

    Rows of a day that was there before are not counted: 0.

    Raises:
        DataError: a file breaks the layout or is cut off; the day it would belong to is not written.
    """
    missing = [Fault(str(file), "no such file", "a file of the log", "correct the path") for file in files]
    missing = [fault for fault, file in zip(missing, files, strict=True) if not file.is_file()]
    if missing:
        raise DataError(missing)
    numbers = [DAY_FILE.fullmatch(file.name) for file in files]
    if all(numbers):
        by_day = {int(number[1]): file for number, file in zip(numbers, files, strict=True) if number}
        yield from _one_file_a_day(by_day, out, first_day)
    elif any(numbers):
        names = ", ".join(file.name for file in files)
        must = "either files named day_0, day_1 ..., a day each, or files that are cut into days together"
        raise DataError([Fault("files", names, must, "convert them by two commands")])
    else:
        yield from _cut_into_days(files, out, first_day, num_days)


def _one_file_a_day(by_day: dict[int, Path], out: Path, first_day: dt.date) -> Iterator[tuple[str, int, bool]]:
    for number, file in sorted(by_day.items()):
        day = _date(first_day, number)
        source = made_of(SCRIPTS, [file])
        if is_written(out, day, source):
            yield day, 0, False
            continue
        log = layout.log_of(file)
        with DayWriter(out, day, layout.SCHEMA, source) as writer, _progress(file.name) as bar:
            for batch in layout.read_rows(log):
                writer.write(batch)
                bar.update(batch.num_rows)
        yield day, writer.num_rows, True


def _cut_into_days(files: list[Path], out: Path, first_day: dt.date, num_days: int) -> Iterator[tuple[str, int, bool]]:
    """Equal days, but for one row: every file is read twice, since its rows have to be counted first."""
    days = [_date(first_day, number) for number in range(num_days)]
    sources = [made_of(SCRIPTS, files, num_days, day) for day in days]
    there = [is_written(out, day, source) for day, source in zip(days, sources, strict=True)]
    if all(there):
        yield from ((day, 0, False) for day in days)
        return
    logs = [layout.log_of(file) for file in files]
    num_rows = sum(log.count_rows() for log in logs)
    if num_rows < num_days:
        raise DataError([Fault("files", f"{num_rows} rows", f"a row a day, for {num_days} days", "use fewer --days")])
    size, longer = divmod(num_rows, num_days)
    bounds = [number * size + min(number, longer) for number in range(num_days + 1)]
    rows = (batch for log in logs for batch in layout.read_rows(log))
    with _progress("rows", num_rows) as bar:
        for number, pieces in groupby(_dealt(rows, bounds), key=lambda piece: piece[0]):
            if there[number]:
                bar.update(sum(piece.num_rows for _, piece in pieces))
                yield days[number], 0, False
                continue
            with DayWriter(out, days[number], layout.SCHEMA, sources[number]) as writer:
                for _, piece in pieces:
                    writer.write(piece)
                    bar.update(piece.num_rows)
            yield days[number], writer.num_rows, True


def _dealt(batches: Iterator[pa.RecordBatch], bounds: list[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Each batch, cut where a day ends, with the number of its day."""
    start = 0
    for batch in batches:
        for number, (low, high) in enumerate(pairwise(bounds)):
            first, last = max(low, start), min(high, start + batch.num_rows)
            if first < last:
                yield number, batch.slice(first - start, last - first)
        start += batch.num_rows


def _date(first_day: dt.date, number: int) -> str:
    return (first_day + dt.timedelta(days=number)).isoformat()


def _progress(what: str, num_rows: int | None = None) -> tqdm:
    return tqdm(desc=what, total=num_rows, unit=" rows", unit_scale=True, disable=None, leave=False)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Criteo's click logs as days of Parquet")
    parser.add_argument("files", type=Path, nargs="+", help="train.txt, or day_0, day_1 ...; plain, .gz or .bz2")
    parser.add_argument("--out", type=Path, required=True, help="folder for dt=YYYY-MM-DD/part-*.parquet")
    parser.add_argument("--first-day", type=dt.date.fromisoformat, default=dt.date(2014, 1, 1), help="date of day 0")
    parser.add_argument("--days", type=int, default=7, help="into how many days files without days are cut")
    given = parser.parse_args(argv)
    if given.days < 1:
        parser.error("--days is 1 or more")
    num_days = num_written = 0
    try:
        for day, num_rows, is_new in convert(given.files, given.out, given.first_day, given.days):
            print(f"criteo: {day}: {f'{num_rows:,} rows' if is_new else 'already there'}", flush=True)
            num_days, num_written = num_days + 1, num_written + is_new
    except DataError as error:
        print(f"criteo: {error}", file=sys.stderr)
        return 2
    print(f"criteo: {num_days} days in {given.out}, {num_written} written now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
