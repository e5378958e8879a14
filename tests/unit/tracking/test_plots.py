from __future__ import annotations

import struct

import numpy as np
import pytest

from diurnal.tracking.plots import calibration_png, days_png, lift_png


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n")
    return struct.unpack(">II", png[16:24])


@pytest.mark.parametrize("prediction", [[0.001, 0.02, 0.4], [0.4, 0.5, 0.6], [0.0, 0.5, 1.0], [0.3], []])
def test_a_calibration_plot_is_a_png(prediction: list[float]) -> None:
    values = np.array(prediction)
    png = calibration_png(values, values * 0.9, np.full(len(values), 50.0), title="2026-01-02")
    assert size_of(png) == (500, 500)


@pytest.mark.parametrize("rate", [[0.1, 0.2, 0.6], [0.0, 0.0, 0.0], [1.0, 1.0], [0.3], []])
def test_a_lift_plot_is_a_png(rate: list[float]) -> None:
    """Also of a day of one class, of one group alone, and of nothing."""
    weight = np.linspace(50, 60, len(rate))
    assert size_of(lift_png(np.arange(len(rate)) / 10, np.array(rate), weight, title="2026-01-02")) == (1000, 450)


def test_a_plot_of_days_leaves_out_what_is_undefined() -> None:
    days = [f"2026-01-{day:02d}" for day in range(1, 20)]
    curves = {"DLRM": [0.8, None] * 9 + [0.7], "running click rate": [None] * 19}
    assert size_of(days_png(days, curves, title="ctr")) == (900, 400)
