"""The resolved configuration as flat parameters: short values that a table of runs can show side by side.

The whole of it is an artifact (`config.json`); parameters are for comparing runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from diurnal.config import Config
from diurnal.tracking.names import store_key

MAX_VALUE_CHARS = 6000
"""Longest parameter value that MLflow stores."""

_PASSWORD = re.compile(r"(://[^/:@\s]*):[^/@\s]+@")


def without_passwords(text: str) -> str:
    """`text` with the password of every URL in it replaced by stars."""
    return _PASSWORD.sub(r"\1:***@", text)


def config_params(config: Config) -> dict[str, str]:
    """`section.field` to text. Each feature and table of the schema is one parameter, `dataset.tables.<name>`."""
    return as_params(config.public().model_dump(mode="json"))


def as_params(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings joined with dots; lists as compact JSON, but one parameter per entry if entries have names."""
    params: dict[str, str] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            params |= as_params(value, f"{path}.")
        elif isinstance(value, list) and value and all(isinstance(v, dict) and "name" in v for v in value):
            for entry in value:
                rest = {k: v for k, v in entry.items() if k != "name" and v not in (None, "", [])}
                params[store_key(f"{path}.{entry['name']}")] = _text(rest)
        else:
            params[store_key(path)] = _text(value)
    return params


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    text = without_passwords(text)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."
