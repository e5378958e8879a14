"""Plots as PNG bytes, for a run's artifacts."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diurnal.metrics.across_days import across_days

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def calibration_png(prediction: np.ndarray, rate: np.ndarray, weight: np.ndarray, title: str = "calibration") -> bytes:
    """Mean label against mean prediction of groups of rows; on the diagonal the predictions are right.

    Bars are two standard errors of a rate over `weight` rows, so that what lies within them may be chance. Axes are
    logarithmic where predictions spread over more than a decade, as rare clicks do.

    Args:
        prediction: (G,) mean prediction of each group, ascending.
        rate: (G,) mean label of each group.
        weight: (G,) weight of each group; its number of rows where every row weighs 1.
        title: over the plot.
    """
    figure, axes = _axes((5, 5), xlabel="mean prediction", ylabel="mean label", title=title)
    if len(prediction) == 0:
        axes.text(0.5, 0.5, "no rows", ha="center", transform=axes.transAxes)
    else:
        errors = 2 * np.sqrt(rate * (1 - rate) / np.maximum(weight, 1e-300))
        low, high = float(prediction.min()), float(prediction.max())
        if low > 0 and high > 10 * low:
            axes.set_xscale("log")
            axes.set_yscale("symlog", linthresh=low)
        axes.plot([low, high], [low, high], color="grey", linewidth=1, linestyle="--")
        axes.errorbar(prediction, rate, yerr=errors, fmt="o", markersize=4, linewidth=1)
        axes.set_ylim(bottom=0)
    return _png(figure)


def lift_png(prediction: np.ndarray, rate: np.ndarray, weight: np.ndarray, title: str = "lift") -> bytes:
    """What a ranking by the predictions gains: the part of all clicks among the rows with the highest predictions, and
    the click rate of each group over that of all rows.

    The dotted curve is a ranking that puts all clicks first, the dashed one a ranking by chance.

    Args:
        prediction: (G,) mean prediction of each group, ascending.
        rate: (G,) mean label of each group.
        weight: (G,) weight of each group.
        title: over the plot.
    """
    figure, (gain, lift) = _row_of_axes((10, 4.5), 2)
    figure.suptitle(title)
    clicks, rows = np.cumsum((rate * weight)[::-1]), np.cumsum(weight[::-1])
    if len(prediction) == 0 or clicks[-1] == 0:
        gain.text(0.5, 0.5, "no rows" if len(prediction) == 0 else "no clicks", ha="center", transform=gain.transAxes)
        return _png(figure)
    share, base_rate = np.concatenate([[0.0], rows / rows[-1]]), clicks[-1] / rows[-1]
    gain.plot([0, base_rate, 1], [0, 1, 1], color="grey", linewidth=1, linestyle=":")
    gain.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
    gain.plot(share, np.concatenate([[0.0], clicks / clicks[-1]]), marker=".", linewidth=2)
    gain.set(xlabel="share of rows, highest predictions first", ylabel="share of all clicks")
    lift.bar(share[:-1], rate[::-1] / base_rate, width=np.diff(share), align="edge", edgecolor="white")
    lift.axhline(1.0, color="grey", linewidth=1, linestyle="--")
    lift.set(xlabel="share of rows, highest predictions first", ylabel="click rate over that of all rows")
    return _png(figure)


def days_png(days: Sequence[str], curves: Mapping[str, Sequence[float | None]], title: str) -> bytes:
    """Normalized entropy over days, lower is better; an undefined value is a gap.

    Args:
        days: increment ids, in order.
        curves: (days,) values by name; the first one is drawn boldest.
        title: over the plot.
    """
    figure, axes = _axes((9, 4), ylabel="normalized entropy (lower is better)", title=title)
    for number, (name, values) in enumerate(curves.items()):
        drawn = [float("nan") if value is None else value for value in values]
        axes.plot(range(len(days)), drawn, marker=".", linewidth=2 if number == 0 else 1, label=name)
    axes.axhline(1.0, color="grey", linewidth=1, linestyle="--")
    every = max(1, len(days) // 8)
    axes.set_xticks(range(0, len(days), every), list(days)[::every], rotation=20, ha="right")
    axes.legend(frameon=False)
    return _png(figure)


def staleness_png(
    days: Sequence[str], reports: Mapping[str, Sequence[Mapping[str, Any]]], title: str, trailing: int = 14
) -> bytes:
    """What models of different ages score: NE over trailing increments, and over all of them as bars.

    Args:
        days: increment ids, in order.
        reports: for each model one report (`Report.to_dict()`) an increment.
        title: over the plot.
        trailing: increments whose rows a point of a curve is about.
    """
    figure, axes = _axes((10, 4), ylabel="normalized entropy (lower is better)", title=title)
    pooled = {name: across_days(of_days).pooled_ne for name, of_days in reports.items()}
    for number, (name, of_days) in enumerate(reports.items()):
        windows = [of_days[max(0, stop - trailing) : stop] for stop in range(1, len(of_days) + 1)]
        drawn = [across_days(window).pooled_ne for window in windows]
        label = f"{name}: {pooled[name]:.4f}" if pooled[name] is not None else name
        values = [float("nan") if value is None else value for value in drawn]
        axes.plot(range(len(days)), values, linewidth=2.5 if number == 0 else 1.2, label=label)
    every = max(1, len(days) // 8)
    axes.set_xticks(range(0, len(days), every), list(days)[::every], rotation=20, ha="right")
    axes.set_xlabel(f"each point: the last {trailing} increments; in the legend: all of them", fontsize=8)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return _png(figure)


def _axes(inches: tuple[float, float], **labels: str) -> tuple[Figure, Axes]:
    figure, (axes,) = _row_of_axes(inches, 1)
    axes.set(**labels)
    return figure, axes


def _row_of_axes(inches: tuple[float, float], number: int) -> tuple[Figure, Sequence[Axes]]:
    """A figure that belongs to no window and to no thread."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(1, number, place + 1) for place in range(number)]


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=100)
    return out.getvalue()
