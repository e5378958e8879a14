"""Columns that are known only after the outcome are not used, and the label is told apart or asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from diurnal.data.guess.fields import merge_fields
from diurnal.data.guess.label import Wish
from diurnal.data.guess.leaks import _auc, association
from diurnal.data.guess.propose import propose
from diurnal.data.guess.values import Values
from diurnal.errors import DataError
from diurnal.metrics.exact import exact_auc


def outcome_columns(day: int, labels: np.ndarray) -> dict[str, Any]:
    rng = np.random.default_rng(day + 100)
    rows = len(labels)
    is_hit = labels.astype(bool)
    return {
        "dwell_time": pa.array(rng.lognormal(2, 1, rows), mask=~is_hit),
        "revenue": pa.array(np.where(is_hit & (rng.random(rows) < 0.5), rng.lognormal(1, 1, rows), 0.0)),
        "state": pa.array(np.where(is_hit, rng.choice(["won", "paid"], rows), rng.choice(["lost", "gone"], rows))),
        "coupon": pa.array(["c7" if hit and rng.random() < 0.4 else None for hit in is_hit]),
        "copy": pa.array(labels * 3 - 1),
        "inverse": pa.array(1.0 - labels),
        "time_on_page": pa.array(rng.normal(size=rows) + 8 * labels),
        "code": pa.array((labels * 50 + rng.integers(0, 50, rows)) * 37 % 101),
        "landing_tags": pa.array([["thanks", "x"] if hit else ["x"] for hit in is_hit]),
    }


def honest_columns(day: int, labels: np.ndarray) -> dict[str, Any]:
    rng = np.random.default_rng(day + 200)
    rows = len(labels)
    return {
        "score": pa.array(rng.normal(size=rows) + 2.0 * labels),  # strong, AUC 0.92, but no proof
        "rare": pa.array(["r"] * rows, mask=rng.random(rows) >= 0.02),
        "num_past_clicks": pa.array(rng.poisson(0.1 + labels)),
    }


def test_what_tells_the_label_is_left_out_with_the_measured_number(invented: Any) -> None:
    path = invented.days(lambda day, labels: outcome_columns(day, labels) | honest_columns(day, labels))
    proposal = propose(path)
    leaks = {out.column: out.reason for out in proposal.left_out if out.is_leak}
    assert set(leaks) == set(outcome_columns(0, np.zeros(3, np.int8)))
    assert "whether it has a value tells the label with AUC 1.000" in leaks["dwell_time"]
    assert "rows with a value that is not 0 have label 1" in leaks["revenue"]
    assert "share of positives that its value has on other days tells the label with AUC 1.000" in leaks["state"]
    assert "rows with a value have label 1" in leaks["coupon"]
    assert "the number tells the label with AUC" in leaks["time_on_page"]
    assert {out.column for out in proposal.left_out} == set(leaks)


def test_what_no_positive_lacks_is_doubted(invented: Any) -> None:
    """A conversion comes after a click: what only clicks have is no proof, and no input either."""

    def more(day: int, labels: np.ndarray) -> dict[str, Any]:
        bought = labels * (np.arange(300) % 4 == 0)
        return {"bought": bought, "dwell": pa.array(np.arange(300.0) % 17, mask=labels == 0)}

    proposal = propose(invented.days(more), wish=Wish("bought"))
    assert "perhaps a label" in next(out.reason for out in proposal.left_out if out.column == "clicked")
    (note,) = proposal.notes
    assert note.startswith("dwell: none of the")
    assert "rows with no value has label 1" in note


def test_one_day_is_measured_on_other_rows(invented: Any) -> None:
    proposal = propose(invented.days(outcome_columns, days=1))
    leaks = {out.column: out.reason for out in proposal.left_out if out.is_leak}
    assert set(leaks) == set(outcome_columns(0, np.zeros(3, np.int8)))
    assert "on other rows" in leaks["state"]


def test_ids_that_occur_once_are_not_taken_for_a_leak() -> None:
    """Their own row's label would tell them; the rows of other days do not."""
    rng = np.random.default_rng(0)
    labels = rng.random(2000) < 0.3
    (field,) = merge_fields([pa.schema([("x", pa.int64())])])
    no = np.zeros(2000, bool)
    values = Values(field, no, no, np.arange(2000), np.arange(2000), np.arange(2000), np.ones(2000, np.int64))
    found = association(values, labels, np.repeat([0, 1], 1000))
    assert found is not None
    assert not found.is_leak
    assert found.auc < 0.6
    assert association(values, np.arange(2000) < 9, np.repeat([0, 1], 1000)) is None


def test_auc_is_that_of_the_metrics() -> None:
    rng = np.random.default_rng(3)
    labels = rng.random(500) < 0.2
    scores = np.round(rng.normal(size=500) + labels, 1)
    twin = np.mean([(p > n) + (p == n) / 2 for p in scores[labels] for n in scores[~labels]])
    assert _auc(scores, labels) == pytest.approx(twin, abs=1e-12)
    assert exact_auc(scores, labels.astype(np.float64)) == pytest.approx(twin, abs=1e-9)


def test_the_best_named_label_is_taken_and_the_others_are_listed(invented: Any) -> None:
    def more(day: int, labels: np.ndarray) -> dict[str, Any]:
        bought = labels * (np.arange(300) % 3 == 0)
        return {"is_mobile": np.arange(300) % 2 == 0, "purchased": bought, "prev_click": np.arange(300) % 2}

    proposal = propose(invented.days(more))
    assert proposal.label.column == "clicked"
    assert "perhaps a label" in next(out.reason for out in proposal.left_out if out.column == "purchased")
    assert {"is_mobile", "prev_click"} <= {entry.settings["name"] for entry in proposal.sparse}


@pytest.mark.parametrize(
    ("name", "positive", "negative", "declared"),
    [
        ("label", "yes", "no", {"positive": "yes", "negative": "no"}),
        ("Clicked", "True", "False", {"positive": "True", "negative": "False"}),
        ("y", 1, -1, {"positive": "1", "negative": "-1"}),
        ("target", True, False, {}),
        ("gekauft", 1.0, 0.0, {}),
    ],
)
def test_labels_are_spelled_in_many_ways(
    invented: Any, name: str, positive: object, negative: object, declared: dict[str, str]
) -> None:
    for day in range(2):
        columns = invented.columns(day)
        labels = columns.pop("clicked").to_numpy()
        invented.write(columns | {name: pa.array([positive if y else negative for y in labels])}, day)
    proposal = propose(invented.path)
    assert proposal.label.settings == {"column": name, **declared}
    assert proposal.label.rate == pytest.approx(0.25, abs=0.1)


def test_a_label_that_nobody_can_tell_is_asked_for(invented: Any) -> None:
    def more(day: int, labels: np.ndarray) -> dict[str, Any]:
        end = pa.array(np.where(labels, "won", "lost"))
        return {"ende": end, "premium": np.arange(300) % 2, "gekauft": labels, "stars": np.arange(300) % 5 + 1}

    for day in range(2):
        columns = invented.columns(day)
        labels = columns.pop("clicked").to_numpy()
        invented.write(columns | more(day, labels), day)
    with pytest.raises(DataError, match="2 columns of two classes, and no name that tells: premium, gekauft") as caught:
        propose(invented.path)
    assert "--label premium" in caught.value.faults[0].fix
    assert propose(invented.path, wish=Wish("gekauft")).label.settings == {"column": "gekauft"}
    with pytest.raises(DataError, match="--label ende --positive"):
        propose(invented.path, wish=Wish("ende"))
    spelled = propose(invented.path, wish=Wish("ende", positive="won")).label.settings
    assert spelled == {"column": "ende", "positive": "won", "negative": "lost"}
    assert propose(invented.path, wish=Wish("stars", at_least=4)).label.rate == pytest.approx(0.4)
    with pytest.raises(DataError, match="5 values, 1, 2, 3"):
        propose(invented.path, wish=Wish("stars"))
    with pytest.raises(DataError, match=r"did you mean gekauft\?"):
        propose(invented.path, wish=Wish("gekaufd"))


def test_a_label_that_cannot_be_learned_is_refused(invented: Any, tmp_path: Any) -> None:
    invented.write(invented.columns() | {"clicked": np.zeros(300)})
    with pytest.raises(DataError, match=r"label clicked\n  found: 0 in all 300 rows"):
        propose(invented.path)
    nulls = type(invented)(tmp_path / "nulls")
    nulls.write(nulls.columns() | {"clicked": pa.array([1, 0, None] * 100)})
    with pytest.raises(DataError, match="no value in 100 of 300 rows"):
        propose(nulls.path)
    missing = type(invented)(tmp_path / "missing")
    missing.days(days=2)
    columns = missing.columns()
    del columns["clicked"]
    missing.write(columns, day=2)
    with pytest.raises(DataError, match="missing in 1 of 3 files"):
        propose(missing.path)
    none = type(invented)(tmp_path / "none")
    none.write({"a": np.arange(300) % 7, "b": np.arange(300.0)})
    with pytest.raises(DataError, match="none of 2 columns has two values"):
        propose(none.path)


def test_with_hardly_a_positive_leaks_are_said_not_to_be_measured(invented: Any) -> None:
    labels = (np.arange(300) == 7).astype(np.int8)
    invented.write(invented.columns() | {"clicked": labels, "after": pa.array([None] * 7 + [1.5] + [None] * 292)})
    proposal = propose(invented.path)
    assert not [out for out in proposal.left_out if out.is_leak]
    assert "too few of one kind" in proposal.notes[0]
