from __future__ import annotations

import struct

import numpy as np
import pytest

from diurnal.tracking.plots import calibration_png


@pytest.mark.parametrize("prediction", [[0.001, 0.02, 0.4], [0.4, 0.5, 0.6], [0.0, 0.5, 1.0], [0.3], []])
def test_a_calibration_plot_is_a_png(prediction: list[float]) -> None:
    values = np.array(prediction)
    png = calibration_png(values, values * 0.9, np.full(len(values), 50.0), title="2026-01-02")
    assert png.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">II", png[16:24]) == (500, 500)
