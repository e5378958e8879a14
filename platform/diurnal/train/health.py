"""Health of all tables and MLPs: one pass over what each rank holds, in blocks, and two small reductions.

Counts are exact and depend neither on the world size nor on the placement; `rms_learned` is added up in float64. A row
of a table is

    learned   if AdaGrad has a moment of it that is not 0, in any range of its columns; under sgd, which has no moments,
              if it differs from the values that a new model of this configuration starts it with
    dead      if it is learned and none of its values is beyond NEAR_ZERO

The MLPs stand beside the tables as `bottom` and `over`, and the outputs of other tasks, where there are some, as
`tasks`. A row of theirs is a unit of a layer: what goes into it, and its bias. It is learned if AdaGrad's or Adam's
slots of it are not 0; under sgd every one is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import hardshrink

from diurnal.config.features import Table
from diurnal.metrics.health import TableHealth
from diurnal.model.optim import MOMENT
from diurnal.model.tables import initial_rows
from diurnal.sharding.parallel import WEIGHT, Parallel, Piece
from diurnal.train.setup import Learner

NEAR_ZERO = 1e-8
"""An absolute value up to this counts as 0."""

BLOCK_VALUES = {"cpu": 1 << 16, "cuda": 1 << 24}
"""Values that are looked at together: what fits into a CPU's cache, and what is worth a GPU's while."""

EXCHANGED_ROWS = 1 << 20
"""Rows of a table with cut columns whose ranges are put together by one message."""

MLPS = ("bottom", "over", "tasks")

Block = tuple[Tensor, list[Tensor]]
"""Values of some rows, (rows, width), and what the optimizer keeps of them, (rows,) or (rows, width) each."""


def health(learner: Learner) -> list[dict[str, Any]]:
    """`table_health` as plain values for JSON. A collective call."""
    return [table.to_json() for table in table_health(learner.parallel)]


@torch.no_grad()
def table_health(parallel: Parallel) -> list[TableHealth]:
    """Of all tables in the order of the schema, then of the MLPs; the same on every rank. A collective call."""
    device, is_first = parallel.module.device, dist.get_rank(parallel.group) == 0
    pieces = list(parallel.pieces())
    names, counts = [], []
    for table in parallel.config.dataset.tables:
        mine = [piece for piece in pieces if piece.table == table.name and (is_first or not piece.is_replica)]
        is_cut = parallel.plan.num_column_ranges(table.name) > 1
        count = _of_cut_table(parallel, table, mine) if is_cut else _of_rows(parallel, table, mine)
        names.append((table.name, table.rows))
        counts.append(count)
    for mlp in MLPS:
        layers = list(_layers(parallel, mlp))
        if not layers:
            continue
        counts.append(_Counts(device))
        for values, slots in layers if is_first else ():
            counts[-1].add(values, slots, _is_learned(slots, values))
        names.append((mlp, sum(len(values) for values, _ in layers)))
    sums, largest = torch.stack([c.sums() for c in counts]), torch.stack([c.largest for c in counts])
    dist.all_reduce(sums, group=parallel.group)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=parallel.group)
    return [_health(*found) for found in zip(names, sums.tolist(), largest.tolist(), strict=True)]


class _Counts:
    """What blocks of this rank add up to."""

    def __init__(self, device: torch.device) -> None:
        self.learned, self.dead, self.nonfinite, self.squares, self.values, self.largest = torch.zeros(
            6, dtype=torch.float64, device=device
        ).unbind()

    def sums(self) -> Tensor:
        return torch.stack([self.learned, self.dead, self.nonfinite, self.squares, self.values])

    def add(self, values: Tensor, slots: list[Tensor], is_learned: Tensor) -> None:
        """Adds rows that are whole."""
        is_alive = self.add_values(values, slots, is_learned)
        self.learned += is_learned.sum()
        self.dead += (is_learned & ~is_alive).sum()

    def add_values(self, values: Tensor, slots: list[Tensor], is_learned: Tensor) -> Tensor:
        """Adds values of rows, or of a range of their columns, and answers in which of them some value is beyond
        NEAR_ZERO or not finite: (rows,)."""
        finite = self._finite(values)
        norms = _norms(finite)
        is_alive = norms != 0
        self.squares += torch.where(is_learned, norms, 0).square().sum()
        self.values += is_learned.sum() * values.shape[1]
        if finite is not values:
            is_broken = ~torch.isfinite(values)
            self.values -= is_broken[is_learned].sum()
            is_alive |= is_broken.any(dim=1)
        for slot in slots:
            self._finite(slot)
        return is_alive

    def _finite(self, values: Tensor) -> Tensor:
        """Counts what is not finite, and answers the values with 0 in its place: the same ones, if all are finite."""
        if not values.numel():
            return values
        low, high = torch.aminmax(values)
        if not (torch.isfinite(low) & torch.isfinite(high)):
            is_finite = torch.isfinite(values)
            self.nonfinite += (~is_finite).sum()
            values = torch.where(is_finite, values, 0)
            low, high = torch.aminmax(values)
        self.largest = torch.maximum(self.largest, torch.maximum(-low, high).to(torch.float64))
        return values


def _of_rows(parallel: Parallel, table: Table, pieces: list[Piece]) -> _Counts:
    """Of a table whose rows are whole: nothing is asked of other ranks."""
    counts = _Counts(parallel.module.device)
    for weight, moment in _paired(table, pieces, 1):
        for first, last in _blocks(0, len(weight.tensor), weight):
            values, slots = _block(weight, moment, first, last)
            start = None if slots else _start_of(parallel, table, weight, first, last)
            counts.add(values, slots, _is_learned(slots, values, start))
    return counts


def _of_cut_table(parallel: Parallel, table: Table, pieces: list[Piece]) -> _Counts:
    """Of a table whose columns are cut: a row is learned if one of its ranges is, and dead if all of them are, wherever
    these lie. Flags of a row, a byte each, are exchanged; values are not. A collective call."""
    device = parallel.module.device
    counts = _Counts(device)
    pairs = _paired(table, pieces, parallel.plan.num_column_ranges(table.name))
    for start in range(0, table.rows, EXCHANGED_ROWS):
        stop = min(start + EXCHANGED_ROWS, table.rows)
        is_learned = torch.zeros(stop - start, dtype=torch.uint8, device=device)
        for weight, moment in pairs:
            for first, last in _blocks(start, stop, weight):
                values, slots = _block(weight, moment, first, last)
                begin = None if slots else _start_of(parallel, table, weight, first, last)
                is_learned[first - start : last - start] |= _is_learned(slots, values, begin)
        dist.all_reduce(is_learned, op=dist.ReduceOp.MAX, group=parallel.group)
        learned, is_alive = is_learned.bool(), torch.zeros_like(is_learned)
        for weight, moment in pairs:
            for first, last in _blocks(start, stop, weight):
                where = slice(first - start, last - start)
                is_alive[where] |= counts.add_values(*_block(weight, moment, first, last), learned[where])
        dist.all_reduce(is_alive, op=dist.ReduceOp.MAX, group=parallel.group)
        if dist.get_rank(parallel.group) == 0:
            counts.learned += learned.sum()
            counts.dead += (learned & ~is_alive.bool()).sum()
    return counts


def _paired(table: Table, pieces: list[Piece], num_ranges: int) -> list[tuple[Piece, Piece | None]]:
    """Each part of the weight with the moment of the same rows and columns, if there is one."""
    moments = {}
    for piece in (piece for piece in pieces if piece.slot == MOMENT):
        row, *column = piece.offsets
        columns_of_one = table.dim // num_ranges if piece.shape[1:] == (num_ranges,) else 1
        moments[row, sum(column) * columns_of_one] = piece
    return [(piece, moments.get((piece.offsets[0], piece.offsets[1]))) for piece in pieces if piece.slot == WEIGHT]


def _blocks(start: int, stop: int, weight: Piece) -> Iterator[tuple[int, int]]:
    step = max(1, BLOCK_VALUES[weight.tensor.device.type] // weight.tensor.shape[1])
    return ((first, min(first + step, stop)) for first in range(start, stop, step))


def _block(weight: Piece, moment: Piece | None, first: int, last: int) -> Block:
    return weight.tensor[first:last], [moment.tensor[first:last]] if moment is not None else []


def _start_of(parallel: Parallel, table: Table, weight: Piece, first: int, last: int) -> Tensor:
    """The values that these rows of a part began with."""
    config, (row, column), width = parallel.config, weight.offsets, weight.tensor.shape[1]
    rows = initial_rows(config.seed, table, row + first, row + last, config.model.init_scale)
    return rows[:, column : column + width].to(weight.tensor.device)


def _is_learned(slots: list[Tensor], values: Tensor, start: Tensor | None = None) -> Tensor:
    """(rows,) bool. A moment that is NaN is one of a row that was learned."""
    if start is not None:
        return (values != start).any(dim=1)
    if not slots:
        return torch.ones(len(values), dtype=torch.bool, device=values.device)
    by_row = [s if s.dim() == 1 else torch.linalg.vector_norm(s, dim=1, dtype=torch.float64) for s in slots]
    return torch.stack([moment != 0 for moment in by_row]).any(dim=0)


def _norms(values: Tensor) -> Tensor:
    """(rows,) float64: Euclidean length of each row, 0 exactly where no value is beyond NEAR_ZERO."""
    return torch.linalg.vector_norm(hardshrink(values, NEAR_ZERO), dim=1, dtype=torch.float64)


def _layers(parallel: Parallel, mlp: str) -> Iterator[Block]:
    """Each layer as (units, inputs + 1), its biases in the last column, and its slots likewise."""
    params, state = parallel.dense_params, parallel.dense_optimizer.state
    for name in sorted(name for name in params if name.startswith(f"{mlp}.") and name.endswith(".weight")):
        weight, bias = params[name], params[f"{name.removesuffix('weight')}bias"]
        slots = [slot for slot, value in state[weight].items() if value.shape == weight.shape]
        yield _joined(weight, bias), [_joined(state[weight][slot], state[bias][slot]) for slot in slots]


def _joined(weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weight, bias.unsqueeze(1)], dim=1)


def _health(named: tuple[str, int], sums: list[float], largest: float) -> TableHealth:
    learned, dead, nonfinite, squares, values = sums
    rms = (squares / values) ** 0.5 if values else 0.0
    return TableHealth(*named, int(learned), int(dead), int(nonfinite), largest, rms)
