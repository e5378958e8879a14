"""Bags in the lengths of MLPerf's DLRM-v2 from days with one id a column.

MLPerf's training benchmark makes its multi-hot data the same way: an id of the log stands first in its bag, and the
others of the bag are drawn once for each id, so that a row with the same id has the same bag. Lengths are those of
`--multi_hot_sizes` of the reference, github.com/mlcommons/training, recommendation_v2/torchrec_dlrm.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import layout
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from diurnal.data.arrow import is_null, view_of
from diurnal.data.hashing import mix64
from diurnal.data.write import MARKER, DayWriter, is_written, made_of
from diurnal.errors import DataError, Fault

HERE = Path(__file__).resolve().parent
SCRIPTS = (HERE / "multihot.py", HERE / "layout.py")
LENGTHS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
SCHEMA = pa.schema(
    [*(layout.SCHEMA.field(name) for name in ("label", *layout.INTS))]
    + [pa.field(name, pa.list_(pa.uint32())) for name in layout.IDS]
)
READ_ROWS = 16_384


def bags(ids: pa.Array, column: int, length: int) -> pa.ListArray:
    """Lists of `length` ids each, the given one first; an empty list where the id is missing.

    The others are hashes of the id, the column and their place in the bag, cut to the 32 bits that ids have.
    """
    first = view_of(ids)
    if ids.null_count:
        first = first[~is_null(ids)]
    places = np.arange(1, length, dtype=np.uint64) + np.uint64(column << 8)
    others = mix64(((first.astype(np.uint64) << np.uint64(32))[:, None] | places[None, :]).reshape(-1))
    drawn = (others >> np.uint64(32)).astype(np.uint32).reshape(len(first), length - 1)
    values = np.concatenate([first[:, None], drawn], axis=1).reshape(-1)
    lengths = np.full(len(ids), length, np.int64)
    if ids.null_count:
        lengths[is_null(ids)] = 0
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def with_bags(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = [rows.column(name) for name in ("label", *layout.INTS)]
    for number, (name, length) in enumerate(zip(layout.IDS, LENGTHS, strict=True)):
        columns.append(bags(rows.column(name), number, length))
    return pa.record_batch(columns, schema=SCHEMA)


def convert(source: Path, out: Path) -> Iterator[tuple[str, bool]]:
    """Writes day after day; yields a day's date, and whether it was written now.

    Raises:
        DataError: there is no whole day in `source`.
    """
    folders = [path for path in sorted(source.glob("dt=*")) if re.fullmatch(r"dt=\d{4}-\d\d-\d\d", path.name)]
    folders = [folder for folder in folders if (folder / MARKER).is_file()]
    if not folders:
        raise DataError([Fault(str(source), "no whole day", "days that convert.py wrote", "run convert.py first")])
    for folder in folders:
        files, day = sorted(folder.glob("*.parquet")), folder.name.removeprefix("dt=")
        origin = made_of(SCRIPTS, files)
        if is_written(out, day, origin):
            yield day, False
            continue
        with DayWriter(out, day, SCHEMA, origin) as writer:
            for file in files:
                for batch in pq.ParquetFile(file).iter_batches(READ_ROWS):
                    writer.write(with_bags(batch))
        yield day, True


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="bags in MLPerf's lengths, from what convert.py wrote")
    parser.add_argument("--source", type=Path, required=True, help="folder that convert.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for dt=YYYY-MM-DD/part-*.parquet")
    given = parser.parse_args(argv)
    try:
        for day, is_new in convert(given.source, given.out):
            print(f"criteo: {day}: {'bags written' if is_new else 'already there'}", flush=True)
    except DataError as error:
        print(f"criteo: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
