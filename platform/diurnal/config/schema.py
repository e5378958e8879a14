"""What a row of the log means: the columns of a dataset, their types, and the tables that their ids look up.

The same declaration drives validation, reading, encoding, the model's inputs and the compatibility check of a
version, so that no type is ever taken from whichever file was opened first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from diurnal.config.features import Dense, Label, Sparse, Table, Task
from diurnal.config.section import Broken, NotNegative, Section, rule


class Readiness(Section):
    """When an increment is complete."""

    rule: Literal["marker", "age", "manifest"] = "marker"
    marker: str = "_SUCCESS"
    """File in the increment's folder, for `marker`."""
    age_s: NotNegative = 3600.0
    """Seconds since the newest file was written, for `age`."""
    manifest: str = "_manifest.json"
    """File in the increment's folder that maps file names to row counts, for `manifest`."""


class Schema(Section):
    """The columns of a dataset. Read from `schema.toml`."""

    label: Label = Label()
    tasks: tuple[Task, ...] = ()
    """Other outcomes that the model learns beside the label, one more output each."""
    weight: str = ""
    """Column of sample weights (finite, not negative); every row weighs 1 when empty."""
    event_time: str = ""
    """Timestamp column; the newest value is a version's data watermark."""
    request_id: str = ""
    """Column that names the request or impression."""
    group_id: str = ""
    """Column of groups for GAUC, such as the user: integers or strings. Null, a negative number and the empty string
    are no group."""
    hash_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    readiness: Readiness = Readiness()
    past_half_life_days: NotNegative = 0.0
    """What the past says counts half after so many days; 0 forgets nothing."""
    dense: tuple[Dense, ...] = ()
    sparse: tuple[Sparse, ...] = ()
    tables: tuple[Table, ...] = ()

    def table(self, name: str) -> Table:
        return {t.name: t for t in self.tables}[name]

    @property
    def columns_of_numbers(self) -> tuple[Dense, ...]:
        """The dense inputs that are read from a column."""
        return tuple(feature for feature in self.dense if not feature.past)

    @property
    def has_past(self) -> bool:
        """Whether rows are seen with something that the increments before have left."""
        return bool(self.remembered) or any(f.mapping == "vocab" or f.quantiles for f in self.sparse)

    @property
    def is_counted(self) -> bool:
        """Whether the rows of an increment are counted before they are learned."""
        return self.has_past or self.label.keep_negatives < 1

    @property
    def has_bag_weights(self) -> bool:
        return any(feature.weights for feature in self.sparse)

    @property
    def remembered(self) -> tuple[str, ...]:
        """Names of the sparse features whose past is an input."""
        return tuple(dict.fromkeys(feature.past for feature in self.dense if feature.past))

    def table_features(self, name: str) -> tuple[Sparse, ...]:
        return tuple(f for f in self.sparse if f.table_name == name)

    @rule
    def _there_is_something_to_learn_from(self) -> Iterator[Broken]:
        if not self.sparse:
            yield Broken([], "a DLRM needs one sparse feature or more", "add a [[sparse]] entry", ("sparse",))
        if not self.dense:
            yield Broken([], "a DLRM needs one dense feature or more", "add a [[dense]] entry", ("dense",))

    @rule
    def _names_are_unique(self) -> Iterator[Broken]:
        named = {"tasks": self.tasks, "dense": self.dense, "sparse": self.sparse, "tables": self.tables}
        for kind, entries in named.items():
            seen: set[str] = set()
            for index, entry in enumerate(entries):
                if entry.name in seen:
                    must = f"each name appears once among {kind}"
                    yield Broken(entry.name, must, "rename one of them", (kind, index, "name"))
                seen.add(entry.name)

    @rule
    def _no_input_is_an_outcome(self) -> Iterator[Broken]:
        outcomes = {self.label.column: "the label"}
        outcomes |= {t.source: f"task {t.name}" for t in self.tasks if t.source != self.label.column}
        for kind, entries in (("dense", self.dense), ("sparse", self.sparse)):
            for index, entry in enumerate(entries):
                has_column = not (entry.cross if isinstance(entry, Sparse) else entry.past)
                if entry.source in outcomes and has_column:
                    must = f"{outcomes[entry.source]} is not an input: it is known only after the outcome"
                    yield Broken(entry.source, must, "remove this feature", (kind, index, "column"))
                if isinstance(entry, Sparse) and entry.weights in outcomes:
                    must = f"{outcomes[entry.weights]} is not an input: it is known only after the outcome"
                    yield Broken(entry.weights, must, "remove these weights", (kind, index, "weights"))

    @rule
    def _features_and_tables_belong_together(self) -> Iterator[Broken]:
        names = {t.name for t in self.tables}
        for index, feature in enumerate(self.sparse):
            if feature.table_name not in names:
                must = f"the table is declared; declared are {', '.join(sorted(names)) or 'none'}"
                yield Broken(feature.table_name, must, "add a [[tables]] entry", ("sparse", index, "table"))
                continue
            table = self.table(feature.table_name)
            if feature.num_values is not None and table.rows < feature.num_values:
                must = f"the table has a row for each of the {feature.num_values} values of {feature.name}"
                yield Broken(table.rows, must, f"set rows of table {table.name} to that number", ("tables",))
        used = {f.table_name for f in self.sparse}
        for index, table in enumerate(self.tables):
            if table.name not in used:
                must = "a feature looks the table up"
                yield Broken(table.name, must, "remove the table, or name it in a feature", ("tables", index))

    @rule
    def _a_vocabulary_has_a_table_to_itself(self) -> Iterator[Broken]:
        for index, feature in enumerate(self.sparse):
            others = [f.name for f in self.table_features(feature.table_name) if f.name != feature.name]
            if feature.mapping == "vocab" and others:
                must = f"the rows of a vocabulary are its own ids'; {', '.join(others)} look this table up too"
                yield Broken(feature.table_name, must, "give it a table of its own", ("sparse", index, "table"))

    @rule
    def _a_past_is_that_of_a_feature(self) -> Iterator[Broken]:
        known = [feature.name for feature in self.sparse]
        for index, feature in enumerate(self.dense):
            if feature.past and feature.past not in known:
                must = f"a sparse feature: {', '.join(sorted(known)) or 'none'}"
                yield Broken(feature.past, must, "name one of these", ("dense", index, "past"))

    @rule
    def _a_cross_is_of_features_with_columns(self) -> Iterator[Broken]:
        known = {feature.name: feature for feature in self.sparse if not feature.cross}
        for index, feature in enumerate(self.sparse):
            for name in feature.cross:
                if name not in known:
                    must = f"a sparse feature that has a column: {', '.join(sorted(known)) or 'none'}"
                    yield Broken(name, must, "name one of these, or declare it", ("sparse", index, "cross"))

    @rule
    def _tables_have_one_width(self) -> Iterator[Broken]:
        widths = {t.dim for t in self.tables}
        if len(widths) > 1:
            must = "all tables have one dim, since the interaction takes dot products between them"
            yield Broken(sorted(widths), must, "give all tables the same dim", ("tables",))
