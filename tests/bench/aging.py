"""What aging AdaGrad's accumulators is worth to a model that lives for long in the synthetic world, whose tastes turn.

One process learns day after day, once for each half-life, from the same batches in memory, and scores each day before
it learns it. Excess NE is over the day's oracle, as `datasets/synthetic/README.md` has it, in per cent.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HALF_LIVES = (0.0, 7.0, 14.0, 30.0)
"""Days; 0 is without aging."""
DAYS, ROWS, ROTATION = 60, 20_000, 0.02
FIRST_DAY = date(2026, 1, 1)


def write_day(folder: Path, number: int, rows: int, rotation: float, seed: int) -> str:
    """A day of the synthetic world, in which items' tastes turn by `rotation` radians a day."""
    sys.path.insert(0, str(ROOT / "datasets" / "synthetic"))
    generate, world = importlib.import_module("generate"), importlib.import_module("world")
    vars(world)["ROTATION"] = rotation
    day = FIRST_DAY + timedelta(days=number)
    generate.write_day(folder, day, number, rows, seed, made_of=f"{rows} {rotation} {seed}")
    return day.isoformat()


def read_day(folder: Path, day: str, config: Any) -> list[Any]:
    from diurnal.data.batch import Batch
    from diurnal.data.partitions import read_increment
    from diurnal.data.read import read_batches
    from diurnal.data.streams import plan_increment

    increment = read_increment(str(folder), day, config.dataset)
    rows = config.data.batch_rows
    plan = plan_increment(increment, batch_rows=rows, num_streams=1, seed=0, order="file", task_rows=65536)
    keys = [feature.name for feature in config.dataset.sparse]
    packed = (batch for task in plan.read_tasks(0, 1) for batch in read_batches(task, config.dataset, increment.path))
    return [Batch.from_packed(batch, keys) for batch in packed]


def fit(parallel: Any, batches: list[Any]) -> float:
    """Scores a day, then learns it; answers the NE before it was learned."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    from diurnal.metrics.report import binary_entropy
    from diurnal.testing import train_step

    loss = positives = rows = 0.0
    with torch.no_grad():
        for batch in batches:
            logits = parallel.module(batch.dense, batch.sparse)[:, 0]
            loss += float(binary_cross_entropy_with_logits(logits, batch.labels, batch.weights, reduction="sum"))
            positives += float((batch.labels * batch.weights).sum())
            rows += float(batch.weights.sum())
    for batch in batches:
        train_step(parallel, batch)
    return loss / rows / binary_entropy(positives, rows - positives)


def live(rotation: float = ROTATION, days: int = DAYS, rows: int = ROWS, seed: int = 0) -> dict[float, list[float]]:
    """Half-life to the excess NE of each day from the second on, in per cent. Needs a process group of one rank."""
    from diurnal.config import load_config
    from diurnal.data.ids import days_between
    from diurnal.model.optim import aging_factor
    from diurnal.sharding.aging import age
    from diurnal.testing import spread

    config = load_config([ROOT / "jobs/configs/synthetic.toml"], ["workers.max=1", f"seed={seed}"])
    models = {half_life: spread(config) for half_life in HALF_LIVES}
    excess: dict[float, list[float]] = {half_life: [] for half_life in HALF_LIVES}
    with tempfile.TemporaryDirectory(prefix="diurnal-bench-") as name:
        before = ""
        for number in range(days):
            day = write_day(Path(name), number, rows, rotation, seed)
            batches = read_day(Path(name), day, config)
            oracle_ne = json.loads(Path(name, f"dt={day}", "_oracle.json").read_text())["ne"]
            for half_life, parallel in models.items():
                if before:
                    age(parallel, aging_factor(half_life, days_between(before, day)))
                ne = fit(parallel, batches)
                if before:
                    excess[half_life].append(100 * (ne / oracle_ne - 1))
            before = day
    return excess


def bench(rotation: float = ROTATION, days: int = DAYS, rows: int = ROWS, seeds: int = 1) -> dict[str, Any]:
    """Per half-life the mean excess NE of the last third of the days, and of its paired difference to the run without
    aging the mean over days and the standard error of that."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    begun_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="diurnal-bench-") as meeting:
        dist.init_process_group("gloo", init_method=f"file://{meeting}/store", rank=0, world_size=1)
        try:
            runs = [live(rotation, days, rows, seed) for seed in range(seeds)]
        finally:
            dist.destroy_process_group()
    first = len(runs[0][0.0]) - days // 3
    late = {half_life: [ne for run in runs for ne in run[half_life][first:]] for half_life in HALF_LIVES}
    settings = {}
    for half_life, values in late.items():
        gains = [off - on for off, on in zip(late[0.0], values, strict=True)]
        error = statistics.stdev(gains) / math.sqrt(len(gains))
        settings[f"{half_life:g}"] = {
            "excess_ne_pct": statistics.mean(values),
            "gain_pct": statistics.mean(gains),
            "gain_standard_error": error,
        }
    shape = {"rotation": rotation, "days": days, "rows_per_day": rows, "seeds": seeds}
    return {**shape, "half_life_days": settings, "wall_s": time.perf_counter() - begun_s}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="excess NE of the last third of many days, by half-life")
    parser.add_argument("--rotation", type=float, default=ROTATION, help="radians that tastes turn by in a day")
    parser.add_argument("--days", type=int, default=DAYS)
    parser.add_argument("--rows", type=int, default=ROWS, help="of a day")
    parser.add_argument("--seeds", type=int, default=1, help="worlds, each with a model of its own")
    print(json.dumps(bench(**vars(parser.parse_args())), indent=2))
