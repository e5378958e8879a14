"""The dataset's folders as the agenda is to see them, looked at no more often than something may come of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from diurnal.config import Config
from diurnal.daily.agenda import Sighting
from diurnal.data.ids import IncrementId
from diurnal.data.partitions import Increment, is_ready, list_files, list_increments, read_increment
from diurnal.errors import DataError

SHARE = 0.05
"""Of the time, at most, that is spent on looking at what is probably as it was."""


@dataclass
class _Folder:
    is_ready: bool
    why: str
    files: tuple[tuple[str, int, int], ...] = ()
    """As they were when the footers were read."""


class Folders:
    """What is known of each folder, by looks at it.

    A folder that is not complete is looked at each time, and so are new ones. One that was complete is looked at again
    now and then (`SHARE`), and its footers are read again when a file is another one. Folders of which everything is
    settled are not looked at any more once `days.look_back` newer ones are settled too.
    """

    def __init__(self, config: Config, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock_s = clock_s
        self._ids: list[str] = []
        self._folders: dict[str, _Folder] = {}
        self._again_at_s = float("-inf")
        self.increments: dict[str, Increment] = {}
        """The complete ones, by name, parts too."""
        self.unreadable: dict[str, DataError] = {}
        """Folders that are complete and cannot be read."""

    def look(self, settled: Collection[str], asked: Iterable[str] = ()) -> list[Sighting]:
        """Every increment that the dataset shows, in order of time.

        Args:
            settled: names of those that are trained, held or skipped: the newest are looked at for changes.
            asked: names or days from which on everything is looked at.

        Raises:
            DataError: the dataset does not exist, or a folder's name is wrong.
        """
        begun_s = self._clock_s()
        is_full = begun_s >= self._again_at_s
        self._list(is_full)
        parts = {folder: self._names(folder) for folder in self._ids}
        done = [folder for folder in self._ids if all(name in settled for name in parts[folder])]
        watched = max(self._config.days.look_back, self._config.days.max_retrained)
        past = done[:-watched] if watched else done
        first_asked = min((name.partition("P")[0] for name in asked), default="9999")
        unwatched = {folder for folder in past if folder < first_asked}
        found: list[Sighting] = []
        for folder in self._ids:
            if folder in unwatched:
                found += [Sighting(name, True, "it is not looked at any more") for name in parts[folder]]
                continue
            known = self._folders.get(folder)
            if known is None or is_full or not known.is_ready or folder in self.unreadable:
                self._look_at(folder)
            found += [self._sighting(folder, name) for name in parts[folder]]
        if is_full:
            now_s = self._clock_s()
            self._again_at_s = now_s + (now_s - begun_s) / SHARE
        return found

    def _names(self, folder: str) -> list[str]:
        return [str(name) for name in IncrementId.parse(folder).cut(self._config.data.parts)]

    def _list(self, is_full: bool) -> None:
        newest_day = "" if is_full or not self._ids else self._ids[-1][:10]
        listed = list_increments(self._config.data.path, self._config.dataset, since=newest_day)
        self._ids = [folder for folder in self._ids if folder[:10] < newest_day] + listed

    def _look_at(self, folder: str) -> None:
        path, schema = self._config.data.path, self._config.dataset
        ready, why = is_ready(path, folder, schema)
        known = self._folders.setdefault(folder, _Folder(ready, why))
        known.is_ready, known.why = ready, why
        if not ready:
            return
        files = list_files(path, folder)
        if files == known.files and folder not in self.unreadable:
            return
        known.files = files
        try:
            whole = read_increment(path, folder, schema, self._config.data.on_bad_file)
        except DataError as error:
            self.unreadable[folder] = error
            return
        self.unreadable.pop(folder, None)
        self.increments |= {part.id: part for part in whole.cut(self._config.data.parts)}

    def _sighting(self, folder: str, name: str) -> Sighting:
        known = self._folders[folder]
        if folder in self.unreadable:
            first, *others = self.unreadable[folder].faults
            more = f" (and {len(others)} more faults)" if others else ""
            return Sighting(name, False, f"{first.where}: {first.found}{more}; see `diurnal validate`")
        if not known.is_ready:
            return Sighting(name, False, known.why)
        increment = self.increments[name]
        return Sighting(name, True, known.why, increment.fingerprint, increment.num_rows)
