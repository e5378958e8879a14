"""Plays the daily cycle in one plain process that is its own driver, on small days, for tests to cut off anywhere."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from diurnal.checkpoint.history import History
from diurnal.checkpoint.store import Store
from diurnal.config import Config, resolved_json
from diurnal.daily import cycle as cycle_module
from diurnal.daily.agenda import Asked
from diurnal.daily.cycle import Cycle
from diurnal.daily.run import go_round
from diurnal.data.holdout import is_held_out, rule_of
from diurnal.ledger.claims import Ledger
from diurnal.ledger.lease import Lease
from diurnal.ledger.records import IncrementRecord, VersionRecord
from diurnal.testing import by_value, run_world, tensors_of, tiny_config
from diurnal.train.commit import Progress
from diurnal.train.desk import TrainingDesk
from diurnal.train.events import Direct
from diurnal.train.orders import Orders
from diurnal.train.pulse import Pulse
from diurnal.train.sequence import WorkerSequence, ask
from diurnal.train.spec import Spec

FIRST_DAY = date(2026, 1, 1)
NUM_ROWS = 800
SHARE = 0.2

Change = Callable[[dict[str, Any]], None]


def day_of(index: int) -> str:
    return str(FIRST_DAY + timedelta(days=index))


def write_days(days: Path, count: int, changes: Mapping[int, Change] | None = None) -> Path:
    """The first days of a dataset, some of them spoilt; answers its folder."""
    for index in range(count):
        write_day(days, index, (changes or {}).get(index, lambda _: None))
    return days


def write_day(
    days: Path, index: int, change: Change = lambda _: None, *, num_rows: int = NUM_ROWS, is_whole: bool = True
) -> str:
    """A day whose `price` says which row it is: (8 * row + day) / 8192, exact in float32."""
    rng = np.random.default_rng(index)
    item = rng.integers(0, 10, num_rows)
    day, midnight = day_of(index), datetime.combine(FIRST_DAY + timedelta(days=index), datetime.min.time(), UTC)
    chance = 1 / (1 + np.exp(-8.0 * np.sin(item * 2.0)))
    columns: dict[str, Any] = {
        "ts": [midnight + timedelta(seconds=int(s)) for s in rng.integers(0, 86_400, num_rows)],
        "request": np.arange(num_rows) + 10_000 * index,
        "label": (rng.random(num_rows) < chance).astype(np.int64),
        "age": rng.random(num_rows),
        "price": (np.arange(num_rows) * 8 + index) / 8192,
        "user": rng.integers(0, 400, num_rows),
        "item": item,
        "site": rng.integers(0, 2, num_rows),
        "liked": [rng.integers(0, 10, n).tolist() for n in rng.integers(0, 3, num_rows)],
        "genres": [rng.integers(0, 7, n).tolist() for n in rng.integers(0, 3, num_rows)],
    }
    change(columns)
    types = {"ts": pa.timestamp("us", "UTC"), "liked": pa.list_(pa.int64()), "genres": pa.list_(pa.int64())}
    table = pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})
    folder = days / f"dt={day}"
    folder.mkdir(parents=True, exist_ok=True)
    half = num_rows // 2
    for number, part in enumerate((table.slice(0, half), table.slice(half))):
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=100)
    if is_whole:
        (folder / "_SUCCESS").touch()
    return day


def notes_of(config: Config) -> Path:
    """Folder of what is written down of a run: the storage, or that of a ledger's file beside a URL."""
    is_url = "://" in config.storage
    return Path(config.ledger.url.removeprefix("sqlite:///")).parent if is_url else Path(config.storage)


def config_of(days: Path | str, storage: Path | str, changes: dict[str, Any] | None = None) -> Config:
    """Every comparison of healthy versions ends in a promotion, whatever noise so few rows have."""
    settings: dict[str, Any] = {
        "data": {"path": str(days), "batch_rows": 40, "streams": 4, "task_rows": 200},
        "dataset": {
            "event_time": "ts",
            "request_id": "request",
            "dense": [
                {"name": "age"},
                {"name": "price"},
                {"name": "item_effect", "past": "item", "scale": 2.0},
                {"name": "genres_seen", "past": "genres", "value": "impressions", "transform": "log1p", "scale": 0.1},
            ],
        },
        "storage": str(storage),
        "checkpoint": {"every_rows": 240, "every_s": 0.0},
        "metrics": {"auc_bins": 1024},
        "tracking": {"enabled": False},
        "workers": {"max": 1, "min": 1},
        "optim": {"sparse": {"lr": 0.1}, "dense": {"lr": 0.03}},
        "gate": {"min_rows": 50, "slice_share": SHARE, "max_ne_rise": 0.5, "calibration": [0.3, 3.0]},
        "profile": {"min_rows": 100},
    }
    for section, values in (changes or {}).items():
        settings[section] = {**settings.get(section, {}), **values}
    return tiny_config(settings)


class Recorded(WorkerSequence):
    """Writes down which rows each version learns, step by step, and how it sees them; a step that is learned again has
    the same ones."""

    def _on_learned(self, progress: Progress) -> Any:
        on_step = super()._on_learned(progress)
        folders = [notes_of(self._config) / kind / str(progress.fit.number) for kind in ("learned", "seen")]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)

        def recorded(done: Any, batch: Any, agreed: Any) -> bool:
            is_real = batch.row_index.numpy() >= 0
            tags = (batch.dense[:, 1].numpy() * 8192).round().astype(np.int64)[is_real]
            np.save(folders[0] / f"{batch.step:04}.npy", tags)
            np.save(folders[1] / f"{batch.step:04}.npy", batch.dense.numpy()[is_real])
            return on_step(done, batch, agreed)

        return recorded

    def _score(self, plan: Any, feed: Any, trial: Any = None, mode: Any = "score") -> Any:
        with (notes_of(self._config) / "scored").open("a") as file:
            file.write(f"{plan.increment_id} {mode} {plan.num_rows} {Path(plan.increment.past).name}\n")
        return super()._score(plan, feed, trial, mode)


@dataclass(frozen=True)
class Life:
    """What comes between, in one life of a daily run."""

    asked: Asked | None = None
    now: datetime | None = None
    kill: tuple[str, int] | None = None
    """A named moment of the cycle, and which time."""
    before_judging: Callable[[Config], None] | None = None
    """Called once, when a first version that goes on from another is about to be judged."""
    lease_s: float = 30.0
    environment: dict[str, str] = field(default_factory=dict)
    """What the process has beside the variables that the first one of its kind was started with."""


def play(rank: int, world_size: int, config: Config, life: Life = Life()) -> dict[str, Any]:
    """One life of `diurnal daily`, without Ray. Answers the increments that something came of, and what was said."""
    said: list[str] = []
    os.environ.update(life.environment)
    cycle_module.reached = _killed_at(life.kill, cycle_module.reached)
    ledger = Ledger.of(config)
    lease = ledger.claim(config.name, "daily", life.lease_s)
    history = History(Store(config.storage, config.name), ledger, config.name)
    history.adopt(lease)
    if life.before_judging is not None:
        _interrupt_judging(life.before_judging, config)
    clock = time.time if life.now is None else life.now.timestamp
    cycle = Cycle(config, history, ledger, lease, said.append, asked=life.asked, clock=clock)
    with lease.heartbeat(patience_s=30.0):
        go_round(config, history, ledger, lease, cycle, lambda desk, _: learn(config, desk), said.append)
    lease.release()
    return {"done": cycle.done, "said": said}


def learn(config: Config, desk: TrainingDesk) -> None:
    link = Direct(desk)
    spec = Spec("train", resolved_json(config), {}, link, config.storage, 0.0)
    start, pulse = ask(link, "start", world_size=1), Pulse()
    Recorded(spec, start, torch.device("cpu"), {}, pulse, Orders(link, pulse), lambda *_: None).train()


def _killed_at(kill: tuple[str, int] | None, reached: Any) -> Any:
    times = [0]

    def counted(point: str, rank: int) -> None:
        times[0] += kill is not None and point == kill[0]
        if kill is not None and times[0] == kill[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        reached(point, rank)

    return counted


def _interrupt_judging(interrupt: Callable[[Config], None], config: Config) -> None:
    judge, waiting = Lease.judge, [interrupt]

    def late(self: Lease, number: int, *args: Any, **about: Any) -> bool:
        if number > 1 and waiting:
            waiting.pop()(config)
        return judge(self, number, *args, **about)

    mock.patch.object(Lease, "judge", late).start()


def daily(config: Config, **life: Any) -> dict[str, Any]:
    """One life, as `Life` describes it, that ends by itself; what it said and did."""
    for part in filter(callable, life.values()):
        by_value(part)
    return run_world(play, 1, config, Life(**life), timeout_s=90.0)[0]


def ledger_of(config: Config) -> Ledger:
    return Ledger.of(config)


def increments_of(config: Config) -> dict[str, IncrementRecord]:
    with ledger_of(config) as ledger:
        return {record.increment: record for record in ledger.increments(config.name)}


def states_of(config: Config) -> list[str]:
    return [record.state for record in increments_of(config).values()]


def versions_of(config: Config) -> dict[int, VersionRecord]:
    with ledger_of(config) as ledger:
        return {version.number: version for version in ledger.versions(config.name)}


def champion_of(config: Config) -> int | None:
    with ledger_of(config) as ledger:
        return ledger.champion(config.name)


def outcome(config: Config) -> dict[str, Any]:
    """Everything that is the same however often a run was cut off."""
    with ledger_of(config) as ledger:
        about = [
            (v.number, v.increment, v.parent, v.fingerprint, v.verdict, v.rejected, v.reason, ledger.evidence(v))
            for v in ledger.versions(config.name)
        ]
        return {
            "increments": [(r.increment, r.state, r.version, r.reason, r.rows) for r in ledger.increments(config.name)],
            "scored": [r.scored and r.scored["ne"] for r in ledger.increments(config.name)],
            "versions": about,
            "champion": ledger.champion(config.name),
            "promotions": [(p.number, p.previous, p.kind) for p in ledger.promotions(config.name)],
        }


def lineage_of(config: Config, number: int) -> list[int]:
    versions, found = versions_of(config), []
    at: int | None = number
    while at is not None:
        found.append(at)
        at = versions[at].parent
    return found[::-1]


def rows_learned(config: Config, number: int) -> np.ndarray:
    """Sorted tags of all rows along a version's lineage, as often as they were learned."""
    files = [f for n in lineage_of(config, number) for f in (notes_of(config) / "learned" / str(n)).glob("*.npy")]
    return np.sort(np.concatenate([np.load(file) for file in files]))


def held_out(config: Config, index: int, num_rows: int = NUM_ROWS) -> np.ndarray:
    """(num_rows,) bool: rows of a day that its version is judged on."""
    rule = rule_of(day_of(index), config.dataset, config.gate.slice_share, config.seed)
    rows = pa.record_batch({"request": np.arange(num_rows) + 10_000 * index})
    return is_held_out(rows, np.arange(num_rows), rule)


def rows_of(config: Config, indices: list[int], *, without_slice: int | None = None) -> np.ndarray:
    tags = []
    for index in indices:
        rows = np.arange(NUM_ROWS)
        tags.append((rows[~held_out(config, index)] if index == without_slice else rows) * 8 + index)
    return np.sort(np.concatenate(tags))


def same_tensors(one: Config, number: int, other: Config, other_number: int) -> bool:
    first, second = tensors_of(one, number), tensors_of(other, other_number)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def inverts_what_is_learned(config: Config, index: int) -> Change:
    """Labels of all rows but those that the version is judged on."""

    def change(columns: dict[str, Any]) -> None:
        columns["label"] = np.where(held_out(config, index), columns["label"], 1 - columns["label"])

    return change


def scales_price(columns: dict[str, Any]) -> None:
    columns["price"] = columns["price"] * 100


def flips_labels(columns: dict[str, Any]) -> None:
    columns["label"] = 1 - columns["label"]
