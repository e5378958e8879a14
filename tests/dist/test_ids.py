"""Ids on their way from a column to the rows of a table that is spread over ranks: what is no row reaches none."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pytest
import torch
from torchrec import KeyedJaggedTensor

from diurnal.config import Config
from diurnal.data.encode import encode
from diurnal.model.loss import weighted_bce
from diurnal.testing import run_world, spread, tiny_batch, tiny_config, train_step

PLACEMENTS = ("table_wise", "row_wise", "data_parallel")


def configure(placement: str, mapping: str = "identity") -> Config:
    dataset = {
        "dense": [{"name": "age"}],
        "sparse": [{"name": "user", "mapping": mapping}],
        "tables": [{"name": "user", "rows": 10, "dim": 4}],
    }
    sparse = {"kind": "sgd", "lr": 1.0}
    return tiny_config({"dataset": dataset, "optim": {"sparse": sparse}, "sharding": {"default": placement}})


Answer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Pooled vectors of the rank's rows; the whole table before and after a step."""


def learn_ids(rank: int, world_size: int, config: Config, ids: list[int | None]) -> Answer:
    """One step over rows with these ids, dealt to the ranks in turn."""
    parallel = spread(config)
    mine = ids[rank::world_size]
    padding = -(-len(ids) // world_size) - len(mine)
    columns = {"user": pa.array(mine, pa.int64()), "age": np.ones(len(mine)), "label": np.ones(len(mine))}
    rows = encode(pa.table(columns), config.dataset)
    zeros = torch.zeros(padding)
    sparse = KeyedJaggedTensor(
        keys=["user"],
        values=torch.from_numpy(rows.values),
        lengths=torch.cat([torch.from_numpy(rows.lengths[0].astype(np.int32)), zeros.int()]),
    )
    before = parallel.gather_table("user")
    with torch.no_grad():
        vectors = parallel.module.module.get_submodule("tables")(sparse).values()
    dense = torch.cat([torch.from_numpy(rows.dense), zeros.unsqueeze(1)])
    labels, weights = (torch.cat([torch.from_numpy(values), zeros]) for values in (rows.labels, rows.weights))
    parallel.zero_grad()
    loss = weighted_bce(parallel.module(dense, sparse)[:, 0], labels, weights)
    (loss * world_size / len(ids)).backward()
    parallel.step_dense()
    return vectors[: len(mine)], before, parallel.gather_table("user")


def in_order(shares: list[torch.Tensor]) -> list[torch.Tensor]:
    return [row for step in range(len(shares[0])) for row in [share[step] for share in shares if step < len(share)]]


IDS = [3, 10, 11, 2**40, -1, -2, -(2**63), None, 4, 3]


@cache
def table_after_one_rank() -> torch.Tensor:
    return run_world(learn_ids, 1, configure("table_wise"), IDS)[0][2]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_only_ids_that_are_rows_are_read_and_trained(placement: str, world_size: int) -> None:
    """meta-pytorch/torchrec#575, pytorch/pytorch#88563."""
    answers = run_world(learn_ids, world_size, configure(placement), IDS)
    _, before, after = answers[0]
    for row_id, vector in zip(IDS, in_order([vectors for vectors, _, _ in answers]), strict=True):
        assert torch.equal(vector, before[row_id] if row_id in (3, 4) else torch.zeros(4)), row_id
    assert (before != after).any(dim=1).nonzero().flatten().tolist() == [3, 4]
    torch.testing.assert_close(after, table_after_one_rank(), rtol=0, atol=1e-6)


def look_up(rank: int, world_size: int, config: Config, row: int) -> None:
    sparse = KeyedJaggedTensor(keys=["user"], values=torch.tensor([row]), lengths=torch.tensor([1], dtype=torch.int32))
    spread(config).module(torch.zeros(1, 1), sparse)


def test_a_row_beyond_the_table_that_slips_through_is_an_error_not_another_row() -> None:
    with pytest.raises(RuntimeError, match=r"out of bounds|idx"):
        run_world(look_up, 1, configure("table_wise"), 10)


def learn_empty(rank: int, world_size: int, config: Config, case: str) -> tuple[float, int]:
    """The loss' sum and the number of real rows of this rank, with bags or rank without anything in them."""
    parallel = spread(config)
    batch = tiny_batch(config, 0, rank, world_size, num_rows=1 if case == "empty rank" else None)
    names = {"empty feature": ["genres"], "empty rank": [], "all empty": list(batch.sparse.keys())}[case]
    bags = batch.sparse.to_dict()
    lengths = [torch.zeros_like(bag.lengths()) if name in names else bag.lengths() for name, bag in bags.items()]
    values = [bag.values()[:0] if name in names else bag.values() for name, bag in bags.items()]
    batch.sparse = KeyedJaggedTensor(list(bags), torch.cat(values), lengths=torch.cat(lengths))
    for _ in range(2):
        logits = train_step(parallel, batch)
    return weighted_bce(logits[:, 0], batch.labels, batch.weights).item(), batch.num_rows


@pytest.mark.parametrize("case", ["empty feature", "empty rank", "all empty"])
@pytest.mark.parametrize("placement", ["table_wise", "row_wise", "data_parallel"])
def test_empty_bags_and_empty_ranks_are_normal_steps(placement: str, case: str) -> None:
    """pytorch/FBGEMM#3750, meta-pytorch/torchrec#2773."""
    answers = run_world(learn_empty, 2, tiny_config({"sharding": {"default": placement}}), case)
    assert all(np.isfinite(loss) for loss, _ in answers)
    assert sum(rows for _, rows in answers) == (1 if case == "empty rank" else 12)
