"""What a person sees in MLflow who follows the links that a command prints: looked at in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diurnal.config import Config
from diurnal.config.run import Metrics
from diurnal.testing import tiny_config
from diurnal.testing_nodes import free_port
from diurnal.testing_runs import runs_of
from diurnal.tracking import names
from diurnal.tracking.location import artifact_root, run_link, tracking_uri
from diurnal.tracking.mlflow import Dataset, Tracker
from diurnal.tracking.ui import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

README = Path(__file__).parents[2] / "dashboards" / "mlflow" / "README.md"
DAYS = 4
HELD = "2026-01-05"
REASON = "price: dead, no value in any of 9,000 rows"


@dataclass(frozen=True)
class Links:
    printed: str
    """What a command prints at its end."""
    lineage: str
    held: str


def track(config: Config) -> Tracker:
    """Four days that were learned and judged, and one that was held."""
    tracker = Tracker(config)
    for index in range(DAYS):
        day, ne = f"2026-01-0{index + 1}", 0.9 - 0.02 * index
        dataset = Dataset("clicks", f"/data/dt={day}", f"f{index}", 9000)
        run = tracker.begin_increment(day, attempt=1, parent_version=index or None, dataset=dataset)
        for rows in range(1000, 9001, 2000):
            curve = {"progressive/ne": ne + 20 / rows, names.THROUGHPUT_ROWS_PER_S: 5000.0, names.TRAIN_LOG_LOSS: 0.3}
            run.log({**curve, names.CLUSTER_WORLD_SIZE: 2.0}, rows)
        summary: dict[str, float | None] = {"progressive/ne": ne, "progressive/calibration": 1.01, "eval/ne": ne + 0.01}
        summary |= {"eval/auc": 0.7 + 0.01 * index, names.DATA_FRESHNESS_S: 7200.0, names.CLUSTER_RESIZES: 1.0}
        summary[names.THROUGHPUT_ROWS_PER_S] = 5000.0
        run.finish("FINISHED", version=index + 1, summary=summary, step_rows=9000)
        tags = names.verdict_tags("promote", "NE is lower, for certain")
        gate = {names.GATE_NE_RISE: -0.01, names.GATE_CALIBRATION: 1.02, names.GATE_PROMOTED: 1.0}
        tracker.verdict(day, tags, gate, version=index + 1)
    dataset = Dataset("clicks", f"/data/dt={HELD}", "f5", 9000)
    tracker.held(HELD, attempt=1, reason=REASON, dataset=dataset, metrics={names.PROFILE_ROWS: 9000.0})
    return tracker


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Links]:
    config = tiny_config({"name": "clicks", "storage": str(tmp_path_factory.mktemp("storage"))})
    tracker = track(config)
    assert tracker.close(120).dropped == 0
    runs = runs_of(config)
    pages = [run_link("", runs[key].info.experiment_id, runs[key].info.run_id) for key in (names.LINEAGE, HELD)]
    with serving(tracking_uri(config), artifact_root(config), "127.0.0.1", free_port()) as (_, address):
        yield Links(*(f"{address}/{page}" for page in (tracker.link(), *pages)))


def sections(text: str) -> set[str]:
    """Titles of the groups of charts, each with the number of its charts."""
    return set(re.findall(r"^(\w+)\s*\(\d+\)$", text, re.MULTILINE))


def test_the_first_screen_has_a_chart_over_the_days_for_each_number(browser: Any, links: Links) -> None:
    browser.open(links.printed)
    text = browser.wait_for("lineage clicks", "progressive", "throughput")
    assert {"eval", "gate", "progressive", "cluster", "data", "throughput"} <= sections(text)
    assert "6 matching runs" in text
    browser.type("Search metric charts", "eval/ne$|gate/ne_rise$")
    browser.wait_until(lambda: sections(browser.text()) == {"eval", "gate"})
    text = browser.wait_for("eval/ne", "gate/ne_rise")
    assert "eval/auc" not in text


def test_the_lineage_has_a_point_for_each_day(browser: Any, links: Links) -> None:
    browser.open(links.lineage)
    browser.wait_for("lineage clicks", "gate")
    browser.type("Search metric charts", "eval/ne$")
    browser.wait_until(lambda: browser.value("document.querySelectorAll('.scatterlayer .point').length") == DAYS)


def test_a_day_that_was_held_says_why_at_the_top_of_its_page(browser: Any, links: Links) -> None:
    browser.open(links.held.replace("/model-metrics", ""))
    text = browser.wait_for(f"daily-{HELD}", f"held: {REASON}", "Failed")
    assert text.index(REASON) < text.index("Metrics (")


def test_what_the_readme_tells_of_is_there() -> None:
    text = README.read_text()
    told = set(re.findall(r"`((?:diurnal\.)?[a-z]+[/.][a-z_]+)`", text))
    tags = {value for name, value in vars(names).items() if name.startswith("TAG_")}
    files = {value for name, value in vars(names).items() if name.endswith("_ARTIFACT")}
    of_counts = {"sparse/unknown", "data/null"}
    settings = {f"metrics.{field}" for field in Metrics.model_fields}
    assert told - set(names.METRICS) - tags - files - of_counts - settings == set()
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert len(pictures) >= 2
    for picture in pictures:
        assert (README.parent / picture).stat().st_size < 150_000
