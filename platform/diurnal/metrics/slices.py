"""The same numbers for the rows of each id of a feature: sums by the row of its table, so that ranks add up."""

from __future__ import annotations

import calendar
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from diurnal.config import Schema, Sparse
from diurnal.metrics.report import SUMS, report_from_sums
from diurnal.metrics.segments import Segment, first_ids
from diurnal.metrics.state import row_sums

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

MOST_IDS = 8
"""Slices of one feature that have an id, those with the most rows."""

NO_ID, OTHERS = "no id", "others"


@dataclass(frozen=True)
class Slice:
    """The quality over the rows of one id. What is undefined for them is None, and `reason` says why."""

    feature: str
    id: str
    """As far as it is known, or the row of its table; `NO_ID`, or `OTHERS` for all ids that are no slice."""
    rows: int
    positives: int
    nonfinite_rows: int
    weight: float
    base_rate: float | None
    log_loss: float | None
    ne: float | None
    calibration: float | None
    reason: str | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class SliceSums:
    """`SUMS` of the rows that were scored, for each row of the features' tables and for the rows without an id; in
    float64, on one device. `update` never waits for the device.

    Args:
        schema: has the features.
        features: names of sparse features with one id a row.
        device: where the logits are.
    """

    def __init__(self, schema: Schema, features: Sequence[str], device: torch.device | str = "cpu") -> None:
        wanted = [feature for feature in schema.sparse if feature.name in features]
        assert len(wanted) == len(set(features)), features
        ids = {feature.name: feature.num_values or schema.table(feature.table_name).rows for feature in wanted}
        shapes = {name: (num_ids + 1, len(SUMS)) for name, num_ids in ids.items()}
        self.sums = {name: torch.zeros(shape, dtype=torch.float64, device=device) for name, shape in shapes.items()}
        """By feature: (ids + 1, len(SUMS)); the last one is of the rows without an id."""

    @torch.no_grad()
    def update(
        self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, sparse: KeyedJaggedTensor
    ) -> None:
        """Adds scored rows: all (B,), labels 0 or 1; a row of weight 0 (padding) counts nowhere."""
        columns = row_sums(*(rows.detach().double() for rows in (logits, labels, weights))).T
        for name, sums in self.sums.items():
            ids = first_ids(sparse, name)
            sums.index_add_(0, ids.where(ids >= 0, len(sums) - 1), columns)

    def keep_only(self, counted: Mapping[str, torch.Tensor]) -> None:
        """Counts no more what an earlier part of the same pass has not counted, or over a table of another size."""
        same = {name for name, sums in self.sums.items() if name in counted and counted[name].shape == sums.shape}
        self.sums = {name: sums for name, sums in self.sums.items() if name in same}

    def merge(self, counted: Mapping[str, torch.Tensor]) -> None:
        """Adds what another rank, or an earlier part of the same pass, has counted."""
        for name, sums in self.sums.items():
            sums += counted[name].to(sums)


def slices_of(schema: Schema, feature: str, sums: np.ndarray, named: Sequence[Segment] = ()) -> list[Slice]:
    """The most frequent ids of a feature first, then the rows without an id, then all others; none that is empty.

    Args:
        feature: name of a feature that was counted.
        sums: its sums over all ranks, see `SliceSums.sums`.
        named: segments whose ids are known; of other features too.
    """
    (declared,) = [f for f in schema.sparse if f.name == feature]
    names = {s.table_row: s.name.removeprefix(f"{feature}=") for s in named if s.feature == feature}
    rows = sums[:, [SUMS.index(name) for name in ("negatives", "positives", "nonfinite_rows")]].sum(axis=1)
    top = [row for row in np.argsort(-rows[:-1], kind="stable")[:MOST_IDS].tolist() if rows[row]]
    others = np.ones(len(sums), bool)
    others[[*top, -1]] = False
    parts = [(_told(declared, row) or names.get(row) or f"row {row}", sums[row]) for row in top]
    parts += [(NO_ID, sums[-1]), (OTHERS, sums[others].sum(axis=0))]
    return [_slice(feature, name, of_rows) for name, of_rows in parts if of_rows.any()]


def _told(feature: Sparse, row: int) -> str:
    """What an id is, as far as its row alone tells; the empty text when it does not."""
    if feature.mapping in ("identity", "hour"):
        return str(row)
    if feature.mapping == "weekday":
        return calendar.day_name[row]
    if feature.mapping != "bucketize":
        return ""
    if feature.quantiles:
        return f"quantile {row / feature.quantiles:.4g} to {(row + 1) / feature.quantiles:.4g}"
    low, high = ["", *(f"{boundary:g}" for boundary in feature.boundaries), ""][row : row + 2]
    return f"{low} to {high}" if low and high else f"below {high}" if high else f"from {low}"


def _slice(feature: str, name: str, sums: np.ndarray) -> Slice:
    r = report_from_sums(sums)
    return Slice(
        feature=feature,
        id=name,
        rows=r.rows,
        positives=r.positives,
        nonfinite_rows=r.nonfinite_rows,
        weight=r.weight,
        base_rate=r.base_rate,
        log_loss=r.log_loss,
        ne=r.ne,
        calibration=r.calibration,
        reason=r.reason,
    )
