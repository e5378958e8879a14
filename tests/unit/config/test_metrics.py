from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from diurnal.testing import tiny_config


def sliced(*features: str, site_rows: int = 1, **site: Any) -> tuple[str, ...]:
    """A table of 70,000 rows for `user`, and one for `site`."""
    tables = [("user", 70_000), ("item", 10), ("genres", 7), ("site", site_rows)]
    sparse = [{"name": "user"}, {"name": "item"}, {"name": "genres", "many": True}, {"name": "site", **site}]
    dataset = {"sparse": sparse, "tables": [{"name": name, "rows": rows, "dim": 4} for name, rows in tables]}
    return tiny_config({"dataset": dataset, "metrics": {"slices": list(features)}}).metrics.slices


def test_slices_are_features_with_one_id_of_not_too_many() -> None:
    assert sliced("site", "item") == ("site", "item")
    for name in ("genres", "country"):
        with pytest.raises(ValidationError, match="one id a row: item, site, user"):
            sliced(name)
    with pytest.raises(ValidationError, match=re.escape("at 65,536 rows of its table at most; there are 70,000")):
        sliced("user")


def test_a_slice_by_the_hour_counts_hours_however_large_the_table() -> None:
    assert sliced("site", site_rows=100_000, type="timestamp", mapping="hour") == ("site",)
