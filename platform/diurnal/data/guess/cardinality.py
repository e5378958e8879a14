"""How many ids a table has to hold: counted in sketches over far more rows than are sampled, of the id columns alone.

The sketches are those of profiles (`data.sketches`): they are exact while there are few ids, they merge, and beside the
number of distinct ids they say how many of them came once, which tells how many more there are in rows not read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyarrow import types as t

from diurnal.config import Schema, Sparse
from diurnal.data.arrow import column, read_ids
from diurnal.data.guess.fields import Field
from diurnal.data.guess.survey import BUFFER_BYTES, THREADS, Group, Survey, evenly
from diurnal.data.guess.values import Values
from diurnal.data.inputs import hashes_of
from diurnal.data.partitions import open_filesystem
from diurnal.data.sketches import IdCounts
from diurnal.errors import DataError, Fault

MAX_VALUES = 16_000_000
"""Rows times columns that are counted."""
SKETCH_IDS = 4096
"""The number of distinct ids is then off by 1.6 %, one standard error."""

_GROWS = 1.1
"""Only columns are counted of which the sample lacks so many ids."""
_BLOCK_ROWS = 65_536
_AS_IT_IS = Sparse(name="ids")
_SEED_0 = Schema.model_construct()


def expected_ids(num_distinct: float, share_once: float, rows: int, all_rows: int) -> int:
    """Distinct ids in all rows, from those in some of them.

    The estimator GEE, sqrt(N / n) * f1 + f2 + f3 + ..., where fi ids occur i times in n of N rows (M. Charikar,
    S. Chaudhuri, R. Motwani, V. Narasayya, "Towards estimation error guarantees for distinct values", PODS 2000).
    """
    factor = math.sqrt(max(1.0, all_rows / max(1, rows)))
    return round(num_distinct * (1 + (factor - 1) * share_once))


def count_ids(survey: Survey, columns: Sequence[Values]) -> dict[str, tuple[int, int]]:
    """Expected distinct ids of each column in all rows, and the rows that they were counted in.

    Raises:
        DataError: a file cannot be read.
    """
    found: dict[str, tuple[int, int]] = {}
    growing: list[Field] = []
    for values in columns:
        once = float((values.counts == 1).mean())
        expected = expected_ids(len(values.counts), once, values.num_rows, survey.rows_in_all)
        found[values.field.name] = expected, values.num_rows
        if expected > _GROWS * len(values.counts) and survey.num_rows < survey.rows_looked_at:
            growing.append(values.field)
    if not growing:
        return found
    counts, rows = _count(survey, growing)
    for name, of_ids in counts.items():
        sketch = of_ids.finish()
        once = float((sketch.counts == 1).mean()) if len(sketch.counts) else 0.0
        expected = expected_ids(sketch.distinct, once, rows, survey.rows_in_all)
        found[name] = max(expected, round(sketch.distinct)), rows
    return found


def _count(survey: Survey, fields: list[Field]) -> tuple[dict[str, IdCounts], int]:
    """Ids of some row groups, spread over those that were looked at, and how many rows these are."""
    budget = MAX_VALUES // len(fields)
    total = sum(group.num_rows for group in survey.groups)
    wanted = len(survey.groups) if total <= budget else max(1, len(survey.groups) * budget // total)
    chosen = [survey.groups[i] for i in evenly(len(survey.groups), wanted)]
    most = budget if total <= budget else max(1, budget // wanted)
    filesystem, _ = open_filesystem(survey.path)
    files = [list(groups) for _, groups in groupby(chosen, lambda group: group.path)]
    counts = {field.name: IdCounts(SKETCH_IDS) for field in fields}
    rows = 0
    with ThreadPoolExecutor(THREADS) as pool:
        for of_file, num_rows in pool.map(lambda groups: _count_file(filesystem, groups, fields, most), files):
            rows += num_rows
            for name, of_ids in of_file.items():
                counts[name].merge(of_ids)
    return counts, rows


def _count_file(
    filesystem: fs.FileSystem, groups: list[Group], fields: list[Field], most: int
) -> tuple[dict[str, IdCounts], int]:
    counts = {field.name: IdCounts(SKETCH_IDS) for field in fields}
    rows = 0
    try:
        with filesystem.open_input_file(groups[0].path) as source:
            file = pq.ParquetFile(source, buffer_size=BUFFER_BYTES, pre_buffer=False)
            names = [field.name for field in fields if field.name in file.schema_arrow.names]
            for group in groups:
                left = min(group.num_rows, most)
                for batch in file.iter_batches(_BLOCK_ROWS, [group.index], names, use_threads=False):
                    _add(batch.slice(0, left), fields, counts)
                    left -= min(left, batch.num_rows)
                    if not left:
                        break
                rows += min(group.num_rows, most)
    except (pa.ArrowException, OSError) as error:
        fix = "write the file again, or take it out of the folder"
        raise DataError([Fault(groups[0].path, str(error), "a file that can be read", fix)]) from error
    return counts, rows


def _add(batch: pa.RecordBatch, fields: list[Field], counts: dict[str, IdCounts]) -> None:
    for field in fields:
        chunk = column(batch, field.name)
        if chunk is None or t.is_null(chunk.type):
            continue
        leaf = read_ids(chunk, field.is_bag).leaf
        if leaf is None or t.is_null(leaf.type):
            continue
        hashes, is_id = hashes_of(leaf, _AS_IT_IS, _SEED_0)
        counts[field.name].add(np.ascontiguousarray(hashes) if is_id is None else hashes[is_id])
