"""Where commits lie. This is the one place that knows paths.

    <storage>/<model>/versions/<number>/<attempt>-<steps of the increment>[.<try>]/
        model/ optimizer/ random/     torch distributed checkpoints, one for each section
        progress/                     of a resume point: what the pass over the increment has added up
        manifest.json
        COMMIT                        files, sizes, checksums; written last: what has none is no commit

The last commit of an increment is a version; those before it, resume points, have its number too. A folder is never
written twice, so that whatever an attempt left behind can not become part of another.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from diurnal.checkpoint.manifest import Manifest
from diurnal.checkpoint.media import COMMIT, FileRecord, medium_of
from diurnal.data.objects import ObjectPath, Place, place_of
from diurnal.errors import CheckpointError, Fault

MANIFEST = "manifest.json"
_FORMAT = 1


@dataclass(frozen=True)
class Version:
    """A commit: a version, or a resume point on the way to it."""

    number: int
    directory: Place

    def manifest(self) -> Manifest:
        """
        Raises:
            CheckpointError: it is gone, or this release does not understand it; or an object store fails.
            OSError: a disk fails.
        """
        path = self.directory / MANIFEST
        try:
            return Manifest.from_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise self._gone() from error
        except OSError as error:
            raise _of_store(path, error) from error
        except ValidationError as error:
            rule = "a manifest that this release of diurnal reads"
            raise CheckpointError([Fault(str(path), str(error), rule, "use the release that wrote it")]) from error

    def files(self) -> dict[str, FileRecord]:
        """By path below the version's folder."""
        commit = _read_commit(self.directory)
        if commit is None:
            raise self._gone()
        return {path: FileRecord(**record) for path, record in commit["files"].items()}

    def _gone(self) -> Exception:
        if isinstance(self.directory, ObjectPath):
            try:
                self.directory.refuse_no_bucket()
            except OSError as error:
                return _of_store(self.directory, error)
        rule = "a commit that the ledger knows is in the storage, whole"
        fix = "restore it from a copy, or give the model another name, which starts a new lineage"
        return CheckpointError([Fault(str(self.directory), "not there, or not whole", rule, fix)])


@dataclass(frozen=True)
class Leftover:
    """A folder that nothing will be read from."""

    directory: Place
    reason: str

    @property
    def number(self) -> int:
        return _age(self.directory)[0]

    @property
    def attempt(self) -> int:
        return _age(self.directory)[1]


class Store:
    """The commits of one model that are whole. Which of them count, the ledger says: see `History`."""

    def __init__(self, storage: str | Path, name: str) -> None:
        self.root = place_of(storage, name, "versions")
        self._medium = medium_of(self.root)

    def prepare(self) -> None:
        """Makes the folder of all versions, once at the start: later on, one that is missing has gone, and another in
        its place would lie beside what was written before."""
        self._medium.prepare()

    def refuse_without_room(self, needed_bytes: int) -> None:
        """
        Raises:
            OSError: so many bytes find no room.
        """
        self._medium.refuse_without_room(needed_bytes)

    def begin(self, number: int, attempt: int, step: int) -> Any:
        """A fresh folder for one attempt to write a version; the same attempt may begin again after it failed."""
        return self._medium.begin(number, attempt, step)

    def records(self, directory: Place, rank: int, written: Mapping[str, FileRecord]) -> dict[str, FileRecord]:
        """All that a rank has put into a folder, by path.

        Args:
            written: what `tensors.write` says of it.
        """
        return self._medium.records(directory, rank, written)

    def commit(self, directory: Place, manifest: Manifest, files: Mapping[str, FileRecord]) -> Version:
        """Makes a folder a version: its files are on disk by now, and nothing else of it ever changes.

        Args:
            files: all that were written below `directory`, by path.
        """
        listed = {**files, MANIFEST: self._medium.put(directory / MANIFEST, manifest.to_json())}
        record = {"format": _FORMAT, "files": {path: vars(listed[path]) for path in sorted(listed)}}
        self._medium.seal(directory, listed, json.dumps(record, indent=1))
        return Version(manifest.lineage.number, directory)

    def commits(self, known: Collection[str] = ()) -> list[Version]:
        """All whole commits, in the order in which they were begun.

        Args:
            known: paths, as of `path_of`, that are left out, and not looked at.

        Raises:
            CheckpointError: an object store does not answer, or not to this login.
        """
        return [Version(number, path) for number, paths in sorted(self._committed(known).items()) for path in paths]

    def versions(self) -> list[Version]:
        """The whole versions, by number. Of several of one number, the one of the latest attempt counts.

        Raises:
            CheckpointError: as `commits`.
        """
        newest = (self._newest_version(number, paths) for number, paths in sorted(self._committed().items()))
        return [version for version in newest if version is not None]

    def at(self, path: str) -> Version:
        """The commit in a folder below `versions/`."""
        return Version(int(path.split("/")[0]), self.root / path)

    def path_of(self, version: Version | Leftover) -> str:
        """The inverse of `at`."""
        return version.directory.relative_to(cast(Any, self.root)).as_posix()

    def latest(self) -> Version | None:
        versions = self.versions()
        return versions[-1] if versions else None

    def version(self, number: int) -> Version:
        """
        Raises:
            CheckpointError: there is no such version.
        """
        return self.pick(self.versions(), number)

    def pick(self, versions: Iterable[Version], number: int) -> Version:
        """One of some versions.

        Raises:
            CheckpointError: it is not among them.
        """
        known = {version.number: version for version in versions}
        if number not in known:
            there = ", ".join(map(str, known)) or "none"
            rule = f"a committed version: {there}"
            raise CheckpointError([Fault(str(self.root), f"no version {number}", rule, "choose one of them")])
        return known[number]

    def verify(self, version: Version, paths: Iterable[str] | None = None) -> list[Fault]:
        """Compares files with what was committed: there, of the same size, with the same checksum.

        Args:
            paths: which of `version.files()`; all, if not given.
        """
        faults, files = [], version.files()
        for path in files if paths is None else paths:
            found = self._what_is_wrong(version.directory / path, files[path])
            if found:
                rule = "the file is as it was committed"
                fix = "restore the file from a copy, or continue from an earlier version"
                faults.append(Fault(str(version.directory / path), found, rule, fix))
        return faults

    def leftovers(self, kept: Collection[Place] | None = None) -> list[Leftover]:
        """Folders of attempts that ended before their commit, or were overtaken by a later commit.

        Args:
            kept: folders that count; when None, the versions, and the newest resume point after them.
        """
        if kept is None:
            newest = [paths[-1] for paths in self._committed().values()]
            finished = {version.number: version.directory for version in self.versions()}
            kept = {finished.get(int(path.parent.name), path) for path in newest}
        found = []
        for directory, has_commit in sorted(self._medium.folders().items(), key=lambda each: _age(each[0])):
            if directory not in kept:
                is_whole = has_commit and _read_commit(directory) is not None
                reason = "overtaken by a later commit" if is_whole else "never committed"
                found.append(Leftover(directory, reason))
        return found

    def remove(self, directory: Place) -> None:
        """Deletes a folder; what is left when that is interrupted is no commit any more."""
        self._medium.remove(directory)

    def discard(self, directory: Place) -> None:
        """Deletes what can be deleted of a folder that has no commit record, and never fails."""
        self._medium.discard(directory)

    def _what_is_wrong(self, path: Place, committed: FileRecord) -> str:
        try:
            size = self._medium.size(path)
        except FileNotFoundError:
            return "no such file"
        if size != committed.bytes:
            return f"{size} bytes instead of {committed.bytes}"
        return "" if FileRecord.of(path) == committed else "another checksum"

    def _newest_version(self, number: int, paths: list[Place]) -> Version | None:
        versions = (Version(number, path) for path in reversed(paths))
        return next((v for v in versions if v.manifest().lineage.position.is_final), None)

    def _committed(self, known: Collection[str] = ()) -> dict[int, list[Place]]:
        found: dict[int, list[Place]] = {}
        passed = {self.root / path for path in known}
        try:
            folders = [path for path, has_commit in self._medium.folders().items() if has_commit]
            for path in sorted((path for path in folders if path not in passed), key=_age):
                if path.parent.name.isdecimal() and _read_commit(path) is not None:
                    found.setdefault(int(path.parent.name), []).append(path)
        except OSError as error:
            raise _of_store(self.root, error) from error
        return found


def _of_store(place: Place, error: OSError) -> Exception:
    """An object store says what a person can mend in words of its own; a disk's error stays what it is."""
    return CheckpointError([place.fault(error)]) if isinstance(place, ObjectPath) else error


def _age(directory: Place) -> tuple[int, ...]:
    """Sorts `<attempt>-<step>` and `<attempt>-<step>.<tries>` of a version by when they were begun."""
    numbers = f"{directory.parent.name}-{directory.name}".replace(".", "-").split("-")
    return tuple(int(number) if number.isdecimal() else -1 for number in numbers)


def _read_commit(directory: Place) -> dict[str, Any] | None:
    try:
        record = json.loads((directory / COMMIT).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if record["format"] != _FORMAT:
        rule = f"format {_FORMAT}, the one that this release of diurnal reads"
        fault = Fault(str(directory / COMMIT), f"format {record['format']}", rule, "use the release that wrote it")
        raise CheckpointError([fault])
    return record
