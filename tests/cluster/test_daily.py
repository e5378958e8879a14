"""The daily loop under Ray: clean days are promoted, poisoned ones held with the right reason, and people see why."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diurnal.daily.run import daily
from diurnal.ledger.claims import Ledger
from diurnal.testing_runs import runs_of
from diurnal.tracking import names
from diurnal.tracking.location import tracking_uri
from diurnal.train.progress import Progress

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 2500
SETTINGS = (
    "workers.max=1",
    "gate.min_rows=200",
    "gate.slice_share=0.2",
    "gate.max_ne_rise=0.03",
    "gate.calibration=[0.7, 1.4]",
    "gate.segments=['item']",
    "profile.min_rows=100",
)

POISONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "NE of the champion": lambda c: c.update(label=[1 - y for y in c["label"]]),
    "price": lambda c: c.update(price=[None] * ROWS),
    "price: 95 % quantile": lambda c: c.update(price=[100 * x for x in c["price"]]),
    "rows": lambda c: c.update({name: values[: ROWS // 2] for name, values in c.items()}),
}
"""What a reason has to name, and how a day is spoilt: labels flipped, a dead feature, cents for euros, a cut day."""


@pytest.fixture(scope="module")
def story(ray_cluster: None, new_world: Callable[[], Any]) -> Any:
    """Four clean days, four poisoned ones, and a clean one."""
    world = new_world()
    days = [world.write_day(i, ROWS) for i in range(4)]
    for index, change in enumerate(POISONS.values(), start=4):
        num_rows = ROWS // 2 if index == 7 else ROWS
        spoil = change if index < 7 else None
        days.append(world.write_day(index, num_rows, change=spoil))
    days.append(world.write_day(8, ROWS))
    config = world.config(*SETTINGS)
    return world, config, days, daily(config, progress=Progress(table=False))


def records(config: Any) -> tuple[dict[str, Any], dict[int, Any], Any]:
    with Ledger.of(config) as ledger:
        found = {record.increment: record for record in ledger.increments(config.name)}
        return found, {v.number: v for v in ledger.versions(config.name)}, ledger.champion(config.name)


def test_poisoned_days_are_held_with_the_reason_and_the_next_good_one_recovers(story: Any) -> None:
    _, config, days, result = story
    increments, versions, champion = records(config)
    assert [increments[day].state for day in days] == ["promoted"] * 4 + ["held"] * 4 + ["promoted"]
    for day, words in zip(days[4:8], POISONS, strict=True):
        assert words in increments[day].reason
        assert increments[day].version is None, "nothing of it was learned"
    assert champion == 5
    assert (versions[5].parent, versions[5].increment) == (4, days[8])
    assert not result.needs_a_person


def test_what_was_decided_is_in_mlflow(story: Any) -> None:
    from mlflow.tracking import MlflowClient

    _, config, days, _ = story
    runs = runs_of(config)
    assert {runs[day].info.status for day in days[4:8]} == {"FAILED"}
    assert {runs[day].info.status for day in [*days[:4], days[8]]} == {"FINISHED"}
    increments, versions, _ = records(config)
    for day in days:
        verdict = "held" if increments[day].version is None else versions[increments[day].version].verdict
        assert runs[day].data.tags[names.TAG_VERDICT] == verdict
        assert runs[day].data.tags[names.TAG_VERDICT_REASON]
    assert runs["lineage"].data.metrics[names.GATE_PROMOTED] == 1.0
    uri = tracking_uri(config)
    client = MlflowClient(uri, registry_uri=uri)
    model = client.get_registered_model(config.name)
    aliases = {a: client.get_model_version(config.name, v).tags[names.TAG_VERSION] for a, v in model.aliases.items()}
    assert aliases == {"champion": "5", "previous": "4"}
    assert len(client.search_model_versions(f"name='{config.name}'")) == 5


def test_doing_it_again_changes_nothing(story: Any) -> None:
    _, config, _, _ = story
    before = records(config)
    again = daily(config, progress=Progress(table=False))
    assert again.increments == ()
    assert records(config) == before


def test_a_person_rolls_back_and_promotes_and_sees_how_it_stands(story: Any) -> None:
    world, config, days, _ = story
    own = {"data.path": config.data.path, "data.schema_file": config.data.schema_file, "storage": config.storage}
    sets = [part for key, value in own.items() for part in ("--set", f"{key}={value!r}")]
    base = ["--config", str(Path(world.root) / "run.toml"), *sets, *(p for s in SETTINGS for p in ("--set", s))]

    def run(*words: str) -> tuple[int, Any]:
        command = [sys.executable, "-m", "diurnal.cli.main", *words, *base, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, json.loads(done.stdout)

    assert run("rollback", "--reason", "looks odd")[1]["champion"] == 4
    code, status = run("status")
    assert (code, status["champion"]["number"], status["needs_a_person"]) == (3, 4, True)
    assert "looks odd" in str(status["troubles"])
    assert run("promote", "5")[1]["champion"] == 5
    code, status = run("status", "--sweep")
    assert status["champion"]["increment"] == days[8]
    assert {day["state"] for day in status["increments"]} == {"promoted", "held"}
    code, error = run("promote", "77")
    assert code == 2
    assert error["error"]["faults"][0]["found"]
    for words in (["daily", "--until", "yesterday"], ["backfill", "--from", days[1], "--to", days[0]]):
        code, error = run(*words)
        assert (code, len(error["error"]["faults"])) == (2, 1)
    code, events = run("ledger", "events", "--kind", "rollback")
    assert (code, [event["reason"] for event in events]) == (0, ["looks odd"])
