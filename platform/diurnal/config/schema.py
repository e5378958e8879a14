"""What a row of the log means: the columns of a dataset, their types, and the tables that their ids look up.

The same declaration drives validation, reading, encoding, the model's inputs and the compatibility check of a
version, so that no type is ever taken from whichever file was opened first.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from diurnal.config.section import Count, Finite, Name, NotNegative, Section, broken_rule

HASH_NAME = "diurnal-mix64-v1"
"""Name of the id hash; it is part of every version's manifest and never changes its meaning."""

MAX_TABLE_ROWS = 2**31
"""Rows of one table: the hash maps 32 bits onto rows."""


class Label(Section):
    """The binary outcome: 0 or 1, as integer, float or bool. A null or another value is refused."""

    column: str = "label"


class Dense(Section):
    """One numeric input: filled, clipped, transformed, then scaled to `(x - shift) * scale`, in that order."""

    name: Name
    """Name of the input in the model."""
    column: str = ""
    """Column of the Parquet files; the name, when empty."""
    required: bool = True
    """A required column that is missing refuses the increment; an optional one is filled and counted."""
    fill: Finite = 0.0
    """Stands for null, and for what is not finite after the transform; it is transformed like any value."""
    clip: tuple[Finite, Finite] | None = None
    """Lowest and highest value, before the transform."""
    transform: Literal["none", "log1p", "sqrt"] = "none"
    """`log1p` is ln(1 + x), `sqrt` the square root; outside their domain a value counts as not finite."""
    shift: Finite = 0.0
    scale: Finite = 1.0
    nonfinite: Literal["fill", "keep"] = "fill"
    """What becomes of NaN, infinities and values outside the transform's domain; both ways they are counted."""

    @property
    def source(self) -> str:
        return self.column or self.name

    @model_validator(mode="after")
    def _clip_is_an_interval(self) -> Dense:
        if self.clip is not None and self.clip[0] >= self.clip[1]:
            raise broken_rule(self.clip, "clip is [low, high] with low < high", "order the two numbers", "clip")
        return self

    @model_validator(mode="after")
    def _fill_lies_in_the_domain(self) -> Dense:
        value = self.fill if self.clip is None else min(max(self.fill, self.clip[0]), self.clip[1])
        lowest = {"none": None, "log1p": -1.0, "sqrt": 0.0}[self.transform]
        if lowest is not None and (value < lowest or (self.transform == "log1p" and value == lowest)):
            rule = f"{self.transform} of the fill value must be finite"
            raise broken_rule(self.fill, rule, "set fill = 0.0", "fill")
        return self


class Sparse(Section):
    """One categorical input: ids, single or a list per row, that become rows of a table.

    Null, negative and unknown ids have one meaning everywhere: *no id*. They are counted, and a row without ids
    has an empty bag, whose pooled vector is zero.
    """

    name: Name
    column: str = ""
    """Column of the Parquet files; the name, when empty."""
    type: Literal["int64", "uint64", "string", "float"] = "int64"
    """Declared type. `float` is for `bucketize` only. The empty string is no id."""
    many: bool = False
    """True for a list of ids per row (a bag)."""
    mapping: Literal["hash", "identity", "bucketize"] = "hash"
    """`hash`: our seeded hash onto the table's rows; `identity`: the id is the row, an id beyond the table is
    unknown; `bucketize`: the number of `boundaries` that are not greater than the value."""
    boundaries: tuple[Finite, ...] = ()
    table: Name = ""
    """Table that is looked up; the feature's name, when empty. Several features may share one."""
    max_length: Count | None = None
    """Ids kept per row, the first ones; more are dropped and counted."""
    required: bool = True
    unknown: Literal["empty", "refuse"] = "empty"
    """What an id beyond the table does under `identity`: counts as no id, or refuses the increment."""

    @property
    def source(self) -> str:
        return self.column or self.name

    @property
    def table_name(self) -> str:
        return self.table or self.name

    @model_validator(mode="after")
    def _mapping_fits_the_type(self) -> Sparse:
        fits = {"hash": ("int64", "uint64", "string"), "identity": ("int64", "uint64"), "bucketize": ("float",)}
        if self.type not in fits[self.mapping]:
            rule = f"mapping {self.mapping} takes {' or '.join(fits[self.mapping])}"
            raise broken_rule(self.type, rule, "change type or mapping", "type")
        return self

    @model_validator(mode="after")
    def _boundaries_are_ascending_and_for_bucketize(self) -> Sparse:
        ascending = all(a < b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False))
        if (self.mapping == "bucketize") != bool(self.boundaries) or not ascending:
            rule = "boundaries ascend strictly, and belong to mapping = \"bucketize\" alone"
            raise broken_rule(list(self.boundaries), rule, "sort them, or remove one of the two", "boundaries")
        if self.mapping == "bucketize" and self.many:
            raise broken_rule(True, "a bucketized column has one value per row", "set many = false", "many")
        return self


class Table(Section):
    """One embedding table."""

    name: Name
    rows: Annotated[int, Field(ge=1, le=MAX_TABLE_ROWS)]
    dim: Count
    """Width of a row; the dot interaction needs one width for all tables."""
    pooling: Literal["sum", "mean"] = "sum"
    """How the rows of one bag become one vector."""


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
    weight: str = ""
    """Column of sample weights (finite, not negative); every row weighs 1 when empty."""
    event_time: str = ""
    """Timestamp column; the newest value is a version's data watermark."""
    request_id: str = ""
    """Column that names the request or impression."""
    group_id: str = ""
    """Column of groups for GAUC."""
    hash_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    readiness: Readiness = Readiness()
    dense: tuple[Dense, ...] = ()
    sparse: tuple[Sparse, ...] = ()
    tables: tuple[Table, ...] = ()

    def table(self, name: str) -> Table:
        return next(t for t in self.tables if t.name == name)

    def table_features(self, name: str) -> tuple[Sparse, ...]:
        return tuple(f for f in self.sparse if f.table_name == name)

    @model_validator(mode="after")
    def _there_is_something_to_learn_from(self) -> Schema:
        if not self.sparse:
            raise broken_rule([], "a DLRM needs one sparse feature or more", "add a [[sparse]] entry", "sparse")
        if not self.dense:
            raise broken_rule([], "a DLRM needs one dense feature or more", "add a [[dense]] entry", "dense")
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Schema:
        for kind, entries in (("dense", self.dense), ("sparse", self.sparse), ("tables", self.tables)):
            seen: set[str] = set()
            for index, entry in enumerate(entries):
                if entry.name in seen:
                    rule = f"each name appears once among {kind}"
                    raise broken_rule(entry.name, rule, "rename one of them", kind, index, "name")
                seen.add(entry.name)
        return self

    @model_validator(mode="after")
    def _no_input_is_the_label(self) -> Schema:
        for kind, entries in (("dense", self.dense), ("sparse", self.sparse)):
            for index, entry in enumerate(entries):
                if entry.source == self.label.column:
                    rule = "the label is not an input: it is known only after the outcome"
                    raise broken_rule(entry.source, rule, "remove this feature", kind, index, "column")
        return self

    @model_validator(mode="after")
    def _features_and_tables_belong_together(self) -> Schema:
        names = {t.name for t in self.tables}
        for index, feature in enumerate(self.sparse):
            if feature.table_name not in names:
                rule = f"the table is declared; declared are {', '.join(sorted(names)) or 'none'}"
                raise broken_rule(feature.table_name, rule, "add a [[tables]] entry", "sparse", index, "table")
            table = self.table(feature.table_name)
            if feature.mapping == "bucketize" and table.rows < len(feature.boundaries) + 1:
                rule = f"the table has a row for each of the {len(feature.boundaries) + 1} buckets"
                raise broken_rule(table.rows, rule, f"set rows of table {table.name} to that number", "tables")
        used = {f.table_name for f in self.sparse}
        for index, table in enumerate(self.tables):
            if table.name not in used:
                rule = "a feature looks the table up"
                raise broken_rule(table.name, rule, "remove the table, or name it in a feature", "tables", index)
        return self

    @model_validator(mode="after")
    def _tables_have_one_width(self) -> Schema:
        widths = {t.dim for t in self.tables}
        if len(widths) > 1:
            rule = "all tables have one dim, since the interaction takes dot products between them"
            raise broken_rule(sorted(widths), rule, "give all tables the same dim", "tables")
        return self
