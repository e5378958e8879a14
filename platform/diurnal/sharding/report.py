"""What a plan says, for people and for records."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from diurnal.config.run import Placement


@dataclass(frozen=True)
class TablePlacement:
    """Where one table lives."""

    table: str
    rows: int
    dim: int
    placement: Placement
    chosen_by: Literal["config", "size", "planner"]
    rows_by_rank: tuple[int, ...]
    """Rows that each rank holds: a part of them, all, or none."""
    columns_by_rank: tuple[int, ...]
    """Columns of these rows that each rank holds: all, or, of a table that is cut column-wise, a part of them."""
    weight_bytes: int
    """Of one copy of the table."""
    moment_bytes: int
    """Of the optimizer's moments, one copy."""
    note: str = ""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(rank for rank, rows in enumerate(self.rows_by_rank) if rows)

    def bytes_by_rank(self) -> tuple[int, ...]:
        """Weights and moments."""
        num_bytes, held = (
            self.weight_bytes + self.moment_bytes,
            zip(self.rows_by_rank, self.columns_by_rank, strict=True),
        )
        return tuple(num_bytes * rows * columns // (self.rows * self.dim) for rows, columns in held)


@dataclass(frozen=True)
class PlanReport:
    """A plan in words: `str()` prints a table, `to_dict()` is its record."""

    world_size: int
    device: str
    tables: tuple[TablePlacement, ...]

    def placement(self) -> dict[str, Placement]:
        return {table.table: table.placement for table in self.tables}

    def bytes_by_rank(self) -> tuple[int, ...]:
        """Weights and moments of all tables."""
        return tuple(map(sum, zip(*(table.bytes_by_rank() for table in self.tables), strict=True)))

    def to_dict(self) -> dict[str, Any]:
        return {
            "world_size": self.world_size,
            "device": self.device,
            "bytes_by_rank": list(self.bytes_by_rank()),
            "tables": [asdict(table) | {"ranks": list(table.ranks)} for table in self.tables],
        }

    def __str__(self) -> str:
        rows = [("table", "rows", "dim", "placement", "chosen by", "ranks", "weights", "moments", "")]
        rows += [
            (
                table.table,
                f"{table.rows:,}",
                str(table.dim),
                table.placement,
                table.chosen_by,
                _ranges(table.ranks),
                _size(table.weight_bytes),
                _size(table.moment_bytes),
                table.note,
            )
            for table in self.tables
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        bytes_by_rank = self.bytes_by_rank()
        smallest, largest = min(bytes_by_rank), max(bytes_by_rank)
        held = _size(largest) if smallest == largest else f"{_size(smallest)} to {_size(largest)}"
        ranks = f"{self.world_size} {self.device} rank" + ("s" if self.world_size > 1 else "")
        return "\n".join([*lines, f"{ranks}, each with {held} of tables and moments"])


def _ranges(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 1 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
