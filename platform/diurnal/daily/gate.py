"""Which version is promoted: a pure function of two models' sums on the same rows, and of how the tables look.

Every number has a one-sided interval at each end, of `gate.confidence` each. Noise is neither promoted nor held:

    number                        certainly fine               either                     certainly wrong
    NE above the champion's       whole interval <= limit      undecided                  whole interval above: hold
    calibration, all rows         whole interval in the band   undecided                  whole interval outside: hold
    calibration, a segment        value in the band: pass      value outside: undecided   whole interval outside: hold
    NE below 1 (no champion)      whole interval below         undecided                  undecided

A segment only guards: a promotion says nothing about it beyond its value being in the band, and all segments together
share one chance of a false alarm (Bonferroni). Without a champion a version that is no better than the click rate, or
off in its calibration, is undecided and not held, because it may just have learned too little, and a hold would make
every next day start anew.

    rows < min_rows, one class                           undecided, and no number is judged
    segment with few positives                           not judged
    rows with a logit that is not finite                 hold, and no number is judged
    weight or state not finite, or above max_weight      hold
    dead rows above max_dead_rows                        hold
    norm above max_norm_growth times the parent's        hold; not judged without a parent
    champion with a logit that is not finite             judged as if there were no champion

Of all checks the worst counts: hold, undecided, promote.

Intervals are delete-one-block jackknife intervals with Student's t at one degree of freedom less than there are blocks
(Kott, "The Delete-a-Group Jackknife", Journal of Official Statistics 17, 2001). They need neither independent rows nor
random numbers, only blocks that are about independent, and hold for ratios. A bootstrap of some 30 blocks would be
somewhat too narrow, having no such correction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from diurnal.config.daily import Gate
from diurnal.metrics.evidence import COLUMNS, Evidence
from diurnal.metrics.health import TableHealth
from diurnal.metrics.report import binary_entropy

Outcome = Literal["hold", "undecided", "pass", "not judged"]
_SEVERITY: dict[str, int] = {"hold": 0, "undecided": 1, "pass": 2, "not judged": 3}


@dataclass(frozen=True)
class Check:
    """One question, with the answer."""

    name: str
    value: float | None
    low: float | None
    """Ends of the interval; None where there is none."""
    high: float | None
    limit: tuple[float | None, float | None]
    """Lowest and highest that is allowed."""
    outcome: Outcome
    text: str
    """A sentence for a person, with the numbers."""


@dataclass(frozen=True)
class _Judged:
    reason: str
    """One line for a person, with the numbers."""
    checks: tuple[Check, ...]
    """All of them, the worst first."""
    kind: ClassVar[Literal["promote", "hold", "undecided"]]

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.kind, "reason": self.reason, "checks": [asdict(check) for check in self.checks]}


@dataclass(frozen=True)
class Promote(_Judged):
    """Good enough for certain."""

    kind = "promote"


@dataclass(frozen=True)
class Hold(_Judged):
    """Wrong for certain."""

    kind = "hold"


@dataclass(frozen=True)
class Undecided(_Judged):
    """May be either, or cannot be judged."""

    kind = "undecided"


Verdict = Promote | Hold | Undecided


def judge(
    champion: Evidence | None,
    challenger: Evidence,
    tables: Sequence[TableHealth],
    parent_tables: Sequence[TableHealth],
    gate: Gate,
) -> Verdict:
    """The verdict on a challenger; the same arguments always get the same one.

    Args:
        champion: what it did with the very rows that the challenger was scored on; None for the first version.
        tables: health of the challenger's tables.
        parent_tables: the same of the version it goes on from; empty without one.

    Raises:
        ValueError: when both were not scored on the same rows.
    """
    if champion is not None:
        champion.check_same_rows(challenger, "champion", "challenger")
    checks = [_finite_rows(challenger), *_values(tables, gate)]
    if not challenger.nonfinite_rows:
        checks += _quality(champion, challenger, gate)
    checks += [*_dead(tables, gate), *_growth(tables, parent_tables, gate)]
    checks.sort(key=lambda check: _SEVERITY[check.outcome])
    doubts = "; ".join(check.text for check in checks if check.outcome in ("hold", "undecided"))
    if checks[0].outcome == "hold":
        return Hold(doubts, tuple(checks))
    if checks[0].outcome == "undecided":
        return Undecided(doubts, tuple(checks))
    shown = [check.text for check in checks if check.name in ("ne_rise", "ne", "calibration")]
    return Promote("; ".join(shown), tuple(checks))


def jackknife(
    blocks: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], confidence: float
) -> tuple[float, float, float]:
    """A number, and the ends of its one-sided intervals; infinite ends where blocks cannot tell.

    With t the statistic without each of the J blocks that are not empty, its variance is
    (J - 1) / J * sum((t - mean(t)) ** 2), on J - 1 degrees of freedom.

    Args:
        blocks: (J, columns) sums per block.
        statistic: from (K, columns) sums to (K,) numbers.
        confidence: of each end, as 0.95.
    """
    blocks = blocks[np.any(blocks != 0, axis=1)]
    total = blocks.sum(axis=0, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(total)[0])
        without = statistic(total - blocks)
    num_blocks = len(blocks)
    if num_blocks < 2 or not (math.isfinite(value) and np.isfinite(without).all()):
        return value, -math.inf, math.inf
    error = math.sqrt((num_blocks - 1) / num_blocks * float(((without - without.mean()) ** 2).sum()))
    reach = t_quantile(confidence, num_blocks - 1) * error
    return value, value - reach, value + reach


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t for a probability of 1/2 to 1 and whole degrees of freedom, by bisection.

    The distribution is a finite sum (Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4).
    """
    assert 0.5 <= probability < 1, probability
    assert freedom >= 1, freedom
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + _t_within(middle, freedom)) / 2 < probability else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _t_within(angle: float, freedom: int) -> float:
    """Probability of |t| < sqrt(freedom) * tan(angle)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for k in range(1, freedom // 2):
        term *= cosine**2 * (2 * k / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
        total += term
    if odd:
        return 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
    return sine * total


def _quality(champion: Evidence | None, challenger: Evidence, gate: Gate) -> list[Check]:
    """NE and calibration, or why there are none; every row has a finite logit of the challenger."""
    rows, positives = challenger.rows, challenger.positives
    if rows < gate.min_rows:
        text = f"{rows} rows to judge on, at least {gate.min_rows} are needed"
        return [Check("rows", rows, None, None, (gate.min_rows, None), "undecided", text)]
    if challenger.ne is None:
        text = f"NE is undefined: {challenger.report().reason}"
        return [Check("classes", positives, None, None, (1, rows - 1), "undecided", text)]
    if champion is None or champion.nonfinite_rows:
        why = "there is no champion" if champion is None else "predictions of the champion are not finite"
        compared = _ne_below_1(challenger, gate, why)
    else:
        compared = _ne_rise(champion, challenger, gate)
    checks = [compared, _calibration(challenger, gate), *_segments(challenger, gate)]
    if champion is None:
        return [replace(check, outcome="undecided") if check.outcome == "hold" else check for check in checks]
    return checks


def _ne_rise(champion: Evidence, challenger: Evidence, gate: Gate) -> Check:
    """Paired: rows, and so the entropy of their labels, are common to both and taken as given; only losses vary.

    The entropy's own error would change the rise by a share of the rise, which is little beside its scatter.
    """
    total = challenger.sums[0].sum(axis=0)
    entropy = float(_entropy(total[None])[0])
    added = challenger.column("log_loss") - champion.column("log_loss")
    blocks = np.stack([added, challenger.column("weight")], axis=1)
    value, low, high = jackknife(blocks, lambda sums: sums[:, 0] / sums[:, 1] / entropy, gate.confidence)
    limit = gate.max_ne_rise
    outcome = "hold" if low > limit else "pass" if high <= limit else "undecided"
    text = (
        f"NE {challenger.ne:.5f} is {value:+.5f} from the champion's {champion.ne:.5f} "
        f"({low:+.5f} to {high:+.5f}; at most {limit:+g})"
    )
    return Check("ne_rise", value, _number(low), _number(high), (None, limit), outcome, text)


def _ne_below_1(challenger: Evidence, gate: Gate, why: str) -> Check:
    value, low, high = jackknife(challenger.sums[0], _ne, gate.confidence)
    outcome = "pass" if high < 1 else "undecided"
    better = "better than the click rate" if outcome == "pass" else "not certainly better than the click rate"
    text = f"NE {value:.5f} ({low:.5f} to {high:.5f}) is {better}; {why}"
    return Check("ne", value, _number(low), _number(high), (None, 1.0), outcome, text)


def _calibration(challenger: Evidence, gate: Gate) -> Check:
    value, low, high = _calibration_interval(challenger, 0, gate.confidence)
    lowest, highest = gate.calibration
    is_inside, is_outside = lowest <= low and high <= highest, low > highest or high < lowest
    outcome = "hold" if is_outside else "pass" if is_inside else "undecided"
    text = f"calibration {value:.3f} ({low:.3f} to {high:.3f}; from {lowest:g} to {highest:g})"
    return Check("calibration", value, _number(low), _number(high), gate.calibration, outcome, text)


def _segments(challenger: Evidence, gate: Gate) -> list[Check]:
    lowest, highest = gate.segment_calibration
    enough = [
        int(positives) >= gate.min_segment_positives for positives in challenger.sums[:, :, _POSITIVES].sum(axis=1)
    ]
    confidence = 1 - (1 - gate.confidence) / max(1, sum(enough[1:]))
    checks = []
    for segment, name in enumerate(challenger.segments[1:], start=1):
        title = f"calibration of {name}"
        if not enough[segment]:
            text = f"{title} is not judged: fewer than {gate.min_segment_positives} positive rows"
            checks.append(Check(title, None, None, None, gate.segment_calibration, "not judged", text))
            continue
        value, low, high = _calibration_interval(challenger, segment, confidence)
        is_inside, is_outside = lowest <= value <= highest, low > highest or high < lowest
        outcome = "hold" if is_outside else "pass" if is_inside else "undecided"
        text = f"{title} {value:.3f} ({low:.3f} to {high:.3f}; from {lowest:g} to {highest:g})"
        checks.append(Check(title, value, _number(low), _number(high), gate.segment_calibration, outcome, text))
    return checks


def _calibration_interval(evidence: Evidence, segment: int, confidence: float) -> tuple[float, float, float]:
    """Of the logarithm, whose scatter is about as far up as down, which matters with few clicks."""
    value, low, high = jackknife(evidence.sums[segment], _log_calibration, confidence)
    return _exp(value), _exp(low), _exp(high)


def _finite_rows(challenger: Evidence) -> Check:
    number = challenger.nonfinite_rows
    text = f"{number} rows have a prediction that is not finite" if number else "all predictions are finite"
    return Check("nonfinite_rows", number, None, None, (None, 0), "hold" if number else "pass", text)


def _values(tables: Sequence[TableHealth], gate: Gate) -> list[Check]:
    checks = []
    for table in tables:
        is_broken, is_large = table.nonfinite > 0, not table.max_abs <= gate.max_weight
        text = f"{table.name}: {table.nonfinite} values are not finite" if is_broken else f"{table.name}: all finite"
        name, outcome = f"nonfinite of {table.name}", "hold" if is_broken else "pass"
        checks.append(Check(name, table.nonfinite, None, None, (None, 0), outcome, text))
        text = f"{table.name}: largest value {table.max_abs:g} (at most {gate.max_weight:g})"
        name, outcome = f"max_abs of {table.name}", "hold" if is_large else "pass"
        checks.append(Check(name, _number(table.max_abs), None, None, (None, gate.max_weight), outcome, text))
    return checks


def _dead(tables: Sequence[TableHealth], gate: Gate) -> list[Check]:
    checks = []
    for table in (table for table in tables if table.learned_rows):
        share = table.dead_rows / table.learned_rows
        text = f"{table.name}: {share:.1%} of the learned rows are zero (at most {gate.max_dead_rows:.1%})"
        outcome = "hold" if share > gate.max_dead_rows else "pass"
        checks.append(Check(f"dead rows of {table.name}", share, None, None, (None, gate.max_dead_rows), outcome, text))
    return checks


def _growth(tables: Sequence[TableHealth], parent_tables: Sequence[TableHealth], gate: Gate) -> list[Check]:
    before = {table.name: table.rms_learned for table in parent_tables if table.learned_rows and table.rms_learned > 0}
    checks = []
    for table in (table for table in tables if table.learned_rows and table.name in before):
        growth = table.rms_learned / before[table.name]
        text = f"{table.name}: norm is {growth:.2f} times its parent's (at most {gate.max_norm_growth:g})"
        outcome = "pass" if growth <= gate.max_norm_growth else "hold"
        checks.append(
            Check(f"norm of {table.name}", _number(growth), None, None, (None, gate.max_norm_growth), outcome, text)
        )
    return checks


_POSITIVES, _WEIGHT, _POSITIVE_WEIGHT, _PREDICTION, _LOG_LOSS = (
    COLUMNS.index(name) for name in ("positives", "weight", "positive_weight", "prediction", "log_loss")
)


def _ne(sums: np.ndarray) -> np.ndarray:
    return sums[:, _LOG_LOSS] / sums[:, _WEIGHT] / _entropy(sums)


def _entropy(sums: np.ndarray) -> np.ndarray:
    positive, weight = sums[:, _POSITIVE_WEIGHT], sums[:, _WEIGHT]
    return np.array([binary_entropy(p, n) for p, n in zip(positive, weight - positive, strict=True)])


def _log_calibration(sums: np.ndarray) -> np.ndarray:
    """No prediction at all is a calibration next to 0, not one that is undefined."""
    return np.log(np.maximum(sums[:, _PREDICTION], 1e-300) / sums[:, _POSITIVE_WEIGHT])


def _exp(number: float) -> float:
    return math.exp(number) if number < 700 else math.inf


def _number(number: float) -> float | None:
    """JSON has neither nan nor infinity."""
    return number if math.isfinite(number) else None
