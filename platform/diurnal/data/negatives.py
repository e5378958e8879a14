"""Negatives that are not learned, to save the work: which they are, and how many rows of each row group that leaves.

With `label.keep_negatives` r below 1 all positives of an increment are learned, and of its negatives the share r: those
for which mix64(h ^ key) is below r * 2^64, where h is the hash of the request id, or the row's position where there is
none, as for rows that are held out, and the key follows from the seed and the increment. Whoever reads the same files
drops the same rows, in whatever order and pieces. Rows that increments before have held out are drawn like the others
of the increment that learns them.

What is dropped takes no place in a batch, so steps are planned from the rows that are left. The driver counts them
beforehand: the columns of labels and of request ids are read once more, and no others.

Let p be the true chance that a row is a positive. Among the rows that are learned its odds are p / (r (1 - p)), so that
the logit that belongs to them is that of p less ln r. The loss is given `logit - ln r`; the model's own logit stays
that of p, and nothing is corrected where it scores or serves, whatever r was on which day (prior correction: King and
Zeng, "Logistic Regression in Rare Events Data", 2001; He et al., "Practical Lessons from Predicting Clicks on Ads at
Facebook", 2014, section 6.3, has the same formula solved for p). Metrics of the rows that are learned weigh each
negative 1 / r: such sums estimate without bias what they would be over all rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa

from diurnal.config import Label, Schema
from diurnal.data.arrow import column
from diurnal.data.audit import RowAudit
from diurnal.data.files import HeldOut, ParquetFile, Sampled, Sampling
from diurnal.data.footers import open_parquet
from diurnal.data.hashing import mix64
from diurnal.data.holdout import row_hashes
from diurnal.data.inputs import read_labels
from diurnal.data.partitions import JOINED_ROW, Increment, open_filesystem
from diurnal.errors import DataError, Fault

_THREADS = 8
_BLOCK_ROWS = 65_536


def sampling_of(increment: Increment, schema: Schema, seed: int) -> Sampling:
    """The rule for an increment."""
    key = hashlib.blake2b(f"negatives/{seed}/{increment.id}".encode(), digest_size=8).digest()
    rate = schema.label.keep_negatives
    return Sampling(
        rate=rate,
        key=int.from_bytes(key, "little"),
        threshold=min(int(rate * 2.0**64), 2**64 - 1),
        column=schema.request_id,
        label=schema.label.model_dump_json(),
        num_own_rows=increment.num_own_rows,
    )


def split_rows(
    rows: pa.RecordBatch, positions: np.ndarray, sampling: Sampling, held_out: HeldOut | None
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows are learned, and which are dropped: (n,) bool each; neither are those of other increments, and those
    that are held out.

    A row whose label is none counts as learned: encoding says what is wrong with it.

    Args:
        rows: with the columns of the label and of request ids.
        positions: their own in the increment, int64 (n,); out of it where the row group has rows of others.

    Raises:
        DataError: there is no label, or request ids have a type that has no hash.
    """
    label = Label.model_validate_json(sampling.label)
    chunk = column(rows, label.column)
    if chunk is None:
        raise DataError([Fault(f"column {label.column}", "no such column", "required", "write the column")])
    labels, bad = read_labels(chunk, label)
    hashes = row_hashes(rows, positions, sampling.column)
    drawn = mix64(hashes.copy(), np.uint64(sampling.key)) < np.uint64(sampling.threshold)
    is_own = positions < JOINED_ROW
    candidates = ~is_own | ((positions >= 0) & (positions < sampling.num_own_rows))
    if held_out is not None:
        assert held_out.column == sampling.column, (held_out.column, sampling.column)
        held = mix64(hashes, np.uint64(held_out.key)) < np.uint64(held_out.threshold)  # as `holdout.is_held_out`
        candidates &= ~(is_own & held)
    learned = candidates & ((labels > 0.5) | bad | drawn)
    return learned, candidates & ~learned


class Negatives:
    """Plans which negatives are learned, under one configuration.

    Args:
        say: shows a line to a person.
    """

    def __init__(self, schema: Schema, seed: int, say: Callable[[str], None]) -> None:
        self._schema = schema
        self._seed = seed
        self._say = say
        self._known: dict[Increment, Sampled] = {}

    def sample(self, increment: Increment) -> Increment:
        """The increment without the negatives that are not learned; the same one where all are.

        Args:
            increment: with the rows that are joined, and those that are held out.

        Raises:
            DataError: a file cannot be read, or has no label.
        """
        if self._schema.label.keep_negatives == 1:
            return increment
        rows = replace(increment, past="")
        if rows not in self._known:
            sampled = self._known[rows] = count_kept(increment, sampling_of(increment, self._schema, self._seed))
            share = f"{self._schema.label.keep_negatives:g} of the negatives"
            told = f"{sampled.num_rows:,} rows are learned, {share} among them; {sampled.num_dropped:,} are dropped"
            self._say(f"{increment.id}: {told}")
        return replace(increment, sampled=self._known[rows])


def count_kept(increment: Increment, sampling: Sampling) -> Sampled:
    """Reads labels and request ids of all rows of an increment, and counts what the rule leaves."""
    own, position = [], -increment.first_row
    for file in increment.files:
        own.append((file, position))
        position += file.num_rows
    joined, position = [], JOINED_ROW
    for file in increment.joined:
        joined.append((file, position))
        position += file.num_rows

    def count(part: tuple[ParquetFile, int]) -> tuple[tuple[int, ...], RowAudit]:
        return _count_file(*part, increment, sampling)

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="negatives") as pool:
        counted = list(pool.map(count, [*joined, *own]))
    dropped = RowAudit()
    for _, audit in counted:
        dropped.merge(audit)
    kept = tuple(rows for rows, _ in counted)
    return Sampled(sampling, kept[: len(joined)], kept[len(joined) :], tuple(dropped.to_array().tolist()))


def _count_file(
    file: ParquetFile, position: int, increment: Increment, sampling: Sampling
) -> tuple[tuple[int, ...], RowAudit]:
    """Rows that are learned of each row group, and which are dropped; the file's first row has the given position."""
    filesystem, _ = open_filesystem(increment.path)
    system, place = open_filesystem(file.path) if "://" in file.path else (filesystem, file.path)
    held_out = increment.held_out
    wanted = {Label.model_validate_json(sampling.label).column, sampling.column}
    kept, dropped = [0] * len(file.row_group_rows), RowAudit()
    try:
        with system.open_input_file(place) as source:
            if source.size() != file.size_bytes:
                raise OSError(f"{source.size()} bytes; there were {file.size_bytes} when it was planned")
            opened = open_parquet(source, wanted, page_checksum_verification=True)
            names = [name for name in opened.schema_arrow.names if name in wanted]
            for group, num_rows in enumerate(file.row_group_rows):
                first, position = position, position + num_rows
                if position <= 0 or sampling.num_own_rows <= first < JOINED_ROW:
                    continue
                for rows in opened.iter_batches(_BLOCK_ROWS, [group], names, use_threads=False):
                    positions = np.arange(first, first + rows.num_rows)
                    first += rows.num_rows
                    is_kept, is_dropped = split_rows(rows, positions, sampling, held_out)
                    kept[group] += int(np.count_nonzero(is_kept))
                    dropped.add(positions[is_dropped])
    except (OSError, pa.ArrowException) as error:
        must, fix = "a file that can be read as it was planned", "write it again, or plan the increment anew"
        raise DataError([Fault(file.path, str(error), must, fix)]) from error
    except DataError as error:
        raise DataError([Fault(f"{file.path}: {f.where}", f.found, f.rule, f.fix) for f in error.faults]) from error
    return tuple(kept), dropped
