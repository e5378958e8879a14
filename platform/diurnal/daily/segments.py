"""The rows that are calibrated apart: those of the most frequent ids of the features that the gate names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from diurnal.config import Schema
from diurnal.data.profile import Profile
from diurnal.data.sparse import encode_sparse
from diurnal.metrics.segments import Segment

MOST_IDS = 8
"""Segments of one feature."""


def segments_of(profile: Profile, schema: Schema, names: Iterable[str]) -> tuple[Segment, ...]:
    """The most frequent ids of these features in an increment, as rows of their tables.

    Ids that share a row of a hashed table are one segment, named by the most frequent of them.
    """
    found: dict[tuple[str, int], Segment] = {}
    for feature in (feature for feature in schema.sparse if feature.name in set(names)):
        if feature.quantiles:  # equally frequent, as near as can be
            for row in range(min(feature.quantiles, MOST_IDS)):
                found[feature.name, row] = Segment(f"{feature.name}={row}", feature.name, row)
            continue
        texts = [text for text, _ in profile.sparse[feature.name].top[:MOST_IDS]]
        if feature.num_values is not None:  # a bucket, an hour or a weekday: spelled as the row that it is
            for text in texts:
                found[feature.name, int(text)] = Segment(f"{feature.name}={text}", feature.name, int(text))
            continue
        types = {"string": pa.string(), "int64": pa.int64(), "uint64": pa.uint64()}
        column = pa.array(texts if feature.type == "string" else [int(text) for text in texts], types[feature.type])
        rows = pa.RecordBatch.from_arrays([column], names=[feature.source])
        unweighted = feature.model_copy(update={"weights": ""})
        (ids,), lengths, _, _ = encode_sparse(rows, schema.model_copy(update={"sparse": (unweighted,)}))
        known = np.flatnonzero(lengths[0])
        for index, row in zip(known.tolist(), ids.tolist(), strict=True):
            name = f"{feature.name}={texts[index]}"
            found.setdefault((feature.name, row), Segment(name, feature.name, row))
    return tuple(found.values())
