"""The pasts of a model's versions: folders whose names tell their content. The same rows under the same schema give the
same name again, and a folder that is there is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePath
from uuid import uuid4

from diurnal.config import HASH_NAME, Config, Schema
from diurnal.data.objects import ObjectPath, place_of
from diurnal.data.partitions import Increment
from diurnal.data.past import Past
from diurnal.data.past_counts import extended, only_ids
from diurnal.data.past_files import FACTS, write_past
from diurnal.errors import CheckpointError, Fault


class Pasts:
    """The folder of a model's pasts.

    Args:
        folder: local path, made when there is something to write; or a URL.
    """

    def __init__(self, folder: str | Path, schema: Schema) -> None:
        self._folder = place_of(folder)
        self._schema = schema

    @staticmethod
    def of(config: Config) -> Pasts:
        """Those of a model, in the storage that it has now."""
        folder = place_of(config.storage, config.name, "past")
        return Pasts(folder.absolute() if isinstance(folder, Path) else str(folder), config.dataset)

    def path(self, name: str) -> str:
        """Where readers find a past, and empty for none.

        Raises:
            CheckpointError: it is not there, or an object store does not answer.
        """
        if not name:
            return ""
        folder = self._folder / name
        if not self._is_whole(name):
            must = "what the rows of a version are seen with is kept as long as the version"
            fix = "restore it from a copy of the storage, or start a new lineage under another name"
            raise CheckpointError([Fault(str(folder), "no such folder", must, fix)])
        return str(folder)

    def after(self, increment: Increment) -> str:
        """Name of the past after an increment is learned, which is made if it is not there yet; empty when the schema
        asks for none.

        Args:
            increment: with its past, the rows that are joined, and those that are held out.

        Raises:
            DataError: a file of the increment cannot be read, or has a value that encoding refuses.
        """
        if not self._schema.has_past:
            return ""
        name = f"{increment.id}-{_digest(increment, self._schema)}"
        if not self._is_whole(name):
            self._write(extended(increment, self._schema), name)
        return name

    def sweep(self, named: Collection[str], increments: Collection[str]) -> int:
        """Deletes what no version names, and says how many.

        Args:
            increments: names of those that are at work, whose pasts stay too.
        """
        at_work = tuple(f"{increment}-" for increment in increments)
        if isinstance(self._folder, ObjectPath):
            return _sweep_objects(self._folder, named, at_work)
        found = list(self._folder.iterdir()) if self._folder.exists() else []
        # One that is being written has a dot before its name.
        kept = [entry for entry in found if entry.name in named or entry.name.removeprefix(".").startswith(at_work)]
        gone = [entry for entry in found if entry not in kept]
        for entry in gone:
            shutil.rmtree(entry, ignore_errors=True)
        return len(gone)

    def _is_whole(self, name: str) -> bool:
        facts = self._folder / name / FACTS
        try:
            return facts.exists()
        except OSError as error:
            raise CheckpointError([facts.fault(error)]) if isinstance(facts, ObjectPath) else error from None

    def _write(self, past: Past, name: str) -> None:
        if isinstance(self._folder, ObjectPath):
            _send(past, self._folder / name)
        else:
            _write(past, self._folder / name)


def _write(past: Past, target: Path) -> None:
    for left in target.parent.glob(f".{target.name}.*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    half = target.with_name(f".{target.name}.{uuid4().hex[:8]}")
    half.mkdir(parents=True)
    try:
        write_past(past, half)
        for entry in half.iterdir():
            with entry.open("rb") as file:
                os.fsync(file.fileno())
        half.rename(target)
    except OSError:
        shutil.rmtree(half, ignore_errors=True)
        if not target.exists():  # else somebody else has written the same
            raise


def _send(past: Past, target: ObjectPath) -> None:
    """The facts come last: where they are, all else is. Whoever sends the same at the same time sends the same bytes.

    Raises:
        CheckpointError: the store did not take it.
    """
    with tempfile.TemporaryDirectory(prefix="diurnal-past-") as folder:
        write_past(past, Path(folder))
        sizes = {entry.name: entry.stat().st_size for entry in Path(folder).iterdir() if entry.name != FACTS}
        try:
            for name in sizes:
                (target / name).upload(Path(folder, name))
            there = target.files() if sizes else {}
            if wrong := [name for name, size in sizes.items() if there.get(name) != size]:
                raise OSError(f"{wrong[0]} was not written as sent")
            (target / FACTS).upload(Path(folder, FACTS))
        except OSError as error:
            raise CheckpointError([target.fault(error)]) from error


def _sweep_objects(folder: ObjectPath, named: Collection[str], at_work: tuple[str, ...]) -> int:
    # What can not be found or deleted now is found again.
    gone: set[str] = set()
    with suppress(OSError):
        names = {path.partition("/")[0] for path in folder.files()}
        gone |= {name for name in names if name not in named and not name.startswith(at_work)}
    for name in gone:
        with suppress(OSError):
            (folder / name / FACTS).unlink(missing_ok=True)
            (folder / name).remove()
    return len(gone)


def _digest(increment: Increment, schema: Schema) -> str:
    """32 hex digits over all that the past follows from."""
    rows = [
        PurePath(increment.past).name,
        increment.fingerprint,
        [file.path.rpartition("/")[2] for file in increment.joined],
    ]
    held_out = increment.held_out and [increment.held_out.key, increment.held_out.threshold, increment.held_out.column]
    meaning = only_ids(schema).model_dump(mode="json", exclude={"readiness": True, "label": {"keep_negatives"}})
    facts = [1, HASH_NAME, rows, held_out, list(increment.quarantined_files), meaning]
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
