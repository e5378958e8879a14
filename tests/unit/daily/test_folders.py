"""Looks at a dataset that changes in between, with a clock that a test sets."""

from __future__ import annotations

import shutil
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diurnal.config import Config
from diurnal.daily import folders
from diurnal.daily.folders import SHARE, Folders
from diurnal.testing import tiny_config

HOUR_S = 3600.0


def name_of(index: int) -> str:
    return str(date(2026, 1, 1) + timedelta(days=index))


class Clock:
    """Each reading takes a second."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


class Dataset:
    def __init__(self, root: Path, config: Config) -> None:
        self.root = root
        self.schema = config.dataset

    def write(self, index: int, num_rows: int, is_complete: bool = True) -> str:
        folder = self.root / f"dt={name_of(index)}"
        folder.mkdir(parents=True, exist_ok=True)
        columns: dict[str, pa.Array] = {self.schema.label.column: pa.array([index % 2] * num_rows, pa.int64())}
        columns |= {feature.name: pa.array([1.0] * num_rows) for feature in self.schema.dense}
        columns |= {feature.name: pa.array([[7] if feature.many else 7] * num_rows) for feature in self.schema.sparse}
        pq.write_table(pa.table(columns), folder / "rows.parquet")
        if is_complete:
            (folder / "_SUCCESS").touch()
        return name_of(index)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return tiny_config({"data": {"path": str(tmp_path / "days")}, "days": {"look_back": 3, "max_retrained": 0}})


@pytest.fixture
def dataset(tmp_path: Path, config: Config) -> Dataset:
    return Dataset(tmp_path / "days", config)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders whose footers are read, in order."""
    found: list[str] = []
    read = folders.read_increment

    def noted(path: str, increment: str, schema, on_bad_file):
        found.append(increment)
        return read(path, increment, schema, on_bad_file)

    monkeypatch.setattr(folders, "read_increment", noted)
    return found


def rows_by_name(sightings) -> dict[str, int | None]:
    return {seen.increment: seen.rows for seen in sightings}


def test_settled_folders_are_opened_only_among_the_newest(config, dataset, clock, opened):
    """A year of days costs no more than a month when the next one comes."""
    names = [dataset.write(index, 10) for index in range(8)]
    found = Folders(config, clock).look(names[:7])
    assert opened == names[4:]
    assert [seen.increment for seen in found] == names
    assert all(seen.is_ready for seen in found)
    assert [seen.rows for seen in found] == [None] * 4 + [10] * 4
    assert [seen.fingerprint is None for seen in found] == [True] * 4 + [False] * 4


def test_what_is_asked_for_is_looked_at_with_all_after_it(config, dataset, clock, opened):
    names = [dataset.write(index, 10) for index in range(8)]
    shutil.rmtree(dataset.root / f"dt={names[2]}")
    Folders(config, clock).look(names, {names[1]})
    assert opened == [names[1], *names[3:]]
    opened.clear()
    Folders(config, clock).look(names, {f"{names[6]}P02of24"})
    assert opened == names[5:]


def test_a_late_folder_far_back_is_seen(config, dataset, clock, opened):
    names = [dataset.write(index, 10) for index in range(1, 9)]
    late = dataset.write(0, 4)
    found = Folders(config, clock).look(names)
    assert rows_by_name(found)[late] == 4


def test_a_changed_folder_is_read_again_after_a_while_and_an_unchanged_one_never(config, dataset, clock, opened):
    names = [dataset.write(index, 10) for index in range(3)]
    seen = Folders(config, clock)
    before = {s.increment: s.fingerprint for s in seen.look(names)}
    dataset.write(1, 11)
    assert rows_by_name(seen.look(names))[names[1]] == 10, "between two full looks nothing is asked of it"
    clock.now_s += 1 / SHARE
    after = seen.look(names)
    assert rows_by_name(after) == {names[0]: 10, names[1]: 11, names[2]: 10}
    assert [s.increment for s in after if s.fingerprint != before[s.increment]] == [names[1]]
    assert opened == [*names, names[1]]


def test_new_and_unfinished_folders_are_looked_at_each_time(config, dataset, clock, opened):
    names = [dataset.write(0, 10), dataset.write(1, 10, is_complete=False)]
    seen = Folders(config, clock)
    assert [s.is_ready for s in seen.look(names[:1])] == [True, False]
    (dataset.root / f"dt={names[1]}" / "_SUCCESS").touch()
    names.append(dataset.write(2, 5))
    assert rows_by_name(seen.look(names[:1])) == dict(zip(names, (10, 10, 5), strict=True))
    assert opened == names


def test_a_folder_that_cannot_be_read_is_tried_again_each_time(config, dataset, clock, opened):
    name = dataset.write(0, 10)
    file = dataset.root / f"dt={name}" / "rows.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[:50])
    seen = Folders(config, clock)
    (found,) = seen.look(())
    assert not found.is_ready
    assert list(seen.unreadable) == [name]
    file.write_bytes(whole)
    (found,) = seen.look(())
    assert (found.is_ready, found.rows, seen.unreadable) == (True, 10, {})
