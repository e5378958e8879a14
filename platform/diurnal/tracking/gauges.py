"""Numbers of this process for Prometheus, through Ray's metrics endpoint on its node."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from typing import Any

from diurnal.tracking.series import SERIES

_log = logging.getLogger(__name__)


class Gauges:
    """Tells Ray of gauges and counters. Never waits and never raises: without Ray, or when it fails, nothing is told.

    Ray forgets a gauge with each of its reports, so that one which is told once is gone after two of them (20 seconds):
    whoever does not tell it anew all the time calls `repeat`.

    Args:
        labels: of every series that this process tells of; values of `Series.tags` that a call does not give.
    """

    def __init__(self, **labels: str) -> None:
        self._labels = labels
        self._metrics: dict[str, Any] = {}
        self._last: dict[str, float] = {}
        self._is_broken = False

    def set(self, values: Mapping[str, float | None]) -> None:
        """Sets gauges, by metric. What is undefined is forgotten, so that an old number does not stand for it."""
        for metric, value in values.items():
            if value is None or math.isnan(value):
                self._last.pop(metric, None)
            else:
                self._last[metric] = float(value)
                self._record(metric, float(value), {})

    def repeat(self) -> None:
        """Tells every gauge again. May be called by another thread than `set`."""
        for metric, value in list(self._last.items()):
            self._record(metric, value, {})

    def add(self, metric: str, amount: float, **labels: str) -> None:
        """Adds to a counter; an amount of 0 is none."""
        if amount > 0:
            self._record(metric, float(amount), labels)

    def _record(self, metric: str, value: float, labels: Mapping[str, str]) -> None:
        if self._is_broken or not _has_ray():
            return
        try:
            told = self._metrics.get(metric) or self._made(metric)
            told.inc(value, labels) if SERIES[metric].is_counter else told.set(value, labels)
        except Exception as error:  # what people see is not worth the training
            self._is_broken = True
            _log.warning("no more metrics of this process: %s: %s", metric, error)

    def _made(self, metric: str) -> Any:
        from ray.util.metrics import Counter, Gauge

        series = SERIES[metric]
        made = (Counter if series.is_counter else Gauge)(series.name, series.text, series.tags)
        made.set_default_tags({tag: value for tag, value in self._labels.items() if tag in series.tags})
        self._metrics[metric] = made
        return made


def _has_ray() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()
