from __future__ import annotations

import io

from diurnal.train import progress
from diurnal.train.progress import COLUMNS, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


NUMBERS = {"NE": "0.8123", "rows/s": "1,000", "data wait": "3%"}


def test_a_terminal_gets_a_bar_with_rows_rate_ne_and_wait() -> None:
    out = Terminal()
    shown = Progress(out)
    shown.begin("2026-01-02", 1000)
    shown.at("2026-01-02 learning", 500, 1000, NUMBERS)
    shown.end()
    text = out.getvalue()
    assert "2026-01-02" in text
    assert "\r" in text
    assert "NE=0.8123" in text
    assert "data wait=3%" in text


def test_elsewhere_plain_lines_come_now_and_then(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    shown = Progress(out)
    shown.begin("2026-01-02", 1000)
    for rows, now[0] in ((100, 100.5), (200, 101.0), (600, 105.9), (700, 106.1), (800, 107.0)):
        shown.at("2026-01-02 learning", rows, 1000, NUMBERS)
    rest = "NE 0.8123  rows/s 1,000  data wait 3%"
    lines = ["200 of 1,000 rows (20%)", "700 of 1,000 rows (70%)"]
    assert out.getvalue() == "".join(f"2026-01-02 learning: {line}  {rest}\n" for line in lines)
    assert "\r" not in out.getvalue()


def test_the_table_has_one_header_aligned_columns_and_dashes_for_what_is_undefined() -> None:
    out = io.StringIO()
    shown = Progress(out)
    shown.row({"day": "2026-01-02", "rows": 1234, "NE learning": 0.91234, "version": 1})
    shown.row({"day": "2026-01-03", "rows": 0, "version": 2})
    header, first, second = out.getvalue().splitlines()
    assert len(header) == len(first) == len(second)
    assert first.split() == ["2026-01-02", "1,234", "-", "-", "0.9123", "-", "-", "-", "-", "1"]
    assert second.split().count("-") == len(COLUMNS) - 2 - 3, "none for GAUC, which is shown where there are groups"


def test_the_table_has_gauc_where_the_schema_has_groups() -> None:
    out = io.StringIO()
    shown = Progress(out)
    shown.row({"day": "2026-01-02", "GAUC before": None, "GAUC learning": 0.61234})
    shown.row({"day": "2026-01-03", "GAUC before": 0.6})
    header, first, second = out.getvalue().splitlines()
    assert "GAUC before  GAUC learning" in header
    assert len(header) == len(first) == len(second)
    assert "0.6123" in first
    assert second.split().count("-") == len(COLUMNS) - 2
