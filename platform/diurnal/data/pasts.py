"""The pasts of a model's versions: folders whose names tell their content. The same rows under the same schema give the
same name again, and a folder that is there is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path, PurePath
from uuid import uuid4

from diurnal.config import HASH_NAME, Config, Schema
from diurnal.data.partitions import Increment
from diurnal.data.past import Past
from diurnal.data.past_counts import extended, only_ids
from diurnal.data.past_files import FACTS, write_past
from diurnal.errors import CheckpointError, Fault


class Pasts:
    """The folder of a model's pasts.

    Args:
        folder: local path, made when there is something to write.
    """

    def __init__(self, folder: str | Path, schema: Schema) -> None:
        self._folder = Path(folder)
        self._schema = schema

    @staticmethod
    def of(config: Config) -> Pasts:
        """Those of a model, in the storage that it has now."""
        return Pasts(Path(config.storage, config.name, "past").absolute(), config.dataset)

    def path(self, name: str) -> str:
        """Where readers find a past, and empty for none.

        Raises:
            CheckpointError: it is not there.
        """
        if not name:
            return ""
        folder = self._folder / name
        if not (folder / FACTS).exists():
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
        target = self._folder / name
        if not target.exists():
            self._write(extended(increment, self._schema), target)
        return name

    def sweep(self, named: Collection[str], increments: Collection[str]) -> int:
        """Deletes what no version names, and says how many.

        Args:
            increments: names of those that are at work, whose pasts stay too.
        """
        at_work = tuple(f"{increment}-" for increment in increments)
        found = list(self._folder.iterdir()) if self._folder.exists() else []
        # One that is being written has a dot before its name.
        kept = [entry for entry in found if entry.name in named or entry.name.removeprefix(".").startswith(at_work)]
        gone = [entry for entry in found if entry not in kept]
        for entry in gone:
            shutil.rmtree(entry, ignore_errors=True)
        return len(gone)

    def _write(self, past: Past, target: Path) -> None:
        for left in self._folder.glob(f".{target.name}.*"):  # by a process that was killed
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
