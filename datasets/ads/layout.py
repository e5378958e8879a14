"""The layout of iPinYou's impression and click logs, and the columns that become of it.

A line has 24 tab-separated fields and no header, in the order of `FIELDS`: those of the public description, as
github.com/wnzhang/make-ipinyou-data has them in schema.txt. `null` is missing. Not taken over: `logtype`, the same in
all rows of a file; `payprice`, known only when the auction is over; and `keypage`, the page that a click leads to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diurnal.data.lines import BLOCK_BYTES, LineLog
from diurnal.errors import DataError, Fault

FIELDS = (
    *("bidid", "timestamp", "logtype", "ipinyouid", "useragent", "ip", "region", "city", "adexchange", "domain", "url"),
    *("urlid", "slotid", "slotwidth", "slotheight", "slotvisibility", "slotformat", "slotprice", "creative"),
    *("bidprice", "payprice", "keypage", "advertiser", "usertag"),
)
TEXTS = {
    "bid_id": "bidid",
    "user": "ipinyouid",
    "user_agent": "useragent",
    "ip": "ip",
    "region": "region",
    "city": "city",
    "exchange": "adexchange",
    "domain": "domain",
    "url": "url",
    "url_id": "urlid",
    "slot": "slotid",
    "slot_visibility": "slotvisibility",
    "slot_format": "slotformat",
    "creative": "creative",
    "advertiser": "advertiser",
}
"""Columns that are strings, and the fields that they come from."""
NUMBERS = {"slot_width": "slotwidth", "slot_height": "slotheight", "floor_price": "slotprice", "bid_price": "bidprice"}
SCHEMA = pa.schema(
    [
        ("event_time", pa.timestamp("us", "UTC")),
        *((name, pa.string()) for name in TEXTS),
        ("slot_size", pa.string()),
        *((name, pa.float32()) for name in NUMBERS),
        ("user_tags", pa.list_(pa.int64())),
        ("click", pa.int8()),
    ]
)
RULE = f"{len(FIELDS)} tab-separated fields: {', '.join(FIELDS)}"
Fields = dict[str, pa.Array]
"""Name of a field to its texts; a field that the source lacks is not there."""

_TIME = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])[0-5]\d[0-5]\d\d{3}")
_NUMBER = re.compile(r"|null|-?\d+(\.\d*)?")
_TAGS = re.compile(r"|null|\d+(,\d+)*")


def log_of(path: Path) -> LineLog:
    return LineLog(path, "\t", dict.fromkeys(FIELDS, pa.string()), False, _what_is_wrong, RULE)


def read_impressions(
    path: Path, clicked: Collection[str], zone_hours: float, block_bytes: int = BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """All impressions of a log, as `SCHEMA`.

    Args:
        clicked: `click_key` of the impressions that were clicked.
        zone_hours: how many hours the log's clock is ahead of UTC.

    Raises:
        DataError: a line breaks the layout, or the file is cut off; with the line's number.
    """
    keys = pa.array(sorted(clicked), pa.string())

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        fields = {name: batch.column(name) for name in FIELDS}
        click = _is_in(click_key(fields), keys).cast(pa.int8())
        return typed(fields, event_times(fields["timestamp"], zone_hours), click)

    return log_of(path).read(convert, block_bytes)


def read_clicks(path: Path) -> set[str]:
    """`click_key` of every row of a click log; raises what `read_impressions` does."""

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        fields = {name: batch.column(name) for name in FIELDS}
        return pa.record_batch({"key": click_key(fields)})

    return {key for batch in log_of(path).read(convert) for key in batch.column(0).to_pylist()}


def click_key(fields: Fields) -> pa.Array:
    """What an impression and its click have in common: bid and creative."""
    if fields["bidid"].null_count:
        raise ValueError("a row has no bidid")
    return _joined(fields["bidid"], fields["creative"].fill_null(""), "-")


def event_times(texts: pa.Array, zone_hours: float) -> pa.Array:
    """UTC from the log's yyyyMMddHHmmssSSS."""
    if texts.null_count:
        raise ValueError("a row has no timestamp")
    to_seconds, to_millis = (
        pc.call_function("utf8_slice_codeunits", [texts], pc.SliceOptions(*part)) for part in ((0, 14), (14, 17))
    )
    seconds = pc.call_function("strptime", [to_seconds], pc.StrptimeOptions("%Y%m%d%H%M%S", "s")).cast(pa.int64())
    millis = to_millis.cast(pa.int64()).to_numpy()
    shifted = (seconds.to_numpy() - round(3600 * zone_hours)) * 10**6 + millis * 1000
    return pa.array(shifted).cast(pa.timestamp("us", "UTC"))


def typed(fields: Fields, event_time: pa.Array, click: pa.Array) -> pa.RecordBatch:
    """The columns of `SCHEMA`; null where a field is missing, and an empty list of tags is null too."""
    num_rows = len(click)

    def text(field: str) -> pa.Array:
        if field not in fields:
            return pa.nulls(num_rows, pa.string())
        is_missing = _is_in(fields[field], pa.array(["null", ""]))
        return pc.call_function("if_else", [is_missing, pa.scalar(None, pa.string()), fields[field]])

    columns: dict[str, pa.Array] = {name: text(field) for name, field in TEXTS.items()}
    columns |= {name: text(field).cast(pa.float32()) for name, field in NUMBERS.items()}
    columns["slot_size"] = _joined(text("slotwidth"), text("slotheight"), "x")
    tags = pc.call_function("split_pattern", [text("usertag")], pc.SplitPatternOptions(","))
    columns["user_tags"] = tags.cast(pa.list_(pa.int64()))
    columns |= {"event_time": event_time, "click": click}
    return pa.record_batch([columns[field.name] for field in SCHEMA], schema=SCHEMA)


def days_of(rows: pa.RecordBatch) -> np.ndarray:
    """(n,) datetime64[D]: the UTC day of each row."""
    micros = rows.column("event_time").cast(pa.int64()).to_numpy()
    return micros.astype("datetime64[us]").astype("datetime64[D]")


def kind_of(path: Path) -> str:
    """`imp`, `clk` or `rda`, by the file's name.

    Raises:
        DataError: it is none of them.
    """
    if path.suffix == ".rda":
        return "rda"
    kind = path.name.partition(".")[0]
    if kind in ("imp", "clk"):
        return kind
    must = "imp.* (impressions), clk.* (their clicks), or ipinyou.rda"
    reason = {"bid": " (a bid that was not shown has no click to predict)", "conv": " (conversions are not read)"}
    raise DataError([Fault(str(path), path.name + reason.get(kind, ""), must, "leave it out, or name it so")])


def _is_in(texts: pa.Array, values: pa.Array) -> pa.Array:
    return pc.call_function("is_in", [texts], pc.SetLookupOptions(values))


def _joined(first: pa.Array, second: pa.Array, between: str) -> pa.Array:
    return pc.call_function("binary_join_element_wise", [first, second, pa.scalar(between)])


def _what_is_wrong(fields: list[str]) -> str:
    values = dict(zip(FIELDS, fields, strict=True))
    rules: list[tuple[str, Callable[[str], object]]] = [("bidid", bool), ("timestamp", _TIME.fullmatch)]
    rules += [(field, _NUMBER.fullmatch) for field in NUMBERS.values()] + [("usertag", _TAGS.fullmatch)]
    return next((f"{field} is {values[field][:60]!r}" for field, rule in rules if not rule(values[field])), "")
