"""The step loop: every row is scored, then learned from; every rank takes the same steps and decides alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from diurnal.checkpoint.points import reached
from diurnal.data.batch import Batch
from diurnal.errors import TrainingError
from diurnal.model.loss import weighted_bce
from diurnal.train.passes import Pass
from diurnal.train.pipeline import Feed, followed
from diurnal.train.pulse import Phase, Pulse
from diurnal.train.setup import Learner

MAX_LOGIT = 1e6
"""A logit beyond this says that the step would poison weights and moments, though the loss may still be finite."""


@dataclass(frozen=True)
class Wishes:
    """What a rank wants to happen after the step; it happens on all ranks as soon as one wants it."""

    commit: bool = False
    """A resume point is due."""
    hold: bool = False
    """The number of workers is about to change: commit, then wait for it."""
    stop: bool = False
    """Somebody ends the run: commit, then leave."""

    def __bool__(self) -> bool:
        return self.commit or self.hold or self.stop


Wish = Callable[[], Wishes]
OnStep = Callable[[Pass, Batch, Wishes], bool]
"""Called after each step with what was agreed; False leaves the pass. What it does must be the same on all ranks if it
communicates."""


def learn(learner: Learner, feed: Feed, done: Pass, pulse: Pulse, wish: Wish, on_step: OnStep) -> Pass:
    """One pass of training over one increment, or the rest of it.

    The loss is the weighted mean over the global batch: each rank contributes W times its weighted sum over the
    global weight, and gradients are averaged over the W ranks. A step whose loss is not finite on any rank is
    skipped by all ranks before a table is touched.

    Raises:
        TrainingError: on all ranks, when more steps than `optim.max_skipped_steps` were skipped.
    """
    parallel = learner.parallel
    parallel.module.train()
    for batch in followed(feed, pulse):
        # Before the forward pass: FBGEMM's backward takes the rate that it found there.
        parallel.set_lr_factor(learner.lr_factor())
        logits = parallel.module(batch.dense, batch.sparse)
        loss_sum = weighted_bce(logits, batch.labels, batch.weights)
        pulse.mark(Phase.VOTE, batch.step)
        global_weight, is_sound, agreed = _agree(logits, loss_sum, batch.weights, wish())
        if is_sound:
            done.add_scores(logits.detach(), batch)
        if is_sound and global_weight > 0:
            parallel.zero_grad()
            pulse.mark(Phase.BACKWARD, batch.step)
            (loss_sum * (learner.world_size / global_weight)).backward()
            pulse.mark(Phase.DENSE, batch.step)
            parallel.step_dense()
            learner.state.global_step += 1
            done.num_steps += 1
        elif not is_sound:
            _skip(done, batch, learner.config.optim.max_skipped_steps)
        done.count(batch, feed.wait_s)
        reached(f"learn/{batch.step}", learner.rank)
        if not on_step(done, batch, agreed):
            break
    return done.finish()


@torch.no_grad()
def score(learner: Learner, feed: Feed, done: Pass, pulse: Pulse, on_step: OnStep) -> Pass:
    """One pass of evaluation: the frozen model scores every row, nothing is learned."""
    parallel = learner.parallel
    parallel.module.eval()
    for batch in followed(feed, pulse):
        logits = parallel.module(batch.dense, batch.sparse)
        done.add_scores(logits, batch)
        done.count(batch, feed.wait_s)
        reached(f"score/{batch.step}", learner.rank)
        if not on_step(done, batch, Wishes()):
            break
    return done.finish()


def _agree(logits: Tensor, loss_sum: Tensor, weights: Tensor, mine: Wishes) -> tuple[float, bool, Wishes]:
    """The weight of the global batch, whether the step is sound on every rank, and what any rank wishes: one small
    all-reduce."""
    wishes = weights.new_tensor([mine.commit, mine.hold, mine.stop], dtype=torch.float64)
    unsound = (~_is_sound(logits, loss_sum)).to(torch.float64)
    local = torch.cat([torch.stack([weights.sum(dtype=torch.float64), unsound]), wishes])
    dist.all_reduce(local)
    global_weight, num_unsound, *wished = local.tolist()
    return global_weight, num_unsound == 0 and math.isfinite(global_weight), Wishes(*(count > 0 for count in wished))


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
