"""Display-ad impressions in the layout of iPinYou's logs as days of Parquet.

`python datasets/ads/convert.py --out build/data/ads imp.20130606.txt.bz2 clk.20130606.txt.bz2 ...` reads all
impressions and their clicks in one go, since a UTC day has rows of two files. `ipinyou.rda`, a sample as R's data, has
no times: its two tables become two days.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import layout
import numpy as np
import pyarrow as pa
from tqdm import tqdm

from diurnal.data.write import DayWriter, is_written, made_of
from diurnal.errors import DataError, Fault

HERE = Path(__file__).resolve().parent
SCRIPTS = (HERE / "convert.py", HERE / "layout.py")
STATE = "_converted.json"
R_TABLES = ("ipinyou.train", "ipinyou.test")
R_NAMES = {
    "BidID": "bidid",
    "IP": "ip",
    "Region": "region",
    "City": "city",
    "AdExchange": "adexchange",
    "Domain": "domain",
    "URL": "url",
    "AdSlotId": "slotid",
    "AdSlotWidth": "slotwidth",
    "AdSlotHeight": "slotheight",
    "AdSlotVisibility": "slotvisibility",
    "AdSlotFormat": "slotformat",
    "CreativeID": "creative",
    "BiddingPrice": "bidprice",
    "Adid": "advertiser",
    "UserTag": "usertag",
}
"""Columns of the R data, and the fields of the log that they are. `PayingPrice` is not read."""


def rows_by_day(files: list[Path], zone_hours: float) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of the logs, in pieces of one UTC day, in the order of the files."""
    clicked: set[str] = set()
    for file in files:
        if layout.kind_of(file) == "clk":
            clicked |= layout.read_clicks(file)
    for file in files:
        if layout.kind_of(file) != "imp":
            continue
        with tqdm(desc=file.name, unit=" rows", unit_scale=True, disable=None, leave=False) as bar:
            for batch in layout.read_impressions(file, clicked, zone_hours):
                days = layout.days_of(batch)
                for day in np.unique(days):
                    yield str(day), batch.filter(pa.array(days == day))
                bar.update(batch.num_rows)


def r_rows_by_day(file: Path, first_day: dt.date) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The two tables of the R data, which have no times: the train rows on the first day, the test rows on the next.

    Raises:
        DataError: pyreadr, which reads R data, is not installed; or the file is another one.
    """
    try:
        # By name, as it is no dependency of this project: only who has the file needs it.
        pyreadr: Any = importlib.import_module("pyreadr")
    except ImportError:
        fix = "install it (`pip install pyreadr`), or convert the logs themselves"
        raise DataError([Fault(str(file), "no library pyreadr", "pyreadr reads R data", fix)]) from None
    try:
        frames = pyreadr.read_r(str(file))
        for number, name in enumerate(R_TABLES):
            table = pa.Table.from_pandas(frames[name], preserve_index=False).combine_chunks()
            (batch,) = table.to_batches()
            fields = {field: batch.column(column).cast(pa.string()) for column, field in R_NAMES.items()}
            no_time = pa.nulls(batch.num_rows, pa.timestamp("us", "UTC"))
            click = batch.column("IsClick").cast(pa.int8())
            yield (first_day + dt.timedelta(days=number)).isoformat(), layout.typed(fields, no_time, click)
    except (KeyError, ValueError, pa.ArrowException, pyreadr.PyreadrError) as error:
        must = f"R data with {' and '.join(R_TABLES)}"
        raise DataError([Fault(str(file), str(error), must, "fetch the file again")]) from None


def convert(files: list[Path], out: Path, zone_hours: float, first_day: dt.date) -> tuple[dict[str, int], bool]:
    """Writes all days at the end, or none; returns the rows of each day, and whether anything was written.

    Raises:
        DataError: a file is missing, of another kind, cut off, or has a line that breaks the layout.
    """
    missing = [Fault(str(file), "no such file", "a file of the log", "correct the path") for file in files]
    missing = [fault for fault, file in zip(missing, files, strict=True) if not file.is_file()]
    if missing:
        raise DataError(missing)
    kinds = [layout.kind_of(file) for file in files]
    origin = made_of(SCRIPTS, files, zone_hours, first_day)
    known = _known(out, origin)
    if known:
        return known, False
    if "rda" in kinds and len(files) > 1:
        raise DataError(
            [Fault("files", f"{len(files)} files", "R data by itself", "convert it by a command of its own")]
        )
    pieces = r_rows_by_day(files[0], first_day) if "rda" in kinds else rows_by_day(files, zone_hours)
    writers: dict[str, DayWriter] = {}
    with ExitStack() as stack:
        for day, rows in pieces:
            if day not in writers:
                writers[day] = stack.enter_context(DayWriter(out, day, layout.SCHEMA, origin))
            writers[day].write(rows)
        if not writers:
            raise DataError([Fault("files", "no impression", "a row or more", "name imp.* files too")])
    days = {day: writers[day].num_rows for day in sorted(writers)}
    temporary = out / f".{STATE}"
    temporary.write_text(json.dumps({"made_of": origin, "days": days}), encoding="utf-8")
    os.replace(temporary, out / STATE)
    return days, True


def _known(out: Path, origin: str) -> dict[str, int]:
    """The days of an earlier call with the same files, when all of them are there."""
    try:
        state = json.loads((out / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    is_whole = state["made_of"] == origin and all(is_written(out, day, origin) for day in state["days"])
    return state["days"] if is_whole else {}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="display-ad impressions in iPinYou's layout as days of Parquet")
    parser.add_argument("files", type=Path, nargs="+", help="imp.* and clk.*, plain, .gz or .bz2; or ipinyou.rda")
    parser.add_argument("--out", type=Path, required=True, help="folder for dt=YYYY-MM-DD/part-*.parquet")
    parser.add_argument("--zone-hours", type=float, default=8.0, help="hours that the log's clock is ahead of UTC")
    parser.add_argument("--first-day", type=dt.date.fromisoformat, default=dt.date(2013, 10, 19), help="of R data")
    given = parser.parse_args(argv)
    try:
        days, is_new = convert(given.files, given.out, given.zone_hours, given.first_day)
    except DataError as error:
        print(f"ads: {error}", file=sys.stderr)
        return 2
    for day, num_rows in days.items():
        print(f"ads: {day}: {num_rows:,} rows")
    print(f"ads: {len(days)} days in {given.out}{'' if is_new else ' (already there)'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
