"""What a model did with a set of rows, in sums per block: what a verdict is made of. Loads without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diurnal.metrics.report import SUMS, Report, report_from_sums

COLUMNS = ("rows", "positives", "weight", "positive_weight", "prediction", "log_loss", "nonfinite_rows")
"""Rows with weight, and those of them with label 1; their weights; the weighted sums of predictions and of log losses
in nats over the rows with a finite logit; rows that weigh something but have a number that is not finite. Neither rows
nor weights depend on the model, so that two models on the same rows can be told from two models on others."""

ALL = "all"
"""Name of segment 0: all rows."""


@dataclass(frozen=True)
class Evidence:
    """What a model did with a set of rows: sums that were merged over ranks."""

    num_rows: int
    """Positions that the blocks divide: block of a position = position * blocks // num_rows."""
    segments: tuple[str, ...]
    """Names; the first is `ALL`."""
    sums: np.ndarray
    """(segments, blocks, len(COLUMNS)) float64."""

    def column(self, name: str, segment: int = 0) -> np.ndarray:
        """One of `COLUMNS` for each block, float64."""
        return self.sums[segment, :, COLUMNS.index(name)]

    def report(self, segment: int = 0) -> Report:
        """The numbers of all blocks; without NE and calibration if a row was not finite."""
        total = dict(zip(COLUMNS, self.sums[segment].sum(axis=0), strict=True))
        values = {
            **total,
            "negatives": total["rows"] - total["positives"],
            "negative_weight": total["weight"] - total["positive_weight"],
        }
        report = report_from_sums([values[name] for name in SUMS])
        return replace(report, log_loss=None, ne=None, calibration=None) if total["nonfinite_rows"] else report

    @property
    def ne(self) -> float | None:
        """Normalized entropy over all rows; None where it is undefined."""
        return self.report().ne

    @property
    def calibration(self) -> float | None:
        """Mean prediction over mean label, over all rows; None where it is undefined."""
        return self.report().calibration

    @property
    def rows(self) -> int:
        return int(self.column("rows").sum())

    @property
    def positives(self) -> int:
        return int(self.column("positives").sum())

    @property
    def nonfinite_rows(self) -> int:
        return int(self.column("nonfinite_rows").sum())

    def check_same_rows(self, other: Evidence, name: str = "one", other_name: str = "the other") -> None:
        """Raises ValueError, naming both, unless both are about the same rows, labels, weights and segments."""
        ours, theirs = ((e.num_rows, e.segments, e.sums.shape) for e in (self, other))
        if ours != theirs:
            raise ValueError(f"{name} was scored on {ours[0]} rows in segments {ours[1]}, {other_name} on {theirs}")
        for column in ("rows", "positives", "weight", "positive_weight"):
            index = COLUMNS.index(column)
            one, two = self.sums[:, :, index], other.sums[:, :, index]
            differs = np.argwhere(~np.isclose(one, two, rtol=1e-9, atol=0.0))
            if len(differs):
                segment, block = differs[0]
                raise ValueError(
                    f"{name} and {other_name} were not scored on the same rows: {column} of block {block} of segment "
                    f"{self.segments[segment]} is {one[segment, block]:g} and {two[segment, block]:g}"
                )

    def to_json(self) -> dict[str, Any]:
        """A dict for `json.dumps`; `from_json` gets exactly the same numbers from it."""
        return {
            "num_rows": self.num_rows,
            "segments": list(self.segments),
            "columns": list(COLUMNS),
            "sums": [[[int(x) if x.is_integer() else x for x in b] for b in blocks] for blocks in self.sums.tolist()],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Evidence:
        """The inverse of `to_json`; ValueError if it was written with other columns."""
        if tuple(value["columns"]) != COLUMNS:
            raise ValueError(f"evidence has columns {value['columns']}, expected {list(COLUMNS)}")
        sums = np.array(value["sums"], dtype=np.float64)
        return cls(value["num_rows"], tuple(value["segments"]), sums)
