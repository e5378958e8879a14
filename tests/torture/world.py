"""What both parts of the torture share: tagged rows, models over them, and what has to be true after an increment.

Every row has a tag of its own over all increments of an episode. The tag is also the row's id in a table as large as
the episode (`mapping = "identity"`), so that each row leaves its mark in one weight row and one moment of the model.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from diurnal.checkpoint.history import History
from diurnal.checkpoint.store import Store
from diurnal.config import Config, load_config
from diurnal.data.partitions import Increment
from diurnal.data.selection import select_increments
from diurnal.ledger.claims import Ledger
from diurnal.testing import tensors_of

MARK = "DIURNAL_TORTURE"
"""Environment variable of all processes of an episode: what still has it afterwards is left over."""

TOLERANCE = 2e-4
"""Between an episode at changing world sizes and its unbroken run: sums of float32 in another order."""

STEP = 0.02
"""A row of the table of tags that is learned moves further than this from where it was."""

FIRST_DAY = date(2026, 1, 1)

SCHEMA = """
event_time = "ts"
weight = "weight"

[[dense]]
name = "price"
transform = "log1p"

[[sparse]]
name = "user"

[[sparse]]
name = "seen"
many = true
table = "item"

[[sparse]]
name = "item"

[[sparse]]
name = "topics"
many = true

[[sparse]]
name = "tag"
mapping = "identity"
unknown = "refuse"

[[tables]]
name = "user"
rows = 61
dim = 8

[[tables]]
name = "item"
rows = 31
dim = 8

[[tables]]
name = "topics"
rows = 17
dim = 8
pooling = "mean"

[[tables]]
name = "tag"
rows = {num_tags}
dim = 8
"""

TABLES = ("user", "item", "topics", "tag")

RUN = """
name = "torture"
storage = "storage"

[data]
path = "days"
schema_file = "schema.toml"

[model]
bottom = [8]
over = [8]
"""


@dataclass
class Event:
    """One blow."""

    kind: str
    recovery_s: float | None = None
    """Without a step, until the next one; None when none was needed."""
    replayed_rows: int | None = None
    """Learned in vain, since they came after the last commit; None where nothing ended."""


@dataclass
class Tally:
    """What one episode came to."""

    part: str
    index: int
    events: list[Event] = field(default_factory=list)
    increments: int = 0
    rows: int = 0
    rows_lost: int = 0
    rows_doubled: int = 0
    leftovers: list[str] = field(default_factory=list)
    max_weight_diff: float = 0.0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Tally:
        return Tally(**{**data, "events": [Event(**event) for event in data["events"]]})


class World:
    """A dataset folder of tagged rows, and configurations over it.

    Args:
        rows: of each increment; they are days, one after the other.
    """

    def __init__(self, root: Path, rows: Sequence[int], rng: random.Random) -> None:
        self.root = root
        self._tags: dict[str, np.ndarray] = {}
        root.mkdir(parents=True)
        (root / "run.toml").write_text(RUN)
        first = 0
        for index, num_rows in enumerate(rows):
            day = FIRST_DAY + timedelta(days=index)
            self._tags[str(day)] = self._write(day, range(first, first + num_rows), rng)
            first += num_rows
        (root / "schema.toml").write_text(SCHEMA.format(num_tags=max(first, 1)))

    @property
    def days(self) -> list[str]:
        return list(self._tags)

    def tags(self, config: Config) -> dict[str, list[int]]:
        """Those of the rows of each increment."""
        return {
            each.id: self._tags[each.id[:10]][each.first_row : each.stop_row].tolist() for each in increments_of(config)
        }

    def arguments(self, storage: str, overrides: Iterable[str]) -> list[str]:
        """Of `diurnal train`, without the days."""
        own = {
            "storage": str(self.root / storage),
            "data.path": str(self.root / "days"),
            "data.schema_file": str(self.root / "schema.toml"),
        }
        settings = [*(f"{key}={value!r}" for key, value in own.items()), *overrides]
        return ["--config", str(self.root / "run.toml"), *(x for setting in settings for x in ("--set", setting))]

    def config(self, storage: str, overrides: Iterable[str]) -> Config:
        _, file, *settings = self.arguments(storage, overrides)
        return load_config([file], settings[1::2])

    def _write(self, day: date, tags: range, rng: random.Random) -> np.ndarray:
        """The tags in the order of the files."""
        draw, num_rows = np.random.default_rng(rng.getrandbits(32)), len(tags)
        user, item = draw.zipf(1.3, num_rows) % 50, draw.integers(0, 29, num_rows)
        price = draw.exponential(20.0, num_rows)
        logit = 1.2 * np.sin(user) + np.cos(item) - 0.03 * price
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        order = draw.permutation(np.arange(tags.start, tags.stop))
        bags = [[draw.integers(0, 40, n).tolist() for n in draw.integers(0, 4, num_rows)] for _ in range(2)]
        table = pa.table(
            {
                "ts": pa.array(
                    [midnight + timedelta(seconds=int(s)) for s in draw.integers(0, 86400, num_rows)],
                    pa.timestamp("us", "UTC"),
                ),
                "weight": draw.choice([0.5, 1.0, 2.0], num_rows),
                "label": (draw.random(num_rows) < 1 / (1 + np.exp(-logit))).astype(np.int64),
                "price": price,
                "user": user.astype(np.int64) * 2**40,
                "seen": pa.array(bags[0], pa.list_(pa.int64())),
                "item": item,
                "topics": pa.array(bags[1], pa.list_(pa.int64())),
                "tag": order,
            }
        )
        folder = self.root / "days" / f"dt={day}"
        folder.mkdir(parents=True)
        bounds = sorted([0, num_rows, *(rng.randint(0, num_rows) for _ in range(rng.randint(0, 2)))])
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            pq.write_table(table.slice(start, stop - start), folder / f"part-{number}.parquet", row_group_size=37)
        (folder / "_SUCCESS").touch()
        return order


def increments_of(config: Config) -> list[Increment]:
    return select_increments(config.data.path, config.dataset, parts=config.data.parts)


def missing_and_doubled(tags: Counter[int], expected: Iterable[int]) -> tuple[int, int]:
    """Rows that are not there; rows too many, those of another increment included."""
    wanted = Counter(expected)
    return (wanted - tags).total(), (tags - wanted).total()


def compare_versions(config: Config, unbroken: Config, tally: Tally, *, is_exact: bool) -> None:
    """Every version of an episode against the one of its unbroken run."""
    ours, theirs = (Store(each.storage, each.name).versions() for each in (config, unbroken))
    if [version.number for version in ours] != [version.number for version in theirs]:
        tally.failures.append(f"{len(ours)} versions, {len(theirs)} of the unbroken run")
        return
    for mine, other in zip(ours, theirs, strict=True):
        steps, unbroken_steps = mine.manifest().global_step, other.manifest().global_step
        if steps != unbroken_steps:
            tally.failures.append(f"version {mine.number}: {steps} steps, {unbroken_steps} unbroken")
        pair = tensors_of(config, mine.number), tensors_of(unbroken, other.number)
        _compare(f"version {mine.number}", *pair, tally, is_exact=is_exact)


def _compare(
    where: str, found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], tally: Tally, *, is_exact: bool
) -> None:
    if found.keys() != wanted.keys() or len(found) < 8:
        tally.failures.append(f"{where}: tensors {sorted(found.keys() ^ wanted.keys())} on one side alone")
        return
    for name, tensor in found.items():
        if not torch.isfinite(tensor.double()).all():
            tally.failures.append(f"{where}: {name} is not finite")
            continue
        if tensor.shape != wanted[name].shape:
            tally.failures.append(f"{where}: {name} is {tuple(tensor.shape)}, not {tuple(wanted[name].shape)}")
            continue
        diff = (tensor.double() - wanted[name].double()).abs().max().item() if tensor.numel() else 0.0
        tally.max_weight_diff = max(tally.max_weight_diff, diff)
        scale = max(1.0, wanted[name].double().abs().max().item()) if tensor.numel() else 1.0
        if diff > (0.0 if is_exact else TOLERANCE * scale):
            tally.failures.append(f"{where}: {name} differs by {diff:.3g} from the unbroken run")


def check_tag_moments(config: Config, unbroken: Config, tally: Tally) -> tuple[int, int]:
    """The rows lost and doubled by the marks that they leave in the table of tags: a moment, where a row has a gradient
    at all (the unbroken run says so), and one step away from where it started."""
    ours, theirs = tensors_of(config), tensors_of(unbroken)
    mine, other = (_mark(tensors["optimizer/tables/tag/moment"]) for tensors in (ours, theirs))
    if other.double().mean() < 0.9:
        tally.failures.append(f"only {other.sum()} of {len(other)} rows have left a moment in the unbroken run")
    lost = other & ~mine
    moved = (ours["model/tables/tag/weight"] - theirs["model/tables/tag/weight"]).abs().amax(1) > STEP
    doubled = (mine & moved) | (mine & ~other)
    for what, rows in (("have left no mark", lost), ("have left another mark", doubled)):
        if rows.any():
            tally.failures.append(f"{rows.sum()} rows {what}, {rows.nonzero()[0].item()} for example")
    return int(lost.sum()), int(doubled.sum())


def _mark(moment: torch.Tensor) -> torch.Tensor:
    """(rows,) bool."""
    return moment.flatten(1).abs().sum(1) > 0 if moment.dim() > 1 else moment > 0


def check_what_is_left(config: Config, tally: Tally) -> None:
    """No lease, no attempt, no folder that nobody reads from; and every increment's version is visible."""
    with Ledger.of(config) as ledger:
        history = History(Store(config.storage, config.name), ledger, config.name)
        if holder := ledger.held(config.name):
            tally.leftovers.append(f"lease of {holder}")
        for attempt in ledger.attempts(config.name):
            if not attempt.outcome:
                tally.leftovers.append(f"open attempt {attempt.attempt} of {attempt.increment}")
        commits = history.commits()
        kept = {history.store.root / commit.path for commit in commits}
        tally.leftovers += [f"{left.directory}: {left.reason}" for left in history.store.leftovers(kept)]
        tally.leftovers += [f"resume point {commit.path}" for commit in commits if not commit.is_final]
        if [commit.increment for commit in commits if commit.is_final] != [i.id for i in increments_of(config)]:
            tally.failures.append("not one visible version for each increment, in their order")


def processes_of(mark: str) -> list[str]:
    """Processes that carry the mark, this one apart."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command:
                    found.append(f"process {folder.name}: {command[:100]}")
        except OSError:
            continue
    return found


def mean_and_worst(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return (sum(known) / len(known), max(known)) if known else (None, None)


def write_json(path: Path, data: Any) -> None:
    """As a whole or not at all."""
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(data, indent=1))
    unfinished.rename(path)
