"""Writes the table of values in helm/diurnal/README.md, from values.schema.json and values.yaml.

    python helm/values_table.py [--check]

With --check nothing is written; exit 1 says that the table is not current.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "diurnal"
BEGIN, END = "<!-- values -->\n", "<!-- end of values -->\n"
TOO_LONG = 60

Json = dict[str, Any]


def rows(schema: Json, values: Any, path: str = "") -> Iterator[str]:
    for key, child in schema["properties"].items():
        here, value = f"{path}{key}", values[key]
        if "properties" in child:
            yield f"| **{here}** | | {child['description']} |"
            yield from rows(child, value, f"{here}.")
        else:
            yield f"| `{here}` | {shown(value)} | {choices(child)}{child['description']} |"


def shown(value: Any) -> str:
    text = json.dumps(value)
    if value in ("", [], {}):
        return ""
    return f"`{text}`" if len(text) <= TOO_LONG else "see values.yaml"


def choices(schema: Json) -> str:
    named = [f"`{choice}`" for choice in schema.get("enum", []) if choice and choice not in schema["description"]]
    return f"{', '.join(named)}. " if named else ""


def main() -> int:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    readme = CHART / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "\n".join(["| value | default | |", "| --- | --- | --- |", *rows(schema, values)])
    text = f"{before}{BEGIN}{table}\n{END}{after}"
    if "--check" in sys.argv[1:]:
        if text != readme.read_text():
            print("helm/diurnal/README.md is not current: python helm/values_table.py")
            return 1
        return 0
    readme.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
