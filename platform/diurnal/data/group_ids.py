"""The group that each row belongs to, for metrics within groups: 64 bits of a hash stand for it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from diurnal.data import hashing
from diurnal.data.arrow import hash_strings, is_null, view_of
from diurnal.data.columns import is_string
from diurnal.data.encoded import NO_GROUP
from diurnal.errors import DataError, Fault

_SEED = 0x6A09E667F3BCC909
"""Groups are sampled by their hash. The same id is likely to be a feature's too, so that the seed is another one: what
is sampled would else be those whose vectors lie at the beginning of a table. The digits are those of sqrt(2)."""


def group_hashes(chunk: pa.Array | None, num_rows: int, name: str, seed: int) -> np.ndarray:
    """(num_rows,) uint64, `NO_GROUP` for what is no id elsewhere either: null, a negative number, the empty string.

    Args:
        chunk: the column; None when the file has none.
        name: of the column.
        seed: of the hash, `Schema.hash_seed`.

    Raises:
        DataError: the column holds neither integers nor strings.
    """
    if chunk is None or t.is_null(chunk.type):
        return np.full(num_rows, NO_GROUP, np.uint64)
    if is_string(chunk.type.value_type if t.is_dictionary(chunk.type) else chunk.type):
        hashed = hash_strings(chunk, seed ^ _SEED)
        hashes = view_of(hashed).copy()
        no_group = is_null(hashed)
    elif t.is_integer(chunk.type):
        values = view_of(chunk)
        wide = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)
        hashes = hashing.hash_int64(wide, seed ^ _SEED)
        no_group = values < 0
        if chunk.null_count:
            no_group |= is_null(chunk)
    else:
        fault = Fault(f"column {name} (group_id)", str(chunk.type), "integers or strings", "write it as a string")
        raise DataError([fault])
    hashes[hashes == NO_GROUP] = 1
    hashes[no_group] = NO_GROUP
    return hashes
