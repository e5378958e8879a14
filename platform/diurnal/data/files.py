"""Files of an increment, and which of its rows are not learned: as plain data, which goes into manifests and tasks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ParquetFile:
    """One file of an increment, as its footer describes it."""

    path: str
    size_bytes: int
    row_group_rows: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return sum(self.row_group_rows)

    @staticmethod
    def from_json(data: dict[str, Any]) -> ParquetFile:
        return ParquetFile(data["path"], data["size_bytes"], tuple(data["row_group_rows"]))


@dataclass(frozen=True)
class HeldOut:
    """Rows of an increment that are left to the next version, so that this one can be judged on them.

    `data.holdout` says which rows they are, and has copied them.
    """

    key: int
    """64 bits that the hash of a row is mixed with."""
    threshold: int
    """Rows whose hash is below are held out."""
    column: str
    """Of request ids, whose rows are held out together; empty: each row by its position."""
    num_rows: int
    audit: tuple[int, ...]
    """`data.audit.RowAudit` of their positions."""
    files: tuple[ParquetFile, ...]
    """Copies of these rows: one file for each set of column types that the increment's files have."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> HeldOut:
        files = tuple(map(ParquetFile.from_json, data["files"]))
        return HeldOut(**{**data, "audit": tuple(data["audit"]), "files": files})


@dataclass(frozen=True)
class Sampling:
    """The rule by which some of the negatives of an increment are not learned; see `data.negatives`."""

    rate: float
    """Share of the negatives that is learned, on average."""
    key: int
    """64 bits that the hash of a row is mixed with."""
    threshold: int
    """Negatives whose hash is below are learned."""
    column: str
    """Of request ids, whose negatives are drawn together; empty: each row by its position."""
    label: str
    """`config.Label`, as JSON, that tells negatives from positives."""
    num_own_rows: int
    """The increment's own rows have the positions from 0 up to here, whatever else their row groups have."""


@dataclass(frozen=True)
class Sampled:
    """What the rule leaves of an increment. Rows that are held out are neither learned nor dropped."""

    sampling: Sampling
    joined: tuple[tuple[int, ...], ...]
    """Rows that are learned of each row group of each joined file."""
    own: tuple[tuple[int, ...], ...]
    """The same of the increment's own files, without rows of the folder that are other increments'."""
    dropped: tuple[int, ...]
    """`data.audit.RowAudit` of the positions of the negatives that are not learned."""

    @property
    def num_rows(self) -> int:
        """That are learned."""
        return sum(map(sum, self.joined)) + sum(map(sum, self.own))

    @property
    def num_dropped(self) -> int:
        return self.dropped[0]

    @staticmethod
    def from_json(data: dict[str, Any]) -> Sampled:
        joined, own = (tuple(map(tuple, data[name])) for name in ("joined", "own"))
        return Sampled(Sampling(**data["sampling"]), joined, own, tuple(data["dropped"]))
