"""The dashboards: made from the names of the series, whole, and of queries that Prometheus and Ray can answer."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml

from diurnal.tracking.series import SERIES

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "dashboards" / "grafana"
FILES = sorted(FOLDER.glob("*.json"))


def rays_own() -> set[str]:
    """What Ray's agent on each node tells of it. The object store's comes from Ray's C++ part, as a cluster shows."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    agent = Path(spec.origin).parent / "dashboard" / "modules" / "reporter" / "reporter_agent.py"
    return {f"ray_{name}" for name in re.findall(r'"(node_\w+)": Gauge', agent.read_text())} | {
        "ray_object_store_memory"
    }


_TARGET = {
    "type": "object",
    "required": ["refId", "expr", "datasource"],
    "properties": {"expr": {"type": "string", "minLength": 5}, "refId": {"pattern": "^[A-H]$"}},
}
_PANEL = {
    "type": "object",
    "required": ["id", "type", "title", "description", "gridPos", "targets", "fieldConfig", "options", "datasource"],
    "properties": {
        "type": {"enum": ["stat", "timeseries", "barchart", "table"]},
        "title": {"type": "string", "maxLength": 40},
        "description": {"type": "string", "minLength": 8, "maxLength": 120},
        "targets": {"type": "array", "minItems": 1, "items": _TARGET},
        "fieldConfig": {
            "required": ["defaults"],
            "properties": {"defaults": {"required": ["unit"], "properties": {"unit": {"type": "string"}}}},
        },
    },
}
SCHEMA = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "time", "refresh", "tags"],
    "properties": {
        "uid": {"pattern": "^diurnal-[a-z]+$"},
        "panels": {"type": "array", "minItems": 8, "items": _PANEL},
        "templating": {"required": ["list"]},
    },
}


def queries() -> Iterator[tuple[str, str]]:
    """Dashboard and panel, and the query as Grafana sends it."""
    for file in FILES:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{file.stem}: {panel['title']}", target["expr"].replace("$__rate_interval", "1m")


def test_the_files_are_what_the_series_make_of_them(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "dashboards" / "build.py"), str(tmp_path)], check=True, timeout=60)
    assert [file.name for file in FILES] == ["embeddings.json", "live.json", "training.json"]
    for file in FILES:
        assert file.read_text() == (tmp_path / file.name).read_text(), "run `python dashboards/build.py`"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_is_whole(file: Path) -> None:
    made = json.loads(file.read_text())
    jsonschema.validate(made, SCHEMA)
    panels = made["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies on another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_every_series_of_a_query_exists_and_every_series_is_in_a_query() -> None:
    asked = {name for _, expr in queries() for name in re.findall(r"\b(?:ray_)?diurnal_\w+", expr)}
    ours = {series.exposed for series in SERIES.values()}
    assert asked <= ours, asked - ours
    # What is only for alerts, or beside what is shown.
    assert {name.partition("diurnal_")[2] for name in ours - asked} <= {
        "model_up",
        "model_learning",
        "model_late_s",
        "increment_calibration",
        "train_global_step",
        "checkpoint_bytes",
        "progressive_calibration",
    }
    rays = {name for _, expr in queries() for name in re.findall(r"\bray_(?!diurnal)\w+", expr)}
    assert rays <= rays_own(), rays - rays_own()


def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    found = list(queries())
    rules = [{"record": f"query:{number}", "expr": expr} for number, (_, expr) in enumerate(found)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(found)} rules found" in done.stdout
