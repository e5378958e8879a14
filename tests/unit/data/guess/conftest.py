"""Datasets that nothing here was written for, with columns as a test asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

FIRST_DAY = date(2026, 1, 1)


class Invented:
    """A folder of days. The outcome depends on `who` and `what`, so that a model could learn it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = str(root)

    def columns(self, day: int = 0, rows: int = 300) -> dict[str, Any]:
        """`clicked`, `who` (text, 40 users), `what` (int64, 15 things) and `cost` (a float with a long tail)."""
        rng = np.random.default_rng(day)
        who, what = rng.integers(0, 40, rows), rng.integers(0, 15, rows)
        chance = 1 / (1 + np.exp(1.5 - np.sin(who) - np.cos(what)))
        return {
            "clicked": pa.array((rng.random(rows) < chance).astype(np.int8)),
            "who": pa.array([f"w{one}" for one in who]),
            "what": pa.array(what * 1_000_003),
            "cost": pa.array(rng.lognormal(3, 1.5, rows)),
        }

    def times(self, day: int = 0, rows: int = 300, hour: int | None = None) -> np.ndarray:
        """Microseconds since 1970, within the day or the hour."""
        begin = datetime.combine(FIRST_DAY + timedelta(days=day), datetime.min.time(), UTC).timestamp()
        length = 86_400 if hour is None else 3_600
        inside = np.random.default_rng(day).integers(0, length * 10**6, rows)
        return (int(begin) + (hour or 0) * 3_600) * 10**6 + np.sort(inside)

    def write(
        self,
        columns: Mapping[str, Any] | pa.Table,
        day: int = 0,
        hour: int | None = None,
        name: str = "part-0.parquet",
        marker: str = "_SUCCESS",
    ) -> Path:
        folder = self.root / f"dt={FIRST_DAY + timedelta(days=day)}"
        if hour is not None:
            folder /= f"hr={hour:02}"
        folder.mkdir(parents=True, exist_ok=True)
        table = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
        pq.write_table(table, folder / name, row_group_size=120)
        if marker:
            (folder / marker).touch()
        return folder

    def days(self, more: Callable[[int, np.ndarray], Mapping[str, Any]] | None = None, days: int = 3) -> str:
        """Writes days of 300 rows. `more(day, labels)` gives further columns. Answers the path."""
        for day in range(days):
            columns = self.columns(day)
            if more is not None:
                columns |= more(day, columns["clicked"].to_numpy())
            self.write(columns, day)
        return self.path


@pytest.fixture
def invented(tmp_path: Path) -> Invented:
    return Invented(tmp_path / "log")
