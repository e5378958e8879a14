"""Every committed configuration loads, and what it resolves to changes only together with the file that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diurnal.config import load_config, load_schema, resolved_json

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent
LAYERS = {
    "movielens": ["movielens"],
    "demo": ["movielens", "demo"],
    "synthetic": ["synthetic"],
    "criteo": ["criteo"],
    "criteo-sample": ["criteo", "criteo-sample"],
    "criteo-mlperf": ["criteo-mlperf"],
    "criteo-mlperf-onehot": ["criteo-mlperf", "criteo-mlperf-onehot"],
    "open_bandit": ["open_bandit"],
    "ads": ["ads"],
}


def resolved(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(ROOT)
    config = load_config([f"jobs/configs/{layer}.toml" for layer in LAYERS[name]])
    return json.loads(resolved_json(config).replace(f"{ROOT}/", ""))


def test_every_committed_configuration_is_here() -> None:
    assert {path.stem for path in (ROOT / "jobs/configs").glob("*.toml")} == set(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
def test_a_configuration_resolves_to_what_is_on_record(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change on purpose: write what this shows as different into the record."""
    assert resolved(name, monkeypatch) == json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("datasets/*/schema*.toml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_every_committed_schema_loads(path: Path) -> None:
    assert load_schema(path).sparse
