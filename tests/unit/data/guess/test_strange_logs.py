"""What data of one's own may look like: labels in another language, columns that hardly have a value, wide tables."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diurnal.config.daily import Gate
from diurnal.data.guess.propose import propose
from diurnal.data.guess.text import run_text

ROWS = 300


def reasons(proposal: Any) -> dict[str, str]:
    return {out.column: out.reason for out in proposal.left_out}


def without_click(invented: Any, make: Any) -> str:
    for day in range(2):
        columns = invented.columns(day)
        labels = columns.pop("clicked").to_numpy()
        invented.write(columns | make(labels), day)
    return invented.path


def test_a_value_that_is_called_like_an_outcome_makes_its_column_the_label(invented: Any) -> None:
    """`gruppe` has two classes as well, and is a bool at that."""

    def make(labels: np.ndarray) -> dict[str, Any]:
        return {"gruppe": np.arange(ROWS) % 2 == 0, "ergebnis": np.where(labels, "bought", "not")}

    proposal = propose(without_click(invented, make))
    assert proposal.label.settings == {"column": "ergebnis", "positive": "bought", "negative": "not"}
    assert proposal.notes == ()


def test_a_label_by_its_values_alone_is_doubted_where_others_have_two(invented: Any) -> None:
    def make(labels: np.ndarray) -> dict[str, Any]:
        return {"gruppe": np.arange(ROWS) % 2 == 0, "ergebnis": np.where(labels, "ja", "nein")}

    proposal = propose(without_click(invented, make))
    assert proposal.label.column == "gruppe"
    assert "of two values are also: ergebnis (ja and nein)" in proposal.notes[0]
    assert "--label" in proposal.notes[0]


def test_what_hardly_has_a_value_is_left_out(invented: Any) -> None:
    """A column that a small day lacks throughout is one that `daily` holds; a leak is still called one."""

    def more(day: int, labels: np.ndarray) -> dict[str, Any]:
        return {
            "rare": pa.array([1.5 * day if row == 7 else None for row in range(ROWS)], pa.float64()),
            "version": pa.array(["2.1" if row else None for row in range(ROWS)]),
        }

    found = propose(invented.days(more))
    assert "null in more than 99.5% of the rows" in reasons(found)["rare"]
    assert "the value 2.1 in all 900 rows that were read that have one" in reasons(found)["version"]


def test_a_request_that_some_rows_lack_is_named_as_such(invented: Any) -> None:
    def more(day: int, labels: np.ndarray) -> dict[str, Any]:
        return {"event_uuid": pa.array([f"{day}-{row}" if row else None for row in range(ROWS)])}

    assert "request_id, if 3 of the rows did not lack it" in reasons(propose(invented.days(more)))["event_uuid"]


def test_a_list_view_is_told_how_to_be_written(invented: Any) -> None:
    def more(day: int, labels: np.ndarray) -> dict[str, Any]:
        return {"tags": pa.array([["a"], ["b"], []] * (ROWS // 3), pa.list_view(pa.string()))}

    assert "pa.list_ in place of pa.list_view" in reasons(propose(invented.days(more)))["tags"]


def test_small_numbers_with_a_long_tail_are_bent_by_a_root(invented: Any) -> None:
    """Chances that another model gave: log1p bends nothing below 1."""

    def more(day: int, labels: np.ndarray) -> dict[str, Any]:
        logits = np.random.default_rng(day).normal(-5, 2, ROWS)
        return {"chance": 1 / (1 + np.exp(-logits)), "share": np.random.default_rng(day).random(ROWS)}

    dense = {entry.settings["name"]: entry.settings for entry in propose(invented.days(more)).dense}
    assert (dense["chance"]["transform"], dense["chance"]["exponent"]) == ("power", 0.25)
    assert "transform" not in dense["share"]


def test_a_column_that_some_days_lack_is_left_out_and_a_new_one_is_not(invented: Any) -> None:
    def more(day: int, labels: np.ndarray) -> dict[str, Any]:
        word = pa.array(["a", "b", "c"] * (ROWS // 3))
        return {"ends": word if day == 0 else pa.nulls(ROWS), "begins": word if day else pa.nulls(ROWS)}

    found = propose(invented.days(more))
    reason = reasons(found)["ends"]
    assert reason.startswith("no value in any row of 2026-01-02 and 1 more, after days that had some")
    assert "begins" in {entry.settings["name"] for entry in found.sparse}


@pytest.mark.parametrize(
    ("rows", "settings"),
    [(300, {"judged_on": "next", "min_rows": 150}), (6_000, {"judged_on": "next"}), (21_000, None)],
)
def test_small_increments_are_judged_as_a_whole(invented: Any, rows: int, settings: dict[str, Any] | None) -> None:
    """A slice of 5 % of them never has the rows that judging takes, and no version would ever be promoted."""
    invented.write(pa.table(invented.columns()).take(np.arange(rows) % 300))
    proposal = propose(invented.path)
    assert (proposal.gate and proposal.gate.settings) == settings
    run = tomllib.loads(run_text(proposal, "x/schema.toml"))
    assert run.get("gate") == settings
    Gate.model_validate(settings or {})


def test_a_wide_table_fits_a_terminal(invented: Any) -> None:
    def more(day: int, labels: np.ndarray) -> dict[str, Any]:
        numbers = {f"n{i}": np.random.default_rng(i).normal(size=ROWS) for i in range(70)}
        return numbers | {f"constant{i}": np.ones(ROWS) for i in range(9)}

    told = propose(invented.days(more, days=1)).table()
    assert len(told.splitlines()) < 60
    assert "and 31 more, in schema.toml" in told
    assert "8 more, as constant1, constant2, constant3" in told
