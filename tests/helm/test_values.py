"""values.yaml, its schema and the table in the README say the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "diurnal"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
FREE = (
    "global",
    "cluster.head.nodeSelector",
    "cluster.data.nodeSelector",
    "cluster.train.nodeSelector",
    "monitoring.labels",
)
"""Objects whose keys are the user's."""


def leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and path not in FREE:
        for key, child in value.items():
            yield from leaves(child, f"{path}.{key}".lstrip("."))
    else:
        yield path


def described(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    if schema.get("properties") and path not in FREE:
        for key, child in schema["properties"].items():
            yield from described(child, f"{path}.{key}".lstrip("."))
    else:
        yield path, schema.get("description", "")


def closed(schema: Any, path: str = "") -> Iterator[str]:
    """Objects that take any key."""
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False and path not in FREE:
        yield path
    for key, child in schema.get("properties", {}).items():
        yield from closed(child, f"{path}.{key}".lstrip("."))


def test_every_value_is_in_the_schema_with_a_description():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert sorted(leaves(values)) == sorted(path for path, _ in described(SCHEMA))
    assert [path for path, text in described(SCHEMA) if not text.endswith((".", "`"))] == []


def test_no_object_takes_unknown_keys():
    assert list(closed(SCHEMA)) == []


def test_the_table_in_the_readme_is_current():
    command = [sys.executable, str(ROOT / "helm" / "values_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
