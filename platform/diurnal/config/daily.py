"""What the daily cycle goes by: which increments are next, what is implausible, and which version is promoted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from diurnal.config.section import Broken, Count, Name, NotNegative, Positive, Section, rule

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
OpenShare = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class Days(Section):
    """What happens to increments that do not come one after the other, whole, and once.

    `wait` lets nothing later overtake it for `wait_s`, and then goes on without it, as `skip` does at once. Whatever is
    left out is kept in the ledger and shown by `diurnal status`.
    """

    missing: Literal["wait", "skip"] = "wait"
    """There is no complete increment between two others."""
    empty: Literal["wait", "skip"] = "wait"
    """It is complete, and has no row."""
    one_class: Literal["wait", "skip"] = "wait"
    """All its labels are the same."""
    late: Literal["skip", "retrain"] = "skip"
    """It became complete after a later one was trained."""
    changed: Literal["skip", "retrain"] = "skip"
    """Its files are others than those it was trained on. `retrain` goes back to the version before it."""
    max_retrained: Annotated[int, Field(ge=0)] = 3
    """Increments that `retrain` may train again at a time, those after it included; beyond that it is skipped."""
    look_back: Annotated[int, Field(ge=0)] = 30
    """Trained folders that are looked at for changes, the newest so many; older ones when `--retrain` asks."""
    wait_s: NotNegative = 86_400.0
    """How long `wait` waits from when a later increment was first seen, or the increment itself."""


class Profile(Section):
    """When an increment is implausible beside those before it, and held before a step is taken.

    A number is compared with its median over the last `history` increments, and with that of the same weekday (of
    hourly increments, the same hour) among them. It is implausible when it is further away from both than its limit
    here, and also further than `spread` times their usual scatter (1.4826 * median absolute deviation).
    """

    enabled: bool = True
    history: Count = 14
    min_history: Count = 3
    """Nothing is compared with fewer increments than that; a dead feature and one class are seen without any."""
    min_rows: Count = 1000
    """Of an increment with fewer rows nothing but their number is compared, nor is anything compared with it."""
    spread: Positive = 6.0
    rows_factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 1.8
    """Rows: so many times more, or fewer."""
    label_log_odds: Positive = 0.7
    """Label rate, by its log odds."""
    null_share: OpenShare = 0.2
    """Share of rows without a value (null, or nothing but the fill value, or no id), of each feature."""
    dense_shift: Positive = 0.5
    """Quantiles of a dense input, in units of its usual width: the distance between the 5 % and the 95 % quantile, or
    half of that between 1 % and 99 % where this is more."""
    dense_scale: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 3.0
    """The width of a dense input: so many times wider, or narrower."""
    top_id_share: OpenShare = 0.25
    """Share of the most frequent id among all, of each sparse feature."""
    new_ids: OpenShare = 0.5
    """Of the ids that usually were in some earlier increment, the share that now is in none, of each sparse feature."""
    outside: Share = 0.01
    """Share of rows whose event time is outside the increment's own time, UTC."""
    champion_ne: Positive = 0.2
    """NE of the champion over an increment that it has not seen: so much above its median."""


class Gate(Section):
    """Which version is promoted. Numbers are compared on rows that neither the champion nor the challenger has learned.

    A comparison has a confidence interval. What is certainly worse is held, what is certainly good enough is promoted,
    and what may be either is undecided: the champion stays, and the next version is judged.
    """

    judged_on: Literal["slice", "next"] = "slice"
    """`slice`: a share of the increment's own rows, which the next one learns. `next`: the next increment as a whole,
    before it is learned; a version is then promoted one increment later."""
    slice_share: OpenShare = 0.05
    """Of the rows of an increment, by a hash of the request id, or of the row's position where none is declared."""
    min_rows: Count = 1000
    """With fewer rows to judge on, a version is undecided."""
    max_ne_rise: NotNegative = 0.002
    """NE of the challenger may be so much above that of the champion."""
    confidence: OpenShare = 0.95
    """Of each interval, one-sided."""
    calibration: tuple[Positive, Positive] = (0.8, 1.25)
    """Mean prediction over mean label, lowest and highest."""
    segments: tuple[Name, ...] = ()
    """Sparse features with one id a row: the rows of each of their most frequent ids are calibrated too."""
    segment_calibration: tuple[Positive, Positive] = (0.5, 2.0)
    """The same, within each segment."""
    min_segment_positives: Count = 50
    """With fewer rows of label 1, a segment is not judged."""
    max_weight: Positive = 1e4
    """Largest absolute value of a weight or of an optimizer's state of the tables and MLPs."""
    max_norm_growth: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 3.0
    """Root mean square of the learned rows of a table: so many times that of its parent."""
    max_dead_rows: Share = 0.5
    """Share of a table's learned rows whose values are all zero."""
    after_hold: Literal["champion", "challenger"] = "champion"
    """What the next increment goes on from after a version was held: `champion` leaves the increment's rows out."""

    @rule
    def _bands_are_intervals(self) -> Iterator[Broken]:
        for name in ("calibration", "segment_calibration"):
            low, high = getattr(self, name)
            if not low < 1 < high:
                yield Broken([low, high], f"{name} is [low, high] around 1", "give the lower number first", (name,))
