"""Real days, one after the other, on a local Ray cluster: each is scored, learned from, committed and tracked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from diurnal.config import load_config
from diurnal.data.partitions import list_increments
from diurnal.tracking.plots import days_png
from diurnal.train.run import train

CONFIGS = ["jobs/configs/movielens.toml", "jobs/configs/demo.toml"]
WARM_UP_DAYS, DAYS = 46, 14
OUT = Path("build")


def main() -> None:
    started_s = time.monotonic()
    config = load_config(CONFIGS)
    subprocess.run([sys.executable, "datasets/movielens/convert.py", "--out", config.data.path], check=True)
    shutil.rmtree(config.storage, ignore_errors=True)
    days = list_increments(config.data.path, config.dataset)[: WARM_UP_DAYS + DAYS]
    print(f"\n{WARM_UP_DAYS} days to warm up, then {DAYS} days one by one, {config.workers.max} workers:\n", flush=True)
    result = train(config, days[0], days[-1]).to_dict()
    shown = result["days"][WARM_UP_DAYS:]
    curves = {
        "scored before the day was seen": "ne",
        "while learning": "progressive_ne",
        "click rate": "running_rate_ne",
    }
    drawn = {name: [day[key] for day in result["days"]] for name, key in curves.items()}
    (OUT / "demo.png").write_bytes(days_png(days, drawn, f"MovieLens-100k: {len(days)} days, one after the other"))
    wall_s = time.monotonic() - started_s
    summary = {
        "days": shown,
        "warm_up": result["days"][:WARM_UP_DAYS],
        "timeline": result["timeline"],
        "wall_s": wall_s,
    }
    (OUT / "demo.json").write_text(json.dumps(summary, indent=2))
    print(f"\n{wall_s:.0f} s. Figures: {OUT}/demo.json, plot: {OUT}/demo.png. `make ui` opens the runs in MLflow.")


if __name__ == "__main__":
    main()
