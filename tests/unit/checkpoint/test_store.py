"""Folders, commits and what is no version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diurnal.checkpoint.manifest import Contract, Lineage, Manifest, Position, Provenance
from diurnal.checkpoint.store import FileRecord, Store, Version
from diurnal.errors import CheckpointError
from diurnal.testing import tiny_config


def manifest(number: int, attempt: int = 1) -> Manifest:
    position = Position(steps=1, num_steps=1, rows=1, cursors=(1,))
    increment = f"2026-01-{number:02}"
    made = Provenance(
        schema_hash="",
        config_hash="",
        config={},
        libraries={},
        world_size=1,
        device="cpu",
        placement={},
        hyperparameters={},
    )
    return Manifest(
        model="tiny",
        lineage=Lineage(
            number=number, parent=None, increment=increment, fingerprint="", attempt=attempt, position=position
        ),
        global_step=1,
        contract=Contract.of(tiny_config()),
        provenance=made,
        created_at="2026-01-05T00:00:00+00:00",
    )


def write(store: Store, number: int, attempt: int = 1, *, commit: bool = True) -> Path:
    directory = store.begin(number, attempt, 10 * number)
    path = directory / "model" / "data"
    path.parent.mkdir()
    path.write_text(f"{number} {attempt}")
    if commit:
        store.commit(directory, manifest(number, attempt), {"model/data": FileRecord.of(path)})
    return directory


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path, "tiny")
    store.prepare()
    return store


def test_an_empty_store_has_no_version(store: Store) -> None:
    assert store.versions() == []
    assert store.latest() is None
    assert store.leftovers() == []
    with pytest.raises(CheckpointError, match="found: no version 3"):
        store.version(3)


def test_versions_are_numbers_not_names(store: Store, tmp_path: Path) -> None:
    for number in (2, 10, 9):
        write(store, number)
    assert [version.number for version in store.versions()] == [2, 9, 10]
    latest = Version(10, tmp_path / "tiny" / "versions" / "10" / "1-100")
    assert store.latest() == latest
    assert latest.manifest() == manifest(10)
    assert set(latest.files()) == {"manifest.json", "model/data"}
    with pytest.raises(CheckpointError, match="rule:  a committed version: 2, 9, 10"):
        store.version(3)


def test_what_has_no_commit_is_a_leftover(store: Store) -> None:
    whole = write(store, 1)
    half = write(store, 2, commit=False)
    (half / "COMMIT.tmp").write_text("{")
    assert [version.directory for version in store.versions()] == [whole]
    assert [(left.directory, left.reason) for left in store.leftovers()] == [(half, "never committed")]


def test_a_torn_commit_record_is_none(store: Store) -> None:
    directory = write(store, 1)
    record = (directory / "COMMIT").read_text()
    (directory / "COMMIT").write_text(record[: len(record) // 2])
    assert store.versions() == []


def test_a_later_attempt_counts_and_the_earlier_one_is_left_over(store: Store) -> None:
    late, early = write(store, 1, attempt=10), write(store, 1, attempt=9)
    assert store.version(1).directory == late
    assert [(left.directory, left.reason) for left in store.leftovers()] == [(early, "overtaken by a later commit")]


def test_a_folder_is_never_used_again(store: Store) -> None:
    names = [write(store, 1, commit=False).name for _ in range(3)]
    assert names == ["1-10", "1-10.2", "1-10.3"]
    last = write(store, 1)
    assert store.version(1).directory == last


def test_a_commit_is_not_made_twice(store: Store) -> None:
    directory = write(store, 1)
    with pytest.raises(FileExistsError):
        store.commit(directory, manifest(1), {})


@pytest.mark.parametrize(
    ("text", "found"), [("1 2", "another checksum"), ("1", "1 bytes instead of 3"), (None, "no such")]
)
def test_verify_names_the_file_and_what_is_wrong_with_it(store: Store, text: str | None, found: str) -> None:
    path = write(store, 1) / "model" / "data"
    version = store.version(1)
    assert store.verify(version) == []
    path.unlink()
    if text is not None:
        path.write_text(text)
    (fault,) = store.verify(version)
    assert fault.where == str(path)
    assert found in fault.found
    assert store.verify(version, ["manifest.json"]) == []


def test_formats_of_another_release_are_refused(store: Store) -> None:
    directory = write(store, 1)
    record = json.loads((directory / "COMMIT").read_text())
    text = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps(text | {"format": 2}))
    with pytest.raises(CheckpointError, match=r"manifest.json"):
        store.version(1).manifest()
    (directory / "COMMIT").write_text(json.dumps(record | {"format": 2}))
    with pytest.raises(CheckpointError, match="format 2"):
        store.versions()
