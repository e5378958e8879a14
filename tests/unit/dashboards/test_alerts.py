"""The alerts, against series that Prometheus' own tool plays: when each fires, and when it does not."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from diurnal.tracking.series import SERIES

FOLDER = Path(__file__).parents[3] / "dashboards" / "prometheus"
RULES = FOLDER / "alerts.yaml"
ALERTS = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}

UP = 'diurnal_model_up{model="m"}'
LEARNING = 'diurnal_model_learning{model="m"}'
STEPS = 'ray_diurnal_worker_steps_total{model="m",rank="%d"}'
HELD = 'diurnal_model_trouble{model="m",increment="2026-01-02",kind="%s",reason="rows: 7"}'

CASES: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "all is well": (
        "60m",
        {
            UP: "1x80",
            'diurnal_model_late{model="m"}': "0x80",
            LEARNING: "1x80",
            STEPS % 0: "0+60x80",
            'ray_diurnal_progressive_ne{model="m"}': "0.9x80",
            'ray_diurnal_train_skipped_steps{model="m"}': "0x80",
            'ray_node_disk_free{instance="n"}': "60x80",
            'ray_node_disk_usage{instance="n"}': "40x80",
            'ray_diurnal_storage_free_share{model="m"}': "0.5x80",
            HELD % "undecided": "1x80",
        },
        [],
    ),
    "nothing runs": ("60m", {UP: "1x80", LEARNING: "0x80", 'diurnal_model_late{model="m"}': "0x80"}, []),
    "late": ("6m", {UP: "1x10", 'diurnal_model_late{model="m"}': "1x10"}, ["DiurnalLate"]),
    "late for a moment": ("6m", {UP: "1x10", 'diurnal_model_late{model="m"}': "1 0 0 0 0 0 0 0"}, []),
    "held": ("2m", {UP: "1x10", HELD % "held": "1x10"}, ["DiurnalHeld"]),
    "failed": ("6m", {UP: "1x10", HELD % "failed": "1x10"}, ["DiurnalFailed"]),
    "left out": ("2m", {UP: "1x10", HELD % "left_out": "1x10"}, ["DiurnalDamaged"]),
    "stalled": ("40m", {UP: "1x80", LEARNING: "1x80", STEPS % 0: "0+60x20 1200x60"}, ["DiurnalStalled"]),
    "the driver is gone": ("40m", {UP: "1x80", LEARNING: "1x80"}, ["DiurnalStalled"]),
    "another rank goes on": (
        "40m",
        {UP: "1x80", LEARNING: "1x80", STEPS % 0: "0+60x80", STEPS % 1: "0+60x20 1200x60"},
        [],
    ),
    "diverging": ("11m", {UP: "1x80", 'ray_diurnal_progressive_ne{model="m"}': "1.3x80"}, ["DiurnalDiverging"]),
    "skipped": ("11m", {UP: "1x80", 'ray_diurnal_train_skipped_steps{model="m"}': "2x80"}, ["DiurnalDiverging"]),
    "a node's disk": (
        "11m",
        {UP: "1x80", 'ray_node_disk_free{instance="n"}': "5x80", 'ray_node_disk_usage{instance="n"}': "95x80"},
        ["DiurnalDisk"],
    ),
    "the storage": ("11m", {UP: "1x80", 'ray_diurnal_storage_free_share{model="m"}': "0.04x80"}, ["DiurnalDisk"]),
    "the ledger is away": ("11m", {UP: "0x80"}, ["DiurnalBlind"]),
    "nobody answers": ("11m", {}, ["DiurnalBlind"]),
}
"""When it is looked at, what Prometheus has each minute, and what fires."""


def plays(series: dict[str, str], at: str, fires: list[str]) -> dict[str, Any]:
    """One test of `promtool test rules`."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'max by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": at,
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in fires],
            }
        ],
    }


def test_what_fires_and_what_does_not(tmp_path: Path) -> None:
    tests = [plays(series, at, fires) for at, series, fires in CASES.values()]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    fired = {name for _, _, fires in CASES.values() for name in fires}
    assert fired == set(ALERTS), "each alert fires in a case"


def test_words_of_an_alert_name_the_model_and_the_reason(tmp_path: Path) -> None:
    alert = {
        "exp_labels": {"severity": "page", "model": "m", "increment": "2026-01-02", "reason": "rows: 7"},
        "exp_annotations": {
            "summary": "m: 2026-01-02 is held",
            "description": "rows: 7",
            "runbook": "dashboards/prometheus/runbook.md#held",
        },
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": UP, "values": "1x10"}, {"series": HELD % "held", "values": "1x10"}],
        "alert_rule_test": [{"eval_time": "2m", "alertname": "DiurnalHeld", "exp_alerts": [alert]}],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_place_in_the_runbook(name: str) -> None:
    rule = ALERTS[name]
    headings = re.findall(r"^## (\w+)$", (FOLDER / "runbook.md").read_text(), re.MULTILINE)
    assert rule["annotations"]["runbook"] == f"dashboards/prometheus/runbook.md#{name.removeprefix('Diurnal').lower()}"
    assert sorted(headings) == sorted(one.removeprefix("Diurnal").lower() for one in ALERTS)
    assert {*rule["annotations"]} == {"summary", "description", "runbook"}
    asked = set(re.findall(r"\b(?:ray_)?diurnal_\w+", rule["expr"]))
    assert asked <= {series.exposed for series in SERIES.values()}
