"""Plots as PNG bytes, for a run's artifacts."""

from __future__ import annotations

import io
from collections.abc import Sequence


def calibration_png(
    prediction: Sequence[float], rate: Sequence[float], weight: Sequence[float], title: str = "calibration"
) -> bytes:
    """Mean label against mean prediction of groups of rows; on the diagonal the predictions are right.

    Bars are two standard errors of a rate over `weight` rows, so that what lies within them may be chance. Axes are
    logarithmic where predictions spread over more than a decade, as rare clicks do.

    Args:
        prediction: (G,) mean prediction of each group, ascending.
        rate: (G,) mean label of each group.
        weight: (G,) weight of each group; its number of rows where every row weighs 1.
        title: over the plot.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="mean prediction", ylabel="mean label", title=title)
    if len(prediction) == 0:
        axes.text(0.5, 0.5, "no rows", ha="center", transform=axes.transAxes)
    else:
        errors = [2 * (r * (1 - r) / w) ** 0.5 if w > 0 else 0.0 for r, w in zip(rate, weight, strict=True)]
        low, high = float(min(prediction)), float(max(prediction))
        if low > 0 and high > 10 * low:
            axes.set(xscale="log", yscale="symlog")
            axes.set_yscale("symlog", linthresh=low)
        axes.plot([low, high], [low, high], color="grey", linewidth=1, linestyle="--")
        axes.errorbar(prediction, rate, yerr=errors, fmt="o", markersize=4, linewidth=1)
        axes.set_ylim(bottom=0)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=100)
    return out.getvalue()
