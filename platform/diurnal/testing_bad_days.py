"""Bad days, for tests: tiny datasets with one defect each, and the one outcome that is expected of it.

A dataset has one day of two files. A defect of rows spoils the second one (`testing_bad_values`); a defect of files or
folders is done to the day as it lies there. Beside it there is a sound twin, which says what is right to be read.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from diurnal import testing_bad_values as bad
from diurnal.testing_bad_values import MIDNIGHT, sound_rows

DAY = "2026-01-02"
BEFORE = "2026-01-01"
FILE_ROWS = 20

SCHEMA: Mapping[str, Any] = {
    "tasks": [{"name": "bought"}, {"name": "kept", "positive": "yes", "negative": "no", "missing": "skip"}],
    "weight": "weight",
    "event_time": "ts",
    "request_id": "request",
    "dense": [{"name": "price"}, {"name": "age"}, {"name": "bonus", "required": False}],
    "sparse": [
        {"name": "user"},
        {"name": "item", "mapping": "identity", "unknown": "refuse"},
        {"name": "site", "mapping": "identity"},
        {"name": "shop", "type": "string"},
        {"name": "tags", "many": True, "max_length": 3},
    ],
    "tables": [
        {"name": "user", "rows": 1000, "dim": 4},
        {"name": "item", "rows": 50, "dim": 4},
        {"name": "site", "rows": 10, "dim": 4},
        {"name": "shop", "rows": 100, "dim": 4},
        {"name": "tags", "rows": 100, "dim": 4},
    ],
}
"""What `diurnal.config.Schema` is made of."""

Kind = Literal["refused", "held", "counted", "noted", "equal"]
"""`refused`: a fault of `validate`; `held`: a finding of the profile, without any increment before; `counted`: it is
learned, and each row that differs from the sound twin's has a count; `noted`: it is learned as the twin, and a note
says so; `equal`: it is learned as the twin, and nobody has to know."""


def _same(rows: pa.Table) -> pa.Table:
    return rows


@dataclass(frozen=True)
class Defect:
    """A defect and its outcome."""

    spoil: Callable[[Any], Any]
    """Spoils the rows of a file, or the dataset's folder."""
    kind: Kind
    words: str = ""
    """That the fault, the finding or a note has in it."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """By `encode.count_names`, for `counted`."""
    of_folder: bool = False
    """Whether the dataset's folder is spoilt, and not rows."""
    is_read: bool = False
    """Of what is refused: whether commands that look at no values beforehand would learn it all the same."""
    twin: Callable[[pa.Table], pa.Table] = _same
    """Makes the rows that the spoilt ones are to be read as."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `validate`, to find it with."""

    @property
    def name(self) -> str:
        return self.spoil.__name__

    def write(self, root: Path) -> None:
        """Writes the spoilt dataset into an empty folder."""
        write_day(root, _same, _same if self.of_folder else self.spoil)
        if self.of_folder:
            self.spoil(root)

    def write_twin(self, root: Path) -> None:
        """Writes the sound dataset."""
        write_day(root, _same, self.twin)


def write_day(root: Path, *spoil: Callable[[Any], Any], day: str = DAY) -> None:
    """A day of one file for each function that may spoil its rows, and the marker."""
    folder = root / f"dt={day}"
    folder.mkdir(parents=True)
    midnight = MIDNIGHT - timedelta(days=1) if day == BEFORE else MIDNIGHT
    for index, change in enumerate(spoil):
        rows = change(sound_rows(index * FILE_ROWS, FILE_ROWS, midnight))
        pq.write_table(rows, folder / f"{'ab'[index]}.parquet", row_group_size=8)
    (folder / "_SUCCESS").touch()


# --- files


def truncated(root: Path) -> None:
    path = root / f"dt={DAY}" / "b.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty_file_bytes(root: Path) -> None:
    (root / f"dt={DAY}" / "b.parquet").write_bytes(b"")


def text_for_parquet(root: Path) -> None:
    (root / f"dt={DAY}" / "b.parquet").write_text("label,price\n0,1.5\n")


def damaged_pages(root: Path) -> None:
    """The footer is whole, the first pages are not."""
    path = root / f"dt={DAY}" / "b.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(64) + content[68:])


def flipped_bits(root: Path) -> None:
    """In the values of a file that has checksums of its pages."""
    path = root / f"dt={DAY}" / "b.parquet"
    rows = sound_rows(FILE_ROWS, FILE_ROWS)
    pq.write_table(rows, path, compression="none", use_dictionary=False, write_page_checksum=True)
    user = pq.read_metadata(path).row_group(0).column(rows.schema.get_field_index("user"))
    content = bytearray(path.read_bytes())
    content[user.data_page_offset + user.total_compressed_size - 9] ^= 1
    path.write_bytes(content)


def markers(root: Path) -> None:
    for name in ("_metadata", "_common_metadata", ".b.parquet.crc", "_committed_17", "._SUCCESS.crc"):
        (root / f"dt={DAY}" / name).write_text("no parquet")


def temporaries(root: Path) -> None:
    for name in ("_temporary/0/b.parquet", ".spark-staging/b.parquet", "_c.parquet"):
        path = root / f"dt={DAY}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")


def other_endings(root: Path) -> None:
    for name in ("notes.txt", "c.parquet.tmp"):
        (root / f"dt={DAY}" / name).write_text("no parquet")


def zero_rows(root: Path) -> None:
    pq.write_table(sound_rows(0, 0), root / f"dt={DAY}" / "aa.parquet")


def zero_row_groups(root: Path) -> None:
    rows = sound_rows(FILE_ROWS, FILE_ROWS)
    with pq.ParquetWriter(root / f"dt={DAY}" / "b.parquet", rows.schema) as writer:
        for part in (rows.slice(0, 0), rows.slice(0, 9), rows.slice(9, 0), rows.slice(9)):
            writer.write_table(part)


def huge_row_group(root: Path) -> None:
    """Huge for the memory that the test gives."""
    rows = sound_rows(FILE_ROWS, FILE_ROWS)
    texts = pa.array([f"{i}" * 4000 for i in range(FILE_ROWS)])
    rows = rows.set_column(rows.schema.get_field_index("shop"), "shop", texts)
    pq.write_table(rows, root / f"dt={DAY}" / "b.parquet", compression="none")


def skewed_files(root: Path) -> None:
    rows = pa.concat_tables([sound_rows(0, FILE_ROWS), sound_rows(FILE_ROWS, FILE_ROWS)])
    for name, part in (("a", rows.slice(0, 1)), ("b", rows.slice(1, 38)), ("c", rows.slice(39))):
        pq.write_table(part, root / f"dt={DAY}" / f"{name}.parquet", row_group_size=30)


# --- folders


def no_marker(root: Path) -> None:
    (root / f"dt={DAY}" / "_SUCCESS").unlink()
    write_day(root, _same, day=BEFORE)


def marker_without_files(root: Path) -> None:
    for path in (root / f"dt={DAY}").glob("*.parquet"):
        path.unlink()


def folder_below(root: Path) -> None:
    _move(root / f"dt={DAY}" / "b.parquet", root / f"dt={DAY}" / "country=de")


def files_beside_hours(root: Path) -> None:
    _move(root / f"dt={DAY}" / "b.parquet", root / f"dt={DAY}" / "hr=01")


def hour_folder_misspelt(root: Path) -> None:
    for name in ("a", "b"):
        _move(root / f"dt={DAY}" / f"{name}.parquet", root / f"dt={DAY}" / "hr=1")


def day_folder_misspelt(root: Path) -> None:
    write_day(root, _same, day=BEFORE)
    (root / f"dt={BEFORE}").rename(root / "dt=20260101")


def day_folder_of_another_key(root: Path) -> None:
    write_day(root, _same, day=BEFORE)
    (root / f"dt={BEFORE}").rename(root / f"date={BEFORE}")


def file_beside_days(root: Path) -> None:
    shutil.copy(root / f"dt={DAY}" / "b.parquet", root / "all.parquet")


# --- all rows of a day


def one_class(root: Path) -> None:
    _spoil_all(root, "label", lambda values: [0 for _ in values])


def dead_dense(root: Path) -> None:
    _spoil_all(root, "price", lambda values: [None for _ in values])


def dead_ids(root: Path) -> None:
    _spoil_all(root, "user", lambda values: [None for _ in values])


def all_times_null(root: Path) -> None:
    _spoil_all(root, "ts", lambda values: [None for _ in values])


def duplicate_requests_over_days(root: Path) -> None:
    write_day(root, lambda rows: rows.set_column(1, "request", sound_rows(0, FILE_ROWS)["request"]), day=BEFORE)


def _spoil_all(root: Path, name: str, change: Callable[[list[Any]], list[Any]]) -> None:
    for path in (root / f"dt={DAY}").glob("*.parquet"):
        rows = pq.ParquetFile(path).read()
        values = pa.array(change(rows[name].to_pylist()), rows[name].type)
        pq.write_table(rows.set_column(rows.schema.get_field_index(name), name, values), path)


def _move(path: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    path.rename(folder / path.name)


DEFECTS = (
    Defect(bad.missing_col, "refused", "no such column"),
    Defect(bad.missing_optional_col, "counted", "20 rows", {"dense/bonus/missing_column_rows": 20}),
    Defect(bad.renamed_col, "refused", '"Price" of this file looks like it'),
    Defect(
        bad.renamed_optional_col, "counted", '"bonus_points" looks like it', {"dense/bonus/missing_column_rows": 20}
    ),
    Defect(bad.extra_col, "noted", "debug (1 of 2 files)"),
    Defect(bad.duplicate_column, "refused", "2 columns of this name"),
    Defect(bad.null_typed, "counted", "null in 1 of 2 files", {"dense/price/null": 20}),
    Defect(bad.null_typed_label, "refused", "column label"),
    Defect(bad.dict_str, "equal"),
    Defect(bad.dict_ids, "equal"),
    Defect(bad.large_str, "equal"),
    Defect(bad.int_vs_str, "refused", "declared as sparse of type int64"),
    Defect(bad.float_ids, "refused", "double"),
    Defect(bad.uint64_ids, "refused", "uint64"),
    Defect(bad.mixed_types_over_files, "noted", "int64 in 1 of 2 files, first"),
    Defect(bad.bool_label, "noted", "bool"),
    Defect(bad.string_label, "refused", "declared as label"),
    Defect(bad.decimal_dense, "noted", "decimal128(9, 2)"),
    Defect(bad.string_dense, "refused", "declared as dense of type number"),
    Defect(bad.nested_lists, "refused", "write one flat list a row"),
    Defect(bad.map_for_list, "refused", "map<"),
    Defect(bad.struct_for_id, "refused", "write its fields (id, country)"),
    Defect(bad.list_for_id, "refused", "declare many = true"),
    Defect(bad.id_for_list, "refused", "declare many = false"),
    Defect(bad.list_of_requests, "refused", "request_id"),
    Defect(bad.non_utf8_strings, "equal", twin=bad.bytes_for_strings),
    Defect(bad.label_out_of_range, "refused", "2 in row 3, counted from 0 (such are 1 of the 20 rows looked at)"),
    Defect(bad.label_minus_one, "refused", "every label is 0 or 1"),
    Defect(bad.label_null, "refused", ", counted from 0 (such are 1 of"),
    Defect(bad.task_out_of_range, "refused", "2 in row "),
    Defect(bad.task_null, "refused", 'declare missing = "skip"'),
    Defect(bad.task_missing_col, "refused", 'declare it missing = "skip"'),
    Defect(bad.task_that_may_lack_spelled_otherwise, "refused", "every label is yes or no"),
    Defect(bad.task_that_may_lack_null, "counted", counts={"task/kept/null": 2}),
    Defect(bad.task_that_may_lack_null_typed, "counted", counts={"task/kept/null": 20}),
    Defect(bad.task_that_may_lack_missing_col, "counted", "20 rows", {"task/kept/missing_column_rows": 20}),
    Defect(bad.label_nan, "refused", "nan in row "),
    Defect(bad.negative_weight, "refused", "every weight is finite and not negative"),
    Defect(bad.null_weight, "refused", ", counted from 0 (such are 1 of"),
    Defect(bad.infinite_weight, "refused", "inf in row "),
    Defect(bad.oob_ids, "refused", "50 in row "),
    Defect(bad.unknown_ids, "counted", "ids beyond the rows of the table", {"sparse/site/unknown": 1}),
    Defect(bad.negative_ids, "counted", "negative ids", {"sparse/user/negative": 2}),
    Defect(bad.null_ids, "counted", counts={"sparse/user/null": 1}),
    Defect(bad.empty_strings, "counted", counts={"sparse/shop/null": 2}),
    Defect(bad.null_lists, "counted", counts={"sparse/tags/null": 1}),
    Defect(bad.null_elements, "counted", counts={"sparse/tags/null": 1}),
    Defect(bad.long_lists, "counted", "beyond max_length", {"sparse/tags/truncated": 6}),
    Defect(bad.nonfinite_dense, "counted", "NaN, infinite", {"dense/price/nonfinite": 3}),
    Defect(bad.huge_dense, "counted", "too large for 32 bits", {"dense/price/nonfinite": 1}),
    Defect(bad.late_rows_of_other_day, "refused", "10 % of the rows outside 2026-01-02 UTC", is_read=True),
    Defect(bad.null_times, "noted", "rows without an event time: 1 in 40 rows looked at"),
    Defect(bad.wrong_unit_timestamps, "refused", "50 % of the rows outside 2026-01-02 UTC", is_read=True),
    Defect(bad.int_timestamps, "refused", "declared as event_time"),
    Defect(bad.timestamp_without_zone, "noted", "timestamp[us] in 1 of 2 files"),
    Defect(bad.timestamp_in_another_zone, "noted", "Asia/Tokyo"),
    Defect(bad.duplicate_requests, "refused", "'02-21' in row 1", is_read=True, options={"duplicates": True}),
    Defect(truncated, "refused", "b.parquet", of_folder=True),
    Defect(empty_file_bytes, "refused", "a readable Parquet footer", of_folder=True),
    Defect(text_for_parquet, "refused", "a readable Parquet footer", of_folder=True),
    Defect(damaged_pages, "refused", "a file whose pages are whole", of_folder=True),
    Defect(flipped_bits, "refused", "CRC checksum verification failed", of_folder=True),
    Defect(markers, "equal", of_folder=True),
    Defect(temporaries, "equal", of_folder=True),
    Defect(other_endings, "noted", "c.parquet.tmp: not read", of_folder=True),
    Defect(zero_rows, "equal", of_folder=True),
    Defect(zero_row_groups, "equal", of_folder=True),
    Defect(
        huge_row_group,
        "refused",
        "row groups of at most",
        of_folder=True,
        is_read=True,
        options={"memory_bytes": 40_000},
    ),
    Defect(skewed_files, "equal", of_folder=True),
    Defect(no_marker, "noted", "not complete", of_folder=True),
    Defect(marker_without_files, "held", "rows: 0", of_folder=True),
    Defect(folder_below, "refused", "country=de", of_folder=True),
    Defect(files_beside_hours, "refused", "a day has either Parquet files or hr=HH folders", of_folder=True),
    Defect(hour_folder_misspelt, "refused", "hr=00 to hr=23", of_folder=True),
    Defect(day_folder_misspelt, "refused", "dt=20260101", of_folder=True),
    Defect(day_folder_of_another_key, "noted", "date=2026-01-01", of_folder=True),
    Defect(file_beside_days, "noted", "all.parquet", of_folder=True),
    Defect(one_class, "held", "one class", of_folder=True),
    Defect(dead_dense, "held", "price: dead, no value in any of 40 rows", of_folder=True),
    Defect(dead_ids, "held", "user: dead", of_folder=True),
    Defect(all_times_null, "refused", "null in all 40 rows", of_folder=True, is_read=True),
    Defect(
        duplicate_requests_over_days,
        "refused",
        "rows: 20 with one of the increment before, as '02-16' in row 16",
        of_folder=True,
        is_read=True,
        options={"duplicates": True},
    ),
)
"""All of them; a test plays each one through."""
