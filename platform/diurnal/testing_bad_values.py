"""Defects of the rows of a file, for tests: each function gets the sound rows of a file and answers spoilt ones.

`testing_bad_days` says what is expected of each, and has the defects of files and folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

MIDNIGHT = datetime(2026, 1, 2, tzinfo=UTC)


def sound_rows(first: int, count: int, midnight: datetime = MIDNIGHT) -> pa.Table:
    """Rows of a day that keep the contract; ids need more bits than a float has."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "ts": pa.array([midnight + timedelta(minutes=7 * i) for i in numbers], pa.timestamp("us", "UTC")),
            "request": [f"{midnight:%d}-{i}" for i in numbers],
            "label": [int(i % 3 == 0) for i in numbers],
            "bought": [int(i % 4 == 0) for i in numbers],
            "kept": ["yes" if i % 3 else "no" for i in numbers],
            "weight": [1.0 + i % 2 for i in numbers],
            "price": [i * 0.25 for i in numbers],
            "age": [20.0 + i for i in numbers],
            "bonus": [float(i % 5) for i in numbers],
            "user": [2**60 + 7 * i for i in numbers],
            "item": [i % 50 for i in numbers],
            "site": [i % 8 for i in numbers],
            "shop": [f"shop {i % 7}" for i in numbers],
            "tags": pa.array([list(range(i % 4)) for i in numbers], pa.list_(pa.int64())),
        }
    )


# --- columns that are missing, new, or there twice


def missing_col(rows: pa.Table) -> pa.Table:
    return rows.drop_columns(["price"])


def missing_optional_col(rows: pa.Table) -> pa.Table:
    return rows.drop_columns(["bonus"])


def renamed_col(rows: pa.Table) -> pa.Table:
    return _renamed(rows, "price", "Price")


def renamed_optional_col(rows: pa.Table) -> pa.Table:
    return _renamed(rows, "bonus", "bonus_points")


def extra_col(rows: pa.Table) -> pa.Table:
    return rows.append_column("debug", pa.nulls(len(rows), pa.string()))


def duplicate_column(rows: pa.Table) -> pa.Table:
    return rows.append_column("user", rows["user"])


# --- types


def null_typed(rows: pa.Table) -> pa.Table:
    return _put(rows, "price", pa.nulls(len(rows)))


def null_typed_label(rows: pa.Table) -> pa.Table:
    return _put(rows, "label", pa.nulls(len(rows)))


def dict_str(rows: pa.Table) -> pa.Table:
    return _put(rows, "shop", rows["shop"].combine_chunks().dictionary_encode())


def dict_ids(rows: pa.Table) -> pa.Table:
    return _put(rows, "user", rows["user"].combine_chunks().dictionary_encode())


def large_str(rows: pa.Table) -> pa.Table:
    return _cast(rows, "shop", pa.large_string())


def int_vs_str(rows: pa.Table) -> pa.Table:
    return _cast(rows, "user", pa.string())


def float_ids(rows: pa.Table) -> pa.Table:
    return _put(rows, "user", [float(value) for value in rows["user"].to_pylist()])


def uint64_ids(rows: pa.Table) -> pa.Table:
    return _put(rows, "user", pa.array([2**63 + value for value in range(len(rows))], pa.uint64()))


def mixed_types_over_files(rows: pa.Table) -> pa.Table:
    return _cast(_cast(rows, "item", pa.int32()), "age", pa.int32())


def bool_label(rows: pa.Table) -> pa.Table:
    return _cast(rows, "label", pa.bool_())


def string_label(rows: pa.Table) -> pa.Table:
    return _put(rows, "label", ["yes" if value else "no" for value in rows["label"].to_pylist()])


def decimal_dense(rows: pa.Table) -> pa.Table:
    return _cast(rows, "price", pa.decimal128(9, 2))


def string_dense(rows: pa.Table) -> pa.Table:
    return _cast(rows, "price", pa.string())


def nested_lists(rows: pa.Table) -> pa.Table:
    return _put(rows, "tags", [[[1, 2], [3]]] * len(rows))


def map_for_list(rows: pa.Table) -> pa.Table:
    return _put(rows, "tags", pa.array([[(1, 0.5)]] * len(rows), pa.map_(pa.int64(), pa.float64())))


def struct_for_id(rows: pa.Table) -> pa.Table:
    return _put(rows, "user", [{"id": value, "country": "de"} for value in rows["user"].to_pylist()])


def list_for_id(rows: pa.Table) -> pa.Table:
    return _put(rows, "user", [[value] for value in rows["user"].to_pylist()])


def id_for_list(rows: pa.Table) -> pa.Table:
    return _put(rows, "tags", rows["item"])


def list_of_requests(rows: pa.Table) -> pa.Table:
    return _put(rows, "request", [[value] for value in rows["request"].to_pylist()])


def non_utf8_strings(rows: pa.Table) -> pa.Table:
    """Bytes that are no text, in a column that says that it is text."""
    _, offsets, data = bytes_for_strings(rows)["shop"].combine_chunks().buffers()
    return _put(rows, "shop", pa.StringArray.from_buffers(len(rows), offsets, data))


def bytes_for_strings(rows: pa.Table) -> pa.Table:
    """What `non_utf8_strings` is to be read as."""
    return _put(rows, "shop", pa.array([b"\xff\xfe%d" % (i % 7) for i in range(len(rows))], pa.binary()))


# --- labels and weights


def label_out_of_range(rows: pa.Table) -> pa.Table:
    return _at(rows, "label", {3: 2})


def label_minus_one(rows: pa.Table) -> pa.Table:
    return _put(rows, "label", [2 * value - 1 for value in rows["label"].to_pylist()])


def label_null(rows: pa.Table) -> pa.Table:
    return _at(rows, "label", {3: None})


def task_out_of_range(rows: pa.Table) -> pa.Table:
    return _at(rows, "bought", {3: 2})


def task_null(rows: pa.Table) -> pa.Table:
    return _at(rows, "bought", {3: None})


def task_missing_col(rows: pa.Table) -> pa.Table:
    return rows.drop_columns(["bought"])


def task_that_may_lack_spelled_otherwise(rows: pa.Table) -> pa.Table:
    return _at(rows, "kept", {3: "perhaps"})


def task_that_may_lack_null(rows: pa.Table) -> pa.Table:
    return _at(rows, "kept", {3: None, 4: None})


def task_that_may_lack_null_typed(rows: pa.Table) -> pa.Table:
    return _put(rows, "kept", pa.nulls(len(rows)))


def task_that_may_lack_missing_col(rows: pa.Table) -> pa.Table:
    return rows.drop_columns(["kept"])


def label_nan(rows: pa.Table) -> pa.Table:
    return _at(_cast(rows, "label", pa.float64()), "label", {3: float("nan")})


def negative_weight(rows: pa.Table) -> pa.Table:
    return _at(rows, "weight", {3: -1.0})


def null_weight(rows: pa.Table) -> pa.Table:
    return _at(rows, "weight", {3: None})


def infinite_weight(rows: pa.Table) -> pa.Table:
    return _at(rows, "weight", {3: float("inf")})


# --- ids and numbers


def oob_ids(rows: pa.Table) -> pa.Table:
    return _at(rows, "item", {2: 50, 5: 2**40})


def unknown_ids(rows: pa.Table) -> pa.Table:
    return _at(rows, "site", {2: 10})


def negative_ids(rows: pa.Table) -> pa.Table:
    return _at(rows, "user", {1: -1, 4: -(2**63)})


def null_ids(rows: pa.Table) -> pa.Table:
    return _at(rows, "user", {0: None})


def empty_strings(rows: pa.Table) -> pa.Table:
    return _at(rows, "shop", {0: "", 7: None})


def null_lists(rows: pa.Table) -> pa.Table:
    return _at(rows, "tags", {3: None})


def null_elements(rows: pa.Table) -> pa.Table:
    return _at(rows, "tags", {3: [0, None, 2]})


def long_lists(rows: pa.Table) -> pa.Table:
    return _at(rows, "tags", {3: list(range(9))})


def nonfinite_dense(rows: pa.Table) -> pa.Table:
    return _at(rows, "price", {1: float("nan"), 2: float("inf"), 3: float("-inf")})


def huge_dense(rows: pa.Table) -> pa.Table:
    """Finite as stored, not as a float of 32 bits."""
    return _at(rows, "price", {1: 1e300})


# --- times and requests


def late_rows_of_other_day(rows: pa.Table) -> pa.Table:
    times = rows["ts"].to_pylist()
    return _at(rows, "ts", {i: times[i] + timedelta(days=1) for i in range(4)})


def null_times(rows: pa.Table) -> pa.Table:
    return _at(rows, "ts", {0: None})


def wrong_unit_timestamps(rows: pa.Table) -> pa.Table:
    """Seconds that were written as if they were milliseconds."""
    seconds = [int(value.timestamp()) for value in rows["ts"].to_pylist()]
    return _put(rows, "ts", pa.array(seconds, pa.timestamp("ms", "UTC")))


def int_timestamps(rows: pa.Table) -> pa.Table:
    return _cast(rows, "ts", pa.int64())


def timestamp_without_zone(rows: pa.Table) -> pa.Table:
    return _cast(rows, "ts", pa.timestamp("us"))


def timestamp_in_another_zone(rows: pa.Table) -> pa.Table:
    """The same instants."""
    return _cast(rows, "ts", pa.timestamp("us", "Asia/Tokyo"))


def duplicate_requests(rows: pa.Table) -> pa.Table:
    return _at(rows, "request", {5: rows["request"][1].as_py()})


def _put(rows: pa.Table, name: str, values: Any) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, values if hasattr(values, "type") else [values])


def _cast(rows: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    return _put(rows, name, rows[name].cast(kind))


def _at(rows: pa.Table, name: str, changes: Mapping[int, Any]) -> pa.Table:
    values = rows[name].to_pylist()
    for row, value in changes.items():
        values[row] = value
    return _put(rows, name, pa.array(values, rows[name].type))


def _renamed(rows: pa.Table, name: str, other: str) -> pa.Table:
    return rows.rename_columns([other if column == name else column for column in rows.column_names])
