"""The daily cycle in one plain process that is its own driver: killed anywhere, judged, held, rolled back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from diurnal.checkpoint.history import History
from diurnal.checkpoint.store import Store
from diurnal.config import Config, resolved_json
from diurnal.daily import cycle as cycle_module
from diurnal.daily.agenda import Asked
from diurnal.daily.cycle import Cycle
from diurnal.daily.run import go_round
from diurnal.data.holdout import is_held_out, rule_of
from diurnal.errors import LeaseHeld, LeaseLost
from diurnal.ledger.claims import Ledger
from diurnal.ledger.database import default_url
from diurnal.ledger.lease import Lease
from diurnal.ledger.records import IncrementRecord, VersionRecord
from diurnal.testing import kill_world, run_world, tensors_of, tiny_config
from diurnal.train.commit import TRIAL, Progress
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


def config_of(days: Path, storage: Path, changes: dict[str, Any] | None = None) -> Config:
    """Every comparison of healthy versions ends in a promotion, whatever noise so few rows have."""
    settings: dict[str, Any] = {
        "data": {"path": str(days), "batch_rows": 40, "streams": 4, "task_rows": 200},
        "dataset": {"event_time": "ts", "request_id": "request"},
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
    """Writes down which rows each version learns, step by step; a step that is learned again has the same ones."""

    def _on_learned(self, progress: Progress) -> Any:
        on_step = super()._on_learned(progress)
        folder = Path(self._config.storage, "learned", str(progress.fit.number))
        folder.mkdir(parents=True, exist_ok=True)

        def recorded(done: Any, batch: Any, agreed: Any) -> bool:
            tags = (batch.dense[:, 1].numpy() * 8192).round().astype(np.int64)[batch.row_index.numpy() >= 0]
            np.save(folder / f"{batch.step:04}.npy", tags)
            return on_step(done, batch, agreed)

        return recorded


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


def play(rank: int, world_size: int, config: Config, life: Life = Life()) -> dict[str, Any]:
    """One life of `diurnal daily`, without Ray. Answers the increments that something came of, and what was said."""
    said: list[str] = []
    cycle_module.reached = _killed_at(life.kill, cycle_module.reached)
    ledger = Ledger(default_url(config.storage))
    lease = ledger.claim(config.name, "daily", life.lease_s)
    history = History(Store(config.storage, config.name), ledger, config.name)
    history.adopt(lease)
    if life.before_judging is not None:
        _interrupt_judging(life.before_judging, config)
    clock = time.time if life.now is None else life.now.timestamp
    cycle = Cycle(config, history, ledger, lease, said.append, asked=life.asked, clock=clock)
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
    return run_world(play, 1, config, Life(**life), timeout_s=90.0)[0]


def ledger_of(config: Config) -> Ledger:
    return Ledger(default_url(config.storage))


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
            (v.number, v.increment, v.parent, v.fingerprint, v.verdict, v.rejected, v.reason, v.evidence)
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
    files = [f for n in lineage_of(config, number) for f in Path(config.storage, "learned", str(n)).glob("*.npy")]
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


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five days; the fourth is implausible."""
    root = tmp_path_factory.mktemp("days")
    for index in range(5):
        write_day(root, index, scales_price if index == 3 else lambda _: None)
    return root


@pytest.fixture(scope="module")
def unbroken(days: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = config_of(days, tmp_path_factory.mktemp("unbroken"))
    daily(config)
    return config


def test_each_row_is_learned_once_and_what_is_implausible_is_held(unbroken: Config) -> None:
    assert states_of(unbroken) == ["promoted", "promoted", "promoted", "held", "promoted"], outcome(unbroken)
    assert "price" in increments_of(unbroken)[day_of(3)].reason
    assert champion_of(unbroken) == 4
    np.testing.assert_array_equal(rows_learned(unbroken, 4), rows_of(unbroken, [0, 1, 2, 4], without_slice=4))


TRANSITIONS = [
    *((f"daily/{point}", nth) for point in ("seen", "claimed", "profiled", "judged", "mirrored") for nth in (1, 3)),
    *(("daily/trained", nth) for nth in (1, 2, 4)),
    *(("daily/scored", nth) for nth in (1, 2)),
    ("daily/held", 1),
]
WORKER_POINTS = ["checkpoint/before-commit", "checkpoint/committed", "learn/3", "score/3"]


@pytest.mark.parametrize(("point", "nth"), TRANSITIONS)
def test_a_kill_at_any_transition_changes_nothing(
    days: Path, unbroken: Config, tmp_path: Path, point: str, nth: int
) -> None:
    config = config_of(days, tmp_path)
    with pytest.raises(AssertionError, match="exit code -9"):
        daily(config, kill=(point, nth))
    daily(config)
    _is_as_unbroken(config, unbroken)


@pytest.mark.parametrize("point", WORKER_POINTS)
def test_a_kill_while_learning_changes_nothing(days: Path, unbroken: Config, tmp_path: Path, point: str) -> None:
    config = config_of(days, tmp_path)
    kill_world(play, 1, config, Life(asked=Asked(last=day_of(1))), point=point)
    daily(config)
    _is_as_unbroken(config, unbroken)


def _is_as_unbroken(config: Config, unbroken: Config) -> None:
    assert outcome(config) == outcome(unbroken)
    assert same_tensors(config, 4, unbroken, 4)
    np.testing.assert_array_equal(rows_learned(config, 4), rows_learned(unbroken, 4))


def test_nothing_to_do_changes_nothing(unbroken: Config) -> None:
    with ledger_of(unbroken) as ledger:
        before = len(ledger.events(unbroken.name, 10_000))
    was = outcome(unbroken)
    assert daily(unbroken)["done"] == []
    with ledger_of(unbroken) as ledger:
        assert {event.kind for event in ledger.events(unbroken.name, 10_000)[before:]} <= {"claim", "release"}
    assert outcome(unbroken) == was


def test_judged_on_the_next_day_a_version_is_promoted_one_day_later(days: Path, tmp_path: Path) -> None:
    config = config_of(days, tmp_path, {"gate": {"judged_on": "next"}, "profile": {"champion_ne": 100.0}})
    daily(config, asked=Asked(last=day_of(1)))
    assert states_of(config) == ["promoted", "trained"]
    daily(config, asked=Asked(last=day_of(2)))
    assert states_of(config) == ["promoted", "promoted", "trained"]
    versions = versions_of(config)
    assert [v.evidence and v.evidence["rows"] for v in versions.values()] == [NUM_ROWS, NUM_ROWS, None]
    np.testing.assert_array_equal(rows_learned(config, 3), rows_of(config, [0, 1, 2]))
    assert not Path(config.storage, config.name, "slices").exists()


BAD = {"gate": {"max_ne_rise": 0.05, "after_hold": "champion"}, "profile": {"enabled": False, "champion_ne": 100.0}}


def _with_a_bad_day(tmp_path: Path, after_hold: str) -> Config:
    """The labels of the third of four days are inverted, but for the rows that are held out."""
    gate = {"min_rows": 50, "slice_share": SHARE, "max_ne_rise": 0.05, "calibration": [0.3, 3.0]}
    config = config_of(tmp_path / "days", tmp_path / "storage", {**BAD, "gate": {**gate, "after_hold": after_hold}})
    for index in range(4):
        change = inverts_what_is_learned(config, 2) if index == 2 else lambda _: None
        write_day(tmp_path / "days", index, change)
    return config


def test_nothing_goes_on_from_a_version_that_is_held(tmp_path: Path) -> None:
    config = _with_a_bad_day(tmp_path, "champion")
    daily(config)
    versions = versions_of(config)
    assert (versions[3].verdict, versions[3].rejected) == ("hold", True), versions[3].reason
    champion = max(n for n in (1, 2) if versions[n].verdict == "promote")
    assert versions[4].parent == 2, "the newest that is not rejected"
    assert champion == 2, versions[2].reason
    np.testing.assert_array_equal(rows_learned(config, 4), rows_of(config, [0, 1, 3], without_slice=3))


def test_the_next_version_may_go_on_from_the_one_that_is_held(tmp_path: Path) -> None:
    """It is compared with the champion, which is another one than its parent: both are loaded, one after the other."""
    config = _with_a_bad_day(tmp_path, "challenger")
    daily(config)
    versions = versions_of(config)
    assert (versions[3].verdict, versions[3].rejected) == ("hold", False), versions[3].reason
    assert versions[4].parent == 3
    manifest = Store(config.storage, config.name).at(versions[4].path).manifest()
    assert manifest.lineage.metrics[TRIAL]["baseline"]["number"] == 2
    np.testing.assert_array_equal(rows_learned(config, 4), rows_of(config, [0, 1, 2, 3], without_slice=3))
    chain = _chain_without_a_gate(config, tmp_path)
    assert same_tensors(config, 4, chain, 4), "the champion that was loaded to score has left nothing in memory"


def _chain_without_a_gate(config: Config, tmp_path: Path) -> Config:
    """The same versions, each compared with its parent, since whatever is trained is promoted."""
    gate = config.gate.model_copy(update={"max_ne_rise": 1e6, "calibration": (1e-6, 1e6)})
    chain = config.model_copy(update={"storage": str(tmp_path / "chain"), "gate": gate})
    daily(chain)
    assert [v.verdict for v in versions_of(chain).values()] == ["promote"] * 4
    return chain


def test_the_next_version_goes_on_from_what_was_rolled_back_to(days: Path, tmp_path: Path) -> None:
    config = config_of(days, tmp_path)
    daily(config, asked=Asked(last=day_of(1)))
    with ledger_of(config) as ledger:
        assert ledger.rollback(config.name, "clicks fell") == 1
    daily(config, asked=Asked(last=day_of(2)))
    versions = versions_of(config)
    assert (versions[2].rejected, versions[3].parent, champion_of(config)) == (True, 1, 3)
    np.testing.assert_array_equal(rows_learned(config, 3), rows_of(config, [0, 2], without_slice=2))


def _promote_the_first(config: Config) -> None:
    with ledger_of(config) as ledger:
        ledger.promote(config.name, 1, "by hand")


def test_a_version_is_not_promoted_over_a_champion_that_it_was_not_compared_with(days: Path, tmp_path: Path) -> None:
    config = config_of(days, tmp_path)
    daily(config, asked=Asked(last=day_of(1)))
    daily(config, asked=Asked(last=day_of(2)), before_judging=_promote_the_first)
    version = versions_of(config)[3]
    assert version.verdict == "undecided"
    assert "compared with version 2, and version 1 is the champion now" in version.reason
    assert champion_of(config) == 1


def test_labels_that_mean_something_else_are_held_before_a_step(tmp_path: Path) -> None:
    """Where no profile sees it, the champion does."""

    def flip(columns: dict[str, Any]) -> None:
        columns["label"] = 1 - columns["label"]

    config = config_of(tmp_path / "days", tmp_path / "storage", {"profile": {"min_history": 2, "enabled": False}})
    for index in range(5):
        write_day(tmp_path / "days", index, flip if index == 3 else lambda _: None)
    daily(config)
    record = increments_of(config)[day_of(3)]
    assert (record.state, record.version) == ("held", None)
    assert record.reason.startswith("NE of the champion")
    assert states_of(config)[4] == "promoted"
    with ledger_of(config) as ledger:
        assert not ledger.events(config.name, 1000, "commit", day_of(3)), "no step was learned"
        assert None not in [attempt.outcome for attempt in ledger.attempts(config.name, day_of(3))]
    np.testing.assert_array_equal(rows_learned(config, 4), rows_of(config, [0, 1, 2, 4], without_slice=4))


def test_what_the_champion_has_held_is_learned_when_a_person_asks_for_it(tmp_path: Path) -> None:
    def flip(columns: dict[str, Any]) -> None:
        columns["label"] = 1 - columns["label"]

    config = config_of(tmp_path / "days", tmp_path / "storage", {"profile": {"min_history": 1, "enabled": False}})
    for index in range(3):
        write_day(tmp_path / "days", index, flip if index == 2 else lambda _: None)
    daily(config)
    assert increments_of(config)[day_of(2)].reason.startswith("NE of the champion")
    daily(config, asked=Asked(retry=frozenset({day_of(2)})))
    assert increments_of(config)[day_of(2)].version == 3
    np.testing.assert_array_equal(rows_learned(config, 3), rows_of(config, [0, 1, 2], without_slice=2))


def test_a_day_that_is_asked_for_again_is_trained_again_with_all_after_it(tmp_path: Path) -> None:
    config = config_of(tmp_path / "days", tmp_path / "storage")
    for index in range(3):
        write_day(tmp_path / "days", index)
    daily(config)
    write_day(tmp_path / "days", 1, num_rows=NUM_ROWS - 100)
    said = daily(config)["said"]
    assert any("100 fewer rows" in line and "days.changed is skip" in line for line in said)
    assert len(versions_of(config)) == 3
    daily(config, asked=Asked(retrain=frozenset({day_of(1)})))
    versions = versions_of(config)
    assert [v.verdict for v in versions.values()][1:3] == ["superseded", "superseded"]
    assert [(v.increment, v.parent) for v in list(versions.values())[3:]] == [(day_of(1), 1), (day_of(2), 4)]
    assert states_of(config) == ["promoted"] * 3
    assert champion_of(config) == 5
    assert daily(config)["done"] == []


NOW = datetime(2026, 1, 10, tzinfo=UTC)


def test_a_missing_day_is_waited_for_and_a_late_one_skipped(tmp_path: Path) -> None:
    """drt-hub/drt#759."""
    config = config_of(tmp_path / "days", tmp_path / "storage", {"days": {"wait_s": 1e9}})
    for index in (0, 2):
        write_day(tmp_path / "days", index)
    first = daily(config, now=NOW)
    assert first["done"] == [day_of(0)]
    assert any(line.startswith(f"{day_of(1)}: is missing before {day_of(2)}") for line in first["said"])
    assert daily(config, now=NOW)["done"] == []
    later = daily(config, now=datetime(2070, 1, 1, tzinfo=UTC))
    assert later["done"] == [day_of(2)]
    assert increments_of(config)[day_of(1)].state == "skipped"
    write_day(tmp_path / "days", 1)
    said = daily(config, now=datetime(2070, 1, 2, tzinfo=UTC))["said"]
    assert any("days.late is skip" in line for line in said), said
    assert len(versions_of(config)) == 2


def test_days_without_rows_and_of_one_class_are_skipped_with_a_reason(tmp_path: Path) -> None:
    def of_one_class(columns: dict[str, Any]) -> None:
        columns["label"] = np.ones_like(columns["label"])

    config = config_of(tmp_path / "days", tmp_path / "storage", {"days": {"empty": "skip", "one_class": "skip"}})
    write_day(tmp_path / "days", 0)
    write_day(tmp_path / "days", 1, num_rows=0)
    write_day(tmp_path / "days", 2, of_one_class)
    write_day(tmp_path / "days", 3)
    daily(config)
    records = increments_of(config)
    assert [record.state for record in records.values()] == ["promoted", "skipped", "skipped", "promoted"]
    assert (records[day_of(1)].reason, records[day_of(2)].reason) == ("has no row", "all its labels are the same")
    assert daily(config)["done"] == []


def claim_twice(rank: int, world_size: int, config: Config) -> str:
    with ledger_of(config) as ledger:
        ledger.claim(config.name, "other", 30.0)
        try:
            play(rank, world_size, config)
        except LeaseHeld as error:
            return str(error)
    return "went on"


def test_the_second_of_two_is_refused(days: Path, tmp_path: Path) -> None:
    config = config_of(days, tmp_path)
    (answer,) = run_world(claim_twice, 1, config)
    assert "other" in answer
    assert states_of(config) == []


def freeze(config: Config) -> None:
    """This process stands still until another one has taken its model over."""
    time.sleep(1.5)
    with ledger_of(config) as ledger:
        ledger.claim(config.name, "fast", 30.0)


def test_who_was_frozen_past_its_lease_cannot_judge(days: Path, tmp_path: Path) -> None:
    config = config_of(days, tmp_path)
    daily(config, asked=Asked(last=day_of(0)))
    with pytest.raises(LeaseLost, match="taken over by"):
        daily(config, asked=Asked(last=day_of(1)), before_judging=freeze, lease_s=1.1)
    assert [v.verdict for v in versions_of(config).values()] == ["promote", ""]
    assert champion_of(config) == 1
    daily(config, asked=Asked(last=day_of(1)))
    assert [v.verdict for v in versions_of(config).values()] == ["promote", "promote"]
