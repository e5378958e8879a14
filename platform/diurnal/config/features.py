"""What is declared of one column, or of one input that is made of columns: the label and other outcomes, dense inputs,
sparse inputs and the tables that their ids look up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from diurnal.config.section import Broken, Count, Finite, Name, Positive, Section, rule

HASH_NAME = "diurnal-mix64-v1"
"""Name of the id hash; it is part of every version's manifest and never changes its meaning."""

MAX_TABLE_ROWS = 2**31
"""Rows of one table: the hash maps 32 bits onto rows."""

MAX_QUANTILES = 4096
"""A number is counted by 65,536 patterns: finer buckets would mostly be empty."""

DIM_MULTIPLE = 4
"""FBGEMM's kernels read rows in groups of so many floats."""

_TORCH_MODULE_NAMES = """
    T_destination add_module apply bfloat16 buffers call_super_init children clear compile cpu cuda double
    dump_patches eval extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu
    items keys load_state_dict modules mtia named_buffers named_children named_modules named_parameters parameters
    pop register_backward_hook register_buffer register_forward_hook register_forward_pre_hook
    register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook
    register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty
    train training type update values xpu zero_grad
"""
TORCH_MODULE_NAMES = frozenset(_TORCH_MODULE_NAMES.split())
"""What torch modules call themselves: a table becomes a submodule of its name. A test compares it with torch."""


class Outcome(Section):
    """A column of 0 and 1 as integer, float or bool, or of what the other fields say."""

    column: str = ""
    positive: str = ""
    """How a positive is spelled, as "yes"; `negative` has to be given too. In a column of numbers the two are numbers,
    as "1" and "-1"."""
    negative: str = ""
    """How a negative is spelled."""
    at_least: Finite | None = None
    """A number from which on a row is a positive, as a rating of 4; every finite number is a label then."""
    keep_negatives: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of an increment's negatives that is learned, beside all positives, to save the work. Those of one request,
    or single ones where there is no `request_id`, are drawn by a hash. The loss corrects for it, so that predictions
    keep the scale of all rows, and the share may change from day to day; an increment that was begun ends with the
    share of its beginning. All rows are profiled, counted in the past, and scored for the gate."""

    @property
    def is_spelled(self) -> bool:
        return bool(self.positive or self.negative)

    @rule
    def _both_classes_are_spelled_and_differ(self) -> Iterator[Broken]:
        if self.is_spelled and (not self.positive or not self.negative or self.positive == self.negative):
            must = "positive and negative are two spellings"
            yield Broken([self.positive, self.negative], must, 'as positive = "yes", negative = "no"', ("positive",))
        if self.is_spelled and self.at_least is not None:
            must = "a label is either spelled or a threshold"
            yield Broken(self.at_least, must, "remove at_least, or positive and negative", ("at_least",))


class Label(Outcome):
    """The binary outcome that the model is judged by. Whatever else is found, null too, is refused."""

    column: str = "label"


class Task(Outcome):
    """Another binary outcome that the same model learns to predict beside the label: one more output of the over arch.
    The gate, the slices and all that is told early are about the label alone."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=100)]
    """Name of the output; the column's, when `column` is empty."""
    weight: Positive = 1.0
    """Of its loss, beside 1 of the label's."""
    missing: Literal["refuse", "skip"] = "refuse"
    """What a null, a NaN or a file without the column means: the increment is refused, as for the label; or the row has
    no such outcome: it is counted, and adds nothing to this task's loss and metrics. Whatever else is no outcome is
    refused both ways."""

    @property
    def source(self) -> str:
        return self.column or self.name

    @rule
    def _torch_can_take_the_name(self) -> Iterator[Broken]:
        if self.name in TORCH_MODULE_NAMES:
            must = "a task becomes a torch submodule, so its name is none that torch modules use themselves"
            yield Broken(self.name, must, f'use "{self.name}_task", and name its column in `column`', ("name",))


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
    transform: Literal["none", "log1p", "symlog", "sqrt", "power", "missing"] = "none"
    """`log1p` is ln(1 + x), `symlog` sign(x) ln(1 + |x|), `sqrt` the square root, `power` x to the power of `exponent`;
    outside their domain a value counts as not finite. `missing` is an indicator: 1 where the column is null or not
    finite, or the file lacks it, else 0."""
    exponent: Finite | None = None
    """For `power`."""
    shift: Finite = 0.0
    scale: Finite = 1.0
    nonfinite: Literal["fill", "keep"] = "fill"
    """What becomes of NaN, infinities and values outside the transform's domain; both ways they are counted."""
    past: str = ""
    """A sparse feature. Instead of a column the input is what the increments before this one say about the row's ids
    of that feature, never the increment itself; see `value`. Takes 16 bytes of the storage for each row of its table
    and version."""
    value: Literal["effect", "impressions"] = "effect"
    """With `past`: `impressions` is in how many rows an id has been; `effect` is its label rate less that of all rows,
    shrunk to 0 by `prior`: (positives - rate of all rows * impressions) / (impressions + prior). The mean over the
    row's ids, and 0 without one."""
    prior: Positive = 20.0
    """Impressions at which an effect counts half."""

    @property
    def source(self) -> str:
        return self.column or self.name

    @rule
    def _what_the_past_says_is_no_column(self) -> Iterator[Broken]:
        for field in ("column", "required", "fill") if self.past else ():
            if getattr(self, field) != type(self).model_fields[field].default:
                must = "an input from the past has no column"
                yield Broken(getattr(self, field), must, f"remove {field}, or past", (field,))
        if self.past and self.transform == "missing":
            yield Broken(self.transform, "an input from the past is never missing", "use another", ("transform",))

    @rule
    def _clip_is_an_interval(self) -> Iterator[Broken]:
        if self.clip is not None and self.clip[0] >= self.clip[1]:
            yield Broken(self.clip, "clip is [low, high] with low < high", "order the two numbers", ("clip",))

    @rule
    def _fill_lies_in_the_domain(self) -> Iterator[Broken]:
        value = self.fill if self.clip is None else min(max(self.fill, self.clip[0]), self.clip[1])
        exponent = 1.0 if self.exponent is None else self.exponent
        is_outside = {
            "log1p": value <= -1.0,
            "sqrt": value < 0.0,
            "power": (value < 0.0 and not exponent.is_integer()) or (value == 0.0 and exponent < 0.0),
        }
        if is_outside.get(self.transform, False):
            must = f"{self.transform} of the fill value must be finite"
            yield Broken(self.fill, must, f"set fill = {'1.0' if exponent < 0 else '0.0'}", ("fill",))

    @rule
    def _an_exponent_belongs_to_power(self) -> Iterator[Broken]:
        if (self.transform == "power") != (self.exponent is not None):
            must = 'exponent is given with transform = "power", and with no other'
            yield Broken(self.exponent, must, "as exponent = 0.25, or remove one of the two", ("exponent",))

    @rule
    def _an_indicator_is_not_clipped_or_filled(self) -> Iterator[Broken]:
        if self.transform == "missing" and (self.clip is not None or self.fill):
            must = "an indicator of missing values is 0 or 1: nothing is clipped or filled"
            yield Broken(self.fill if self.clip is None else self.clip, must, "remove clip and fill", ("transform",))


class Sparse(Section):
    """One categorical input: ids, single or a list per row, that become rows of a table.

    Null, negative and unknown ids have one meaning everywhere: *no id*. They are counted, and a row without ids
    has an empty bag, whose pooled vector is zero.
    """

    name: Name
    column: str = ""
    """Column of the Parquet files; the name, when empty."""
    type: Literal["int64", "uint64", "string", "float", "timestamp"] = "int64"
    """Declared type. `float` is for `bucketize`, `timestamp` for `hour` and `weekday`. The empty string is no id."""
    many: bool = False
    """True for a list of ids per row (a bag)."""
    mapping: Literal["hash", "identity", "vocab", "bucketize", "hour", "weekday"] = "hash"
    """`hash`: our seeded hash onto the table's rows; `identity`: the id is the row, an id beyond the table is
    unknown; `vocab`: each id that was in `min_count` rows of one increment has a row of its own from the next increment
    on, until the table is full, and all others share row 0; `bucketize`: the number of `boundaries` that are not
    greater than the value, or the bucket among `quantiles`; `hour`: 0 to 23 of a timestamp, UTC; `weekday`: 0 is
    Monday."""
    min_count: Count = 2
    """For `vocab`."""
    boundaries: tuple[Finite, ...] = ()
    """For `bucketize`."""
    quantiles: Annotated[int, Field(ge=2, le=MAX_QUANTILES)] | None = None
    """For `bucketize`, instead of boundaries: so many buckets that were equally full in the increments before. Row k of
    the table is for values from the quantile k / N to the quantile (k + 1) / N of the rows that were learned before,
    never of the increment itself; equal values are all in one bucket, the last that they reach. The boundaries move
    with each increment (`past_half_life_days` says how fast), so that a bucket keeps the meaning of its rank. They are
    exact to 0.8 % of a value. Before anything was learned no value has a bucket: each counts as `unknown`, and is no
    id. Takes 512 KiB of the storage for each version."""
    cross: tuple[Name, ...] = ()
    """Two other features whose ids are taken together, as ["user", "genre"]: a row has an id for each pair of its ids
    of the two. Such a feature has no column of its own."""
    table: str = ""
    """Table that is looked up; the feature's name, when empty. Several features may share one."""
    max_length: Count | None = None
    """Ids kept per row, the first ones; more are dropped and counted."""
    weights: str = ""
    """With `many`, a column of lists of numbers, one for each id: an id's vector is multiplied by its weight before the
    bag is pooled, so that a sum is sum(w * v), and a mean sum(w * v) / sum(w), or zero where the weights sum to 0.
    A weight is finite, and for a mean not negative; null, or a list of another length than that of the ids, is refused.
    An id that is none, or beyond `max_length`, loses its weight too. Where the feature is not required and a file lacks
    the column, all weights are 1. Crosses, and what the past says of the ids, know no weights."""
    required: bool = True
    unknown: Literal["empty", "refuse"] = "empty"
    """What an id beyond the table does under `identity`: counts as no id, or refuses the increment."""

    @property
    def source(self) -> str:
        return self.column or self.name

    @property
    def table_name(self) -> str:
        return self.table or self.name

    @property
    def num_values(self) -> int | None:
        """How many rows of its table it can name at all; None when that is up to the table."""
        fixed = {"bucketize": self.quantiles or len(self.boundaries) + 1, "hour": 24, "weekday": 7}
        return fixed.get(self.mapping)

    @rule
    def _mapping_fits_the_type(self) -> Iterator[Broken]:
        fits = {
            "hash": ("int64", "uint64", "string"),
            "identity": ("int64", "uint64"),
            "vocab": ("int64", "uint64", "string"),
            "bucketize": ("float",),
            "hour": ("timestamp",),
            "weekday": ("timestamp",),
        }
        if self.type not in fits[self.mapping]:
            must = f"mapping {self.mapping} takes {' or '.join(fits[self.mapping])}"
            yield Broken(self.type, must, "change type or mapping", ("type",))

    @rule
    def _a_cross_has_nothing_of_its_own(self) -> Iterator[Broken]:
        if not self.cross:
            return
        if len(self.cross) != 2 or self.cross[0] == self.cross[1]:
            yield Broken(list(self.cross), "a cross is of two features", 'as cross = ["user", "genre"]', ("cross",))
        for field in ("column", "type", "many", "mapping", "weights", "required", "unknown", "quantiles"):
            if getattr(self, field) != type(self).model_fields[field].default:
                must = f"a cross takes {field} from its two features, and is hashed"
                yield Broken(getattr(self, field), must, f"remove {field}", (field,))

    @rule
    def _weights_are_those_of_a_bag(self) -> Iterator[Broken]:
        if self.weights and not self.many and not self.cross:
            must = "weights are those of the ids of a list"
            yield Broken(self.weights, must, "set many = true, or remove weights", ("weights",))

    @rule
    def _boundaries_are_ascending_and_for_bucketize(self) -> Iterator[Broken]:
        ascending = all(a < b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False))
        if self.quantiles is not None and (self.mapping != "bucketize" or self.boundaries):
            must = 'quantiles belong to mapping = "bucketize" alone, in the place of boundaries'
            yield Broken(self.quantiles, must, "remove one of the two", ("quantiles",))
        elif (self.mapping == "bucketize") != bool(self.boundaries or self.quantiles) or not ascending:
            must = 'boundaries ascend strictly, for mapping = "bucketize" alone, which may have quantiles instead'
            yield Broken(list(self.boundaries), must, "sort them, or remove one of the two", ("boundaries",))
        if self.mapping in ("bucketize", "hour", "weekday") and self.many:
            yield Broken(True, f"with mapping {self.mapping} a row has one value", "set many = false", ("many",))


class Table(Section):
    """One embedding table."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=100)]
    rows: Annotated[int, Field(ge=1, le=MAX_TABLE_ROWS)]
    dim: Count
    """Width of a row, a multiple of 4; the dot interaction needs one width for all tables."""
    pooling: Literal["sum", "mean"] = "sum"
    """How the rows of one bag become one vector."""

    @rule
    def _torch_and_the_kernels_can_take_it(self) -> Iterator[Broken]:
        if self.name in TORCH_MODULE_NAMES:
            must = "a table becomes a torch submodule, so its name is none that torch modules use themselves"
            yield Broken(self.name, must, f'use "{self.name}_table", and name it in `table` of its features', ("name",))
        if self.dim % DIM_MULTIPLE:
            must = f"dim is a multiple of {DIM_MULTIPLE}, as FBGEMM's kernels read rows in groups"
            yield Broken(self.dim, must, f"use {-(-self.dim // DIM_MULTIPLE) * DIM_MULTIPLE}", ("dim",))
