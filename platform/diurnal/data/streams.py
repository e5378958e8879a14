"""Which rows make which global batch, and which rank reads them: planned from row counts before anything is read.

The increment's row groups, those at its edges clipped to its own rows, in file order or in a seeded order, form one
sequence of N rows. It is cut into super-blocks of K * G rows, and the last one has the rest too; a super-block is V
contiguous lanes, one for each stream, and a stream is its lanes one after the other. Step s takes the s-th G/V rows of
every stream. The last super-block has less than 2 K G rows: they are split into V lanes whose sizes differ by at most
one, and each lane is spread evenly over as few steps as can be. A short last batch would move the model as far as a
full one, in whatever direction its few rows point. Where negatives are dropped the sequence is made of what is left of
each row group, which was counted beforehand. Hence

- the rows of a global batch depend on the files, G, V and the order, and not on the world size W;
- there are ceil(N / G) steps, known beforehand and equal on every rank;
- the position of an increment is the number of steps done: the V cursors follow from it;
- a rank reads, with bounded memory, the contiguous lanes of the streams v that it owns, v mod W = rank.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from diurnal.data.files import HeldOut, ParquetFile, Sampling
from diurnal.data.hashing import mix64
from diurnal.data.partitions import JOINED_ROW, Increment

Order = Literal["file", "shuffled"]

_LANE_GROUPS = 4
_MAX_LANE_TASKS = 16
_RECIPE = ("batch_rows", "num_streams", "block_steps", "window_steps", "seed", "order")


@dataclass(frozen=True)
class RowRange:
    """The atom of consumption: rows [start, stop) of one row group, or of those of its rows that are learned where
    negatives are dropped."""

    path: str
    file_bytes: int
    """Size of the file when it was planned: another one means that it was written anew."""
    row_group: int
    start: int
    stop: int
    first_row: int
    """Position of row `start` in the increment, in file order; from `JOINED_ROW` on for joined rows. Where negatives
    are dropped it is that of the row group's first row, below 0 if that is not the increment's."""

    @property
    def num_rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Window:
    """Rows of a lane that are read together; they come as they lie, or permuted."""

    ranges: tuple[RowRange, ...]
    skip: int
    """Rows, in the window's own order, that were taken before."""
    num_rows: int
    """Rows that are taken now, after those skipped."""
    shuffle_key: int | None = None
    """Seed of the permutation of all the rows of `ranges`; None leaves them in order."""


@dataclass(frozen=True)
class LaneTask:
    """What one stream gives to the steps of a task."""

    stream: int
    step_rows: tuple[int, ...]
    """Rows that it gives to each step."""
    windows: tuple[Window, ...]

    @property
    def num_rows(self) -> int:
        return sum(window.num_rows for window in self.windows)


@dataclass(frozen=True)
class ReadTask:
    """Consecutive steps of one rank, inside one super-block: the unit of reading, prefetching and retry."""

    increment_id: str
    first_step: int
    num_steps: int
    batch_rows: int
    """Rows of every local batch, padding included."""
    lanes: tuple[LaneTask, ...]
    """In the order of streams; empty on a rank without streams, whose batches are padding alone."""
    held_out: HeldOut | None = None
    """Rows that become padding: they are in the steps, and are not learned there; in none where rows are dropped."""
    sampling: Sampling | None = None
    """Says which negatives are dropped; None: none is."""
    past: str = ""
    """Folder of what the increments before say of ids; empty for nothing."""

    def real_rows(self, step: int) -> int:
        """Real rows of the local batch of a step, counted from the increment's first one."""
        return sum(self.lane_rows(lane, step) for lane in self.lanes)

    def lane_rows(self, lane: LaneTask, step: int) -> int:
        return lane.step_rows[step - self.first_step]


@dataclass(frozen=True)
class StreamPlan:
    """How an increment becomes steps. Build it with `plan_increment`."""

    increment: Increment
    batch_rows: int
    """G, rows of a global batch."""
    num_streams: int
    """V."""
    block_steps: int
    """K, steps of a super-block."""
    window_steps: int
    """Steps whose rows are permuted together under order `shuffled`."""
    seed: int
    order: Order

    @property
    def increment_id(self) -> str:
        return self.increment.id

    @property
    def num_rows(self) -> int:
        """That have a place in some step."""
        sampled = self.increment.sampled
        return self.increment.num_rows if sampled is None else sampled.num_rows

    @property
    def num_dropped(self) -> int:
        """Negatives that are not learned."""
        return self.increment.sampled.num_dropped if self.increment.sampled is not None else 0

    @property
    def kept_negatives(self) -> float:
        """Share of the negatives that have a place in some step, on average."""
        return self.increment.sampled.sampling.rate if self.increment.sampled is not None else 1.0

    @property
    def num_steps(self) -> int:
        return -(-self.num_rows // self.batch_rows)

    @property
    def step_rows(self) -> int:
        """G/V, rows that a stream gives to a step at most."""
        return self.batch_rows // self.num_streams

    def local_batch_rows(self, world_size: int) -> int:
        """Rows of the local batch, padding included; the same on every rank and in every step."""
        return -(-self.num_streams // world_size) * self.step_rows

    def cursors(self, step: int) -> list[int]:
        """Rows that each stream has given to the steps before `step`."""
        block, into = self._place(self._checked(step))
        before = block * self.block_steps * self.step_rows
        lanes = enumerate(self._lanes(block))
        return [before + self._given(stream, stop - start, block, into) for stream, (start, stop) in lanes]

    def rows_before(self, step: int) -> int:
        """Real rows in the global batches [0, step)."""
        return sum(self.cursors(step))

    def read_tasks(
        self, rank: int, world_size: int, start_step: int = 0, stop_step: int | None = None
    ) -> list[ReadTask]:
        """What `rank` reads for the steps [start_step, stop_step), in order, without a gap."""
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not below world size {world_size}")
        stop = self.num_steps if stop_step is None else self._checked(stop_step)
        step = self._checked(start_step)
        tasks = []
        while step < stop:
            block, into = self._place(step)
            end = min(stop, step - into + self._steps_of(block))
            lanes = self._lanes(block)[rank::world_size]
            tasks.append(
                ReadTask(
                    increment_id=self.increment_id,
                    first_step=step,
                    num_steps=end - step,
                    batch_rows=self.local_batch_rows(world_size),
                    lanes=tuple(
                        self._lane_task(rank + i * world_size, lane, step, end - step) for i, lane in enumerate(lanes)
                    ),
                    held_out=self.increment.held_out,
                    sampling=self.increment.sampled and self.increment.sampled.sampling,
                    past=self.increment.past,
                )
            )
            step = end
        return tasks

    def of_own_rows(self) -> StreamPlan:
        """The same for the increment's own rows, with those that are held out, or dropped."""
        return replace(self, increment=self.increment.own())

    def seen_with(self, past: str) -> StreamPlan:
        """The same rows with what other increments say of their ids: that is part of the version that scores them."""
        return replace(self, increment=replace(self.increment, past=past))

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"increment": self.increment.to_json()}

    @staticmethod
    def from_json(data: dict[str, Any]) -> StreamPlan:
        plan: dict[str, Any] = {**data, "increment": Increment.from_json(data["increment"])}
        return StreamPlan(**plan)

    def recipe(self) -> dict[str, Any]:
        """How the plan was made, without the increment: plain JSON that a resume point keeps, since the rest of an
        increment must be dealt as its beginning was, whatever the configuration says by then."""
        return {name: getattr(self, name) for name in _RECIPE}

    @staticmethod
    def from_recipe(increment: Increment, recipe: dict[str, Any]) -> StreamPlan:
        """The plan again.

        Raises:
            ValueError: the recipe is not one of `recipe()`.
        """
        if recipe.keys() != set(_RECIPE):
            raise ValueError(f"a recipe has {', '.join(_RECIPE)}, not {', '.join(sorted(recipe))}")
        return StreamPlan(increment, **recipe)

    def _checked(self, step: int) -> int:
        if not 0 <= step <= self.num_steps:
            raise ValueError(f"step {step} is not within 0 to {self.num_steps} of {self.increment_id}")
        return step

    @property
    def _last_block(self) -> int:
        return max(1, self.num_rows // (self.block_steps * self.batch_rows)) - 1

    def _place(self, step: int) -> tuple[int, int]:
        """Super-block of a step, and which of its steps it is."""
        block = min(step // self.block_steps, self._last_block)
        return block, step - block * self.block_steps

    def _steps_of(self, block: int) -> int:
        return self.block_steps if block < self._last_block else self.num_steps - block * self.block_steps

    def _lanes(self, block: int) -> list[tuple[int, int]]:
        """Start and stop of each stream's lane in the sequence of rows."""
        start = block * self.block_steps * self.batch_rows
        rows = self.block_steps * self.batch_rows if block < self._last_block else self.num_rows - start
        size, longer = divmod(rows, self.num_streams)
        bounds = [start + v * size + min(v, longer) for v in range(self.num_streams + 1)]
        return list(pairwise(bounds))

    def _given(self, stream: int, lane_rows: int, block: int, num_steps: int) -> int:
        """Rows of a lane in the first steps of its super-block. Lanes round at different steps, so that their sums are
        as even as they are."""
        steps = max(1, self._steps_of(block))
        return (lane_rows * num_steps + stream * steps // self.num_streams) // steps

    def _lane_task(self, stream: int, lane: tuple[int, int], first_step: int, num_steps: int) -> LaneTask:
        start, stop = lane
        block, into = self._place(first_step)
        given = [start + self._given(stream, stop - start, block, into + i) for i in range(num_steps + 1)]
        taken, until = given[0], given[-1]
        step_rows = tuple(after - before for before, after in pairwise(given))
        if self.order == "file":
            windows = [Window(self._ranges(taken, until), 0, until - taken)] if until > taken else []
            return LaneTask(stream, step_rows, tuple(windows))
        windows, size = [], self.window_steps * self.step_rows
        while taken < until:
            first = start + (taken - start) // size * size
            last = min(stop, first + size)
            rows = min(until, last) - taken
            key = _key(self.seed, self.increment_id, first)
            windows.append(Window(self._ranges(first, last), taken - first, rows, key))
            taken += rows
        return LaneTask(stream, step_rows, tuple(windows))

    @cached_property
    def _sequence(self) -> _Sequence:
        joined, own = (_groups(files) for files in (self.increment.joined, self.increment.files))
        groups = [*joined, *own]
        joined_rows, rows = (np.array([g[2] for g in part], np.int64) for part in (joined, own))
        begin = np.cumsum(rows) - rows - self.increment.first_row
        first = np.clip(begin, 0, self.increment.num_own_rows)
        sizes = np.clip(begin + rows, 0, self.increment.num_own_rows) - first
        # Joined rows are whole files, before the others, and have positions of their own.
        joined_first = np.cumsum(joined_rows) - joined_rows + JOINED_ROW
        begin, first = np.concatenate([joined_first, begin]), np.concatenate([joined_first, first])
        sizes = np.concatenate([joined_rows, sizes])
        if (sampled := self.increment.sampled) is not None:
            sizes = np.array([rows for file in (*sampled.joined, *sampled.own) for rows in file], np.int64)
            first = begin
        chosen = np.flatnonzero(sizes)
        if self.order == "shuffled":
            chosen = chosen[permutation(len(chosen), _key(self.seed, self.increment_id, -1))]
        return _Sequence(
            groups=[groups[i][:2] for i in chosen],
            skips=(first - begin)[chosen],
            first_rows=first[chosen],
            starts=np.concatenate([[0], np.cumsum(sizes[chosen])]),
        )

    def _ranges(self, start: int, stop: int) -> tuple[RowRange, ...]:
        """Rows [start, stop) of the sequence."""
        groups, skips, first_rows, starts = self._sequence
        ranges = []
        index = int(np.searchsorted(starts, start, side="right")) - 1
        while start < stop:
            begin, end = int(starts[index]), min(stop, int(starts[index + 1]))
            file, group = groups[index]
            first_row = int(first_rows[index]) + (start - begin if self.increment.sampled is None else 0)
            before = int(skips[index]) - begin
            ranges.append(RowRange(file.path, file.size_bytes, group, start + before, end + before, first_row))
            start, index = end, index + 1
        return tuple(ranges)


def _groups(files: tuple[ParquetFile, ...]) -> list[tuple[ParquetFile, int, int]]:
    """File, index and rows of each row group."""
    return [(file, index, rows) for file in files for index, rows in enumerate(file.row_group_rows)]


class _Sequence(NamedTuple):
    """The row groups that have rows of the increment, in the order of the plan."""

    groups: list[tuple[ParquetFile, int]]
    skips: np.ndarray
    """Rows at the beginning of each that are not the increment's."""
    first_rows: np.ndarray
    """Position of the first row of the rest of each, or of the row group where negatives are dropped."""
    starts: np.ndarray
    """Where it starts in the sequence; one more entry."""


def plan_increment(
    increment: Increment, *, batch_rows: int, num_streams: int, seed: int, order: Order, task_rows: int
) -> StreamPlan:
    """Plans the steps of an increment.

    A lane has `task_rows` rows, or four row groups if these have more (up to 16 times as many): a row group is
    decoded from its start, so that lanes smaller than row groups would decode the same rows again and again.
    Memory does not grow with a lane: it is decoded piece by piece, and permuted in windows of about `task_rows` rows
    over all streams.

    Raises:
        ValueError: `batch_rows` is not a positive multiple of `num_streams`.
    """
    if num_streams < 1 or batch_rows < 1 or batch_rows % num_streams:
        raise ValueError(f"{batch_rows} rows of a batch are not a multiple of {num_streams} streams")
    groups = [rows for file in increment.files for rows in file.row_group_rows]
    typical = sum(rows * rows for rows in groups) // max(1, sum(groups))
    lane_rows = max(task_rows, min(_LANE_GROUPS * typical, _MAX_LANE_TASKS * task_rows))
    return StreamPlan(
        increment=increment,
        batch_rows=batch_rows,
        num_streams=num_streams,
        block_steps=-(-lane_rows * num_streams // batch_rows),
        window_steps=max(1, task_rows // batch_rows),
        seed=seed,
        order=order,
    )


def permutation(size: int, key: int) -> np.ndarray:
    """A permutation of range(size) that depends on `size` and `key` alone, in every release of every library."""
    ranks = mix64(np.arange(size, dtype=np.uint64) + np.uint64(key))
    return np.argsort(ranks, kind="stable")


def _key(seed: int, increment_id: str, position: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{increment_id}/{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
