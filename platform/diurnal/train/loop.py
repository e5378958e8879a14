"""The step loop: every row is scored, then learned from; every rank takes the same steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from diurnal.data.batch import Batch
from diurnal.errors import TrainingError
from diurnal.metrics.state import BinaryMetrics
from diurnal.model.loss import weighted_bce
from diurnal.train.pipeline import Feed
from diurnal.train.setup import Learner

MAX_LOGIT = 1e6
"""A logit beyond this says that the step would poison weights and moments, though the loss may still be finite."""


@dataclass
class Pass:
    """What one pass over an increment has added up on this rank."""

    metrics: BinaryMetrics
    counts: np.ndarray
    """int64, in the order of `data.encode.count_names`."""
    num_steps: int = 0
    """Steps that changed the model."""
    num_skipped_steps: int = 0
    num_rows: int = 0
    """Real rows of this rank."""
    num_skipped_rows: int = 0
    watermark_us: int | None = None
    """Newest event time, microseconds since the epoch, UTC."""
    wait_s: float = 0.0
    wall_s: float = 0.0
    started_s: float = field(default_factory=time.perf_counter)

    def count(self, batch: Batch) -> None:
        self.num_rows += batch.num_rows
        self.counts += batch.counts
        if batch.watermark_us is not None:
            self.watermark_us = max(batch.watermark_us, self.watermark_us or batch.watermark_us)


OnStep = Callable[[Pass, Batch], None]
"""Called after each step; what it does must be the same on all ranks if it communicates."""


def new_pass(learner: Learner, num_steps: int) -> Pass:
    metrics = BinaryMetrics(learner.config.metrics.auc_bins, num_steps, learner.device)
    return Pass(metrics, np.zeros(len(learner.count_names), np.int64))


def learn(learner: Learner, feed: Feed, num_steps: int, on_step: OnStep) -> Pass:
    """One pass of training over one increment.

    The loss is the weighted mean over the global batch: each rank contributes W times its weighted sum over the
    global weight, and gradients are averaged over the W ranks. A step whose loss is not finite on any rank is
    skipped by all ranks before a table is touched.

    Raises:
        TrainingError: on all ranks, when more steps than `optim.max_skipped_steps` were skipped.
    """
    done, parallel = new_pass(learner, num_steps), learner.parallel
    parallel.module.train()
    for batch in feed:
        logits = parallel.module(batch.dense, batch.sparse)
        loss_sum = weighted_bce(logits, batch.labels, batch.weights)
        global_weight, is_sound = _agree(logits, loss_sum, batch.weights)
        if is_sound:
            done.metrics.update(logits.detach(), batch.labels, batch.weights, step=batch.step)
        if is_sound and global_weight > 0:
            parallel.set_lr_factor(learner.lr_factor())
            parallel.zero_grad()
            (loss_sum * (learner.world_size / global_weight)).backward()
            parallel.step_dense()
            learner.state.global_step += 1
            done.num_steps += 1
        elif not is_sound:
            _skip(done, batch, learner.config.optim.max_skipped_steps)
        done.count(batch)
        on_step(done, batch)
    return _finish(done, feed)


@torch.no_grad()
def score(learner: Learner, feed: Feed, num_steps: int, on_step: OnStep) -> Pass:
    """One pass of evaluation: the frozen model scores every row, nothing is learned."""
    done, parallel = new_pass(learner, num_steps), learner.parallel
    parallel.module.eval()
    for batch in feed:
        logits = parallel.module(batch.dense, batch.sparse)
        done.metrics.update(logits, batch.labels, batch.weights, step=batch.step)
        done.count(batch)
        on_step(done, batch)
    return _finish(done, feed)


def _agree(logits: Tensor, loss_sum: Tensor, weights: Tensor) -> tuple[float, bool]:
    """The weight of the global batch, and whether the step is sound on every rank: one small all-reduce."""
    local = torch.stack([weights.sum(dtype=torch.float64), (~_is_sound(logits, loss_sum)).to(torch.float64)])
    dist.all_reduce(local)
    global_weight, num_unsound = local.tolist()
    return global_weight, num_unsound == 0 and math.isfinite(global_weight)


def _is_sound(logits: Tensor, loss_sum: Tensor) -> Tensor:
    return torch.isfinite(loss_sum.detach()) & (logits.detach().abs().amax() <= MAX_LOGIT)


def _skip(done: Pass, batch: Batch, limit: int) -> None:
    done.num_skipped_steps += 1
    done.num_skipped_rows += batch.num_rows
    if done.num_skipped_steps > limit:
        raise TrainingError(
            f"step {batch.step}: the loss was not finite in {done.num_skipped_steps} steps of this increment, more "
            f"than optim.max_skipped_steps = {limit} allows; nothing of it is committed. Look at the dense inputs "
            '(`diurnal validate`, nonfinite = "fill") or lower the learning rates.'
        )


def _finish(done: Pass, feed: Feed) -> Pass:
    done.wait_s = feed.wait_s
    done.wall_s = time.perf_counter() - done.started_s
    return done
