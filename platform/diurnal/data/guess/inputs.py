"""A column as an input: a number that is clipped, transformed and scaled, or ids that look up a table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from diurnal.data.guess.names import SafeNames, hints_at, last_hint, words
from diurnal.data.guess.proposal import Entry
from diurnal.data.guess.values import Values

_FEW_VALUES = 32
"""Integers with so few values are taken as categories where no name says otherwise."""
_HEAVY_TAIL = 5.0
"""Times further from the median is the 99 % quantile than the 1 % quantile."""
INDICATED = (0.01, 0.99)
"""Share of rows without a number between which an input of its own says whether there is one."""
_BENT = {
    "log1p": "; a long tail, so log1p",
    "symlog": "; long tails, so symlog",
    "power": "; a long tail of small numbers, so a root",
}
_ROOT = 0.25
_BAG_QUANTILE = 0.999
_BUCKETS = 16
_LOOKED_AT = 200


@dataclass(frozen=True)
class Ids:
    """A sparse input and what its table has to hold."""

    entry: Entry
    expected: int = 0
    """Distinct ids of the whole dataset, estimated."""
    counted_rows: int = 0
    """That the estimate is from."""
    exact_rows: int | None = None
    """Of the table, when the values are known beforehand."""
    pooling: str = "sum"


def is_quantity(values: Values) -> bool:
    """Whether integers are amounts, whose order means something, rather than names of things."""
    name = values.field.name
    if len(values.counts) <= 2:
        return False
    hint = last_hint(name, ("quantity", "cyclic", "category", "key"))
    if hint == "quantity" or words(name)[:1] in (("num",), ("n",), ("count",)):
        return True
    if hint or hints_at(name, "user") or hints_at(name, "item"):
        return False
    assert isinstance(values.distinct, np.ndarray)
    if np.count_nonzero(values.distinct < 0) > 1:
        return not _is_wide(values)
    if len(values.counts) <= _FEW_VALUES:
        return False
    median, high = np.quantile(values.numbers, [0.5, 0.99])
    return values.distinct[0] in (0, 1) and 10 * median < high and not _is_wide(values)


def _is_wide(values: Values) -> bool:
    """Hashes, and ids out of a large space, lie far apart."""
    assert isinstance(values.distinct, np.ndarray)
    return float(values.distinct[-1]) - float(values.distinct[0]) > 1e9


def dense_entries(
    values: Values, names: SafeNames, beside: str = "", indicated: set[bytes] | None = None
) -> list[Entry]:
    """The number, scaled to mean 0 and standard deviation 0.5, and an indicator where many rows have none; nothing
    when all numbers are the same.

    Args:
        indicated: which rows have no value, of the columns that have an indicator: none gets the same twice.
    """
    indicated = set() if indicated is None else indicated
    x = values.numbers.astype(np.float64)
    finite = np.sort(x[np.isfinite(x)])
    entries: list[Entry] = []
    settings = _number_settings(values, finite)
    name = names.take(values.field.name)
    base = _named(name, values)
    nulls = _nulls(values)
    if settings is not None:
        low, middle, high = (f"{v:.4g}" for v in np.quantile(finite, [0.01, 0.5, 0.99]))
        bent = _BENT.get(settings.get("transform", ""), "")
        inf = f"; {len(x) - len(finite):,} not finite" if len(finite) < len(x) else ""
        quantiles = f"1 %, 50 % and 99 % of the values: {low}, {middle}, {high}"
        why = f"{values.field.types}; {nulls}{inf}; {quantiles}{bent}{beside}"
        entries.append(Entry("dense", base | settings, why))
    empty = float(values.null_share)
    mask = np.packbits(values.is_null).tobytes()
    if INDICATED[0] <= empty <= INDICATED[1] and mask not in indicated:
        indicated.add(mask)
        scaled = {"shift": _short(empty), "scale": _short(0.5 / math.sqrt(empty * (1 - empty)))}
        own = {"name": names.take(f"{name}_missing"), "column": values.field.name}
        required = {"required": False} if values.field.num_missing else {}
        those = " of files that have it" if required else ""
        why = f"1 where {values.field.name} has no value, as in {empty:.2%} of the rows{those}"
        entries.append(Entry("dense", own | required | {"transform": "missing"} | scaled, why))
    return entries


def _number_settings(values: Values, finite: np.ndarray) -> dict[str, Any] | None:
    if not len(finite) or finite[0] == finite[-1]:
        return None
    low, high = np.quantile(finite, [0.001, 0.999])
    if low == high:
        low, high = finite[0], finite[-1]
    low, high = _rounded(low, math.floor), _rounded(high, math.ceil)
    bent = _transform(finite, low)
    settings: dict[str, Any] = {"clip": [low, high]}
    seen = np.clip(finite, low, high)
    if bent:
        settings |= {"transform": bent} | ({"exponent": _ROOT} if bent == "power" else {})
        bends = {"log1p": np.log1p, "power": lambda x: x**_ROOT, "symlog": lambda x: np.copysign(np.log1p(abs(x)), x)}
        seen = bends[bent](seen)
    unit = float(np.abs(seen).max()) or 1.0  # squares of huge numbers overflow
    mean, std = unit * float((seen / unit).mean()), unit * float((seen / unit).std())
    if not std or not math.isfinite(std) or not math.isfinite(0.5 / std):
        return None
    if values.is_null.any() or values.field.num_missing:
        settings = {"fill": _short(float(np.clip(np.median(finite), low, high)))} | settings
    return settings | {"shift": _short(mean), "scale": _short(0.5 / std)}


def _transform(finite: np.ndarray, low: float) -> str:
    """Where a tail is long: log1p, a root where the numbers are so small that this bends nothing, or symlog."""
    q01, q50, q99 = np.quantile(finite, [0.01, 0.5, 0.99])
    above, below = q99 - q50, q50 - q01
    if low >= 0:
        if q99 > _HEAVY_TAIL:
            return "log1p" if above > _HEAVY_TAIL * below else ""
        return "power" if q99 > 2 * _HEAVY_TAIL * q50 > 0 else ""
    q25, q75 = np.quantile(finite, [0.25, 0.75])
    tails = max(above, below)
    return "symlog" if tails > 2 * _HEAVY_TAIL and tails > 2 * _HEAVY_TAIL * (q75 - q25) else ""


def sparse_ids(values: Values, names: SafeNames, news: str, beside: str = "") -> Ids:
    """Ids, one or a list for a row, hashed onto their table; how many there are in all is not said yet."""
    field = values.field
    settings = _named(names.take(field.name), values)
    if field.kind in ("text", "texts"):
        settings["type"] = "string"
    elif field.is_unsigned:
        settings["type"] = "uint64"
    bag = ""
    if field.is_bag:
        lengths = values.lengths[~values.is_null]
        longest = max(1, math.ceil(np.quantile(lengths, _BAG_QUANTILE)))
        settings |= {"many": True, "max_length": longest}
        bag = f"; {lengths.mean():.2f} ids in a list, {_BAG_QUANTILE:.1%} of the lists have at most {longest}"
    top = int(np.argmax(values.counts))
    share = values.counts[top] / values.counts.sum()
    why = (
        f"{field.types}; {len(values.counts):,} ids in {values.num_rows:,} rows; "
        f"{share:.1%} are {values.spelled(top)}{news}{bag}; {_nulls(values)}{_negatives(values)}"
        f"{_joined(values)}{beside}"
    )
    return Ids(Entry("sparse", settings, why), len(values.counts), pooling="mean" if field.is_bag else "sum")


def negative_share(values: Values) -> float:
    """Of ids that are negative and not -1 alone, which often stands for none: a negative id is no id."""
    if values.field.kind not in ("int", "ints"):
        return 0.0
    assert isinstance(values.distinct, np.ndarray)
    is_negative = values.distinct < 0
    if np.count_nonzero(is_negative) <= 1:
        return 0.0
    return float(values.counts[is_negative].sum() / values.counts.sum())


def _negatives(values: Values) -> str:
    if values.field.kind not in ("int", "ints"):
        return ""
    assert isinstance(values.distinct, np.ndarray)
    share = values.counts[values.distinct < 0].sum() / values.counts.sum()
    return f"; {share:.2%} are negative, which means no id" if share else ""


def _nulls(values: Values) -> str:
    field, share = values.field, values.null_share
    some = f"; in {field.num_files:,} of {field.num_files + field.num_missing:,} files" if field.num_missing else ""
    word = "null" if field.kind in ("int", "float") else "null or empty"
    return f"{share:.2%} {word}{some}" if share else f"none {word}{some}"


def _joined(values: Values) -> str:
    if values.field.kind != "text":
        return ""
    texts = [values.exact(code) for code in range(min(_LOOKED_AT, len(values.counts)))]
    for mark in ",|;":
        if sum(mark in text for text in texts) > len(texts) / 2 > 1:
            return f"; most have a {mark!r}: what is a list is better written as one"
    return ""


def of_past(feature: str, effects: np.ndarray, names: SafeNames) -> Entry | None:
    """What earlier increments say of a feature's ids, as a number; None when it is the same for all."""
    std = float(effects.std())
    if not std > 1e-6:
        return None
    scaled = {"shift": _short(float(effects.mean())), "scale": _short(0.5 / std)}
    why = f"how much more often than all ids those of {feature} were positive before; scaled by the rows that were read"
    return Entry("dense", {"name": names.take(f"{feature}_effect"), "past": feature} | scaled, why)


def bucketized(values: Values, names: SafeNames) -> Ids:
    """A number as one of some buckets that are about equally full."""
    finite = values.numbers[np.isfinite(values.numbers)]
    inner = np.unique([_short(float(v)) for v in np.quantile(finite, np.arange(1, _BUCKETS) / _BUCKETS)])
    boundaries = [float(v) for v in inner if v > finite.min()] or [_short(float(finite.max()))]
    own = {"name": names.take(f"{values.field.name}_bucket"), "column": values.field.name, "type": "float"}
    required = {"required": False} if values.field.num_missing else {}
    why = f"a DLRM needs a sparse input, and no column holds ids: {values.field.name} in {len(boundaries) + 1} buckets"
    settings = own | required | {"mapping": "bucketize", "boundaries": boundaries}
    return Ids(Entry("sparse", settings, why), len(boundaries) + 1, exact_rows=len(boundaries) + 1)


def of_clock(mapping: str, column: str, names: SafeNames) -> Ids:
    """`hour` or `weekday` of a timestamp."""
    size = {"hour": 24, "weekday": 7}[mapping]
    settings = {"name": names.take(mapping), "column": column, "type": "timestamp", "mapping": mapping}
    return Ids(Entry("sparse", settings, f"the {mapping} of {column}, UTC"), size, exact_rows=size)


def _named(name: str, values: Values) -> dict[str, Any]:
    column = {"column": values.field.name} if name != values.field.name else {}
    return {"name": name} | column | ({"required": False} if values.field.num_missing else {})


def _short(value: float) -> float:
    """Four digits: what comes after them is noise of the sample."""
    return float(f"{value:.4g}")


def _rounded(value: float, way: Any) -> float:
    """Three digits, outwards."""
    if not value:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return float(f"{way(value / unit) * unit:.12g}") if unit and math.isfinite(unit) else float(value)
