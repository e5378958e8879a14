"""The commits of one model that count: whole in the store, and visible in the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from diurnal.checkpoint.store import Store, Version
from diurnal.data.objects import Place
from diurnal.ledger.claims import Ledger
from diurnal.ledger.lease import Lease
from diurnal.ledger.records import Commit, VersionRecord


class History:
    """What readers may see of a model, and what its holder publishes and removes."""

    def __init__(self, store: Store, ledger: Ledger, model: str) -> None:
        self.store = store
        self._ledger = ledger
        self._model = model

    def commits(self) -> list[Commit]:
        """Visible ones, in order."""
        return self._ledger.commits(self._model)

    def versions(self) -> list[Version]:
        """Visible versions, by number."""
        return [self.store.at(commit.path) for commit in self.commits() if commit.is_final]

    def parent(self) -> Commit | None:
        """The version that the next one goes on from: the newest that was not rejected, nor was trained on top of one
        that was. What was promoted all the same counts."""
        usable = _usable(self._ledger.versions(self._model))
        versions = [commit for commit in self.commits() if commit.is_final and usable.get(commit.number, True)]
        return max(versions, key=lambda commit: commit.number, default=None)

    def standing(self) -> list[Commit]:
        """Visible commits without versions whose increments are to be trained again."""
        gone = {v.number for v in self._ledger.versions(self._model) if v.verdict == "superseded"}
        return [commit for commit in self.commits() if commit.number not in gone]

    def newest(self) -> Commit | None:
        """The newest visible commit: of a version, or a resume point on the way to the next."""
        commits = self.commits()
        return max(commits, key=lambda commit: (commit.number, commit.global_step, commit.steps), default=None)

    def version(self, number: int) -> Version:
        """
        Raises:
            CheckpointError: there is no such version.
        """
        return self.store.pick(self.versions(), number)

    def publish(self, version: Version, lease: Lease) -> Commit:
        """Makes a whole commit visible, as long as the lease is held. The same one again changes nothing.

        Raises:
            LeaseLost: another process has the model now.
        """
        commit = self._as_commit(version)
        lease.publish(commit)
        return commit

    def adopt(self, lease: Lease) -> list[Commit]:
        """Makes visible what was committed under this very lease and not published yet, because a worker died between
        the two."""
        known = {commit.path for commit in self.commits()}
        adopted = []
        for version in self.store.commits(known):
            if version.manifest().lineage.token == lease.token:
                # It may have been withdrawn, and only its folder stayed.
                with suppress(ValueError):
                    adopted.append(self.publish(version, lease))
        return adopted

    def rebuild(self, lease: Lease) -> int:
        """Registers the versions of the store in a ledger that knows nothing of the model; how many there were.

        A ledger is lost more easily than a store, and a model must not start from nothing because of it.
        """
        if self.commits():
            return 0
        versions = self.store.versions()
        return lease.rebuild(self._as_commit(version) for version in versions)

    def sweep(self, lease: Lease, keep: int, newest: Commit, keep_versions: int = 0) -> int:
        """Deletes what nothing will be read from any more, and says how many folders: resume points behind a version,
        all but the newest `keep` of those after it, what earlier attempts left that ended before their commit, and
        versions beyond `keep_versions`.

        Args:
            newest: what was just published; of its version only earlier attempts have ended, of later ones none.
            keep_versions: see `checkpoint.keep_versions` of the configuration.
        """
        if keep_versions:
            lease.withdraw(self._outdated(keep_versions), final=True)
        commits = self.commits()
        done = max((commit.number for commit in commits if commit.is_final), default=0)
        points = [commit for commit in commits if not commit.is_final]
        kept_points = [commit for commit in points if commit.number > done][-keep:]
        gone = {commit.path for commit in points} - {commit.path for commit in kept_points}
        lease.withdraw(gone)
        kept = {self.store.root / commit.path for commit in commits if commit.path not in gone}
        leftovers: list[Place] = []
        # What can not be found or deleted now is left over once more when the next commit is published.
        with suppress(OSError):
            leftovers += [
                left.directory
                for left in self.store.leftovers(kept)
                if left.number <= done
                or (left.number == newest.number and left.attempt < newest.attempt)
                or self.store.path_of(left) in gone
            ]
        for directory in leftovers:
            with suppress(OSError):
                self.store.remove(directory)
        return len(leftovers)

    def _outdated(self, keep: int) -> list[str]:
        """Paths of all versions but the newest, the champion, the one a rollback leads to, the one the next goes on
        from, and those that tell of these that they are no good."""
        versions = self._ledger.versions(self._model)
        parent = self.parent()
        kept = {version.number for version in versions[-keep:]}
        kept |= {self._ledger.champion(self._model), self._ledger.rollback_target(self._model)}
        kept |= {parent.number} if parent else set()
        usable = _usable(versions)
        for version in reversed(versions):
            if version.number in kept and version.parent is not None and not usable.get(version.parent, True):
                kept.add(version.parent)
        return [version.path for version in versions if version.number not in kept]

    def _as_commit(self, version: Version) -> Commit:
        manifest = version.manifest()
        lineage = manifest.lineage
        return Commit(
            model=self._model,
            number=lineage.number,
            increment=lineage.increment,
            fingerprint=lineage.fingerprint,
            attempt=lineage.attempt,
            token=lineage.token,
            global_step=manifest.global_step,
            steps=lineage.position.steps,
            num_steps=lineage.position.num_steps,
            rows=lineage.position.rows,
            path=self.store.path_of(version),
            watermark_us=lineage.watermark_us,
            parent=lineage.parent,
            created_at=manifest.created_at,
        )


def _usable(versions: Iterable[VersionRecord]) -> dict[int, bool]:
    """By number, whether something may go on from a version."""
    usable: dict[int, bool] = {}
    for version in versions:
        is_on_good_ground = version.parent is None or usable.get(version.parent, True)
        usable[version.number] = not version.rejected and (is_on_good_ground or version.verdict == "promote")
    return usable
