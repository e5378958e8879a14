"""Aging of AdaGrad's moments over all of a spread model, wherever the plan put its parts."""

from __future__ import annotations

from diurnal.model.optim import DENSE_MOMENT, age_moment
from diurnal.sharding.parallel import MOMENT, Parallel


def age(parallel: Parallel, factor: float) -> None:
    """Multiplies all moments of AdaGrad in place, those of the tables (row-wise or not) and those of the MLPs, as
    `age_moment` does. Moments of Adam, which forgets by itself, stay.

    No communication: each rank ages what it holds, every value by the same function, so that replicas stay equal and
    the result depends neither on the world size nor on the placement.
    """
    for piece in parallel.pieces():
        if piece.slot == MOMENT:
            age_moment(piece.tensor, factor)
    for slots in parallel.dense_optimizer.state.values():
        if DENSE_MOMENT in slots:
            age_moment(slots[DENSE_MOMENT], factor)
