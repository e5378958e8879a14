"""How much a model's optimizer forgets between the version it goes on from and the increment it is about to learn."""

from __future__ import annotations

from diurnal.data.ids import days_between
from diurnal.model.optim import aging_factor
from diurnal.sharding.aging import age as age_parallel
from diurnal.train.setup import Learner


def age(learner: Learner, parent_increment: str, increment: str) -> float:
    """Before the first step of an increment, and not when it is resumed inside: ages AdaGrad's moments by the days
    since the increment that the state in memory stands at the end of.

    Args:
        parent_increment: "" when there is none. A resume point stands in the increment itself: 0 days, nothing ages.

    Returns:
        The factor; 1 when `optim.half_life_days` is 0.
    """
    if not parent_increment:
        return 1.0
    factor = aging_factor(learner.config.optim.half_life_days, days_between(parent_increment, increment))
    age_parallel(learner.parallel, factor)
    return factor
