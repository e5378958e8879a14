"""The whole training pass against a bare TorchRec loop, in the same processes and the same run, round by round.

The bare loop is what anybody would write first: batches that lie in memory, forward, mean loss, backward with the
fused optimizer, step of the dense optimizer. The job reads Parquet, encodes, scores before it learns, agrees on each
step, counts metrics, and commits.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUM_DENSE, NUM_SPARSE, TABLE_ROWS, DIM = 13, 26, 100_000, 16
ROWS, BATCH_ROWS, ROUNDS = 491_520, 4096, 3


def write_dataset(folder: Path) -> None:
    """One day of 13 dense and 26 Zipf-distributed sparse columns, its schema, and the configuration."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"label": (rng.random(ROWS) < 0.2).astype(np.int8)}
    columns |= {f"d{i}": rng.exponential(10.0, ROWS).astype(np.float32) for i in range(NUM_DENSE)}
    columns |= {f"s{i}": rng.zipf(1.2, ROWS).astype(np.int64) % 10**9 for i in range(NUM_SPARSE)}
    day = folder / "days" / "dt=2026-01-01"
    day.mkdir(parents=True)
    pq.write_table(pa.table(columns), day / "part-0.parquet", compression="zstd", row_group_size=50_000)
    (day / "_SUCCESS").touch()
    entries = [f'[[dense]]\nname = "d{i}"\ntransform = "log1p"' for i in range(NUM_DENSE)]
    entries += [f'[[sparse]]\nname = "s{i}"' for i in range(NUM_SPARSE)]
    entries += [f'[[tables]]\nname = "s{i}"\nrows = {TABLE_ROWS}\ndim = {DIM}' for i in range(NUM_SPARSE)]
    (folder / "schema.toml").write_text("\n".join(entries))
    (folder / "run.toml").write_text(
        f'name = "bench"\nstorage = "{folder}/storage"\n'
        f'[data]\npath = "{folder}/days"\nschema_file = "{folder}/schema.toml"\nbatch_rows = {BATCH_ROWS}\n'
        "[model]\nbottom = [512, 256]\nover = [512, 256]\n[workers]\nmax = 2\n[tracking]\nenabled = false\n"
    )


def bench() -> dict[str, Any]:
    """Answers `end_to_end_vs_bare_loop`, the two speeds behind it, and what the first step of a job waits for."""
    from diurnal.config import load_config
    from diurnal.train.progress import Progress
    from diurnal.train.run import train

    with tempfile.TemporaryDirectory(prefix="diurnal-bench-") as name:
        folder = Path(name)
        write_dataset(folder)
        config = load_config([folder / "run.toml"])
        job = train(config, "2026-01-01", None, Progress(table=False)).to_dict()
        rounds = _rounds(config)
    ratios = [r["job_rows_per_s"] / r["bare_rows_per_s"] for r in rounds]
    timeline = job["timeline"]
    parts, before_s = {}, 0.0
    for at, what in (
        ("entered_s", "cluster, worker processes and torch"),
        ("imported_s", "imports"),
        ("built_s", "model, plan and tables"),
        ("loaded_s", "parent version"),
        ("first_step_s", "first batch and step"),
    ):
        parts[what], before_s = timeline[at] - before_s, timeline[at]
    return {
        "end_to_end_vs_bare_loop": statistics.median(ratios),
        "end_to_end_vs_bare_loop_rounds": ratios,
        "commit_stall_steps": rounds[0]["commit_stall_steps"],
        "rounds": rounds,
        "first_step_s": timeline["first_step_s"],
        "first_step_parts_s": parts,
    }


def _rounds(config: Any) -> Any:
    """Runs both loops in turn inside one group of two Ray Train workers."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from diurnal.config import resolved_json
    from diurnal.testing import by_value
    from diurnal.train.resources import cluster

    by_value(work)
    with cluster(config), tempfile.TemporaryDirectory(prefix="diurnal-bench-") as scratch:
        trainer = TorchTrainer(
            work,
            train_loop_config={"config": resolved_json(config)},
            scaling_config=ScalingConfig(num_workers=config.workers.max, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(name="bench", storage_path=scratch),
        )
        rounds = trainer.fit().return_value
        ray.shutdown()
    return rounds


class Heard:
    """A link that keeps what it is told."""

    def __init__(self) -> None:
        self.commits: list[dict[str, Any]] = []

    def send(self, kind: str, increment: str = "", /, **data: Any) -> None:
        if kind == "committed":
            self.commits.append(data)

    def ask(self, question: str, increment: str = "", /, **_: Any) -> Any:
        return None

    def beat(self, beat: dict[str, Any]) -> dict[str, Any]:
        return {"beats": {}, "orders": {}}


def work(task: dict[str, Any]) -> list[dict[str, float]]:
    import torch
    import torch.distributed as dist

    from diurnal.checkpoint.store import Store
    from diurnal.config import from_resolved
    from diurnal.data.selection import select_increments
    from diurnal.data.streams import plan_increment
    from diurnal.train.commit import Carried, Committer, Progress
    from diurnal.train.loop import Wishes, learn
    from diurnal.train.passes import Pass
    from diurnal.train.pulse import Pulse
    from diurnal.train.setup import build_learner
    from diurnal.train.spec import Fit
    from diurnal.train.totals import add_up

    config = from_resolved(task["config"])
    learner = build_learner(config, torch.device("cpu"))
    (increment,) = select_increments(config.data.path, config.dataset)
    plan = plan_increment(
        increment,
        batch_rows=BATCH_ROWS,
        num_streams=config.num_streams,
        seed=0,
        order="file",
        task_rows=config.data.task_rows,
    )
    with learner.feed(plan) as feed:
        prebuilt = list(feed)
    bare = _bare_loop(config, learner)
    link = Heard()
    committer = Committer(Store(config.storage, "rounds"), learner, link, lambda *_: None, token=0)
    rounds = []
    for number in range(ROUNDS + 1):
        dist.barrier()
        begun_s = time.perf_counter()
        bare(prebuilt)
        dist.barrier()
        bare_s = time.perf_counter()
        fit = Fit(plan.to_json(), increment.fingerprint, number + 1, 1)
        progress = Progress(fit, plan, Pass.new(learner, plan.num_steps), None)
        with learner.feed(plan) as feed:
            done = learn(learner, feed, progress.done, Pulse(), Wishes, lambda *_: True)
        learned = add_up(learner, done)
        learned_s = time.perf_counter()
        committer.version(progress, learned, Carried())
        committer.settle()
        dist.barrier()
        committed_s = time.perf_counter()
        rounds.append(
            {
                "bare_rows_per_s": ROWS / (bare_s - begun_s),
                "job_rows_per_s": ROWS / (committed_s - bare_s),
                "job_rows_per_s_without_commit": ROWS / (learned_s - bare_s),
                "commit_s": committed_s - learned_s,
                "data_wait_share": learned.wait_share,
            }
        )
    progress = Progress(fit, plan, Pass.new(learner, plan.num_steps), None)

    def commit_half_way(done: Pass, batch: Any, _: Wishes) -> bool:
        if batch.step == plan.num_steps // 2:
            committer.point(progress, batch.step + 1, Carried())
        return True

    with learner.feed(plan) as feed:
        done = learn(learner, feed, progress.done, Pulse(), Wishes, commit_half_way)
    committer.settle()
    step_s = done.wall_s / plan.num_steps
    stall_s = link.commits[-1]["stall_s"] if link.commits else 0.0
    return [{**one, "commit_stall_steps": stall_s / step_s} for one in rounds[1:]]


def _bare_loop(config: Any, learner: Any) -> Any:
    """TorchRec as its documentation shows it: its DLRM, planner, DistributedModelParallel, fused row-wise AdaGrad."""
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
    from torchrec import EmbeddingBagCollection
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.models.dlrm import DLRM
    from torchrec.optim import RowWiseAdagrad

    from diurnal.model.tables import embedding_bag_configs

    tables = EmbeddingBagCollection(tables=embedding_bag_configs(config.dataset), device=torch.device("meta"))
    model = DLRM(tables, NUM_DENSE, [*config.model.bottom, DIM], [*config.model.over, 1])
    apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), {"lr": 0.05})
    planner = EmbeddingShardingPlanner(topology=Topology(world_size=learner.world_size, compute_device="cpu"))
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

    sharders: list[Any] = [EmbeddingBagCollectionSharder()]
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    module = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    dense = [p for name, p in module.named_parameters() if "embedding_bags" not in name]
    optimizer = torch.optim.Adagrad(dense, lr=0.01)
    loss_of = torch.nn.BCEWithLogitsLoss()

    def run(batches: list[Any]) -> None:
        for batch in batches:
            optimizer.zero_grad()
            loss_of(module(batch.dense, batch.sparse).squeeze(1), batch.labels).backward()
            optimizer.step()

    return run
