"""The watchdog in real processes: who is named, what is left behind, and that nothing fires without need."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from diurnal.config import Config
from diurnal.testing import WorldError, run_world, spread, tiny_batch, tiny_config
from diurnal.train.pulse import Phase, Pulse, mark_forward
from diurnal.train.stall import EXIT_STALLED, Watchdog, die

LIMIT_S = 2.0


class Folder:
    """A mailbox and a driver made of files; processes of one host share the monotonic clock."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def exchange(self, beat: dict[str, Any]) -> dict[str, Any]:
        self._write(f"beat-{beat['rank']}.json", {"beat": beat, "arrived_s": time.monotonic()})
        letters = [json.loads(file.read_text()) for file in self.path.glob("beat-*.json")]
        now_s = time.monotonic()
        beats = {x["beat"]["rank"]: {**x["beat"], "age_s": now_s - x["arrived_s"]} for x in letters}
        return {"beats": beats, "orders": {}}

    def tell(self, kind: str, data: dict[str, Any]) -> None:
        self._write(f"{kind}-of-{data['seen_by']}.json", data)

    def told(self) -> dict[int, dict[str, Any]]:
        said = [json.loads(file.read_text()) for file in self.path.glob("stall-of-*.json")]
        return {data["seen_by"]: data for data in said}

    def beat(self, rank: int) -> dict[str, Any]:
        return json.loads((self.path / f"beat-{rank}.json").read_text())["beat"]

    def _write(self, name: str, data: dict[str, Any]) -> None:
        unfinished = self.path / f"{name}.{os.getpid()}.tmp"
        unfinished.write_text(json.dumps(data))
        unfinished.rename(self.path / name)


def watchdog(pulse: Pulse, rank: int, world_size: int, folder: Folder) -> Watchdog:
    on_stall = partial(die, tell=folder.tell, linger_s=1.5)
    return Watchdog(pulse, rank, world_size, LIMIT_S, folder.exchange, on_stall, every_s=0.2)


def train(rank: int, world_size: int, path: str, num_steps: int, trouble_rank: int, trouble: str) -> int:
    """Steps of 10 ms with two collectives; one rank has a trouble in the data phase of step 5."""
    pulse, folder = Pulse(), Folder(path)
    with watchdog(pulse, rank, world_size, folder):
        for step in range(num_steps):
            pulse.mark(Phase.DATA, step)
            time.sleep(0.01)
            if rank == trouble_rank and step == 5:
                TROUBLES[trouble](pulse)
            for phase in (Phase.EXCHANGE, Phase.VOTE, Phase.BACKWARD, Phase.DENSE):
                pulse.mark(phase, step)
                if phase in (Phase.EXCHANGE, Phase.VOTE):
                    dist.all_reduce(torch.ones(1))
    return pulse.moment.step


def sleep_for_long(_: Pulse) -> None:
    time.sleep(60.0)


def freeze(_: Pulse) -> None:
    time.sleep(1.0)  # until a beat has said where
    os.kill(os.getpid(), signal.SIGSTOP)


def freeze_for_a_while(_: Pulse) -> None:
    subprocess.Popen(["sh", "-c", f"sleep {2 * LIMIT_S}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60.0)


def fail(_: Pulse) -> None:
    raise ValueError("boom")


def pause(pulse: Pulse) -> None:
    with pulse.paused():
        time.sleep(1.5 * LIMIT_S)


TROUBLES = {
    "sleeps": sleep_for_long,
    "freezes": freeze,
    "freezes for a while": freeze_for_a_while,
    "fails": fail,
    "pauses": pause,
}


def nothing(rank: int, world_size: int) -> None:
    return None


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Worlds start fast from now on, so that a test may look at the clock."""
    run_world(nothing, 1, timeout_s=120)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_rank_that_sleeps_is_named_with_its_phase_and_all_end_with_their_stacks_told(tmp_path: Path) -> None:
    """A real stall ends within the limit and names its rank, instead of waiting for a collective's timeout
    (meta-pytorch/torchrec#1014)."""
    started_s = time.monotonic()
    with pytest.raises(WorldError) as caught:
        run_world(train, 2, str(tmp_path), 10, 1, "sleeps")
    assert time.monotonic() - started_s < LIMIT_S + 15
    ends = str(caught.value)
    assert [f"rank {rank} died with exit code {EXIT_STALLED}" in ends for rank in (0, 1)] == [True, True], ends
    told = Folder(str(tmp_path)).told()
    assert sorted(told) == [0, 1]
    for verdict in told.values():
        assert (verdict["ranks"], verdict["phase"], verdict["step"]) == ([1], "data", 5)
        assert "rank 1 stalls: step 5, phase data, for " in verdict["text"]
        assert "in sleep_for_long (" in verdict["text"]
        assert verdict["text"].endswith("; rank 0 waits in exchange")
        assert verdict["text"] in ends
    assert "sleep_for_long" in told[1]["stacks"]
    assert "all_reduce" in told[0]["stacks"]
    assert "sleep_for_long" not in told[0]["stacks"]


def test_a_rank_that_freezes_is_named_and_killed(tmp_path: Path) -> None:
    with pytest.raises(WorldError) as caught:
        run_world(train, 3, str(tmp_path), 10, 1, "freezes")
    folder, ends = Folder(str(tmp_path)), str(caught.value)
    codes = {0: EXIT_STALLED, 1: -signal.SIGKILL, 2: EXIT_STALLED}
    assert all(f"rank {rank} died with exit code {code}" in ends for rank, code in codes.items()), ends
    assert not any(is_alive(folder.beat(rank)["pid"]) for rank in codes)
    told = folder.told()
    assert sorted(told) == [0, 2]
    for verdict in told.values():
        assert (verdict["ranks"], verdict["phase"], verdict["step"]) == ([1], "data", 5)
        assert "rank 1 stalls: frozen or gone, no sign of life for " in verdict["text"]
        assert verdict["text"].endswith("; ranks 0, 2 wait in exchange")


def test_a_rank_that_wakes_up_too_late_ends_itself_and_nobody_else(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=f"rank 0 died with exit code {EXIT_STALLED}"):
        run_world(train, 1, str(tmp_path), 10, 0, "freezes for a while")
    verdict = Folder(str(tmp_path)).told()[0]
    assert (verdict["ranks"], verdict["frozen"]) == ([0], [])
    assert "it was frozen" in verdict["text"]
    assert verdict["seconds"] > LIMIT_S


def test_an_error_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="boom") as caught:
        run_world(train, 2, str(tmp_path), 10, 1, "fails")
    assert "on rank 1 of 2" in caught.value.__notes__
    assert Folder(str(tmp_path)).told() == {}
    assert Folder(str(tmp_path)).beat(1)["has_ended"]


def test_a_healthy_run_and_one_that_pauses_are_left_alone(tmp_path: Path) -> None:
    assert run_world(train, 2, str(tmp_path), 200, 1, "pauses") == [199, 199]
    assert Folder(str(tmp_path)).told() == {}


def phases_of_a_forward(rank: int, world_size: int, config: Config) -> tuple[list[str], int]:
    parallel, pulse = spread(config), Pulse()
    mark_forward(parallel.module, pulse)
    seen: list[str] = []
    for name in ("bottom", "interaction"):
        part = parallel.module.module.get_submodule(name)
        part.register_forward_pre_hook(lambda *_: seen.append(pulse.moment.phase.word))
    for step in range(2):
        batch = tiny_batch(config, step, rank, world_size)
        pulse.mark(Phase.EXCHANGE, step)
        parallel.module(batch.dense, batch.sparse)
    return seen, pulse.moment.step


@pytest.mark.parametrize("placement", ["table_wise", "row_wise", "data_parallel"])
def test_a_sharded_model_marks_where_the_exchange_of_ids_ends(placement: str) -> None:
    tables = [table.name for table in tiny_config().dataset.tables]
    config = tiny_config({"sharding": {"placement": dict.fromkeys(tables, placement)}})
    for seen, step in run_world(phases_of_a_forward, 2, config):
        assert seen == ["exchange", "forward"] * 2
        assert step == 1
