"""Trains small models through random deaths, faults and changes of their world, and looks for what that has cost.

    make torture                                  100 events, 30 of them on Ray
    make torture ARGS="--events 20 --ray-events 4 --seed 7"

Nothing may: after each episode every row of every increment is in the model exactly once, the model equals the one of
a run without any event, and no process, lease, attempt or folder is left over. The result is build/torture.json.
An interrupted torture goes on with the episode that it was at when it is started again with the same arguments.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import gloo
import ray_part
from world import Tally, mean_and_worst, write_json

GLOO_EVENTS, RAY_EVENTS = 8, 10
"""Of one episode, at most."""

MAX_FAILED = 3
"""Failed episodes after which there is no need for more."""

PARTS = {"gloo": (gloo.Episode, GLOO_EVENTS), "ray": (ray_part.Episode, RAY_EVENTS)}

QUIET = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "RAY_USAGE_STATS_ENABLED": "0"}


class Torture:
    """Episodes until there were enough events, or the time is over.

    Args:
        folder: of the episodes, and of what is known so far.
    """

    def __init__(self, folder: Path, wanted: dict[str, int], seed: int, minutes: float) -> None:
        self._folder = folder
        self._wanted = wanted
        self._seed = seed
        self._known = folder / f"seed-{seed}.json"
        self._began_s = time.monotonic()
        self._until_s = self._began_s + 60 * minutes
        folder.mkdir(parents=True, exist_ok=True)
        known = json.loads(self._known.read_text()) if self._known.exists() else []
        self.tallies = [Tally.from_json(data) for data in known]

    def run(self) -> None:
        for part in self._wanted:
            if self._num_events(part):
                self._say(part, f"{self._num_events(part)} events are known from before")
            while self._num_events(part) < self._wanted[part] and self._goes_on():
                self._episode(part)

    @property
    def seconds(self) -> float:
        return sum(tally.seconds for tally in self.tallies)

    def _goes_on(self) -> bool:
        has_time = time.monotonic() < self._until_s
        return has_time and sum(bool(tally.failures or tally.leftovers) for tally in self.tallies) < MAX_FAILED

    def _num_events(self, part: str) -> int:
        return sum(len(tally.events) for tally in self.tallies if tally.part == part)

    def _episode(self, part: str) -> None:
        kind, most = PARTS[part]
        index = sum(tally.part == part for tally in self.tallies)
        count = min(most, self._wanted[part] - self._num_events(part))
        root = self._folder / part / str(index)
        tally = kind(root, index, self._seed, count, lambda line: self._say(f"{part} {index}", line)).run()
        self.tallies.append(tally)
        write_json(self._known, [each.to_json() for each in self.tallies])
        found = "as if nothing had happened" if not (tally.failures or tally.leftovers) else "FAILED"
        events = f"{len(tally.events)} events, {tally.increments} increments of {tally.rows} rows"
        self._say(f"{part} {index}", f"{events}: {found}; {tally.seconds:.0f} s")
        for line in [*tally.failures, *(f"left over: {what}" for what in tally.leftovers)]:
            self._say(f"{part} {index}", line)

    def _say(self, where: str, line: str) -> None:
        print(f"{time.monotonic() - self._began_s:6.0f} s  {where}: {line}", flush=True)

    def result(self) -> dict[str, Any]:
        events = [event for tally in self.tallies for event in tally.events]
        recovery_s = mean_and_worst(event.recovery_s for event in events)
        replayed = mean_and_worst(event.replayed_rows for event in events)
        failures = [f"{tally.part} {tally.index}: {text}" for tally in self.tallies for text in tally.failures]
        return {
            "events": len(events),
            "ray_events": self._num_events("ray"),
            "increments": sum(tally.increments for tally in self.tallies),
            "rows": sum(tally.rows for tally in self.tallies),
            "rows_lost": sum(tally.rows_lost for tally in self.tallies),
            "rows_doubled": sum(tally.rows_doubled for tally in self.tallies),
            "leftovers": sum(len(tally.leftovers) for tally in self.tallies),
            "max_weight_diff": max((tally.max_weight_diff for tally in self.tallies), default=0.0),
            "recovery_s_mean": recovery_s[0],
            "recovery_s_max": recovery_s[1],
            "replayed_rows_mean": replayed[0],
            "replayed_rows_max": replayed[1],
            "by_kind": self._by_kind(),
            "seed": self._seed,
            "seconds": self.seconds,
            "failures": failures,
        }

    def _by_kind(self) -> dict[str, dict[str, Any]]:
        pairs = [(f"{tally.part}: {event.kind}", event) for tally in self.tallies for event in tally.events]
        counts = Counter(kind for kind, _ in pairs)
        table = {}
        for kind in sorted(counts):
            recovery_s = mean_and_worst(event.recovery_s for name, event in pairs if name == kind)
            replayed = mean_and_worst(event.replayed_rows for name, event in pairs if name == kind)
            table[kind] = {
                "events": counts[kind],
                "recovery_s_mean": recovery_s[0],
                "recovery_s_max": recovery_s[1],
                "replayed_rows_mean": replayed[0],
                "replayed_rows_max": replayed[1],
            }
        return table


def show(result: dict[str, Any]) -> None:
    print(f"\n{'':38}events   recovery s: mean  worst   rows again: mean  worst")
    for kind, numbers in [*result["by_kind"].items(), ("all", result)]:
        cells = [numbers[name] for name in ("recovery_s_mean", "recovery_s_max")]
        rows = [numbers[name] for name in ("replayed_rows_mean", "replayed_rows_max")]
        times = "".join(f"{'-' if x is None else f'{x:.1f}':>{n}}" for x, n in zip(cells, (18, 7), strict=True))
        again = "".join(f"{'-' if x is None else f'{x:,.0f}':>{n}}" for x, n in zip(rows, (19, 7), strict=True))
        print(f"{kind:38}{numbers['events']:6}{times}{again}")
    print(
        f"\n{result['increments']} increments of {result['rows']:,} rows: {result['rows_lost']} rows lost, "
        f"{result['rows_doubled']} doubled, {result['leftovers']} left over, weights within "
        f"{result['max_weight_diff']:.2g} of the unbroken runs"
    )
    for failure in result["failures"]:
        print(f"FAILED {failure}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100, help="all together")
    parser.add_argument("--ray-events", type=int, default=30, help="how many of them on Ray")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="no new episode begins after so long")
    parser.add_argument("--fresh", action="store_true", help="forget what is known of this seed")
    parser.add_argument("--out", type=Path, default=Path("build"), help="for torture.json and torture/")
    given = parser.parse_args()
    os.environ.update(QUIET)
    logging.disable(logging.WARNING)
    folder = (given.out / "torture").absolute()
    if given.fresh:
        (folder / f"seed-{given.seed}.json").unlink(missing_ok=True)
    wanted = {"gloo": given.events - given.ray_events, "ray": given.ray_events}
    torture = Torture(folder, wanted, given.seed, given.minutes)
    try:
        torture.run()
    except KeyboardInterrupt:
        print("interrupted: start it again to go on")
        return 130
    result = torture.result()
    write_json(given.out / "torture.json", result)
    show(result)
    is_done = result["events"] >= given.events and result["ray_events"] >= given.ray_events
    if not is_done:
        print("not all events have happened: start it again to go on")
    is_clean = not (result["failures"] or result["leftovers"] or result["rows_lost"] or result["rows_doubled"])
    return 0 if is_done and is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
