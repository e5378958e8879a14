"""The truth table of the gate, and what must hold for any evidence."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diurnal.config.daily import Gate
from diurnal.daily.gate import Hold, Promote, Undecided, Verdict, judge, t_quantile
from diurnal.metrics.evidence import COLUMNS, Evidence
from diurnal.metrics.health import TableHealth

BUSY_MACHINE = settings(deadline=None)
BLOCKS, BLOCK_ROWS, BLOCK_CLICKS = 20, 200, 50
ENTROPY = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
TABLE = TableHealth("user", rows=100, learned_rows=50, dead_rows=1, nonfinite=0, max_abs=3.0, rms_learned=0.1)
GATE = Gate()


def evidence(
    ne: float = 0.9,
    scatter: float = 0.0,
    calibration: float = 1.0,
    spread: float = 0.0,
    segments: tuple[dict[str, float], ...] = (),
) -> Evidence:
    """20 blocks of 200 rows with 50 clicks; NE and calibration alternate by `scatter` and `spread` from block to block.

    A segment has the same, of `clicks` a block.
    """
    sign = np.resize([-1.0, 1.0], BLOCKS)
    parts = []
    for part in ({"ne": ne, "calibration": calibration, "spread": spread}, *segments):
        clicks = np.full(BLOCKS, part.get("clicks", BLOCK_CLICKS))
        rows = 4 * clicks
        predicted = clicks * (part.get("calibration", 1.0) + sign * part.get("spread", 0.0))
        losses = rows * ENTROPY * (part.get("ne", 0.9) + sign * scatter)
        parts.append(np.stack([rows, clicks, rows, clicks, predicted, losses, 0 * rows], axis=1))
    names = ("all", *(f"s{i}" for i in range(1, len(parts))))
    return Evidence(BLOCKS * BLOCK_ROWS, names, np.array(parts, dtype=np.float64))


def with_column(found: Evidence, column: str, values: float | np.ndarray) -> Evidence:
    sums = found.sums.copy()
    sums[0, :, COLUMNS.index(column)] = values
    return replace(found, sums=sums)


def verdict_of(champion: Evidence | None, challenger: Evidence, gate: Gate = GATE, **table: Any) -> Verdict:
    return judge(champion, challenger, [replace(TABLE, **table)], [TABLE], gate)


SURE, UNSURE = 0.0001, 0.02
"""Scatters of NE: the interval reaches 0.00004 or 0.008 to each side."""


@pytest.mark.parametrize(
    ("rise", "scatter", "expected"),
    [
        (-0.004, SURE, Promote),
        (0.0, SURE, Promote),
        (0.0019, SURE, Promote),
        (0.00201, SURE, Undecided),
        (0.00199, SURE, Undecided),
        (0.0021, SURE, Hold),
        (0.05, SURE, Hold),
        (-0.05, UNSURE, Promote),
        (-0.004, UNSURE, Undecided),
        (0.0, UNSURE, Undecided),
        (0.008, UNSURE, Undecided),
        (0.05, UNSURE, Hold),
    ],
)
def test_ne_beside_the_champion(rise: float, scatter: float, expected: type) -> None:
    verdict = verdict_of(evidence(0.9), evidence(0.9 + rise, scatter))
    assert type(verdict) is expected
    assert f"{rise:+.5f} from the champion's 0.90000" in verdict.reason
    check = next(check for check in verdict.checks if check.name == "ne_rise")
    assert check.value == pytest.approx(rise)
    assert check.low is not None
    assert check.high is not None
    assert check.low < rise < check.high


@pytest.mark.parametrize(
    ("calibration", "spread", "expected"),
    [
        (1.0, 0.01, Promote),
        (0.85, 0.01, Promote),
        (1.2, 0.01, Promote),
        (1.0, 0.9, Undecided),  # in the band, but not certainly
        (1.24, 0.1, Undecided),
        (1.26, 0.1, Undecided),
        (0.79, 0.1, Undecided),
        (0.5, 0.01, Hold),
        (1.5, 0.01, Hold),
        (0.0, 0.0, Hold),
    ],
)
def test_calibration_over_all_rows(calibration: float, spread: float, expected: type) -> None:
    verdict = verdict_of(evidence(), evidence(calibration=calibration, spread=spread))
    assert type(verdict) is expected
    assert f"calibration {calibration:.3f}" in verdict.reason


@pytest.mark.parametrize(
    ("segment", "expected", "outcome"),
    [
        ({"calibration": 1.0, "spread": 0.1}, Promote, "pass"),
        ({"calibration": 1.9, "spread": 1.5}, Promote, "pass"),  # in the band, if not certainly: it only guards
        ({"calibration": 2.05, "spread": 1.0}, Undecided, "undecided"),
        ({"calibration": 0.49, "spread": 0.2}, Undecided, "undecided"),
        ({"calibration": 3.0, "spread": 0.1}, Hold, "hold"),
        ({"calibration": 0.2, "spread": 0.01}, Hold, "hold"),
        ({"calibration": 9.0, "clicks": 2}, Promote, "not judged"),
        ({"calibration": 0.0, "clicks": 0}, Promote, "not judged"),
    ],
)
def test_calibration_of_a_segment(segment: dict[str, float], expected: type, outcome: str) -> None:
    both = ({"calibration": 1.0}, segment)
    verdict = verdict_of(evidence(segments=both), evidence(segments=both))
    assert type(verdict) is expected
    assert next(check for check in verdict.checks if check.name == "calibration of s2").outcome == outcome
    assert ("s2" in verdict.reason) == (expected is not Promote)


def test_the_more_segments_the_surer_each_has_to_be() -> None:
    odd = {"calibration": 2.14, "spread": 0.34}
    alone, among = ((odd,), (odd, *[{"calibration": 1.0}] * 49))
    assert isinstance(verdict_of(evidence(segments=alone), evidence(segments=alone)), Hold)
    assert isinstance(verdict_of(evidence(segments=among), evidence(segments=among)), Undecided)
    unjudged = (odd, *[{"clicks": 1.0}] * 49)
    assert isinstance(verdict_of(evidence(segments=unjudged), evidence(segments=unjudged)), Hold)


@pytest.mark.parametrize(
    ("ne", "scatter", "expected"),
    [(0.9, 0.01, Promote), (0.999, 0.02, Undecided), (1.001, 0.02, Undecided), (1.5, 0.01, Undecided)],
)
def test_the_first_version_has_to_beat_the_click_rate(ne: float, scatter: float, expected: type) -> None:
    verdict = judge(None, evidence(ne, scatter), [TABLE], [], GATE)
    assert type(verdict) is expected
    assert "click rate; there is no champion" in verdict.reason


def test_a_first_version_that_is_off_has_learned_too_little() -> None:
    """Held, it would be left behind, and the next hour, as short, would start anew for ever."""
    off = {"calibration": 7.7, "spread": 0.1}
    verdict = judge(None, evidence(1.9, 0.01, calibration=7.7, spread=0.1, segments=(off,)), [TABLE], [], GATE)
    assert isinstance(verdict, Undecided)
    assert "calibration 7.7" in verdict.reason
    assert isinstance(verdict_of(evidence(), evidence(calibration=7.7, spread=0.1)), Hold)


def test_a_champion_without_finite_predictions_is_no_measure() -> None:
    broken = with_column(evidence(0.5), "nonfinite_rows", 1.0)
    verdict = verdict_of(broken, evidence(0.9))
    assert isinstance(verdict, Promote)
    assert "predictions of the champion are not finite" in verdict.reason
    assert isinstance(verdict_of(broken, broken), Hold)


@pytest.mark.parametrize(
    ("table", "expected", "reason"),
    [
        ({"max_abs": 1e4}, Promote, None),
        ({"max_abs": 1.1e4}, Hold, "user: largest value 11000 (at most 10000)"),
        ({"max_abs": math.nan}, Hold, "user: largest value nan"),
        ({"nonfinite": 1}, Hold, "user: 1 values are not finite"),
        ({"dead_rows": 25}, Promote, None),
        ({"dead_rows": 26}, Hold, "user: 52.0% of the learned rows are zero (at most 50.0%)"),
        ({"learned_rows": 0, "dead_rows": 0, "rms_learned": 0.0}, Promote, None),
        ({"rms_learned": 0.29}, Promote, None),
        ({"rms_learned": 0.31}, Hold, "user: norm is 3.10 times its parent's (at most 3)"),
        ({"rms_learned": math.nan}, Hold, "user: norm is nan times"),
        ({"name": "new", "rms_learned": 9.0}, Promote, None),
    ],
)
def test_tables(table: dict[str, Any], expected: type, reason: str | None) -> None:
    verdict = verdict_of(evidence(), evidence(), **table)
    assert type(verdict) is expected
    if reason:
        assert reason in verdict.reason


@pytest.mark.parametrize(("clicks", "reason"), [(0, "label 0"), (BLOCK_ROWS, "label 1")])
def test_one_class_is_undecided_and_never_a_number(clicks: int, reason: str) -> None:
    found = evidence()
    for column in ("positives", "positive_weight"):
        found = with_column(found, column, clicks)
    for champion in (found, None):
        verdict = verdict_of(champion, found)
        assert isinstance(verdict, Undecided)
        assert reason in verdict.reason
        assert not [check for check in verdict.checks if check.name in ("ne", "ne_rise", "calibration")]


def test_few_rows_are_undecided_and_still_held_for_what_needs_no_row() -> None:
    nothing = Evidence(0, ("all",), np.zeros((1, 1, len(COLUMNS))))
    bad = evidence(5.0)
    assert verdict_of(nothing, nothing).reason == "0 rows to judge on, at least 1000 are needed"
    assert isinstance(verdict_of(None, nothing, Gate(min_rows=1)), Undecided)
    gate = Gate(min_rows=BLOCKS * BLOCK_ROWS + 1)
    assert isinstance(verdict_of(evidence(), bad, gate), Undecided)
    assert isinstance(verdict_of(evidence(), bad, Gate(min_rows=BLOCKS * BLOCK_ROWS)), Hold)
    assert isinstance(verdict_of(evidence(), evidence(), gate, nonfinite=2), Hold)


def test_one_block_is_never_certain() -> None:
    one, two = (Evidence(4000, ("all",), e.sums.sum(axis=1, keepdims=True)) for e in (evidence(), evidence(2.0)))
    verdict = judge(one, two, [], [], GATE)
    assert isinstance(verdict, Undecided)
    assert {check.name: (check.low, check.high) for check in verdict.checks if check.outcome == "undecided"} == {
        "ne_rise": (None, None),
        "calibration": (0.0, None),
    }


def test_the_worst_counts_and_comes_first_and_all_are_told() -> None:
    challenger = evidence(0.95, SURE, calibration=1.26, spread=0.1)
    verdict = verdict_of(evidence(0.9), challenger, nonfinite=3, dead_rows=50, rms_learned=1.0)
    assert isinstance(verdict, Hold)
    words = ("3 values are not finite", "NE 0.95000", "are zero", "norm is", "calibration 1.260")
    positions = [verdict.reason.index(word) for word in words]
    assert positions == sorted(positions)
    outcomes = [check.outcome for check in verdict.checks]
    assert outcomes.count("hold") == 4
    assert outcomes == sorted(outcomes, key=["hold", "undecided", "pass", "not judged"].index)
    assert "\n" not in verdict.reason


def test_other_rows_cannot_be_compared() -> None:
    other = with_column(evidence(), "positives", BLOCK_CLICKS + 1)
    with pytest.raises(ValueError, match="champion and challenger were not scored on the same rows: positives"):
        verdict_of(evidence(), other)


def test_a_verdict_is_plain_json_even_where_numbers_are_not_finite() -> None:
    one = Evidence(4000, ("all",), evidence().sums.sum(axis=1, keepdims=True))
    for verdict in (judge(one, one, [], [], GATE), verdict_of(evidence(), evidence(), max_abs=math.nan)):
        found = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
        assert found["verdict"] == verdict.kind
        assert found["reason"] == verdict.reason
        assert len(found["checks"]) == len(verdict.checks)


def test_it_loads_without_torch() -> None:
    code = "import sys, diurnal.daily.gate; sys.exit('torch' in sys.modules or 'sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.95, 1, 6.313752),
        (0.95, 2, 2.919986),
        (0.975, 5, 2.570582),
        (0.95, 31, 1.695519),
        (0.999, 30, 3.385185),
        (0.9, 120, 1.288646),
    ],
)
def test_quantiles_are_those_of_printed_tables(probability: float, freedom: int, expected: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, abs=1e-6)
    assert t_quantile(0.5, freedom) == pytest.approx(0, abs=1e-12)


LOSSES = st.lists(st.floats(0.5, 1.5), min_size=BLOCKS, max_size=BLOCKS)


def with_losses(losses: list[float]) -> Evidence:
    return with_column(evidence(), "log_loss", np.array(losses) * BLOCK_ROWS * ENTROPY * 0.9)


@st.composite
def close_losses(draw: st.DrawFn) -> tuple[Evidence, Evidence]:
    """Two models whose verdict may be any of the three."""
    losses = np.array(draw(LOSSES))
    width = draw(st.sampled_from([0.0, 1e-4, 0.003, 0.03]))
    moved = np.array(draw(st.lists(st.floats(-1, 1), min_size=BLOCKS, max_size=BLOCKS)))
    rise = draw(st.floats(-0.01, 0.01))
    return with_losses(losses.tolist()), with_losses((losses + rise + width * moved).tolist())


@BUSY_MACHINE
@given(LOSSES, st.sampled_from([0.0, 0.002]))
def test_a_model_is_as_good_as_itself(losses: list[float], limit: float) -> None:
    same = with_losses(losses)
    assert isinstance(verdict_of(same, same, Gate(max_ne_rise=limit)), Promote)


@BUSY_MACHINE
@given(close_losses(), st.floats(0, 0.1))
def test_more_loss_on_every_row_is_never_a_better_verdict(pair: tuple[Evidence, Evidence], more: float) -> None:
    order = ["promote", "undecided", "hold"]
    champion, challenger = pair
    worse = with_column(challenger, "log_loss", challenger.column("log_loss") + more * BLOCK_ROWS)
    assert order.index(verdict_of(champion, worse).kind) >= order.index(verdict_of(champion, challenger).kind)


@BUSY_MACHINE
@given(close_losses(), st.lists(st.floats(0, 9), min_size=BLOCKS, max_size=BLOCKS))
def test_more_loss_anywhere_never_promotes_what_was_too_bad(pair: tuple[Evidence, Evidence], more: list[float]) -> None:
    """In some blocks alone it can make blocks more alike, and so a version more certain: but not a better one."""
    champion, challenger = pair
    worse = with_column(challenger, "log_loss", challenger.column("log_loss") + np.array(more))
    before, after = verdict_of(champion, challenger), verdict_of(champion, worse)
    rise = next(check.value for check in before.checks if check.name == "ne_rise")
    if isinstance(before, Hold) or (rise is not None and rise > GATE.max_ne_rise + 1e-12):
        assert not isinstance(after, Promote)


@BUSY_MACHINE
@given(close_losses(), st.sampled_from([2.0**-20, 0.5, 2.0, 2.0**20]), st.permutations(range(BLOCKS)))
def test_neither_the_scale_of_weights_nor_the_order_of_blocks_matters(
    pair: tuple[Evidence, Evidence], scale: float, order: list[int]
) -> None:
    factors = np.array([scale if name not in ("rows", "positives", "nonfinite_rows") else 1.0 for name in COLUMNS])
    expected = verdict_of(*pair)
    champion, challenger = (replace(e, sums=e.sums[:, order] * factors) for e in pair)
    found = verdict_of(champion, challenger)
    values = [
        {check.name: (check.value, check.low, check.high) for check in verdict.checks} for verdict in (expected, found)
    ]
    for name, numbers in values[0].items():
        for one, two in zip(numbers, values[1][name], strict=True):
            assert one == (two if two is None else pytest.approx(two, rel=1e-6, abs=1e-9))
    assert verdict_of(*pair) == expected
