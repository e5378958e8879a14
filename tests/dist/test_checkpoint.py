"""A version continues a model at any world size and under any placement."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torchrec import JaggedTensor, KeyedJaggedTensor

from diurnal.checkpoint.load import load
from diurnal.checkpoint.manifest import Lineage, Position
from diurnal.checkpoint.save import save
from diurnal.checkpoint.state import TrainState
from diurnal.checkpoint.store import Store, Version
from diurnal.checkpoint.tensors import Folder, Named
from diurnal.config import Config
from diurnal.errors import CheckpointError
from diurnal.sharding.parallel import Parallel
from diurnal.testing import everything, run_world, spread, tiny_batch, tiny_config, train_step

MIXED = {"user": "row_wise", "item": "table_wise", "genres": "row_wise", "site": "data_parallel"}
PLACEMENTS = {
    "table_wise": {"default": "table_wise"},
    "row_wise": {"default": "row_wise"},
    "data_parallel": {"default": "data_parallel"},
    "mixed": {"placement": MIXED},
}
CUT = {"placement": {"user": "column_wise", "item": "table_wise", "genres": "column_wise", "site": "data_parallel"}}
OPTIM = {"sparse": {"kind": "rowwise_adagrad"}, "dense": {"kind": "adam"}, "schedule": {"warmup_steps": 4}}


def configure(placement: str, **optim: dict) -> Config:
    return tiny_config({"optim": OPTIM | optim, "sharding": PLACEMENTS[placement]})


def lineage(number: int) -> Lineage:
    position = Position(steps=3, num_steps=3, rows=36, cursors=(36,))
    return Lineage(
        number=number,
        parent=number - 1 or None,
        increment=f"2026-01-{number:02}",
        fingerprint=f"day{number}",
        attempt=1,
        position=position,
    )


def train(state: TrainState, rank: int, world_size: int, steps: range) -> None:
    for step in steps:
        state.parallel.set_lr_factor(min(1.0, state.global_step / 4))
        train_step(state.parallel, tiny_batch(state.parallel.config, step, rank, world_size))
        state.global_step += 1


@torch.no_grad()
def score(parallel: Parallel, rank: int, world_size: int) -> torch.Tensor:
    batch = tiny_batch(parallel.config, 99, rank, world_size)
    return parallel.module(batch.dense, batch.sparse)


Answer = tuple[dict[str, torch.Tensor], torch.Tensor]
"""All values, and the rank's logits on a fixed batch."""


def train_and_save(rank: int, world_size: int, config: Config, storage: Path, steps: int, more: int) -> list[Answer]:
    """Before and after the steps that follow the save."""
    state = TrainState(spread(config))
    train(state, rank, world_size, range(steps))
    answers = [(everything(state.parallel), score(state.parallel, rank, world_size))]
    save(Store(storage, "tiny"), state, lineage(1))
    train(state, rank, world_size, range(steps, steps + more))
    return [*answers, (everything(state.parallel), score(state.parallel, rank, world_size))]


def load_and_train(
    rank: int, world_size: int, configs: list[Config], storage: Path, steps: int, more: int
) -> list[list[Answer]]:
    found = []
    for config in configs:
        state, store = TrainState(spread(config)), Store(storage, "tiny")
        load(store, store.version(1), state)
        answers = [(everything(state.parallel), score(state.parallel, rank, world_size))]
        assert state.global_step == steps
        train(state, rank, world_size, range(steps, steps + more))
        found.append([*answers, (everything(state.parallel), score(state.parallel, rank, world_size))])
    return found


def in_order(shares: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(shares, dim=1).flatten()


@pytest.mark.parametrize("saved", PLACEMENTS)
def test_a_version_loads_at_any_world_size_and_placement(tmp_path: Path, saved: str) -> None:
    """meta-pytorch/torchrec#2534."""
    by_rank = run_world(train_and_save, 2, configure(saved), tmp_path, 3, 3)
    for world_size in (1, 2, 3):
        loaded_by_rank = run_world(load_and_train, world_size, [configure(p) for p in PLACEMENTS], tmp_path, 3, 3)
        for index in range(len(PLACEMENTS)):
            at_load, later = ([answers[index][i] for answers in loaded_by_rank] for i in (0, 1))
            for name, value in by_rank[0][0][0].items():
                assert torch.equal(at_load[0][0][name], value), name
            for name, value in by_rank[0][1][0].items():
                torch.testing.assert_close(later[0][0][name], value, rtol=1e-5, atol=1e-6)
            for loaded, expected in ((at_load, 0), (later, 1)):
                logits = in_order([answers[expected][1] for answers in by_rank])
                torch.testing.assert_close(in_order([share for _, share in loaded]), logits, rtol=1e-5, atol=1e-6)


def train_in_two(rank: int, world_size: int, configs: list[Config], storage: Path, is_resumed: bool) -> list[Answer]:
    """20 steps with a save after 10, or the last 10 of them from that version."""
    answers = []
    for config in configs:
        state, store = TrainState(spread(config)), Store(storage, config.name)
        if is_resumed:
            load(store, store.version(1), state)
        else:
            train(state, rank, world_size, range(10))
            save(store, state, lineage(1))
        train(state, rank, world_size, range(10, 20))
        answers.append((everything(state.parallel), score(state.parallel, rank, world_size)))
    return answers


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_20_steps_are_10_and_a_new_process_and_10_bit_for_bit(tmp_path: Path, world_size: int) -> None:
    """KempnerInstitute/KempnerForge#115."""
    settings = [
        {"name": sparse + placement, "optim": OPTIM | {"sparse": {"kind": sparse}, "dense": {"kind": dense}}}
        | {"sharding": CUT if placement == "cut" else PLACEMENTS[placement], "workers": {"max": 2}}
        for sparse, dense in (("rowwise_adagrad", "adam"), ("adagrad", "adagrad"), ("sgd", "sgd"))
        for placement in ("mixed", "cut")
    ]
    configs = [tiny_config(changes, dim=8) for changes in settings]
    unbroken = run_world(train_in_two, world_size, configs, tmp_path, False)
    resumed = run_world(train_in_two, world_size, configs, tmp_path, True)
    for answers, resumed_answers in zip(unbroken, resumed, strict=True):
        for (values, logits), (resumed_values, resumed_logits) in zip(answers, resumed_answers, strict=True):
            assert [name for name in values if not torch.equal(values[name], resumed_values[name])] == []
            assert torch.equal(logits, resumed_logits)


def draw(rank: int, world_size: int, storage: Path, is_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Random numbers before and after a save, or after a load."""
    torch.manual_seed(100 + rank)
    state, store = TrainState(spread(configure("mixed"))), Store(storage, "tiny")
    before = torch.rand(3)
    if is_first:
        save(store, state, lineage(1))
    else:
        load(store, store.version(1), state)
    return before, torch.rand(3)


def test_random_state_goes_on_where_it_was_and_anew_at_another_world_size(tmp_path: Path) -> None:
    saved = run_world(draw, 2, tmp_path, True)
    assert [after.tolist() for _, after in run_world(draw, 2, tmp_path, False)] == [
        after.tolist() for _, after in saved
    ]
    anew = [after.tolist() for _, after in run_world(draw, 3, tmp_path, False)]
    assert anew == [after.tolist() for _, after in run_world(draw, 3, tmp_path, False)]
    assert len(set(map(tuple, anew))) == 3


def load_only(
    rank: int, world_size: int, config: Config, storage: Path, reset_optimizer: bool
) -> tuple[str, dict[str, torch.Tensor], int]:
    state, store = TrainState(spread(config)), Store(storage, "tiny")
    compatibility = load(store, store.version(1), state, reset_optimizer=reset_optimizer)
    return str(compatibility), everything(state.parallel), state.global_step


def saved_version(storage: Path, world_size: int = 2) -> tuple[Version, dict[str, torch.Tensor]]:
    by_rank = run_world(train_and_save, world_size, configure("mixed"), storage, 3, 0)
    return Store(storage, "tiny").version(1), by_rank[0][0][0]


def test_a_version_without_its_optimizer_part_is_refused_by_name_unless_reset(tmp_path: Path) -> None:
    version, saved = saved_version(tmp_path)
    shutil.rmtree(str(version.directory / "optimizer"))
    with pytest.raises(CheckpointError, match=r"(?s)1-3/optimizer/.*no such file.*checkpoint.reset_optimizer = true"):
        run_world(load_only, 2, configure("mixed"), tmp_path, False)
    report, values, step = run_world(load_only, 1, configure("mixed"), tmp_path, True)[0]
    assert "dropped optim.sparse" in report
    assert step == 3
    for name, value in saved.items():
        expected = torch.zeros_like(value) if "/" in name else value
        assert torch.equal(values[name], expected), name


def save_without_moments(rank: int, world_size: int, storage: Path) -> None:
    state = TrainState(spread(configure("mixed")))
    sections = state.sections()
    del sections["optimizer"]["tables/item/moment"]
    state.sections = lambda: sections
    save(Store(storage, "tiny"), state, lineage(1))


def test_a_version_that_lacks_a_moment_is_refused_by_name(tmp_path: Path) -> None:
    run_world(save_without_moments, 1, tmp_path)
    with pytest.raises(CheckpointError, match=r"(?s)1-3/optimizer\n  found: no tables/item/moment.*reset_optimizer"):
        run_world(load_only, 2, configure("mixed"), tmp_path, False)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_found_before_a_tensor_is_read(tmp_path: Path, damage: str) -> None:
    version, _ = saved_version(tmp_path)
    path = version.directory / "model" / "__1_0.distcp"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data) if damage == "flip" else bytes(data[:-1]))
    if damage == "remove":
        path.unlink()
    found = {"flip": "another checksum", "cut": "bytes instead of", "remove": "no such file"}[damage]
    with pytest.raises(CheckpointError, match=rf"model/__1_0.distcp\n  found: .*{found}"):
        run_world(load_only, 3, configure("mixed"), tmp_path, False)


def load_widened(rank: int, world_size: int, storage: Path) -> tuple[Answer, torch.Tensor]:
    """A new dense input and a new table, all in another order. Answers the logits of the old inputs beside any values
    of the new ones, and what the new table starts with."""
    old = json.loads(configure("mixed").dataset.model_dump_json())
    dataset = {
        "dense": [{"name": "length"}, *old["dense"][::-1]],
        "sparse": [{"name": "hour"}, *old["sparse"][::-1]],
        "tables": [{"name": "hour", "rows": 24, "dim": 4}, *old["tables"]],
    }
    state, store = TrainState(spread(tiny_config({"optim": OPTIM, "dataset": dataset}))), Store(storage, "tiny")
    first = state.parallel.gather_table("hour")
    load(store, store.version(1), state)
    batch = tiny_batch(configure("mixed"), 99)
    dense = torch.cat([torch.randn(12, 1), batch.dense.flip(1)], dim=1)
    bags = batch.sparse.to_dict() | {"hour": JaggedTensor(torch.arange(12), lengths=torch.ones(12, dtype=torch.int32))}
    with torch.no_grad():
        logits = state.parallel.module(
            dense, KeyedJaggedTensor.from_jt_dict({f["name"]: bags[f["name"]] for f in dataset["sparse"]})
        )
    return (everything(state.parallel), logits[:, 0]), first


def test_new_inputs_change_no_prediction_at_first_and_nothing_that_was_learned(tmp_path: Path) -> None:
    by_rank = run_world(train_and_save, 2, configure("mixed"), tmp_path, 3, 0)
    saved = by_rank[0][0][0]
    (((values, logits), first),) = run_world(load_widened, 1, tmp_path)
    torch.testing.assert_close(logits, in_order([answers[0][1] for answers in by_rank]), rtol=1e-5, atol=1e-6)
    assert torch.equal(values["hour"], first)
    for name, value in saved.items():
        if name.startswith(("over.0.weight", "bottom.0.weight")) and value.dim() == 2:
            assert values[name].shape[1] > value.shape[1]
            assert sorted(values[name][values[name] != 0].tolist()) == sorted(value[value != 0].tolist())
        else:
            assert torch.equal(values[name], value), name


def grow(
    rank: int, world_size: int, storage: Path, rows: int, placement: str, is_first: bool
) -> dict[str, torch.Tensor]:
    dataset = {
        "sparse": [{"name": "user", "mapping": "identity"}],
        "tables": [{"name": "user", "rows": rows, "dim": 8}],
    }
    config = tiny_config({"dataset": dataset, "sharding": {"default": placement}})
    state, store = TrainState(spread(config)), Store(storage, "tiny")
    first = everything(state.parallel)
    if is_first:
        train(state, rank, world_size, range(3))
        save(store, state, lineage(1))
    else:
        load(store, store.version(1), state)
    return everything(state.parallel) | {"first": first["user"]}


@pytest.mark.parametrize("placement", ["row_wise", "column_wise"])
@pytest.mark.parametrize("saved_placement", ["row_wise", "column_wise"])
def test_a_grown_table_keeps_its_rows_and_starts_the_new_ones(
    tmp_path: Path, saved_placement: str, placement: str
) -> None:
    (saved, _) = run_world(grow, 2, tmp_path, 10, saved_placement, True)
    moment = saved["user/moment"]
    if saved_placement != placement:
        moment = moment.mean(dim=1) if saved_placement == "column_wise" else moment.unsqueeze(1).expand(10, 2)
    for grown in run_world(grow, 3, tmp_path, 17, placement, False):
        assert torch.equal(grown["user"][:10], saved["user"])
        assert torch.equal(grown["user"][10:], grown["first"][10:])
        torch.testing.assert_close(grown["user/moment"][:10], moment)
        assert grown["user/moment"][:10].any()
        assert not grown["user/moment"][10:].any()


def load_beside_a_new_table(rank: int, world_size: int, storage: Path) -> tuple[list[int], dict[str, torch.Tensor]]:
    old = json.loads(tiny_config(dim=8).dataset.model_dump_json())
    dataset = {
        "sparse": [*old["sparse"], {"name": "hour"}],
        "tables": [*old["tables"], {"name": "hour", "rows": 24, "dim": 8}],
    }
    state = TrainState(spread(tiny_config({"dataset": dataset, "sharding": {"default": "column_wise"}}, dim=8)))
    first, store = state.parallel.gather_table("hour"), Store(storage, "tiny")
    load(store, store.version(1), state)
    plan = state.parallel.plan
    return [plan.num_column_ranges(name) for name in ("user", "hour")], everything(state.parallel) | {"first": first}


def test_a_new_table_that_is_cut_starts_beside_those_that_were_not(tmp_path: Path) -> None:
    config = tiny_config({"sharding": {"default": "row_wise"}}, dim=8)
    saved = run_world(train_and_save, 1, config, tmp_path, 3, 0)[0][0][0]
    for ranges, values in run_world(load_beside_a_new_table, 2, tmp_path):
        assert ranges == [2, 2]
        assert torch.equal(values["hour"], values["first"])
        assert not values["hour/moment"].any()
        assert torch.equal(values["user"], saved["user"])
        assert torch.equal(values["user/moment"], saved["user/moment"].unsqueeze(1).expand(50, 2))


@pytest.mark.parametrize("saved_cut", [True, False])
def test_moments_of_every_value_are_cut_and_put_together_as_they_are(tmp_path: Path, saved_cut: bool) -> None:
    optim = OPTIM | {"sparse": {"kind": "adagrad"}}
    cut = tiny_config({"optim": optim, "sharding": {"default": "column_wise"}}, dim=8)
    whole = tiny_config({"optim": optim, "sharding": {"default": "row_wise"}}, dim=8)
    by_rank = run_world(train_and_save, 2, cut if saved_cut else whole, tmp_path, 3, 0)
    _, values, _ = run_world(load_only, 3, whole if saved_cut else cut, tmp_path, False)[0]
    assert values["user/moment"].shape == (50, 8)
    assert [name for name, value in by_rank[0][0][0].items() if not torch.equal(values[name], value)] == []


def test_one_process_without_a_group_reads_whole_tables(tmp_path: Path) -> None:
    version, saved = saved_version(tmp_path)
    folder = Folder(version.directory / "model")
    user = torch.empty(folder.shapes["tables/user/weight"])
    folder.read({"tables/user/weight": Named.whole(user)})
    assert torch.equal(user, saved["user"])
