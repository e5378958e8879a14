"""How an embedding table looks, in numbers that need no row of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TableHealth:
    """One table, or one MLP with its units as rows, after an increment."""

    name: str
    rows: int
    learned_rows: int
    """Rows that a gradient has reached in the lineage of the version."""
    dead_rows: int
    """Learned rows whose values are all zero."""
    nonfinite: int
    """Values of weights and of optimizer state that are nan or infinite."""
    max_abs: float
    """Largest absolute value of a weight or of optimizer state among the finite ones."""
    rms_learned: float
    """Root mean square of the weights of the learned rows; 0 without any."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TableHealth:
        """The inverse of `to_json`."""
        return cls(**value)
