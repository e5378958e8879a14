"""What reading and encoding cost against a raw scan of the same columns, as ratios of rows per CPU-second.

Both sides are measured in turn in one run, and the best of several rounds counts, so that a busy machine weighs on both
alike. The scan decodes the columns row group by row group on one thread and does nothing with them: the fastest that
pyarrow offers.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from diurnal.config import Schema
from diurnal.data.columns import encoded_columns
from diurnal.data.partitions import read_increment
from diurnal.data.read import read_batches
from diurnal.data.reader import BatchReader
from diurnal.data.streams import StreamPlan, plan_increment

NUM_DENSE, NUM_SPARSE = 13, 26
ROWS, GROUP_ROWS, BATCH_ROWS, ROUNDS = 500_000, 50_000, 8192, 5
DAY, TINY_DAY, TINY_ROWS = "2026-01-01", "2026-01-02", 300


def schema() -> Schema:
    """Criteo's shape: 13 numbers, logarithms taken, and 26 integers, hashed."""
    sparse = [{"name": f"c{i}"} for i in range(NUM_SPARSE)]
    dense = [{"name": f"i{i}", "transform": "log1p"} for i in range(NUM_DENSE)]
    tables = [{"name": f"c{i}", "rows": 100_000 + i, "dim": 16} for i in range(NUM_SPARSE)]
    return Schema.model_validate_json(json.dumps({"dense": dense, "sparse": sparse, "tables": tables}))


def write_day(root: Path, day: str, rows: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    columns: dict[str, np.ndarray] = {"label": (rng.random(rows) < 0.2).astype(np.int64)}
    columns |= {f"i{i}": rng.lognormal(1, 1, rows).astype(np.float32) for i in range(NUM_DENSE)}
    columns |= {f"c{i}": (rng.zipf(1.3, rows) % 2**40).astype(np.int64) for i in range(NUM_SPARSE)}
    folder = root / f"dt={day}"
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "0.parquet", compression="zstd", row_group_size=GROUP_ROWS)


def make_plan(root: Path, day: str = DAY, batch_rows: int = BATCH_ROWS) -> StreamPlan:
    increment = read_increment(str(root), day, schema())
    return plan_increment(increment, batch_rows=batch_rows, num_streams=1, seed=0, order="file", task_rows=65536)


def scan(plan: StreamPlan) -> int:
    columns, rows = encoded_columns(schema()), 0
    for part in plan.increment.files:
        file = pq.ParquetFile(part.path)
        for group in range(file.num_row_groups):
            rows += file.read_row_group(group, columns, use_threads=False).num_rows
    return rows


def encode_in_process(plan: StreamPlan) -> int:
    tasks = plan.read_tasks(0, 1)
    return sum(batch.num_rows for task in tasks for batch in read_batches(task, schema(), plan.increment.path))


def encode_through_ray(plan: StreamPlan) -> int:
    with BatchReader(plan, schema(), rank=0, world_size=1, use_ray=True) as reader:
        return sum(batch.num_rows for batch in reader)


def cpu_s_of_this_process() -> float:
    return time.process_time()


def cpu_s_of_all_processes() -> float:
    """This process and all below it: Ray's own, and those that run its tasks."""
    import psutil

    total_s = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total_s += times.user + times.system
    return total_s


def rows_per_cpu_s(work: Callable[[StreamPlan], int], plan: StreamPlan, cpu_s: Callable[[], float]) -> float:
    before_s = cpu_s()
    rows = work(plan)
    return rows / (cpu_s() - before_s)


@contextmanager
def dataset() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        write_day(Path(folder), DAY, ROWS)
        write_day(Path(folder), TINY_DAY, TINY_ROWS)
        yield Path(folder)


@contextmanager
def cluster() -> Iterator[None]:
    import ray

    from diurnal.train.resources import start_local

    started = not ray.is_initialized()
    if started:
        start_local(num_cpus=2)
    try:
        yield
    finally:
        if started:
            ray.shutdown()


def encode_vs_scan(root: Path) -> dict[str, float]:
    """Aim 0.5: encoding costs no more than decoding does."""
    plan = make_plan(root)
    scans, encodes = [], []
    for _ in range(ROUNDS):
        scans.append(rows_per_cpu_s(scan, plan, cpu_s_of_this_process))
        encodes.append(rows_per_cpu_s(encode_in_process, plan, cpu_s_of_this_process))
    return {
        "encode_vs_scan": max(encodes) / max(scans),
        "scan_rows_per_cpu_s": max(scans),
        "encode_rows_per_cpu_s": max(encodes),
    }


def ray_encode_vs_scan(root: Path) -> dict[str, float]:
    """Aim 0.2, every Ray process counted; and the seconds to a first batch, when all processes are warm."""
    plan, tiny = make_plan(root), make_plan(root, TINY_DAY, 64)
    with cluster():
        encode_through_ray(plan)
        scans, encodes = [], []
        for _ in range(ROUNDS):
            scans.append(rows_per_cpu_s(scan, plan, cpu_s_of_this_process))
            encodes.append(rows_per_cpu_s(encode_through_ray, plan, cpu_s_of_all_processes))
        return {
            "ray_encode_vs_scan": max(encodes) / max(scans),
            "ray_encode_rows_per_cpu_s": max(encodes),
            "ray_first_batch_s": statistics.median(first_batch_s(plan, True) for _ in range(ROUNDS)),
            "tiny_first_batch_s": statistics.median(first_batch_s(tiny, None) for _ in range(50)),
            "tiny_ray_first_batch_s": statistics.median(first_batch_s(tiny, True) for _ in range(ROUNDS)),
        }


def first_batch_s(plan: StreamPlan, use_ray: bool | None) -> float:
    start_s = time.perf_counter()
    reader = BatchReader(plan, schema(), rank=0, world_size=1, use_ray=use_ray)
    next(reader)
    first_s = time.perf_counter() - start_s
    list(reader)  # left early, it would end a process of Ray's that the next one wants
    return first_s


def bench() -> dict[str, float]:
    """All figures of this file; `encode_vs_scan` and `ray_encode_vs_scan` have aims."""
    with dataset() as root:
        return {**encode_vs_scan(root), **ray_encode_vs_scan(root)}


if __name__ == "__main__":
    print(json.dumps({name: float(f"{figure:.3g}") for name, figure in bench().items()}, indent=2))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
