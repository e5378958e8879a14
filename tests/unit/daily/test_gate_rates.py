"""How often noise is promoted or held, over simulated logged days whose rows depend on each other."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from diurnal.config.daily import Gate
from diurnal.daily.gate import judge
from diurnal.metrics.blocks import num_blocks
from diurnal.metrics.evidence import Evidence
from diurnal.metrics.report import binary_entropy

ROWS, SESSION, HOURS = 8_000, 8, 64
CENTER, VERDICTS = -1.0, 600
CHAMPION_NOISE = 0.3
GATE = Gate()
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def log_loss(logits: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """Of each row, or expected of it when `chances` are no labels."""
    return np.logaddexp(0, logits) - chances * logits


def expected_ne(noise: float) -> float:
    """Of a model whose logits are the true ones plus noise, by Gauss-Hermite quadrature."""
    truth = CENTER + NODES[:, None]
    chances = 1 / (1 + np.exp(-truth))
    rate = float(WEIGHTS @ chances[:, 0])
    losses = log_loss(truth + noise * NODES, chances)
    return float(WEIGHTS @ losses @ WEIGHTS) / binary_entropy(rate, 1 - rate)


def noise_for(rise: float) -> float:
    """The noise that makes a model worse than the champion by `rise` in NE."""
    low, high = 0.0, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_ne(middle) - expected_ne(CHAMPION_NOISE) < rise else (low, middle)
    return low


def correlated(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Standard normal numbers; rows of one hour share a little, rows of one session a lot."""
    hour = rng.normal(size=HOURS).repeat(-(-rows // HOURS))[:rows]
    session = rng.normal(size=-(-rows // SESSION)).repeat(SESSION)[:rows]
    return math.sqrt(0.02) * hour + math.sqrt(0.4) * session + math.sqrt(0.58) * rng.normal(size=rows)


def scored(logits: np.ndarray, labels: np.ndarray) -> Evidence:
    blocks = num_blocks(len(labels))
    starts = -(-np.arange(blocks) * len(labels) // blocks)
    ones = np.ones(len(labels))
    columns = [ones, labels, ones, labels, 1 / (1 + np.exp(-logits)), log_loss(logits, labels), 0 * ones]
    return Evidence(len(labels), ("all",), np.add.reduceat(np.stack(columns, axis=1), starts)[None])


def rates(rise: float, rows: int = ROWS, verdicts: int = VERDICTS, seed: int = 0) -> dict[str, float]:
    rng, noise = np.random.default_rng([seed, rows]), noise_for(rise)
    counts: Counter[str] = Counter()
    for _ in range(verdicts):
        truth = CENTER + correlated(rng, rows)
        labels = (rng.random(rows) < 1 / (1 + np.exp(-truth))).astype(np.float64)
        champion = scored(truth + CHAMPION_NOISE * correlated(rng, rows), labels)
        challenger = scored(truth + noise * correlated(rng, rows), labels)
        counts[judge(champion, challenger, [], [], GATE).kind] += 1
    return {kind: counts[kind] / verdicts for kind in ("promote", "hold", "undecided")}


def at_most(declared: float, verdicts: int = VERDICTS) -> float:
    """The declared rate and three standard deviations of counting."""
    return declared + 3 * math.sqrt(declared * (1 - declared) / verdicts)


@pytest.mark.parametrize(
    ("rise", "wrong"),
    [
        (0.0, ("hold",)),
        (-0.01, ("hold",)),
        (2 * GATE.max_ne_rise, ("promote",)),
        (GATE.max_ne_rise, ("promote", "hold")),
    ],
    ids=["equal", "better", "worse", "at the limit"],
)
def test_noise_is_promoted_and_held_no_more_often_than_declared(rise: float, wrong: tuple[str, ...]) -> None:
    found = rates(rise)
    for kind in wrong:
        assert found[kind] <= at_most(1 - GATE.confidence), found


def test_what_is_clear_is_decided() -> None:
    """Intervals as wide as a barn door would pass the test above."""
    assert rates(-0.02, verdicts=100)["promote"] > 0.9
    assert rates(0.03, verdicts=100)["hold"] > 0.9
