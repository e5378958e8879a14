"""Test bodies in worlds of gloo processes, killed at a named point where a test asks for it.

`run_world(body, 2, *args)` calls `body(rank, world_size, *args)` in two fresh processes that share a process group.
The processes are forked from one server that has imported torchrec once, so that a world costs a fraction of a
second instead of an import of many seconds; a body may leave anything behind, or die.

Bodies may stand in a test file: their module travels by value, since no other process can import it.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from diurnal.checkpoint.points import KILL_AT
from diurnal.config import Config
from diurnal.config.load import merge_below

if TYPE_CHECKING:
    from torch import Tensor

    from diurnal.data.batch import Batch
    from diurnal.sharding.parallel import Parallel

PRELOADED = ("__main__", "diurnal.checkpoint.load", "diurnal.checkpoint.save", "diurnal.data.batch")
"""What the server imports before the first world, and torch and torchrec with it. The few threads that are started by
that (of NumPy's BLAS, of Arrow's allocator) are made to be forked."""

GRACE_S = 5.0
"""How long the other ranks may go on after one has failed or died."""

T = TypeVar("T")


class WorldError(AssertionError):
    """A world that ended otherwise than its test expects: a rank died, or did not end in time."""


@dataclass(eq=False)
class _Rank:
    process: Any
    results: Connection
    log: Path
    output: str = ""
    value: Any = None
    error: BaseException | None = None
    failed_at_s: float = float("inf")
    is_done: bool = False
    exit_code: int | None = None
    """Of a process that ended by itself; None for one that had to be killed."""


def by_value(body: Callable[..., T]) -> Callable[..., T]:
    """Lets the body's module travel by value, to worlds and to Ray's workers, as long as it is a test's own."""
    import cloudpickle

    module = sys.modules[body.__module__]
    if module.__name__.split(".")[0] != "diurnal":
        cloudpickle.register_pickle_by_value(module)
        if "ray" in sys.modules:
            sys.modules["ray"].cloudpickle.register_pickle_by_value(module)
    return body


def run_world(
    body: Callable[..., T], world_size: int, *args: Any, timeout_s: float = 60.0, env: dict[str, str] | None = None
) -> list[T]:
    """Runs `body(rank, world_size, *args)` on every rank of a fresh gloo world.

    Args:
        body: returns something that pickles.
        timeout_s: a world that is not done by then is killed; the error shows the stack of every rank.
        env: added to the processes' environment before the process group is made.

    Returns:
        The ranks' results, in the order of ranks.

    Raises:
        BaseException: the first error that a rank raised, as it was, with the rank and its traceback as notes. What
            the others raise because of it is not shown.
        WorldError: a rank died without an error, or the time was over.
    """
    ranks = _play(body, world_size, args, timeout_s, env or {})
    failed = min(range(world_size), key=lambda rank: ranks[rank].failed_at_s)
    error = ranks[failed].error
    has_died = any(state.exit_code and state.error is None for state in ranks)
    if error is not None and not has_died:
        error.add_note(f"on rank {failed} of {world_size}")
        raise error
    if not all(state.is_done for state in ranks):
        raise WorldError("\n".join(_what_became(rank, state, timeout_s) for rank, state in enumerate(ranks)))
    return [state.value for state in ranks]


def kill_world(
    body: Callable[..., Any], world_size: int, *args: Any, point: str, rank: int = 0, timeout_s: float = 60.0
) -> None:
    """Runs a body of which one rank is killed by SIGKILL when it reaches the named point; the others are killed when
    they fail because of it, or after a grace period.

    Raises:
        WorldError: the rank did not die at the point.
    """
    ranks = _play(body, world_size, args, timeout_s, {KILL_AT: f"{point}@{rank}"})
    if ranks[rank].exit_code != -signal.SIGKILL:
        raise WorldError(f"no kill at {point}: {_what_became(rank, ranks[rank], timeout_s)}") from ranks[rank].error


def _what_became(rank: int, state: _Rank, timeout_s: float) -> str:
    if state.is_done:
        return f"rank {rank} was done"
    if state.error is not None:
        return f"rank {rank} raised {state.error!r}"
    if state.exit_code is None:
        return f"rank {rank} was not done after {timeout_s} s:\n{state.output}"
    return f"rank {rank} died with exit code {state.exit_code}:\n{state.output}"


def _dumps(value: Any) -> bytes:
    """cloudpickle, which alone stumbles over modules of a class of their own: torch has them for its settings, and
    finds them in any function that says `dist` and `config`."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, ModuleType) and type(obj) is not ModuleType:
                return importlib.import_module, (obj.__name__,)
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


def _play(
    body: Callable[..., Any], world_size: int, args: tuple[Any, ...], timeout_s: float, env: dict[str, str]
) -> list[_Rank]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    payload = _dumps((by_value(body), args))
    with tempfile.TemporaryDirectory(prefix="diurnal-world-") as folder:
        ranks = []
        for rank in range(world_size):
            log = Path(folder, f"rank{rank}.log")
            receiver, sender = context.Pipe(duplex=False)
            settings = (rank, world_size, folder, timeout_s, env)
            process = context.Process(target=_run_rank, args=(payload, sender, str(log), *settings), daemon=True)
            process.start()
            sender.close()
            ranks.append(_Rank(process, receiver, log))
        try:
            _collect(ranks, timeout_s)
        finally:
            for state in ranks:
                if state.is_done or state.error is not None:
                    state.process.join(GRACE_S)
                state.exit_code = state.process.exitcode
                state.process.kill()
                state.process.join()
                state.output = state.log.read_text(errors="replace")[-8000:] if state.log.exists() else ""
    return ranks


def _collect(ranks: list[_Rank], timeout_s: float) -> None:
    """Waits until every rank has answered or died; not long for the others after the first that failed."""
    import cloudpickle

    deadline_s = time.monotonic() + timeout_s
    waiting = list(ranks)
    while waiting and (left_s := deadline_s - time.monotonic()) > 0:
        answering = wait([state.results for state in waiting], timeout=left_s)
        for state in [state for state in waiting if state.results in answering]:
            waiting.remove(state)
            try:
                state.is_done, answer, state.failed_at_s = cloudpickle.loads(state.results.recv_bytes())
            except EOFError:
                state.process.join(GRACE_S)
                answer = None
            if state.is_done:
                state.value = answer
            else:
                state.error = answer
                deadline_s = min(deadline_s, time.monotonic() + GRACE_S)


def _run_rank(
    payload: bytes, results: Connection, log: str, rank: int, world_size: int, folder: str, timeout_s: float, env: Any
) -> None:
    """The process of one rank: its output goes to a file, its answer through the pipe."""
    import cloudpickle
    import torch
    import torch.distributed as dist

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.dump_traceback_later(max(timeout_s - 1.0, 0.5), file=descriptor)
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", "RANK": str(rank), "WORLD_SIZE": str(world_size)}, **env)
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
        body, args = cloudpickle.loads(payload)
        answer = _dumps((True, body(rank, world_size, *args), float("inf")))
    except BaseException as error:
        failed_at_s = time.monotonic()
        error.add_note("".join(traceback.format_exception(error)))
        answer = _dump_error(error, failed_at_s)
    results.send_bytes(answer)
    results.close()
    if dist.is_initialized():
        dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


def _dump_error(error: BaseException, failed_at_s: float) -> bytes:
    import cloudpickle

    try:
        answer = _dumps((False, error, failed_at_s))
        cloudpickle.loads(answer)
        return answer
    except Exception:
        stand_in = RuntimeError(f"{type(error).__name__}: {error}")
        for note in error.__notes__:
            stand_in.add_note(note)
        return _dumps((False, stand_in, failed_at_s))


def tiny_config(changes: dict[str, Any] | None = None, dim: int = 4) -> Config:
    """A model of some hundred weights that has what is delicate: bags with sum and mean pooling, a table that two
    features share, tables of one row and of sizes that no world size divides. `changes` are merged in, key by key.
    Columns can be cut into ranges from `dim` 8 on."""
    settings: dict[str, Any] = {
        "name": "tiny",
        "seed": 7,
        "data": {"path": "nowhere", "schema_file": "nowhere", "batch_rows": 12},
        "model": {"bottom": [6], "over": [5]},
        "dataset": {
            "dense": [{"name": "age"}, {"name": "price"}],
            "sparse": [
                {"name": "user"},
                {"name": "liked", "many": True, "table": "item"},
                {"name": "item"},
                {"name": "genres", "many": True},
                {"name": "site"},
            ],
            "tables": [
                {"name": "user", "rows": 50, "dim": dim},
                {"name": "item", "rows": 10, "dim": dim},
                {"name": "genres", "rows": 7, "dim": dim, "pooling": "mean"},
                {"name": "site", "rows": 1, "dim": dim},
            ],
        },
    }
    merge_below(settings, changes or {})
    return Config.model_validate_json(json.dumps(settings))


def tiny_batch(config: Config, step: int, rank: int = 0, world_size: int = 1, num_rows: int | None = None) -> Batch:
    """A rank's share of a random global batch, which depends on the step alone; every third of its rows is light.

    The W shares are padded to one size with rows of weight 0; `num_rows` of the global batch are real (all of
    `data.batch_rows`, if not given).
    """
    import numpy as np
    import torch
    from torchrec import KeyedJaggedTensor

    from diurnal.data.batch import Batch

    draw = np.random.default_rng(step)
    batch_rows = config.data.batch_rows
    dense = draw.standard_normal((batch_rows, len(config.dataset.dense)), dtype=np.float32)
    labels = draw.integers(0, 2, batch_rows).astype(np.float32)
    weights = np.where(np.arange(batch_rows) % 3 == 0, 0.5, 1.0).astype(np.float32)
    bags = [
        [
            draw.integers(0, config.dataset.table(f.table_name).rows, draw.integers(0, 4) if f.many else 1).tolist()
            for _ in range(batch_rows)
        ]
        for f in config.dataset.sparse
    ]
    task_labels = draw.choice(np.array([0, 1, np.nan], np.float32), (batch_rows, len(config.dataset.tasks)))
    mine = list(range(rank, batch_rows if num_rows is None else num_rows, world_size))
    padding = -(-batch_rows // world_size) - len(mine)

    def padded(values: np.ndarray, fill: float = 0) -> torch.Tensor:
        rows = values[mine]
        return torch.from_numpy(np.concatenate([rows, np.full((padding, *rows.shape[1:]), fill, values.dtype)]))

    shares = [[feature_bags[row] for row in mine] + [[]] * padding for feature_bags in bags]
    return Batch(
        dense=padded(dense),
        sparse=KeyedJaggedTensor(
            keys=[feature.name for feature in config.dataset.sparse],
            values=torch.tensor([id for share in shares for bag in share for id in bag], dtype=torch.int64),
            lengths=torch.tensor([len(bag) for share in shares for bag in share], dtype=torch.int32),
            stride=len(mine) + padding,
        ),
        labels=padded(labels),
        weights=padded(weights),
        row_index=padded(np.arange(batch_rows), -1),
        step=step,
        num_rows=len(mine),
        counts=np.zeros(0, np.int64),
        task_labels=padded(task_labels, float("nan")).T,
    )


def spread(config: Config) -> Parallel:
    """A new model, spread over the ranks of this process' world."""
    import torch

    from diurnal.model.dlrm import build_dlrm
    from diurnal.sharding.parallel import parallelize
    from diurnal.sharding.plan import make_plan
    from diurnal.sharding.topology import Topology

    plan = make_plan(config, Topology.of_process_group())
    return parallelize(config, build_dlrm(config), torch.device("cpu"), plan)


def train_step(parallel: Parallel, batch: Batch) -> Tensor:
    """Learns a rank's share of a global batch, and answers its logits from before."""
    import torch.distributed as dist

    from diurnal.model.loss import weighted_losses

    logits = parallel.module(batch.dense, batch.sparse)
    weight = batch.weights.sum()
    dist.all_reduce(weight)
    parallel.zero_grad()
    (weighted_losses(logits, batch, parallel.config.dataset.tasks) * dist.get_world_size() / weight).backward()
    parallel.step_dense()
    return logits.detach()


def everything(parallel: Parallel) -> dict[str, Tensor]:
    """All weights and moments, whole, on every rank, named as `Twin.values` names them, and with its shapes."""
    names = [table.name for table in parallel.config.dataset.tables]
    whole = {name: parallel.gather_table(name) for name in names}
    if parallel.config.optim.sparse.kind != "sgd":
        whole |= {f"{name}/moment": parallel.gather_table(name, "moment") for name in names}
    for name, parameter in parallel.dense_params.items():
        whole[name] = parameter.detach().clone()
        slots = parallel.dense_optimizer.state[parameter]
        whole |= {f"{name}/{slot}": tensor.clone() for slot, tensor in slots.items()}
    return whole


def tensors_of(config: Config, number: int | None = None) -> dict[str, Tensor]:
    """All tensors of a version, the newest if no number is given, `<section>/<name>`; read without a process group."""
    from diurnal.checkpoint.history import History
    from diurnal.checkpoint.store import Store
    from diurnal.checkpoint.tensors import Folder
    from diurnal.ledger.claims import Ledger

    with Ledger.of(config) as ledger:
        history = History(Store(config.storage, config.name), ledger, config.name)
        version = history.versions()[-1] if number is None else history.version(number)
    folders = {section: Folder(version.directory / section) for section in ("model", "optimizer")}
    return {f"{s}/{name}": t for s, folder in folders.items() for name, t in folder.read_whole(folder.shapes).items()}
