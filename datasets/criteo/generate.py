"""Writes generated rows in the layout of Criteo's click logs, with what the best possible model would score on them."""

from __future__ import annotations

import argparse
import binascii
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import layout
import numpy as np
import pyarrow as pa
import pyarrow.csv

from diurnal.metrics.exact import exact_auc, exact_log_loss, exact_ne

ORACLE = "oracle.json"
CHUNK_ROWS = 100_000
BIAS = -1.6
INT_EFFECT, MISSING_EFFECT, ID_EFFECT, TASTE_EFFECT = 0.2, 0.2, 0.22, 0.3
TASTE_DIM = 4
TASTES = ("C1", "C17")
"""Two ids whose dot product counts, beside what each counts alone."""
INT_MISSING = (0.45, 0.0, 0.2, 0.2, 0.03, 0.2, 0.04, 0.0, 0.04, 0.45, 0.04, 0.75, 0.2)
INT_LOG_MEAN = (0.7, 2.0, 1.8, 1.7, 7.5, 3.5, 1.6, 1.9, 3.8, 0.3, 0.6, 0.5, 1.6)
INT_LOG_SD = (0.9, 1.8, 1.2, 0.9, 2.0, 1.6, 1.2, 1.0, 1.2, 0.5, 0.8, 0.5, 1.0)
LOWEST = {"I2": -3}
"""The one count that may be negative."""
ID_COUNTS = "1460 583 50000 20000 305 24 12517 633 3 20000 5683 50000 3194 27 14992 50000 10 5652 2173 4 50000 18 15"
NUM_IDS = tuple(map(int, (ID_COUNTS + " 20000 105 20000").split()))
"""Different ids of each column: as many as Kaggle's file has, but at most 50,000."""
ID_MISSING = {"C3": 0.03, "C6": 0.12, "C12": 0.03, "C19": 0.44, "C20": 0.44, "C22": 0.76, "C25": 0.44, "C26": 0.44}


class Rows(NamedTuple):
    table: pa.Table
    """The columns of the layout; ids are texts of eight hex digits."""
    logit: np.ndarray
    """(n,) float64, of the true probability."""


def id_numbers(index: np.ndarray, column: int) -> np.ndarray:
    """32-bit ids, different ones for different indices of a column: the finalizer of MurmurHash3 is a bijection."""
    h = index.astype(np.uint32) + np.uint32(column * 0x9E3779B1 % 2**32)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


class World:
    """What ids and numbers mean; everything follows from the seed."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng((seed, 0))
        self._seed = seed
        self._int_effects = INT_EFFECT * rng.standard_normal(len(layout.INTS))
        self._missing_effects = MISSING_EFFECT * rng.standard_normal(len(layout.COLUMNS))
        self._popularity = [np.cumsum(1.0 / (rng.random(count) + 0.002)) for count in NUM_IDS]
        self._id_effects = [ID_EFFECT * rng.standard_normal(count) for count in NUM_IDS]
        self._tastes = [rng.standard_normal((NUM_IDS[layout.IDS.index(name)], TASTE_DIM)) for name in TASTES]

    def rows(self, day: int, chunk: int, num_rows: int) -> Rows:
        """Rows of a day, a chunk of them."""
        rng = np.random.default_rng((self._seed, 1, day, chunk))
        logit = np.full(num_rows, BIAS + 0.05 * np.sin(2 * np.pi * day / 7.0))
        columns: dict[str, pa.Array] = {}
        for number, name in enumerate(layout.INTS):
            columns[name] = self._integers(rng, number, name, logit)
        taste = np.ones((num_rows, TASTE_DIM)) / np.sqrt(TASTE_DIM)
        for number, name in enumerate(layout.IDS):
            columns[name], index = self._ids(rng, number, name, logit)
            if name in TASTES:
                taste = taste * self._tastes[TASTES.index(name)][index]
        logit += TASTE_EFFECT * taste.sum(axis=1)
        label = (rng.random(num_rows) < 1.0 / (1.0 + np.exp(-logit))).astype(np.int8)
        return Rows(pa.table({"label": label, **columns}), logit)

    def _integers(self, rng: np.random.Generator, number: int, name: str, logit: np.ndarray) -> pa.Array:
        lowest = LOWEST.get(name, 0)
        normal = rng.standard_normal(len(logit))
        counts = np.floor(np.exp(INT_LOG_MEAN[number] + INT_LOG_SD[number] * normal)).astype(np.int64) + lowest
        is_missing = rng.random(len(logit)) < INT_MISSING[number]
        effect = self._int_effects[number] * (np.log1p(counts - lowest) - INT_LOG_MEAN[number]) / INT_LOG_SD[number]
        logit += np.where(is_missing, self._missing_effects[number], effect)
        return pa.array(counts, mask=is_missing)

    def _ids(self, rng: np.random.Generator, number: int, name: str, logit: np.ndarray) -> tuple[pa.Array, np.ndarray]:
        cumulative = self._popularity[number]
        index = np.searchsorted(cumulative, rng.random(len(logit)) * cumulative[-1], side="right")
        is_missing = rng.random(len(logit)) < ID_MISSING.get(name, 0.0)
        missing_effect = self._missing_effects[len(layout.INTS) + number]
        logit += np.where(is_missing, missing_effect, self._id_effects[number][index])
        digits = binascii.hexlify(id_numbers(index, number).astype(">u4").tobytes())
        return pa.array(np.frombuffer(digits, "S8").astype("U8"), pa.string(), mask=is_missing), index


def write_file(path: Path, world: World, day: int, num_rows: int) -> dict[str, object]:
    """Writes one file of the log; what its true probabilities score on the clicks that were drawn from them."""
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    logits, labels = [], []
    temporary = path.with_name(f".{path.name}")
    with temporary.open("wb") as file:
        for chunk, start in enumerate(range(0, num_rows, CHUNK_ROWS)):
            rows = world.rows(day, chunk, min(CHUNK_ROWS, num_rows - start))
            pyarrow.csv.write_csv(rows.table, file, options)
            logits.append(rows.logit)
            labels.append(rows.table["label"].to_numpy())
    os.replace(temporary, path)
    return facts(np.concatenate(logits), np.concatenate(labels))


def facts(logits: np.ndarray, labels: np.ndarray) -> dict[str, object]:
    """`rows`, `positives`, and `log_loss`, `ne` and `auc` of the true probabilities; None where undefined."""
    return {
        "rows": len(labels),
        "positives": int(labels.sum()),
        "log_loss": exact_log_loss(logits, labels),
        "ne": exact_ne(logits, labels),
        "auc": exact_auc(logits, labels),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="generated rows in the layout of Criteo's click logs")
    parser.add_argument("--out", type=Path, required=True, help="folder for day_0, day_1 ... and oracle.json")
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--rows-per-day", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0, help="another seed is another world")
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    world = World(given.seed)
    oracle = {
        name: write_file(given.out / name, world, day, given.rows_per_day)
        for day, name in enumerate(f"day_{number}" for number in range(given.days))
    }
    (given.out / ORACLE).write_text(json.dumps(oracle, indent=2), encoding="utf-8")
    print(f"criteo: {given.days} files of {given.rows_per_day} generated rows in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
