from __future__ import annotations

import csv
import io
from dataclasses import fields

from diurnal.metrics.slices import Slice
from diurnal.tracking.tables import COLUMNS, slices_csv


def slice_of(name: str, ne: float | None) -> Slice:
    reason = None if ne is not None else "one class: all 3 rows have label 0; AUC and NE are undefined"
    return Slice("country", name, 3, 1, 0, 3.0, 1 / 3, 0.6, ne, 1.02, reason)


def test_slices_are_lines_with_their_section_and_undefined_numbers_are_empty() -> None:
    before, progressive = [slice_of("NZ", 0.9).to_dict()], [slice_of("a,b\n", None).to_dict()]
    lines = list(csv.DictReader(io.StringIO(slices_csv(progressive, before))))
    assert [line["section"] for line in lines] == ["eval", "progressive"]
    assert (lines[0]["id"], lines[0]["ne"], lines[0]["reason"]) == ("NZ", "0.9", "")
    assert (lines[1]["id"], lines[1]["ne"]) == ("a,b\n", "")
    assert "one class" in lines[1]["reason"]


def test_every_number_of_a_slice_has_a_column() -> None:
    assert set(COLUMNS) == {"section"} | {field.name for field in fields(Slice)}
