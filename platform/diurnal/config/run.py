"""What a run is: data, model, optimizers, placement, workers, storage, tracking."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from diurnal.config.daily import Days, Gate, Profile
from diurnal.config.schema import Schema
from diurnal.config.section import Broken, Count, Name, NotNegative, Positive, Section, rule

MAX_SLICED_IDS = 65536
"""Rows of the table of a feature that `metrics.slices` names: sums are kept for each of them, 56 bytes."""

_OBJECT_STORE = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/(?!\.{1,2}(/|$))[A-Za-z0-9._=-]+)*/?")

Placement = Literal["table_wise", "row_wise", "column_wise", "data_parallel"]
OnBadFile = Literal["refuse", "quarantine"]


class Data(Section):
    """Where the days are, and how their rows become global batches."""

    path: str
    """Folder with `dt=YYYY-MM-DD[/hr=HH]/*.parquet`."""
    schema_file: str
    """The dataset's `schema.toml`."""
    batch_rows: Count = 4096
    """Rows of the global batch, over all ranks; the same at every world size."""
    streams: Annotated[int, Field(ge=0)] = 0
    """Lanes into which the rows are dealt; 0 means workers.max."""
    order: Literal["file", "shuffled"] = "file"
    """`file` keeps the log's order, as far as streams allow; `shuffled` orders row ranges and the rows of a read
    by (seed, increment)."""
    task_rows: Count = 65536
    """Rows that one read task turns into finished batches: the unit of prefetching."""
    read_cpus: Positive = 1.0
    """CPUs per worker that read and encode, beside the worker's own."""
    node_labels: dict[str, str] = {}
    """Ray labels of the nodes that read and encode, as { "diurnal.dev/role" = "data" }; any node when empty."""
    parts: Annotated[int, Field(ge=1, le=1000)] = 1
    """Every folder of the dataset is cut by rows into so many equal increments, each with a version of its own."""
    on_bad_file: OnBadFile = "refuse"
    """What a file that is no whole Parquet file does, as one that was cut off: `refuse` refuses its increment,
    `quarantine` leaves the file out, says so and counts it. Once it is whole, the increment has changed: see `days`.
    Where readiness goes by a manifest, an increment waits for all its files in any case."""


class Model(Section):
    """The DLRM. The bottom MLP ends in the tables' dim, which is added to `bottom` by itself."""

    bottom: tuple[Count, ...] = (64,)
    """Hidden widths of the bottom MLP, between the dense inputs and the tables' dim."""
    over: tuple[Count, ...] = (64, 32)
    """Hidden widths of the over arch, before the one logit."""
    self_interaction: bool = False
    """Whether a vector's dot product with itself is among the interactions."""
    concat: Literal["dense", "all"] = "dense"
    """What goes into the over arch beside the dot products: the dense vector, or all vectors."""
    init_scale: Positive = 1.0
    """Table values start uniform within +-init_scale / sqrt(rows)."""


class SparseOptimizer(Section):
    """Fused into the backward pass of the tables."""

    kind: Literal["rowwise_adagrad", "adagrad", "sgd", "adam"] = "rowwise_adagrad"
    lr: Positive = 0.05
    eps: Positive = 1e-8

    @rule
    def _the_fused_kernel_exists(self) -> Iterator[Broken]:
        if self.kind == "adam":
            must = "rowwise_adagrad, adagrad or sgd: the library has no fused Adam kernel for CPU"
            yield Broken(self.kind, must, "use rowwise_adagrad", ("kind",))


class DenseOptimizer(Section):
    kind: Literal["adagrad", "adam", "sgd"] = "adagrad"
    lr: Positive = 0.01
    eps: Positive = 1e-8
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Adam's decay rates."""
    weight_decay: NotNegative = 0.0


class Schedule(Section):
    """A factor on both learning rates, over the steps of the whole lineage of versions."""

    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """The factor rises linearly from 0 to 1 over so many steps: step s (from 0) uses s / warmup_steps."""


class Optim(Section):
    sparse: SparseOptimizer = SparseOptimizer()
    dense: DenseOptimizer = DenseOptimizer()
    schedule: Schedule = Schedule()
    half_life_days: NotNegative = 0.0
    """Between two increments AdaGrad's accumulators are multiplied by 0.5 ** (days between them / half_life_days), so
    that a model that lives for long still learns; 0 leaves them alone. Those of sgd and adam need none."""
    max_skipped_steps: Annotated[int, Field(ge=0)] = 10
    """Steps of one increment that may be skipped because the loss was not finite; one more ends the run."""

    @rule
    def _what_ages_is_an_adagrad(self) -> Iterator[Broken]:
        kinds = self.sparse.kind, self.dense.kind
        if self.half_life_days > 0 and not any(kind.endswith("adagrad") for kind in kinds):
            must = f"0 with sparse.kind = {kinds[0]} and dense.kind = {kinds[1]}, which have no accumulators to age"
            yield Broken(self.half_life_days, must, "use 0, or an AdaGrad", ("half_life_days",))


class Sharding(Section):
    """Where tables live. What is not named here is chosen by the planner.

    `column_wise` cuts columns into as many equal ranges as `workers.max` allows, a multiple of 4 wide; row-wise AdaGrad
    then keeps one moment per range, so that another `workers.max` converts moments.
    """

    placement: dict[Name, Placement] = {}
    """Table name to placement."""
    default: Placement | Literal["auto"] = "auto"
    """Placement of every table that is not named."""


class Workers(Section):
    """Training workers, one rank each."""

    max: Count = 1
    """How many, at most."""
    min: Annotated[int, Field(ge=0)] = 0
    """How many, at least: with fewer than `max` training goes on, and grows when there is room. 0 means `max`."""
    cpus: Positive = 1.0
    """CPUs that one worker reserves."""
    gpus: Literal[0, 1] = 0
    """GPUs that one worker reserves: NCCL with 1, gloo with 0."""
    address: str = ""
    """Ray cluster; a local one is started when empty."""
    threads: Annotated[int, Field(ge=0)] = 1
    """Threads of torch in one worker; 0 leaves it to torch."""
    max_failures: Annotated[int, Field(ge=0)] = 3
    """Restarts in a row that commit nothing before one more failure ends the run. A node that was taken away and a
    wait for resources do not count."""
    stall_s: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    """A step that takes longer fails the attempt, and says which rank stalled and where."""
    spares: bool = True
    """Keep as many processes that have imported everything as there are workers, for the next start: about 0.4 GB of
    memory each."""
    wait_s: Positive = 600.0
    """How long to wait for `min` workers to find a place."""
    grace_s: Positive = 5.0
    """After SIGTERM: how long a last commit may take."""
    keep_alive: NotNegative = 0.0
    """Seconds that the workers are held after an increment until the next one of the asked range is complete."""

    @property
    def least(self) -> int:
        return self.min or self.max

    @rule
    def _there_are_no_more_at_least_than_at_most(self) -> Iterator[Broken]:
        if self.min > self.max:
            yield Broken(self.min, f"at most workers.max = {self.max}", "lower min or raise max", ("min",))


class Checkpoint(Section):
    """Resume points are commits inside an increment: what a restart goes on from."""

    every_rows: Annotated[int, Field(ge=0)] = 0
    """Rows between two resume points; 0 goes by time alone."""
    every_s: NotNegative = 300.0
    """Seconds between two resume points; 0 goes by rows alone."""
    keep: Count = 2
    """Resume points of an increment that are kept; all of them go once its version is committed."""
    keep_versions: Annotated[int, Field(ge=0)] = 0
    """Versions that are kept, the newest so many; 0 keeps all. The champion, the one that a rollback leads to, and what
    the next one goes on from stay in any case."""
    retry_s: NotNegative = 60.0
    """How long the commit of a version is tried again while the storage fails. A resume point is just left out."""
    reset_optimizer: bool = False
    """Start the optimizers anew although the parent has their state."""


class Ledger(Section):
    """The database that says who trains a model and which commits count."""

    url: str = ""
    """SQLAlchemy URL, `postgresql+psycopg://...` on a cluster. When empty `DIURNAL_LEDGER_URL` of the environment,
    or else a SQLite file in `storage`."""
    lease_s: Annotated[float, Field(gt=1, le=86_400)] = 30.0
    """A driver that gave no sign of life for so long has lost the model to whoever asks next."""


class Tracking(Section):
    enabled: bool = True
    uri: str = ""
    """MLflow tracking URI. When empty `MLFLOW_TRACKING_URI` of the environment, or else a SQLite file in `storage`."""
    experiment: str = ""
    """MLflow experiment; the run's name, when empty."""
    every_steps: Count = 20
    """Steps between two points of the curves."""
    timeout_s: Positive = 30.0
    """How long the end of a run waits for the tracking store before it drops what is left."""


class Metrics(Section):
    auc_bins: Annotated[int, Field(ge=1024, le=2**20)] = 65536
    """Bins of the histogram that AUC is computed from; its error bound is reported with it."""
    group_rows: Annotated[int, Field(ge=1, le=2**27)] = 2**20
    """Where the schema has a `group_id`: the most rows that GAUC is computed from; each worker may hold as many, 20
    bytes each. Of more rows it is that of a sample of whole groups, and its standard error is reported with it."""
    slices: tuple[Name, ...] = ()
    """Sparse features with one id a row: NE and calibration of the rows of each of their most frequent ids."""


class Config(Section):
    """One run, whole: what is given, what is defaulted, and the dataset's schema."""

    name: Name
    """The model's name: folder of its versions, MLflow experiment, lease."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    storage: str = "build/storage"
    """Folder of all versions: `<storage>/<name>/versions/<number>/`; or `s3://BUCKET/PREFIX`, with `ledger.url` and
    `tracking.uri` given, since databases cannot be there."""
    data: Data
    model: Model = Model()
    optim: Optim = Optim()
    sharding: Sharding = Sharding()
    workers: Workers = Workers()
    checkpoint: Checkpoint = Checkpoint()
    ledger: Ledger = Ledger()
    tracking: Tracking = Tracking()
    metrics: Metrics = Metrics()
    days: Days = Days()
    profile: Profile = Profile()
    gate: Gate = Gate()
    dataset: Schema
    """The content of `data.schema_file`."""

    @property
    def num_streams(self) -> int:
        return self.data.streams or self.workers.max

    def public(self) -> Config:
        """The same without the passwords of URLs: for what is kept or shown."""
        ledger = self.ledger.model_copy(update={"url": _without_password(self.ledger.url)})
        tracking = self.tracking.model_copy(update={"uri": _without_password(self.tracking.uri)})
        return self.model_copy(update={"ledger": ledger, "tracking": tracking})

    @rule
    def _credentials_come_from_the_environment(self) -> Iterator[Broken]:
        for url, where in ((self.data.path, ("data", "path")), (self.storage, ("storage",))):
            scheme, separator, rest = url.partition("://")
            login, at, place = rest.partition("/")[0].rpartition("@")
            if separator and at and login:
                must = "a URL without a login: credentials come from the environment, as AWS_ACCESS_KEY_ID"
                yield Broken(f"{scheme}://***@{place}...", must, "remove what stands before the @", where)

    @rule
    def _a_storage_that_is_a_url_is_in_an_object_store(self) -> Iterator[Broken]:
        _, separator, rest = self.storage.partition("://")
        has_login = "@" in rest.partition("/")[0]
        if separator and not has_login and not _OBJECT_STORE.fullmatch(self.storage):
            must = "a folder, or s3://BUCKET/PREFIX with letters, digits and . _ - = in the prefix, and no options"
            fix = "correct it; the endpoint of another store than Amazon's comes from AWS_ENDPOINT_URL"
            yield Broken(self.storage.partition("?")[0], must, fix, ("storage",))

    @rule
    def _batch_is_dealt_evenly_into_streams(self) -> Iterator[Broken]:
        if self.data.batch_rows % self.num_streams:
            rows, lanes = self.data.batch_rows, self.num_streams
            must = f"the global batch is a multiple of the {lanes} streams"
            fix = f"use {max(lanes, rows - rows % lanes)}, or set data.streams"
            yield Broken(rows, must, fix, ("data", "batch_rows"))

    @rule
    def _segments_are_features_with_one_id(self) -> Iterator[Broken]:
        known = {f.name for f in self.dataset.sparse if not f.many and not f.cross}
        for name in self.gate.segments:
            if name not in known:
                must = f"a sparse feature with one id a row: {', '.join(sorted(known))}"
                yield Broken(name, must, "correct the name", ("gate", "segments"))

    @rule
    def _slices_are_features_with_one_id_of_not_too_many(self) -> Iterator[Broken]:
        known = {f.name: f for f in self.dataset.sparse if not f.many and not f.cross}
        for name in self.metrics.slices:
            if name not in known:
                must = f"a sparse feature with one id a row: {', '.join(sorted(known))}"
                yield Broken(name, must, "correct the name", ("metrics", "slices"))
                continue
            rows = known[name].num_values or self.dataset.table(known[name].table_name).rows
            if rows > MAX_SLICED_IDS:
                must = f"its ids lie at {MAX_SLICED_IDS:,} rows of its table at most; there are {rows:,}"
                yield Broken(name, must, "leave it out, or give it a smaller table of its own", ("metrics", "slices"))

    @rule
    def _placement_names_tables(self) -> Iterator[Broken]:
        known = {t.name for t in self.dataset.tables}
        for name in self.sharding.placement:
            if name not in known:
                must = f"a table of the schema: {', '.join(sorted(known))}"
                yield Broken(name, must, "correct the name", ("sharding", "placement", name))


def _without_password(url: str) -> str:
    """The part between the first colon after the user's name and the last @ of what follows `://`."""
    scheme, separator, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{separator}{user}:***@{place}" if separator and at and colon else url
