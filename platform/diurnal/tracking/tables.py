"""Tables as text, for a run's artifacts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from diurnal.tracking import names

COLUMNS = (
    "section",
    "feature",
    "id",
    "rows",
    "positives",
    "weight",
    "base_rate",
    "log_loss",
    "ne",
    "calibration",
    "nonfinite_rows",
    "reason",
)


def slices_csv(progressive: Iterable[Mapping[str, Any]], before: Iterable[Mapping[str, Any]] = ()) -> str:
    """One line for each id and section; an undefined number is empty, and `reason` says why.

    Args:
        progressive: `Slice.to_dict()` of the scores before rows were learned.
        before: of the scores of the version before.
    """
    out = io.StringIO()
    writer: csv.DictWriter[str] = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for section, slices in ((names.EVAL, before), (names.PROGRESSIVE, progressive)):
        writer.writerows({"section": section, **one} for one in slices)
    return out.getvalue()
