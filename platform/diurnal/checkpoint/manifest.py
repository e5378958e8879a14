"""What a version says about itself: read and compared before any of its tensors."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from diurnal.config import HASH_NAME, Config, Outcome, Schema
from diurnal.config.section import Section


class Position(Section):
    """How far into its increment a commit is; independent of the world size."""

    steps: int
    """Global batches consumed."""
    num_steps: int
    """Global batches of the whole increment."""
    rows: int
    """Real rows consumed."""
    cursors: tuple[int, ...]
    """Rows consumed of each stream."""

    @property
    def is_final(self) -> bool:
        return self.steps == self.num_steps


class Lineage(Section):
    """What a commit is made of, and from: what the caller of `save` knows."""

    number: int
    """Of the version, from 1."""
    parent: int | None
    """Number of the version that training went on from."""
    increment: str
    fingerprint: str
    """Of the increment's files."""
    attempt: int
    token: int = 0
    """Fencing token of the lease under which it was trained."""
    position: Position
    recipe: dict[str, Any] = {}
    """How the increment's rows were dealt into steps, as `data.streams` says it: a restart inside the increment goes on
    with it, whatever the configuration says by then."""
    joined: tuple[dict[str, Any], ...] = ()
    """Rows of increments before that were held out there and are learned here: each file a
    `data.partitions.ParquetFile` as JSON."""
    held_out: dict[str, Any] | None = None
    """Rows of this increment that are left to the next version, a `data.partitions.HeldOut` as JSON."""
    sampled: dict[str, Any] | None = None
    """What was learned where some negatives were not, a `data.files.Sampled` as JSON."""
    past: str = ""
    """Name of the `data.past` that it was learned with; empty for none."""
    past_after: str = ""
    """Name of the past of this version: what it scores, and what is learned next, is seen with it."""
    watermark_us: int | None = None
    """Newest event time that was learned, in microseconds since the epoch, UTC."""
    metrics: dict[str, Any] = {}


class DenseContract(Section):
    fill: float
    clip: tuple[float, float] | None
    transform: str
    shift: float
    scale: float
    exponent: float | None = None
    past: str = ""
    value: str = "effect"
    prior: float = 20.0


class FeatureContract(Section):
    """How ids of a feature become rows of a table."""

    table: str
    type: str
    mapping: str
    boundaries: tuple[float, ...]
    cross: tuple[str, ...] = ()
    quantiles: int | None = None
    weights: str = ""


class OutcomeContract(Section):
    """What a label of 1 stands for."""

    column: str
    positive: str
    negative: str
    at_least: float | None


class TableContract(Section):
    rows: int
    dim: int
    pooling: str


class Contract(Section):
    """What tensors mean: a version is loaded under another configuration only as far as this allows."""

    hash_name: str
    hash_seed: int
    dense: dict[str, DenseContract]
    """In the order of the bottom MLP's inputs."""
    features: dict[str, FeatureContract]
    """In the order of the interaction's vectors."""
    tables: dict[str, TableContract]
    label: OutcomeContract | None = None
    """None in versions of earlier releases: not compared."""
    tasks: dict[str, OutcomeContract] = {}
    """By the name of the output."""
    bottom: tuple[int, ...]
    over: tuple[int, ...]
    self_interaction: bool
    concat: str
    sparse_optimizer: str
    """Kind of the tables' optimizer."""
    dense_optimizer: str

    @staticmethod
    def of(config: Config) -> Contract:
        schema, model = config.dataset, config.model
        return Contract(
            hash_name=HASH_NAME,
            hash_seed=schema.hash_seed,
            dense={
                d.name: DenseContract(**{name: getattr(d, name) for name in DenseContract.model_fields})
                for d in schema.dense
            },
            features={
                f.name: FeatureContract(
                    table=f.table_name,
                    type=f.type,
                    mapping=f.mapping,
                    boundaries=f.boundaries,
                    cross=f.cross,
                    quantiles=f.quantiles,
                    weights=f.weights,
                )
                for f in schema.sparse
            },
            tables={t.name: TableContract(rows=t.rows, dim=t.dim, pooling=t.pooling) for t in schema.tables},
            label=_outcome(schema.label.column, schema.label),
            tasks={task.name: _outcome(task.source, task) for task in schema.tasks},
            bottom=model.bottom,
            over=model.over,
            self_interaction=model.self_interaction,
            concat=model.concat,
            sparse_optimizer=config.optim.sparse.kind,
            dense_optimizer=config.optim.dense.kind,
        )

    def inputs(self) -> dict[str, list[str]]:
        """What each column of the first layer of an MLP stands for, by the name under
        which the layer's weight is saved.

        Shapes alone do not tell: two inputs that changed places would be taken for each other.
        """
        vectors = ["(dense)", *self.features]
        dim = next(iter(self.tables.values())).dim
        kept = vectors if self.concat == "all" else vectors[:1]
        pairs = [
            "*".join(sorted((left, right)))
            for i, left in enumerate(vectors)
            for right in vectors[: i + 1 if self.self_interaction else i]
        ]
        into_over = [f"{name}[{column}]" for name in kept for column in range(dim)] + pairs
        # Outputs of tasks read what the label's does: the last hidden layer, or these inputs, where there is none.
        beside = [] if self.over else [f"dense/tasks.{task}.weight" for task in self.tasks]
        layers = dict.fromkeys(["dense/over.0.weight", *beside], into_over)
        return {"dense/bottom.0.weight": list(self.dense), **layers}


def _outcome(column: str, declared: Outcome) -> OutcomeContract:
    spelled = {"positive": declared.positive, "negative": declared.negative}
    return OutcomeContract(column=column, **spelled, at_least=declared.at_least)


class Provenance(Section):
    """How a version came about; for people, and for another run of the same."""

    schema_hash: str
    config_hash: str
    config: dict[str, Any]
    """The resolved configuration."""
    libraries: dict[str, str]
    world_size: int
    device: str
    placement: dict[str, str]
    """Of each table, while this version was trained."""
    hyperparameters: dict[str, dict[str, Any]]
    """As the optimizers really used them in the last step."""


class Manifest(Section):
    """`manifest.json` of a version."""

    format: Literal[1] = 1
    model: str
    lineage: Lineage
    global_step: int
    """Steps that changed the model, over the whole lineage: what the learning rate schedule counts."""
    contract: Contract
    provenance: Provenance
    created_at: str
    """ISO 8601, UTC."""

    def to_json(self) -> str:
        return self.model_dump_json(indent=1)

    @staticmethod
    def from_json(text: str) -> Manifest:
        return Manifest.model_validate_json(text)


def config_hash(config: Config) -> str:
    return _hash(config.model_dump(mode="json"))


def schema_hash(schema: Schema) -> str:
    """Of what columns mean; how many negatives are learned is no part of that."""
    return _hash(schema.model_dump(mode="json", exclude={"label": {"keep_negatives"}}))


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
