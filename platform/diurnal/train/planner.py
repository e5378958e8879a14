"""How increments that follow each other become steps: each is planned with what the one before it has left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from diurnal.checkpoint.history import History
from diurnal.config import Config
from diurnal.data.files import HeldOut, ParquetFile, Sampled
from diurnal.data.holdout import located, slices_folder
from diurnal.data.negatives import Negatives
from diurnal.data.partitions import Increment
from diurnal.data.pasts import Pasts
from diurnal.data.streams import StreamPlan, plan_increment
from diurnal.ledger.records import Commit

Planned = tuple[StreamPlan, str]
"""Of an increment, with the name of the past after it."""


def plan_of(config: Config, increment: Increment) -> StreamPlan:
    """How an increment is dealt into steps under a configuration."""
    return plan_increment(
        increment,
        batch_rows=config.data.batch_rows,
        num_streams=config.num_streams,
        seed=config.seed,
        order=config.data.order,
        task_rows=config.data.task_rows,
    )


class Planner:
    """Plans the increments of a model.

    Args:
        say: shows a line to a person.
    """

    def __init__(self, config: Config, history: History, pasts: Pasts, say: Callable[[str], None]) -> None:
        self._config = config
        self._history = history
        self._pasts = pasts
        self._negatives = Negatives(config.dataset, config.seed, say)

    def plans(
        self, increments: Sequence[Increment], parent: Commit | None, resumed: Commit | None = None
    ) -> Iterator[Planned]:
        """Each goes on from the one before it, the first from a version, and learns what that one has held out."""
        lineage = self._history.store.at(parent.path).manifest().lineage if parent else None
        held_out = lineage and lineage.held_out
        left = self._found(HeldOut.from_json(held_out).files) if held_out else ()
        past = lineage.past_after if lineage else ""
        for index, increment in enumerate(increments):
            if resumed is not None and index == 0:
                plan = self._plan_again(increment, resumed)
            else:
                seen = replace(increment, joined=left, past=self._pasts.path(past))
                plan = plan_of(self._config, self._negatives.sample(seen))
            past = self._pasts.after(plan.increment)
            left = plan.increment.held_out.files if plan.increment.held_out else ()
            yield plan, past

    def _plan_again(self, increment: Increment, resumed: Commit) -> StreamPlan:
        """As it was when it was begun, whatever the configuration says by now."""
        lineage = self._history.store.at(resumed.path).manifest().lineage
        joined = self._found(ParquetFile.from_json(file) for file in lineage.joined)
        held_out = HeldOut.from_json(lineage.held_out) if lineage.held_out else None
        if held_out is not None:
            held_out = replace(held_out, files=self._found(held_out.files))
        sampled = Sampled.from_json(lineage.sampled) if lineage.sampled else None
        rows = {"joined": joined, "held_out": held_out, "sampled": sampled}
        increment = replace(increment, **rows, past=self._pasts.path(lineage.past))
        return StreamPlan.from_recipe(increment, lineage.recipe)

    def _found(self, files: Iterable[ParquetFile]) -> tuple[ParquetFile, ...]:
        """Held-out rows where they are now: the storage may have moved since a version named them."""
        return located(files, slices_folder(self._config.storage, self._config.name))
