"""May this version be loaded under this configuration, and what becomes of each of its parts? Decided from the
manifest, before any tensor is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from diurnal.checkpoint.manifest import (
    Contract,
    DenseContract,
    FeatureContract,
    Manifest,
    OutcomeContract,
    TableContract,
)
from diurnal.config import Config
from diurnal.errors import CheckpointError, Fault

Outcome = Literal["loaded", "grown", "new", "changed", "dropped", "refused"]

START_OVER = "restore the saved value, or give the model another name, which starts a new lineage"


@dataclass(frozen=True)
class Line:
    """What becomes of one part of a version."""

    outcome: Outcome
    what: str
    saved: str
    configured: str
    reason: str

    def __str__(self) -> str:
        values = self.saved if self.saved == self.configured else f"{self.saved} -> {self.configured}"
        return f"{self.outcome:8}{self.what}: {values}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Compatibility:
    """`str()` prints what is loaded, grown, new, changed, dropped or refused."""

    version: int
    lines: tuple[Line, ...]

    def refuse_if_broken(self) -> None:
        """
        Raises:
            CheckpointError: with everything that stands in the way, saved and configured value of each.
        """
        faults = [
            Fault(line.what, f"{line.saved} in version {self.version}, {line.configured} configured", line.reason, fix)
            for line in self.lines
            if line.outcome == "refused"
            for fix in [_FIXES.get(line.what.split()[0].split(".")[0], START_OVER)]
        ]
        if faults:
            raise CheckpointError(faults)

    def of(self, outcome: Outcome) -> list[str]:
        return [line.what for line in self.lines if line.outcome == outcome]

    def __str__(self) -> str:
        return "\n".join([f"version {self.version} under this configuration:", *(f"  {line}" for line in self.lines)])


_RESET = "restore the saved kind, or start the optimizers anew with checkpoint.reset_optimizer = true"
_RENAME = "restore the saved value, or give the task another name, under which it starts anew"
_FIXES = {"optim": _RESET, "task": _RENAME}
_NOT_THERE = "not there"


def resets_optimizer(manifest: Manifest, config: Config) -> bool:
    """Whether the optimizers start anew, as `checkpoint.reset_optimizer` says. It says so of versions that were made
    without it: every restart and every later increment would do it again, so there they go on, if they can."""
    was_reset = manifest.provenance.config.get("checkpoint", {}).get("reset_optimizer", False)
    if manifest.lineage.position.is_final and not was_reset:
        return config.checkpoint.reset_optimizer
    saved, now = manifest.contract, Contract.of(config)
    kinds = (saved.sparse_optimizer, saved.dense_optimizer), (now.sparse_optimizer, now.dense_optimizer)
    return config.checkpoint.reset_optimizer and kinds[0] != kinds[1]


def compare(manifest: Manifest, config: Config, *, reset_optimizer: bool = False) -> Compatibility:
    """
    Tables:
        the same rows, dim, pooling: loaded. More rows without a feature of mapping `hash`: grown, new rows start as
        in a new table. Under `hash` every id would move to another row: refused; fewer rows: refused.
        A new table: starts anew, with zero weight in the over arch, so that no prediction changes at first.
        A missing table: refused, since the over arch has learned with it.
    Features, dense inputs:
        a new one is new in the same way; another order is followed; a missing one, or another meaning of ids: refused;
        another transform of a dense input, and other weights of a bag's ids: allowed, and said.
    Label: another column, spelling or threshold is refused, since the model would go on as one that predicts what it
        has not learned, and its numbers would not compare with those before. A version of an earlier release does not
        say what its label was, and is not compared.
    Tasks: matched by name. A new one starts from its first values, and changes no prediction of the label; one that is
        gone is dropped; another outcome under the same name is refused.
    MLPs, interaction: another shape is refused.
    Optimizers: another kind is refused, unless their state is dropped with `reset_optimizer`.
    """
    saved, now = manifest.contract, Contract.of(config)
    lines = [*_hash_lines(saved, now), *_model_lines(saved, now)]
    for name in {**saved.tables, **now.tables}:
        mappings = {feature.mapping for feature in now.features.values() if feature.table == name}
        lines.append(_table_line(name, saved.tables.get(name), now.tables.get(name), mappings))
    for name in {**saved.features, **now.features}:
        lines.append(_feature_line(name, saved.features.get(name), now.features.get(name)))
    for name in {**saved.dense, **now.dense}:
        lines.append(_dense_line(name, saved.dense.get(name), now.dense.get(name)))
    lines += [*_outcome_lines(saved, now), *_optimizer_lines(saved, now, reset_optimizer)]
    return Compatibility(manifest.lineage.number, tuple(lines))


def _hash_lines(saved: Contract, now: Contract) -> Iterator[Line]:
    if any(feature.mapping == "hash" for feature in saved.features.values()):
        for what, old, new in (
            ("id hash", saved.hash_name, now.hash_name),
            ("hash_seed", saved.hash_seed, now.hash_seed),
        ):
            if old != new:
                yield Line("refused", what, str(old), str(new), "every id would move to another row")


def _model_lines(saved: Contract, now: Contract) -> Iterator[Line]:
    for what in ("bottom", "over", "self_interaction", "concat"):
        old, new = getattr(saved, what), getattr(now, what)
        if old != new:
            yield Line("refused", f"model.{what}", str(old), str(new), "the MLPs keep their shape over a lineage")


def _table_line(name: str, saved: TableContract | None, now: TableContract | None, mappings: set[str]) -> Line:
    what = f"table {name}"
    if saved is None or now is None:
        return _one_sided(what, saved, now, "the over arch has learned with it")
    if saved.dim != now.dim:
        return Line("refused", what, f"dim {saved.dim}", f"dim {now.dim}", "the dim is kept over a lineage")
    if saved.pooling != now.pooling:
        return Line("refused", what, f"pooling {saved.pooling}", f"pooling {now.pooling}", "vectors would change scale")
    old, new = f"{saved.rows} rows", f"{now.rows} rows"
    if saved.rows == now.rows:
        return Line("loaded", what, old, new, "")
    if now.rows < saved.rows:
        return Line("refused", what, old, new, "rows that were learned would be lost")
    if "hash" in mappings:
        return Line("refused", what, old, new, "with mapping hash, every id would move to another row")
    return Line("grown", what, old, new, "new rows start as in a new table")


def _feature_line(name: str, saved: FeatureContract | None, now: FeatureContract | None) -> Line:
    what = f"feature {name}"
    if saved is None or now is None:
        return _one_sided(what, saved, now, "the over arch has learned with it")
    for field in ("table", "type", "mapping", "boundaries", "cross", "quantiles"):
        old, new = getattr(saved, field), getattr(now, field)
        if old != new:
            return Line("refused", what, f"{field} {old}", f"{field} {new}", "its ids would mean other rows")
    if saved.weights != now.weights:
        old, new = (f"weights {side.weights or '(none)'}" for side in (saved, now))
        return Line("changed", what, old, new, "the MLPs go on with bags that are pooled otherwise")
    return Line("loaded", what, f"table {saved.table}", f"table {now.table}", "")


def _dense_line(name: str, saved: DenseContract | None, now: DenseContract | None) -> Line:
    what = f"dense {name}"
    if saved is None or now is None:
        return _one_sided(what, saved, now, "the bottom MLP has learned with it")
    changed = {field for field in type(now).model_fields if getattr(saved, field) != getattr(now, field)}
    if changed:
        old, new = (_shown(side.model_dump(include=changed)) for side in (saved, now))
        return Line("changed", what, old, new, "the MLP goes on with inputs of another scale")
    return Line("loaded", what, saved.transform, now.transform, "")


def _outcome_lines(saved: Contract, now: Contract) -> Iterator[Line]:
    if saved.label is not None and now.label is not None:
        yield _outcome_line("label", saved.label, now.label, "the model has learned another outcome")
    for name in {**saved.tasks, **now.tasks}:
        what, old, new = f"task {name}", saved.tasks.get(name), now.tasks.get(name)
        if old is None:
            yield Line("new", what, _NOT_THERE, "there", "its output starts anew, beside what the label predicts")
        elif new is None:
            yield Line("dropped", what, "there", _NOT_THERE, "its output is left out; the label's stays as it is")
        else:
            yield _outcome_line(what, old, new, "its output has learned another outcome")


def _outcome_line(what: str, saved: OutcomeContract, now: OutcomeContract, why_not: str) -> Line:
    changed = {field for field in type(now).model_fields if getattr(saved, field) != getattr(now, field)}
    if changed:
        old, new = (_shown(side.model_dump(include=changed)) for side in (saved, now))
        return Line("refused", what, old, new, why_not)
    return Line("loaded", what, f"column {saved.column}", f"column {now.column}", "")


def _optimizer_lines(saved: Contract, now: Contract, reset: bool) -> Iterator[Line]:
    for part in ("sparse", "dense"):
        what = f"optim.{part}"
        old, new = getattr(saved, f"{part}_optimizer"), getattr(now, f"{part}_optimizer")
        if reset:
            yield Line("dropped", what, old, new, "its state starts anew: checkpoint.reset_optimizer")
        elif old != new:
            yield Line("refused", what, old, new, "the state of one kind is none of the other")
        else:
            yield Line("loaded", what, old, new, "")


def _one_sided(what: str, saved: Any, now: Any, why_not: str) -> Line:
    if saved is None:
        return Line("new", what, _NOT_THERE, "there", "starts anew, without influence on predictions at first")
    return Line("refused", what, "there", _NOT_THERE, why_not)


def _shown(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())
