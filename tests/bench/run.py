"""Measures speed as ratios within one run, and writes build/bench.json. The machine should do nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import aging
import bench_encode
import bench_job
import transforms

AIMS = {"encode_vs_scan": 0.5, "ray_encode_vs_scan": 0.2, "end_to_end_vs_bare_loop": 0.85}
MEANING = {
    "encode_vs_scan": "read and encode in process, against a raw pyarrow scan of the same columns, per CPU-second",
    "ray_encode_vs_scan": "the same through Ray Data, all its processes counted",
    "end_to_end_vs_bare_loop": "a training pass with its commit, two workers, against a bare TorchRec loop",
}


def main() -> None:
    result = {**bench_encode.bench(), **bench_job.bench(), "aging": aging.bench(), "transforms": transforms.bench()}
    Path("build").mkdir(exist_ok=True)
    Path("build/bench.json").write_text(json.dumps(result, indent=2))
    for name, aim in AIMS.items():
        print(f"{name:25}{result[name]:6.2f}   aim {aim:4.2f}   {MEANING[name]}")
    stall = result["commit_stall_steps"]
    print(f"{'commit_stall_steps':25}{stall:6.2f}   aim below 1   steps that training stands still for a resume point")
    print(f"{'first_step_s':25}{result['first_step_s']:6.1f}   from the command to the first step, of which")
    for part, seconds in result["first_step_parts_s"].items():
        print(f"{'':25}{seconds:6.1f}   {part}")
    for half_life, late in result["aging"]["half_life_days"].items():
        excess, gain, error = (late[name] for name in ("excess_ne_pct", "gain_pct", "gain_standard_error"))
        what = f"excess NE in % with a half-life of {half_life} days, {gain:.2f} +- {error:.2f} below none"
        print(f"{'aging':25}{excess:6.2f}   {what}")
    for kind, figures in result["transforms"].items():
        rows = f"{figures['rows_per_cpu_s'] / 1e6:.1f} million rows per CPU-second, as a share of a raw scan"
        print(f"{'encode':25}{figures['of_the_scan']:6.2f}   aim 0.10   {kind}: {rows}")


if __name__ == "__main__":
    main()
