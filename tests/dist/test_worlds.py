"""The harness itself: what it answers, and how it fails."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from diurnal.checkpoint.points import reached
from diurnal.errors import CheckpointError, Fault
from diurnal.testing import WorldError, kill_world, run_world


def add_up(rank: int, world_size: int, start: int) -> tuple[float, int]:
    total = torch.tensor([float(start + rank)])
    dist.all_reduce(total)
    return total.item(), os.getpid()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_results_come_in_the_order_of_ranks_from_fresh_processes(world_size: int) -> None:
    first, second = run_world(add_up, world_size, 10), run_world(add_up, world_size, 10)
    assert [total for total, _ in first] == [10.0 * world_size + sum(range(world_size))] * world_size
    assert len({pid for _, pid in first + second}) == 2 * world_size


def fail_alone(rank: int, world_size: int) -> None:
    if rank == 1:
        raise CheckpointError([Fault("here", "this", "that", "do so")])
    dist.all_reduce(torch.ones(1))


def test_the_error_is_the_first_one_and_says_its_rank() -> None:
    with pytest.raises(CheckpointError, match="found: this") as caught:
        run_world(fail_alone, 3)
    assert "on rank 1 of 3" in caught.value.__notes__


def sleep_alone(rank: int, world_size: int) -> None:
    if rank == 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(1))


def test_a_world_that_hangs_is_killed_and_shows_where_each_rank_stood() -> None:
    started_s = time.monotonic()
    with pytest.raises(WorldError, match=r"(?s)rank 0 was not done.*all_reduce.*rank 1 was not done.*sleep_alone"):
        run_world(sleep_alone, 2, timeout_s=2)
    assert time.monotonic() - started_s < 10


def pass_points(rank: int, world_size: int) -> None:
    reached("test/first", rank)
    dist.all_reduce(torch.ones(1))
    reached("test/second", rank)


def die_alone(rank: int, world_size: int) -> None:
    if rank == 0:
        os._exit(9)
    dist.all_reduce(torch.ones(1))


def test_a_rank_is_killed_at_the_point_that_is_named() -> None:
    kill_world(pass_points, 2, point="test/first", rank=1)
    kill_world(pass_points, 2, point="test/second", rank=0)
    with pytest.raises(WorldError, match="no kill at test/third: rank 0 was done"):
        kill_world(pass_points, 2, point="test/third")
    run_world(pass_points, 2)


def test_a_death_outdoes_the_errors_that_it_causes() -> None:
    with pytest.raises(WorldError, match="rank 0 died with exit code 9"):
        run_world(die_alone, 2)
