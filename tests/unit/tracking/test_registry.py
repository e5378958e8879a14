"""The registry's mirror against a real SQLite store and a real server, cut off anywhere."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from diurnal.config import Config
from diurnal.tracking import names
from diurnal.tracking.location import tracking_uri
from diurnal.tracking.mlflow import Dataset, Tracker, mirror_now
from diurnal.tracking.registry import RegisteredVersion, RegistryState, reconcile
from diurnal.tracking.store import connect

Registry = dict[str, Any]


def version(number: int, verdict: str = "promote") -> RegisteredVersion:
    parent = number - 1 or None
    path = f"/data/ctr/versions/{number}"
    return RegisteredVersion(
        number, f"2026-01-{number:02}", parent, path, verdict, f"why {number}", number * 10**6, "now"
    )


def state(count: int, champion: int | None = None, previous: int | None = None, challenger: int | None = None):
    return RegistryState(tuple(version(n) for n in range(1, count + 1)), champion, previous, challenger)


def registry_of(client: MlflowClient, model: str = "ctr") -> Registry:
    """What is registered, without times."""
    versions = {int(v.version): (v.tags, v.source, v.run_id) for v in client.search_model_versions(f"name = '{model}'")}
    aliases = client.get_registered_model(model).aliases  # numbers from a database, texts from a server
    return {"versions": versions, "aliases": {alias: str(number) for alias, number in aliases.items()}}


def apply(client: MlflowClient, wanted: RegistryState, model: str = "ctr", by_server: bool = False) -> int:
    return reconcile(client, model, wanted, lambda increment: f"run-{increment}", by_server=by_server)


class Breaking:
    """A client that fails at its call number `fatal`, before the call arrives or after it."""

    def __init__(self, client: MlflowClient, fatal: int, after: bool) -> None:
        self._client, self._left, self._after = client, fatal, after

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise ConnectionError(name)
            answer = method(*args, **kwargs)
            if self._left == 0:
                raise ConnectionError(name)
            return answer

        return call


def test_each_version_is_registered_once_and_says_what_the_ledger_says(sqlite_config: Config) -> None:
    client = connect(tracking_uri(sqlite_config))
    wanted = state(3, champion=3, previous=2)
    assert apply(client, wanted) == 1 + 3 + 2
    before = registry_of(client)
    assert apply(client, wanted) == 0
    assert registry_of(client) == before
    assert before["aliases"] == {"champion": "3", "previous": "2"}
    tags, source, run_id = before["versions"][2]
    assert (source, run_id) == ("/data/ctr/versions/2", "run-2026-01-02")
    assert {key.removeprefix("diurnal."): value for key, value in tags.items()} == {
        "version": "2",
        "increment": "2026-01-02",
        "parent_version": "1",
        "path": "/data/ctr/versions/2",
        "verdict": "promote",
        "verdict_reason": "why 2",
        "watermark": "2000000",
        "created_at": "now",
    }
    assert before["versions"][1][0]["diurnal.parent_version"] == "none"


def test_a_day_costs_the_writes_of_that_day(sqlite_config: Config) -> None:
    client = connect(tracking_uri(sqlite_config))
    apply(client, state(8, champion=8, previous=7))
    assert apply(client, state(9, champion=9, previous=8)) == 1 + 2
    judged = RegistryState((*state(8).versions, version(9, "hold")), champion=8, previous=7, challenger=9)
    assert apply(client, judged) == 1 + 3


def test_aliases_follow_promotion_and_rollback(sqlite_config: Config) -> None:
    client = connect(tracking_uri(sqlite_config))
    for wanted, aliases in (
        (state(2, champion=1, challenger=2), {"champion": "1", "challenger": "2"}),
        (state(2, champion=2, previous=1), {"champion": "2", "previous": "1"}),
        (state(2, champion=1), {"champion": "1"}),
        (state(2), {}),
    ):
        apply(client, wanted)
        assert registry_of(client)["aliases"] == aliases


@pytest.mark.parametrize("after", [False, True], ids=["before_it_arrives", "after_it_arrived"])
def test_cut_off_at_any_call_the_next_mirror_completes_it(sqlite_config: Config, after: bool) -> None:
    client = connect(tracking_uri(sqlite_config))
    first, then = state(2, champion=1, challenger=2), state(3, champion=3, previous=1)
    cut = 0
    for fatal in range(1, 30):
        model = f"cut{fatal}"
        broken = False
        for wanted in (first, then):
            try:
                apply(Breaking(client, fatal, after), wanted, model)  # pyright: ignore[reportArgumentType]
            except ConnectionError:
                broken = True
                apply(client, wanted, model)
        cut += broken
        if not broken:
            break
    assert cut == len(("get", "create", "search")) + 2 + 2
    apply(client, first, "whole")
    apply(client, then, "whole")

    whole = registry_of(client, "whole")
    assert all(registry_of(client, f"cut{n}") == whole for n in range(1, cut + 1))


KILLED_MIDWAY = """
import os, signal, sys
from mlflow import MlflowClient
from diurnal.config import from_resolved
from diurnal.tracking.mlflow import mirror_now, RegistryState, RegisteredVersion
make, left = MlflowClient.create_model_version, [3]
def create(self, *args, **kwargs):
    made = make(self, *args, **kwargs)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return made
MlflowClient.create_model_version = create
versions = [RegisteredVersion(n, f"2026-01-{n:02}", n - 1 or None, f"/data/ctr/versions/{n}", "promote", f"why {n}",
                              n * 10**6, "now") for n in range(1, 6)]
mirror_now(from_resolved(sys.stdin.read()), RegistryState(tuple(versions), 5, 4), 60)
"""


def test_a_process_killed_while_it_registers_leaves_no_duplicate(sqlite_config: Config) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_MIDWAY],
        input=sqlite_config.model_dump_json(),
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    client = connect(tracking_uri(sqlite_config))
    assert sorted(registry_of(client)["versions"]) == [1, 2, 3]
    assert mirror_now(sqlite_config, state(5, champion=5, previous=4), 60).dropped == 0
    registry = registry_of(client)
    assert {n: tags["diurnal.version"] for n, (tags, *_) in registry["versions"].items()} == {
        n: str(n) for n in range(1, 6)
    }
    assert registry["aliases"] == {"champion": "5", "previous": "4"}


def test_a_version_that_a_person_deleted_is_registered_again(sqlite_config: Config) -> None:
    client = connect(tracking_uri(sqlite_config))
    wanted = state(3, champion=3, previous=2)
    apply(client, wanted)
    client.delete_model_version("ctr", "3")
    assert apply(client, wanted) == 2
    registry = registry_of(client)
    assert sorted(registry["versions"]) == [1, 2, 4]
    assert registry["versions"][4][0]["diurnal.version"] == "3"
    assert registry["aliases"] == {"champion": "4", "previous": "2"}
    client.delete_registered_model("ctr")
    apply(client, wanted)
    assert registry_of(client)["aliases"] == {"champion": "3", "previous": "2"}


def test_what_a_person_registered_stays(sqlite_config: Config) -> None:
    client = connect(tracking_uri(sqlite_config))
    client.create_registered_model("ctr")
    client.create_model_version("ctr", "s3://bucket/mine")
    client.set_registered_model_alias("ctr", "mine", "1")
    apply(client, state(2, champion=2))
    assert registry_of(client)["aliases"] == {"mine": "1", "champion": "3"}
    assert registry_of(client)["versions"][1] == ({}, "s3://bucket/mine", None)


def test_two_models_in_one_server_and_each_has_its_run(server, make_config, dataset: Dataset, runs_of) -> None:
    for name in ("clicks", "buys"):
        with Tracker(make_config(name, server.address)) as tracker:
            run = tracker.begin_increment("2026-01-01", attempt=1, parent_version=None, dataset=dataset)
            run.finish("FINISHED", version=1)
            tracker.mirror(state(2, champion=1))
        assert tracker.close(60).dropped == 0
    client = connect(server.address)
    for name in ("clicks", "buys"):
        registry = registry_of(client, name)
        assert registry["aliases"] == {"champion": "1"}
        first, second = registry["versions"][1], registry["versions"][2]
        assert first[1:] == (f"diurnal://{name}/1", runs_of(server.address, name)["daily-2026-01-01"].info.run_id)
        assert first[0]["diurnal.path"] == "/data/ctr/versions/1"
        assert second[1] == f"diurnal://{name}/2"
        assert not second[2]


@pytest.mark.parametrize("fault", ["lose_answer", "arrive_late"])
def test_a_version_registered_without_an_answer_is_there_once(server, proxy, make_config, fault: str) -> None:
    name = f"unsure_{fault}"
    config = make_config(name, proxy("/model-versions/create", fault).address)
    mirror_now(config, state(2, champion=2), 60)
    client = connect(server.address)
    deadline = time.monotonic() + 30
    while True:
        assert mirror_now(make_config(name, server.address), state(2, champion=2), 60).dropped == 0
        registry = registry_of(client, name)
        tags = sorted(tags["diurnal.version"] for tags, *_ in registry["versions"].values())
        if tags == ["1", "2"] or time.monotonic() > deadline:
            break
    assert tags == ["1", "2"]
    (champion,) = registry["aliases"].values()
    assert registry["versions"][int(champion)][0]["diurnal.version"] == "2"


def test_an_outage_costs_nothing_and_the_next_mirror_repairs_it(server, make_config) -> None:
    config = make_config("away", server.address)
    server.kill()
    try:
        tracker = Tracker(config)
        before = time.monotonic()
        tracker.mirror(state(2, champion=2))
        assert time.monotonic() - before < 1
        report = mirror_now(config, state(1, champion=1), 2)
        assert (report.sent, report.dropped) == (0, 1)
        assert "not taken within 2 s" in str(report)
    finally:
        server.start()
    assert tracker.close(60).dropped == 0
    assert registry_of(connect(server.address), "away")["aliases"] == {"champion": "2"}


def test_verdicts_are_on_the_run_and_over_the_days_on_the_lineage(sqlite_config, dataset, runs_of, points_of) -> None:
    uri = tracking_uri(sqlite_config)
    for day, verdict in ((1, "promote"), (2, "hold")):
        with Tracker(sqlite_config) as tracker:
            increment = f"2026-01-0{day}"
            run = tracker.begin_increment(increment, attempt=1, parent_version=None, dataset=dataset)
            run.finish("FINISHED", version=day)
            for _ in range(2):
                tags = {names.TAG_VERDICT: verdict, names.TAG_VERDICT_REASON: "so"}
                tracker.verdict(
                    increment, tags, {names.GATE_NE_RISE: day / 10, names.GATE_CALIBRATION: None}, version=day
                )
        assert tracker.close().dropped == 0
    runs = runs_of(uri)
    assert [runs[f"daily-2026-01-0{n}"].data.tags["diurnal.verdict"] for n in (1, 2)] == ["promote", "hold"]
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    first = names.increment_step("2026-01-01")
    assert points_of(uri, runs["lineage ctr"]) == [("gate/ne_rise", first, 0.1), ("gate/ne_rise", first + 1, 0.2)]
    assert points_of(uri, runs["daily-2026-01-02"]) == [("gate/ne_rise", 2, 0.2)]


def test_a_verdict_without_a_run_is_reported_and_nothing_else(sqlite_config: Config) -> None:
    tracker = Tracker(sqlite_config)
    tracker.verdict("2026-01-01", {names.TAG_VERDICT: "hold"}, {}, version=1)
    report = tracker.close()
    assert (report.sent, report.dropped) == (0, 1)
    assert "no run of 2026-01-01" in str(report)


def test_a_held_increment_has_a_run_that_says_why_until_it_is_trained(sqlite_config, dataset, runs_of) -> None:
    uri = tracking_uri(sqlite_config)
    with Tracker(sqlite_config) as tracker:
        tracker.held("2026-01-02", attempt=1, reason="no clicks", dataset=dataset, metrics={names.PROFILE_FINDINGS: 2})
    assert tracker.close().dropped == 0
    held = runs_of(uri)["daily-2026-01-02"]
    assert held.info.status == "FAILED"
    assert (held.data.tags["diurnal.verdict"], held.data.tags["diurnal.verdict_reason"]) == ("held", "no clicks")
    assert runs_of(uri)["lineage ctr"].data.metrics == {"profile/findings": 2.0}
    with Tracker(sqlite_config) as tracker:
        tracker.begin_increment("2026-01-02", attempt=2, parent_version=None, dataset=dataset).finish(
            "FINISHED", version=1
        )
    again = runs_of(uri)["daily-2026-01-02"]
    assert (again.info.run_id, again.info.status) == (held.info.run_id, "FINISHED")
    assert again.data.tags["diurnal.verdict"] == ""


def test_without_tracking_nothing_is_mirrored(make_config) -> None:
    config = make_config()
    config = config.model_copy(update={"tracking": config.tracking.model_copy(update={"enabled": False})})
    assert mirror_now(config, state(1), 1).sent == 0
    assert not Path(config.storage).exists()
