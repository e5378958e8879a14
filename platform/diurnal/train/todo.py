"""Which increments are to be trained, given what was trained before."""

from __future__ import annotations

from collections.abc import Sequence

from diurnal.data.ids import IncrementId
from diurnal.data.partitions import Increment
from diurnal.data.selection import cut_faults
from diurnal.errors import DataError, Fault
from diurnal.ledger.records import Commit


def not_yet_trained(increments: Sequence[Increment], commits: Sequence[Commit]) -> tuple[list[Increment], list[str]]:
    """Splits increments into those to do and those done.

    Raises:
        DataError: an increment lies before the newest trained one, has changed since it was trained, or would train
            rows again through another cut; or another one was begun and has to be finished first.
    """
    trained = {commit.increment: commit for commit in commits if commit.is_final}
    newest = max(trained, default="")
    newest_number = max((commit.number for commit in trained.values()), default=0)
    todo, done = [], []
    faults = cut_faults({name: commit.fingerprint for name, commit in trained.items()}, increments)
    for increment in increments:
        commit = trained.get(increment.id)
        if commit is not None and commit.fingerprint == increment.fingerprint:
            done.append(increment.id)
        elif commit is not None:
            found = f"files that differ from those that version {commit.number} was trained on"
            fix = "put the files back, or start a new lineage under another name"
            faults.append(Fault(increment.id, found, "a trained increment does not change", fix))
        elif increment.id < newest:
            rule = f"later than {newest}, the newest increment that was trained"
            faults.append(Fault(increment.id, "an earlier increment", rule, "start a new lineage under another name"))
        else:
            todo.append(increment)
    begun = [commit for commit in commits if not commit.is_final and commit.number > newest_number]
    if todo and begun and begun[-1].increment != todo[0].id:
        found = f"{begun[-1].rows:,} rows of {begun[-1].increment} are learned, and the rest is not"
        parts = IncrementId.parse(begun[-1].increment).parts
        fix = f"train {begun[-1].increment} first, with data.parts = {parts}"
        faults.append(Fault(todo[0].id, found, "increments are finished in order", fix))
    if faults:
        raise DataError(faults)
    return todo, done
