"""Writes days of the synthetic world as Parquet, with what the best possible model would score on each."""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import world

HERE = Path(__file__).resolve().parent
ORACLE = "_oracle.json"
FILE_ROWS = 262_144
ROW_GROUP_ROWS = 65_536


def mix64(index: npt.NDArray[np.int64], salt: int) -> npt.NDArray[np.uint64]:
    """One 64-bit id per index: the finalizer of SplitMix64 (Steele, Lea, Flood 2014), which is a bijection."""
    z = index.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15 * (salt + 1) % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def to_table(day: world.Day, date: dt.date, world_seed: int) -> pa.Table:
    """Indices become ids: users 63 bits (a negative int64 is no id), items all 64, shops and devices strings."""
    midnight = int(dt.datetime.combine(date, dt.time(), dt.UTC).timestamp()) * 1_000_000
    when = midnight + (day.seconds * 1e6).astype(np.int64)
    user = (mix64(day.user, 2 * world_seed) >> np.uint64(1)).astype(np.int64)
    shops = pa.array([f"shop-{number:04d}" for number in range(world.NUM_SHOPS)])
    offsets = np.concatenate([[0], np.cumsum(day.num_topics)]).astype(np.int32)
    return pa.table(
        {
            "event_time": pa.array(when, pa.timestamp("us", "UTC")),
            "user": pa.array(user, mask=day.user < 0),
            "item": pa.array(mix64(day.item, 2 * world_seed + 1)),
            "shop": shops.take(pa.array(day.shop)),
            "device": pa.array(world.DEVICES).take(pa.array(day.device)),
            "topics": pa.ListArray.from_arrays(pa.array(offsets), pa.array(day.topics)),
            "hour": pa.array((day.seconds // 3600).astype(np.int64)),
            "price": pa.array(day.price.astype(np.float32)),
            "item_age_days": pa.array(day.item_age_days),
            "user_visits": pa.array(day.user_visits),
            "click": pa.array(day.click),
        }
    )


def oracle(probability: npt.NDArray[np.float64], click: npt.NDArray[np.int8]) -> dict[str, float | int | None]:
    """What the true probabilities score on the clicks that were drawn from them.

    `ne` is their log loss over the entropy of the day's own click rate (He et al. 2014), and None when only one class
    was drawn. The excess NE of a model is `100 * (its ne / this ne - 1)` per cent.
    """
    clicked = click.astype(np.float64)
    losses = _cross_entropy(clicked, probability)
    rate = float(clicked.mean()) if len(clicked) else 0.0
    two_classes = 0.0 < rate < 1.0
    return {
        "rows": len(clicked),
        "positives": int(clicked.sum()),
        "log_loss": float(losses.mean()) if len(clicked) else None,
        "expected_log_loss": float(_cross_entropy(probability, probability).mean()) if len(clicked) else None,
        "ne": float(losses.mean() / _cross_entropy(np.array(rate), np.array(rate))) if two_classes else None,
        "calibration": float(probability.mean() / rate) if rate else None,
    }


def _cross_entropy(of: npt.NDArray[np.float64], under: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return -(of * np.log(under) + (1.0 - of) * np.log1p(-under))


def write_day(out: Path, date: dt.date, number: int, rows: int, seed: int, made_of: str) -> bool:
    """Writes one day; false when the same one is there already. The oracle's file is hidden from readers of data."""
    folder = out / f"dt={date.isoformat()}"
    if (folder / "_SUCCESS").is_file() and _made_of(folder) == made_of:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / "_SUCCESS", *folder.glob("*.parquet")):
        old.unlink(missing_ok=True)
    day = world.World(seed).day(number, rows)
    table = to_table(day, date, seed)
    for index, start in enumerate(range(0, max(rows, 1), FILE_ROWS)):
        temporary = folder / f".part-{index:04d}.parquet"
        pyarrow.parquet.write_table(
            table.slice(start, FILE_ROWS), temporary, row_group_size=ROW_GROUP_ROWS, compression="zstd"
        )
        os.replace(temporary, folder / f"part-{index:04d}.parquet")
    facts = {"day": date.isoformat(), "made_of": made_of, **oracle(day.probability, day.click)}
    (folder / f".{ORACLE}").write_text(json.dumps(facts, indent=2), encoding="utf-8")
    os.replace(folder / f".{ORACLE}", folder / ORACLE)
    (folder / "_SUCCESS").touch()
    return True


def _made_of(folder: Path) -> str:
    try:
        return str(json.loads((folder / ORACLE).read_text(encoding="utf-8"))["made_of"])
    except (OSError, ValueError, KeyError):
        return ""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="days of a synthetic world with known click probabilities")
    parser.add_argument("--out", type=Path, required=True, help="folder for dt=YYYY-MM-DD/*.parquet")
    parser.add_argument("--days", type=int, default=11)
    parser.add_argument("--rows-per-day", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0, help="another seed is another world")
    parser.add_argument("--start", type=dt.date.fromisoformat, default=dt.date(2026, 1, 1), help="first day")
    given = parser.parse_args(argv)
    source = (HERE / "generate.py").read_bytes() + (HERE / "world.py").read_bytes()
    made_of = hashlib.sha256(source + repr((given.rows_per_day, given.seed, given.start)).encode()).hexdigest()
    written = 0
    for number in range(given.days):
        date = given.start + dt.timedelta(days=number)
        written += write_day(given.out, date, number, given.rows_per_day, given.seed, made_of)
    print(f"synthetic: {given.days} days of {given.rows_per_day} rows in {given.out}, {written} written now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
