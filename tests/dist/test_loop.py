"""The step loop in worlds of one, two and three ranks: what it learns, skips, scores and counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from diurnal.config import Config
from diurnal.data.batch import Batch
from diurnal.data.encode import count_names
from diurnal.errors import TrainingError
from diurnal.model.twin import Twin
from diurnal.testing import run_world, tiny_batch, tiny_config
from diurnal.train.loop import OnStep, Wishes, learn, score
from diurnal.train.passes import Pass
from diurnal.train.pipeline import Feed, one_ahead
from diurnal.train.pulse import Pulse
from diurnal.train.setup import Learner, build_learner
from diurnal.train.totals import Totals, add_up

CPU = torch.device("cpu")


class Batches:
    """A source of given batches that remembers what was taken from it and whether it was closed."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self.taken: list[int] = []
        self.is_closed = False

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            self.taken.append(batch.step)
            yield batch

    def close(self) -> None:
        self.is_closed = True


def batch_of(
    config: Config, seed: int, step: int, rank: int, world_size: int, rows: int | None = None, kept: float = 1.0
) -> Batch:
    counts = np.zeros(len(count_names(config.dataset)), np.int64)
    batch = tiny_batch(config, seed, rank, world_size, rows)
    return replace(batch, step=step, counts=counts, kept_negatives=kept)


def nothing(_: Pass, __: Batch, ___: Wishes) -> bool:
    return True


def learn_all(learner: Learner, batches: list[Batch], on_step: OnStep = nothing) -> Pass:
    done = Pass.new(learner, len(batches))
    return learn(learner, Feed(Batches(batches), CPU), done, Pulse(), Wishes, on_step)


def learn_steps(
    rank: int, world_size: int, config: Config, rows: list[int | None], kept_negatives: float
) -> tuple[Totals, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    learner = build_learner(config, CPU)
    batches = [batch_of(config, step, step, rank, world_size, n, kept_negatives) for step, n in enumerate(rows)]
    done = learn_all(learner, batches)
    tables = {table.name: learner.parallel.gather_table(table.name) for table in config.dataset.tables}
    dense = {name: parameter.detach() for name, parameter in learner.parallel.dense_params.items()}
    return add_up(learner, done), tables, dense


@pytest.mark.parametrize(("world_size", "kept_negatives"), [(1, 0.25), (2, 1.0), (3, 0.25)])
def test_the_loop_learns_what_the_twin_learns_and_counts_no_padding(world_size: int, kept_negatives: float) -> None:
    """Rows that pad a batch weigh nothing (Lightning-AI/torchmetrics#1297, pytorch/FBGEMM#3750): 11, 1 and 0 rows. The
    rates rise with every step, for tables as for all else. A negative that stands for others is learned once, under a
    corrected logit, and counts for all in metrics."""
    placement = {"user": "row_wise", "item": "table_wise", "genres": "data_parallel"}
    config = tiny_config({"optim": {"schedule": {"warmup_steps": 6}}, "sharding": {"placement": placement}})
    rows = [None, 11, 1, 0, None]
    twin = Twin(config)
    logits, labels, weights = [], [], []
    for step, n in enumerate(rows):
        batch = batch_of(config, step, step, 0, 1, n, kept_negatives)
        logits.append(twin.train_step(batch)[:, 0])
        labels.append(batch.labels)
        weights.append(batch.weights / kept_negatives ** (1 - batch.labels))
    losses = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.cat(logits).double(), torch.cat(labels).double(), weight=torch.cat(weights).double(), reduction="sum"
    )
    for totals, tables, dense in run_world(learn_steps, world_size, config, rows, kept_negatives):
        assert totals.rows == 36
        assert totals.report.rows == 36
        assert totals.report.log_loss == pytest.approx(float(losses) / float(torch.cat(weights).sum()), abs=1e-6)
        assert totals.num_steps == 4, "a batch without weight is no step"
        for name, table in tables.items():
            torch.testing.assert_close(table, twin.tables[name].detach(), atol=1e-5, rtol=1e-5)
        for name, parameter in dense.items():
            torch.testing.assert_close(parameter, twin.dense[name].detach(), atol=1e-5, rtol=1e-5)


def skip_poison(rank: int, world_size: int, config: Config, poison: float) -> dict[str, Any]:
    learner = build_learner(config, CPU)
    batches = [batch_of(config, step, step, rank, world_size) for step in range(4)]
    if rank == world_size - 1:
        batches[2].dense[0, 0] = poison
    snapshots: list[dict[str, torch.Tensor]] = []

    def remember(*_: Any) -> bool:
        snapshots.append({t.name: learner.parallel.gather_table(t.name) for t in config.dataset.tables})
        return True

    done = learn_all(learner, batches, remember)
    totals = add_up(learner, done)
    return {"totals": totals, "snapshots": snapshots}


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e38])
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all_before_a_table_is_touched(
    world_size: int, poison: float
) -> None:
    """facebookresearch/dlrm#363: one bad row must not poison rows, moments or the other rank."""
    for result in run_world(skip_poison, world_size, tiny_config(), poison):
        totals, (before, after) = result["totals"], result["snapshots"][1:3]
        assert (totals.num_steps, totals.num_skipped_steps, totals.num_skipped_rows) == (3, 1, 12)
        assert totals.report.rows == 36
        for name, table in after.items():
            assert torch.equal(table, before[name])
            assert torch.isfinite(result["snapshots"][3][name]).all()


def skip_too_often(rank: int, world_size: int, config: Config) -> str:
    learner = build_learner(config, CPU)
    batches = [batch_of(config, step, step, rank, world_size) for step in range(4)]
    for batch in batches:
        batch.dense[0, 0] = float("nan") if rank == 1 else 0.0
    try:
        learn_all(learner, batches)
    except TrainingError as error:
        return str(error)
    return "went on"


def test_more_skipped_steps_than_allowed_end_the_run_on_all_ranks() -> None:
    answers = run_world(skip_too_often, 2, tiny_config({"optim": {"max_skipped_steps": 1}}))
    assert answers[0] == answers[1]
    assert "max_skipped_steps = 1" in answers[0]


def rates(rank: int, world_size: int, config: Config) -> list[dict[str, float]]:
    learner = build_learner(config, CPU)
    seen: list[dict[str, float]] = []
    batches = [batch_of(config, step, step, rank, world_size) for step in range(12)]

    def remember(*_: Any) -> bool:
        seen.append(dict(learner.parallel.lr))
        return True

    learn_all(learner, batches, remember)
    return seen


def test_the_warm_up_reaches_the_tables_and_the_dense_layers_alike() -> None:
    """pytorch/FBGEMM#3597: the schedule is pushed into both optimizers."""
    config = tiny_config({"optim": {"schedule": {"warmup_steps": 10}, "sparse": {"lr": 0.1}, "dense": {"lr": 0.1}}})
    (seen,) = run_world(rates, 1, config)
    assert seen[6] == pytest.approx({"dense": 0.06, "sparse": 0.06}, abs=1e-9)
    assert seen[10] == pytest.approx({"dense": 0.1, "sparse": 0.1}, abs=1e-9)


def passes(rank: int, world_size: int, config: Config) -> list[tuple[str, int, bool]]:
    """Days with two passes each, and a pass that is cut short, as events (mode, tag, whether the model changed)."""
    learner = build_learner(config, CPU)
    events: list[tuple[str, int, bool]] = []
    last = {"user": learner.parallel.gather_table("user")}

    def record(mode: str):
        def on_step(_: Pass, batch: Batch, __: Wishes) -> bool:
            now = learner.parallel.gather_table("user")
            events.append((mode, int(batch.row_index[0]), not torch.equal(now, last["user"])))
            last["user"] = now
            return mode == "learn" or len([e for e in events if e[0] == "score"]) < 3

        return on_step

    sources = [Batches(tagged(learner, first, n)) for first, n in ((0, 6), (100, 10), (200, 4))]
    with one_ahead(iter([lambda s=s: Feed(s, CPU) for s in sources])) as feeds:
        learn(learner, next(feeds), Pass.new(learner, 6), Pulse(), Wishes, record("learn"))
        score(learner, next(feeds), Pass.new(learner, 10), Pulse(), record("score"))
        learn(learner, next(feeds), Pass.new(learner, 4), Pulse(), Wishes, record("learn"))
    assert all(source.is_closed for source in sources)
    return events


def tagged(learner: Learner, first: int, count: int) -> list[Batch]:
    batches = [batch_of(learner.config, first + i, i, learner.rank, learner.world_size) for i in range(count)]
    for i, batch in enumerate(batches):
        batch.row_index[:] = first + i
    return batches


def test_no_batch_leaks_between_training_evaluation_and_the_next_day() -> None:
    """meta-pytorch/torchrec#3751: each batch runs once, in its own mode, though the next pass is read ahead."""
    (events,) = run_world(passes, 1, tiny_config())
    assert events == [
        *(("learn", tag, True) for tag in range(6)),
        *(("score", tag, False) for tag in range(100, 103)),
        *(("learn", tag, True) for tag in range(200, 204)),
    ]
