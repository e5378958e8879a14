"""A past as files of a folder."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np

from diurnal.data.past import NOTHING, Past

FACTS = "past.json"
_VOCABULARY = ("hashes", "rows")
_VALUES = "values"


def write_past(past: Past, folder: Path) -> None:
    """Into a folder that is there and empty."""
    facts = {"increment": past.increment, "impressions": past.impressions, "positives": past.positives}
    counted, known, spread = list(past.of_feature), list(past.vocabulary), list(past.of_values)
    for index, feature in enumerate(counted):
        np.save(folder / f"{index}.npy", past.of_feature[feature])
    for index, feature in enumerate(known):
        for part, values in zip(_VOCABULARY, past.vocabulary[feature], strict=True):
            np.save(folder / f"{part}-{index}.npy", values)
    for index, feature in enumerate(spread):
        np.save(folder / f"{_VALUES}-{index}.npy", past.of_values[feature])
    (folder / FACTS).write_text(json.dumps({**facts, "counted": counted, "known": known, "spread": spread}))


@lru_cache(maxsize=4)
def open_past(path: str) -> Past:
    """A past whose counts stay on disk until they are asked for; an empty path is the past of a new model."""
    if not path:
        return NOTHING
    facts = json.loads(Path(path, FACTS).read_text())
    counted, known, spread = facts.pop("counted"), facts.pop("known"), facts.pop("spread", ())

    def stored(name: str) -> np.ndarray:
        return np.load(Path(path, f"{name}.npy"), mmap_mode="r")

    return Past(
        **facts,
        of_feature={name: stored(str(index)) for index, name in enumerate(counted)},
        vocabulary={
            name: (stored(f"{_VOCABULARY[0]}-{index}"), stored(f"{_VOCABULARY[1]}-{index}"))
            for index, name in enumerate(known)
        },
        of_values={name: stored(f"{_VALUES}-{index}") for index, name in enumerate(spread)},
    )
