"""A model that is updated and judged every day, against versions of it that were left alone, on real days."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from diurnal.config import load_config
from diurnal.daily.replay import replay
from diurnal.daily.run import daily
from diurnal.data.partitions import list_increments
from diurnal.tracking.plots import staleness_png
from diurnal.train.progress import Progress
from diurnal.train.run import train

WARM_UP_DAYS, OLDEST_DAYS = 60, 14
OUT = Path("build")


def main() -> None:
    config = load_config(["jobs/configs/movielens.toml"], ["storage='build/staleness'", "tracking.enabled=false"])
    subprocess.run([sys.executable, "datasets/movielens/convert.py", "--out", config.data.path], check=True)
    shutil.rmtree(config.storage, ignore_errors=True)
    days = list_increments(config.data.path, config.dataset)
    train(config, days[0], days[WARM_UP_DAYS - 1], Progress(table=False))
    judged = daily(config, progress=Progress(table=False))
    verdicts = [version.verdict for version in judged.versions]
    print({kind: verdicts.count(kind) for kind in ("promote", "undecided", "hold")})
    found = replay(config, days[WARM_UP_DAYS + OLDEST_DAYS], days[-1], frozen=WARM_UP_DAYS)
    for row in found.table():
        print(f"{row['model']:>20}  pooled NE {row['pooled_ne']:.4f}  above first {row['excess_ne_pct']:.2f} %")
    reports = {name: [one.report for one in scored] for name, scored in found.columns.items()}
    title = f"MovieLens-100k, {len(found.increments)} days: how old the model is that scores them"
    (OUT / "staleness.png").write_bytes(staleness_png(found.increments, reports, title))
    (OUT / "staleness.json").write_text(json.dumps({"verdicts": verdicts, **found.to_dict()}))


if __name__ == "__main__":
    main()
