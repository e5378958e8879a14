"""The part on plain gloo processes: lives of a world, each ended by something, until all increments are committed."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from lives import Life, live
from world import (
    MARK,
    TABLES,
    Event,
    Tally,
    World,
    check_tag_moments,
    check_what_is_left,
    compare_versions,
    missing_and_doubled,
    processes_of,
)

from diurnal.checkpoint.points import KILL_AT
from diurnal.checkpoint.store import Store
from diurnal.config import Config, resolved_json
from diurnal.errors import CheckpointError
from diurnal.ledger.claims import Ledger
from diurnal.testing import WorldError, run_world

LIFE_S = 240.0
"""No life takes longer, on whatever machine; one that does hangs."""

MAX_LIVES = 80

COMMIT_POINTS = ("checkpoint/before-shards", "checkpoint/before-commit", "checkpoint/committed")


@dataclass
class _Blow:
    """What is to happen in a life, and whether it did."""

    kind: str
    point: str = ""
    """Kill point of the code."""
    rank: int = 0
    after_s: float = 0.0
    for_s: float = 0.0
    at_s: float | None = None
    """`time.time()` when it happened."""


@dataclass
class _Lived:
    """A life that is over."""

    number: int
    folder: Path
    blows: list[_Blow]
    ended_s: float
    """`time.time()`, a moment after."""
    is_complete: bool
    token: int | None = None
    steps_s: list[float] = field(default_factory=list)
    """When steps were done, on any rank."""


class Episode:
    """One model, trained through so many events, and once more without."""

    def __init__(self, root: Path, index: int, seed: int, num_events: int, say: Callable[[str], None]) -> None:
        self._rng = rng = random.Random(f"{seed}/gloo/{index}")
        self._say = say
        self._left = num_events
        self.tally = Tally("gloo", index)
        shutil.rmtree(root, ignore_errors=True)
        self._world = World(root, [rng.randint(90, 320) for _ in range(rng.randint(2, 4))], rng)
        # Every third episode keeps its world size: it has to give the very bits of the unbroken run.
        self._fixed_size = rng.randint(1, 4) if index % 3 == 2 else None
        overrides = _settings(rng, is_fixed=self._fixed_size is not None)
        self.config = self._world.config("storage", overrides)
        self.unbroken = self._world.config("unbroken", overrides)
        self._lives = root / "lives"
        self._mark = f"{os.getpid()}-gloo-{index}"
        self._lived: list[_Lived] = []

    def run(self) -> Tally:
        began_s, tally = time.monotonic(), self.tally
        while not self._lived or not self._lived[-1].is_complete:
            if len(self._lived) == MAX_LIVES:
                tally.failures.append(f"not done after {MAX_LIVES} lives")
                break
            self._live()
            if tally.failures:
                break
        if not tally.failures:
            self._live_unbroken()
        if not tally.failures:
            self._check()
        tally.leftovers += processes_of(self._mark)
        tally.seconds = time.monotonic() - began_s
        return tally

    def _live(self) -> None:
        rng, number = self._rng, len(self._lived)
        world_size = self._fixed_size or rng.randint(1, 4)
        folder = self._lives / str(number)
        folder.mkdir(parents=True)
        blows = self._blows(world_size)
        at_point = next((f"{b.point}@{b.rank}" for b in blows if b.point), "")
        env = {MARK: self._mark, KILL_AT: at_point}
        disk = next(((b.rank, b.after_s, b.for_s) for b in blows if b.kind == "full disk"), None)
        life = Life(resolved_json(self.config), folder, rng.choice([0.0, 0.01, 0.03]) if blows else 0.0, disk)
        with _Hand(self.config, folder, world_size, blows):
            reason, is_complete = self._play(life, world_size, env)
        lived = _Lived(number, folder, blows, time.time(), is_complete)
        _look_back(lived)
        self._lived.append(lived)
        self._judge(lived, reason, world_size)

    def _play(self, life: Life, world_size: int, env: dict[str, str]) -> tuple[BaseException | None, bool]:
        try:
            run_world(live, world_size, life, timeout_s=LIFE_S, env=env)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return error, False
        return None, True

    def _judge(self, lived: _Lived, reason: BaseException | None, world_size: int) -> None:
        """Counts what happened; any other end than that is a failure."""
        storage = any(blow.kind in ("storage away", "full disk") and blow.at_s for blow in lived.blows)
        has_died = isinstance(reason, WorldError) and "exit code -9" in str(reason)
        if isinstance(reason, WorldError) and not has_died:
            self.tally.failures.append(f"life {lived.number} of {world_size} ranks: {reason}")
        elif reason is not None and not has_died and not (storage and isinstance(reason, OSError | CheckpointError)):
            notes = "\n".join(getattr(reason, "__notes__", []))
            self.tally.failures.append(f"life {lived.number} of {world_size} ranks: {reason!r}\n{notes}")
        for blow in lived.blows:
            if blow.point or blow.kind in ("kill", "kill all"):
                if not has_died:
                    blow.at_s = None
                elif blow.at_s is None and blow.point:
                    blow.at_s = max([*lived.steps_s, lived.folder.stat().st_mtime])
        happened = [blow.kind for blow in lived.blows if blow.at_s is not None]
        self._left -= len(happened)
        end = "all is committed" if lived.is_complete else "ended" if has_died else f"ended: {_in_one_line(reason)}"
        self._say(f"life {lived.number}, {world_size} ranks: {', '.join(happened) or 'nothing happened'}; {end}")

    def _blows(self, world_size: int) -> list[_Blow]:
        """Something that the world survives, now and then; and something that ends it."""
        rng, blows = self._rng, []
        if self._left > 0 and rng.random() < 0.25:
            kind = rng.choice(["storage away", "full disk"]) if world_size > 1 else "storage away"
            after_s, for_s = rng.uniform(0.0, 0.8), rng.uniform(0.1, 1.5)
            rank = rng.randrange(1, world_size) if kind == "full disk" else 0
            blows.append(_Blow(kind, rank=rank, after_s=after_s, for_s=for_s))
        if self._left > len(blows):
            rank = rng.randrange(world_size)
            kind = rng.choice(["learn", "score", "commit", "commit", "kill", "kill", "kill all"])
            if kind in ("kill", "kill all"):
                blows.append(_Blow(kind, rank=rank, after_s=rng.uniform(0.0, 1.5)))
            else:
                point = rng.choice(COMMIT_POINTS) if kind == "commit" else f"{kind}/{self._step(kind)}"
                blows.append(_Blow(f"kill in {kind}" if kind != "commit" else f"kill at {point}", point, rank))
        return blows

    def _step(self, kind: str) -> int:
        """One that the next life comes by, if it is not a rare one."""
        with Ledger.of(self.config) as ledger:
            commits = ledger.commits(self.config.name)
        newest = max(commits, key=lambda commit: (commit.number, commit.steps), default=None)
        is_within = kind == "learn" and newest is not None and not newest.is_final
        first = newest.steps if is_within and newest is not None else 0
        return self._rng.randint(first, first + 8)

    def _live_unbroken(self) -> None:
        folder = self._lives / "unbroken"
        folder.mkdir(parents=True)
        size = self._fixed_size or 1
        try:
            run_world(live, size, Life(resolved_json(self.unbroken), folder), timeout_s=LIFE_S, env={MARK: self._mark})
        except Exception as error:
            self.tally.failures.append(f"the unbroken run: {error!r}")

    def _check(self) -> None:
        tally, config = self.tally, self.config
        with Ledger.of(config) as ledger:
            learned = Learned(ledger, config, self._lived)
            for day, expected in self._world.tags(config).items():
                tags = learned.tags(day)
                tally.failures += learned.faults
                learned.faults.clear()
                lost, doubled = missing_and_doubled(tags, expected)
                if lost or doubled:
                    tally.failures.append(f"{day}: {lost} rows lost, {doubled} doubled of {len(expected)}")
                tally.rows_lost += lost
                tally.rows_doubled += doubled
                tally.rows += len(expected)
                tally.increments += 1
            check_tag_moments(config, self.unbroken, tally)
            compare_versions(config, self.unbroken, tally, is_exact=self._fixed_size is not None)
            check_what_is_left(config, tally)
            self._count_events(learned)

    def _count_events(self, learned: Learned) -> None:
        for lived in self._lived:
            for blow in lived.blows:
                if blow.at_s is None:
                    continue
                event = Event(blow.kind)
                if not lived.is_complete and blow is lived.blows[-1]:
                    later = [s for other in self._lived[lived.number + 1 :] for s in other.steps_s]
                    event.recovery_s = max(0.0, min(later) - blow.at_s) if later else None
                    event.replayed_rows = learned.in_vain[lived.token]
                self.tally.events.append(event)


class Learned:
    """What the lives have written down, read along the commits that the ledger made visible."""

    def __init__(self, ledger: Ledger, config: Config, lived: list[_Lived]) -> None:
        self.faults: list[str] = []
        self.in_vain: Counter[int | None] = Counter()
        """By the token of a life: rows that it learned after its last commit."""
        self._folders = {life.token: life.folder for life in lived}
        self._attempts = {(a.increment, a.attempt): a for a in ledger.attempts(config.name)}
        self._commits = [
            (event.increment, event.data["attempt"], event.data["steps"], event.data["num_steps"])
            for event in ledger.events(config.name)
            if event.kind in ("commit", "version")
        ]

    def tags(self, day: str) -> Counter[int]:
        """The tags of the rows of a day that are in its version: of each attempt on the way those that it learned up to
        the commit from which the next one went on."""
        commits = [(attempt, steps) for increment, attempt, steps, _ in self._commits if increment == day]
        rows = {attempt: self._rows(day, attempt) for (inc, attempt) in self._attempts if inc == day}
        last = dict(commits)
        for attempt, (tags, _) in rows.items():
            token = self._attempts[day, attempt].token
            self.in_vain[token] += sum(n for step, n in _per_step(tags).items() if step >= last.get(attempt, 0))
        if not commits:
            self.faults.append(f"{day}: nothing was committed")
            return Counter()
        total: Counter[int] = Counter()
        while True:
            attempt, steps = commits[-1]
            tags, first = rows[attempt]
            total.update(tag for step, tag in tags if step < steps)
            commits = [commit for commit in commits if commit[0] < attempt]
            goes_on_from = commits[-1][1] if commits else 0
            if first != goes_on_from:
                self.faults.append(
                    f"{day}: attempt {attempt} began with step {first}, after a commit of {goes_on_from}"
                )
            if not commits:
                return total

    def _rows(self, day: str, attempt: int) -> tuple[list[tuple[int, int]], int]:
        """Pairs of step and tag over all ranks; and the first step."""
        folder = self._folders[self._attempts[day, attempt].token] / day
        found: list[tuple[int, int]] = []
        for file in sorted(folder.glob("*-tags.npy")):
            tags = np.load(file, mmap_mode="r")
            found += [(int(step), int(tags[step, column])) for step, column in np.argwhere(tags >= 0)]
        return found, min((step for step, _ in found), default=-1)


def _per_step(tags: list[tuple[int, int]]) -> Counter[int]:
    return Counter(step for step, _ in tags)


def _look_back(lived: _Lived) -> None:
    token = lived.folder / "token"
    lived.token = int(token.read_text()) if token.exists() else None
    for file in lived.folder.glob("*/0-times.npy"):
        times = np.load(file, mmap_mode="r")
        lived.steps_s += [float(at_s) for at_s in times[times > 0]]
    disk = lived.folder / "full-disk"
    for blow in lived.blows:
        if blow.kind == "full disk" and disk.exists():
            blow.at_s = disk.stat().st_mtime


class _Hand:
    """Deals the blows that come from outside, in a thread, while a life goes on."""

    def __init__(self, config: Config, folder: Path, world_size: int, blows: list[_Blow]) -> None:
        self._config = config
        self._pids = [folder / f"{rank}.pid" for rank in range(world_size)]
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._deal, args=(blow,), daemon=True)
            for blow in blows
            if blow.kind in ("kill", "kill all", "storage away")
        ]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _deal(self, blow: _Blow) -> None:
        while not all(pid.exists() and pid.read_text() for pid in self._pids):
            if self._over.wait(0.01):
                return
        if self._over.wait(blow.after_s):
            return
        if blow.kind == "storage away":
            blow.at_s = time.time()
            take_away(self._config, lambda: self._over.wait(blow.for_s))
            return
        chosen = self._pids if blow.kind == "kill all" else [self._pids[blow.rank]]
        for pid in chosen:
            os.kill(int(pid.read_text()), signal.SIGKILL)
        blow.at_s = time.time()


def take_away(config: Config, wait: Callable[[], object]) -> None:
    """The folder of the version that is being made is a file, until `wait` returns."""
    store = Store(config.storage, config.name)
    number = 1 + max((version.number for version in store.versions()), default=0)
    root = Path(str(store.root))
    folder, other = root / str(number), root.parent / "not-a-folder"
    folder.mkdir(parents=True, exist_ok=True)
    other.touch()
    exchange(folder, other)
    try:
        wait()
    finally:
        exchange(folder, other)
        other.unlink()


def exchange(one: Path, other: Path) -> None:
    """Swaps two names in one step, so that nobody finds neither."""
    at_cwd, swap = -100, 2
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), swap):
        raise OSError(ctypes.get_errno(), f"{one} and {other} cannot be exchanged")


def _settings(rng: random.Random, *, is_fixed: bool) -> list[str]:
    """Placements, batches, streams, order and commits of one model."""
    streams = rng.choice([1, 2, 3, 4, 6])
    sparse = rng.choice(["rowwise_adagrad", "rowwise_adagrad", "adagrad"])
    kinds = ["table_wise", "row_wise", "data_parallel"]
    if is_fixed or sparse == "adagrad":
        # Row-wise AdaGrad cut by columns is another function at another world size.
        kinds.append("column_wise")
    settings = {
        "seed": rng.randrange(1000),
        "data.batch_rows": streams * rng.randint(12 // streams, 36 // streams),
        "data.streams": streams,
        "data.order": rng.choice(["file", "shuffled"]),
        "data.parts": rng.choice([1, 1, 2]),
        "data.task_rows": rng.choice([16, 60, 65536]),
        "optim.sparse.kind": sparse,
        "optim.dense.kind": rng.choice(["adagrad", "adam", "sgd"]),
        "optim.schedule.warmup_steps": rng.choice([0, 20]),
        "workers.max": 4,
        "workers.min": 1,
        "checkpoint.every_rows": rng.choice([20, 60, 100]),
        "checkpoint.every_s": rng.choice([0.0, 0.3]),
        "checkpoint.keep": rng.choice([1, 2]),
        "checkpoint.retry_s": 20.0,
        "tracking.enabled": "false",
        "tracking.every_steps": 4,
        "metrics.auc_bins": 1024,
    }
    placement = [f"sharding.placement.{table}={rng.choice(kinds)!r}" for table in TABLES]
    return [
        *(f"{name}={value!r}" if value != "false" else f"{name}=false" for name, value in settings.items()),
        *placement,
    ]


def _in_one_line(reason: BaseException | None) -> str:
    return f"{type(reason).__name__}: {' '.join(str(reason).split())[:300]}"
