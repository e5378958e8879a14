"""The quality protocol: each day is scored by the version frozen before it, then learned in one pass."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from diurnal.config import Config, load_config
from diurnal.data.partitions import list_increments
from diurnal.metrics.across_days import across_days
from diurnal.train.progress import Progress
from diurnal.train.run import train

WARM_UP_DAYS, SEEDS = 60, (0, 1, 2)
SYNTHETIC_DAYS = 10
SHOWN = {"mean_day_auc": "day AUC", "pooled_ne": "pooled NE", "calibration": "calibration"}


def fresh(name: str, seed: int) -> Config:
    """The job's own settings, in an empty storage, without tracking."""
    storage = f"build/quality/{name}-{seed}"
    shutil.rmtree(storage, ignore_errors=True)
    overrides = [f"seed={seed}", f"storage={storage!r}", "tracking.enabled=false"]
    return load_config([f"jobs/configs/{name}.toml"], overrides)


def fit(config: Config, days: list[str]) -> list[dict[str, Any]]:
    return train(config, days[0], days[-1], Progress(table=False)).to_dict()["days"]


def movielens(seed: int) -> dict[str, Any]:
    config = fresh("movielens", seed)
    subprocess.run([sys.executable, "datasets/movielens/convert.py", "--out", config.data.path], check=True)
    days = fit(config, list_increments(config.data.path, config.dataset))
    total = across_days(day["evaluated"]["report"] for day in days[WARM_UP_DAYS:])
    print(f"ml-100k, seed {seed}: {told(vars(total))}", flush=True)
    return {"seed": seed, **vars(total)}


def told(total: dict[str, Any]) -> str:
    return ", ".join(f"{words} {total[key]:.4f}" for key, words in SHOWN.items())


def synthetic() -> dict[str, Any]:
    config = fresh("synthetic", 0)
    generate = ["datasets/synthetic/generate.py", "--out", config.data.path, "--days", str(SYNTHETIC_DAYS + 1)]
    subprocess.run([sys.executable, *generate], check=True)
    days = fit(config, list_increments(config.data.path, config.dataset))
    oracles = [json.loads(Path(config.data.path, f"dt={day['day']}", "_oracle.json").read_text()) for day in days]
    excess = [100 * (day["ne"] / oracle["ne"] - 1) for day, oracle in zip(days[1:], oracles[1:], strict=True)]
    print(
        f"synthetic: after {SYNTHETIC_DAYS} days the NE of the next is {excess[-1]:.2f} % above the oracle's",
        flush=True,
    )
    return {"excess_ne_pct": excess[-1], "excess_ne_pct_by_day": excess, "oracle_ne": oracles[-1]["ne"]}


def main() -> None:
    seeds = [movielens(seed) for seed in SEEDS]
    mean = {key: sum(seed[key] for seed in seeds) / len(seeds) for key in SHOWN}
    result = {"movielens": {**mean, "seeds": seeds}, "synthetic": synthetic()}
    print(f"ml-100k, mean of {len(seeds)} seeds: {told(mean)}")
    Path("build/quality.json").write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
