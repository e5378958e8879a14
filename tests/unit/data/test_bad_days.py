"""Each bad day of the generator has the outcome that is declared for it; none is learned wrongly in silence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from diurnal.config import Config
from diurnal.data.encode import count_names
from diurnal.data.packed import PackedBatch
from diurnal.data.plausible import compare
from diurnal.data.profile import profile_increment
from diurnal.data.selection import select_increments
from diurnal.data.streams import plan_increment
from diurnal.data.validate import Validation, validate
from diurnal.errors import DataError
from diurnal.testing_bad_days import DAY, DEFECTS, SCHEMA, Defect

MEMORY_BYTES = 1 << 30

ReadRank = Callable[..., Iterator[PackedBatch]]


class Row(NamedTuple):
    """What is learned of a row, and what was counted in it."""

    learned: tuple[Any, ...]
    counts: dict[str, int]


def config_of(root: Path) -> Config:
    data = {"path": str(root), "schema_file": "nowhere", "batch_rows": 1}
    return Config.model_validate_json(json.dumps({"name": "bad", "data": data, "dataset": dict(SCHEMA)}))


def rows_of(root: Path, read_rank: ReadRank) -> list[Row]:
    """As a rank of a world of one reads them, in batches of one row."""
    config = config_of(root)
    (increment,) = select_increments(str(root), config.dataset, DAY)
    plan = plan_increment(increment, batch_rows=1, num_streams=1, seed=0, order="file", task_rows=64)
    names = [name for name in count_names(config.dataset) if not name.endswith("/ids")]
    places = [count_names(config.dataset).index(name) for name in names]
    rows = []
    for batch in read_rank(plan, config.dataset):
        learned = (batch.dense, batch.values, batch.lengths, batch.labels, batch.task_labels, batch.weights)
        counts = dict(zip(names, batch.counts[places].tolist(), strict=True))
        rows.append(Row(tuple(each.tobytes() for each in learned), {k: n for k, n in counts.items() if n}))
    return rows


@pytest.fixture(scope="module")
def twin_of(tmp_path_factory: pytest.TempPathFactory, read_rank: ReadRank) -> Callable[[Defect], list[Row]]:
    """Rows of the sound dataset beside a defect; most defects share one."""
    known: dict[Any, list[Row]] = {}

    def rows(defect: Defect) -> list[Row]:
        if defect.twin not in known:
            root = tmp_path_factory.mktemp("twin")
            defect.write_twin(root)
            known[defect.twin] = rows_of(root, read_rank)
        return known[defect.twin]

    return rows


def texts_of(found: Validation) -> tuple[list[str], list[str]]:
    return [str(fault) for fault in found.faults], [str(note) for note in found.notes]


def findings_of(root: Path) -> list[str]:
    config = config_of(root)
    (increment,) = select_increments(str(root), config.dataset, DAY)
    profile = profile_increment(increment, config.dataset, threads=1)
    return [str(finding) for finding in compare(profile, [], config.profile, config.dataset)]


def test_a_sound_day_has_neither_faults_nor_notes(tmp_path: Path, twin_of: Callable[[Defect], list[Row]]) -> None:
    DEFECTS[0].write_twin(tmp_path)
    found = validate(config_of(tmp_path), duplicates=True, memory_bytes=MEMORY_BYTES)
    assert texts_of(found) == ([], [])
    assert (found.num_rows, found.rows_looked_at) == (40, 40)
    assert len(twin_of(DEFECTS[0])) == 40
    assert findings_of(tmp_path) == []


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_bad_day_has_its_outcome(
    defect: Defect, tmp_path: Path, read_rank: ReadRank, twin_of: Callable[[Defect], list[Row]]
) -> None:
    defect.write(tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 200_000
    found = validate(config_of(tmp_path), **{"memory_bytes": MEMORY_BYTES, **defect.options})
    faults, notes = texts_of(found)
    if defect.kind == "refused":
        assert any(defect.words in text for text in faults), faults
        if not defect.is_read:
            with pytest.raises(DataError):
                rows_of(tmp_path, read_rank)
        return
    assert faults == []
    if defect.kind == "held":
        assert any(defect.words in text for text in findings_of(tmp_path)), findings_of(tmp_path)
        assert notes, "what the daily cycle would hold is told"
        return
    if defect.words:
        assert any(defect.words in text for text in notes), notes
    if defect.kind == "equal":
        assert [text for text in notes if "stored in" not in text] == []
    if defect.name == "no_marker":
        with pytest.raises(DataError, match="_SUCCESS is not there yet"):
            rows_of(tmp_path, read_rank)
        return
    rows, sound = rows_of(tmp_path, read_rank), twin_of(defect)
    total: dict[str, int] = {}
    for row in rows:
        for name, count in row.counts.items():
            total[name] = total.get(name, 0) + count
    assert total == dict(defect.counts)
    assert len(rows) == len(sound)
    silent = [i for i, (row, right) in enumerate(zip(rows, sound, strict=True)) if row != right and not row.counts]
    assert silent == [], "rows that are learned wrongly, and nothing says so"


def test_the_names_of_the_defects_are_many_and_differ() -> None:
    names = [defect.name for defect in DEFECTS]
    assert len(set(names)) == len(names) > 60
