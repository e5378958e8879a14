"""The daily cycle: each increment in order is profiled, scored, learned, judged; every step of it may be the last.

What was done stands in the ledger and in the versions' manifests, so that a cycle that was cut off anywhere goes on
where it stood, and one that has nothing to do changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from diurnal.checkpoint.history import History
from diurnal.checkpoint.points import reached
from diurnal.config import Config
from diurnal.daily.agenda import Agenda, Asked, Known, Sighting, Trained, make_agenda
from diurnal.daily.folders import Folders
from diurnal.daily.judging import Bench
from diurnal.daily.segments import segments_of
from diurnal.data.holdout import slice_increment, slices_folder, sweep_slices, write_slice
from diurnal.data.ids import IncrementId
from diurnal.data.partitions import Increment
from diurnal.data.pasts import Pasts
from diurnal.data.plausible import compare
from diurnal.data.profile import Profile, profile_increment
from diurnal.ledger.claims import Ledger
from diurnal.ledger.lease import Lease
from diurnal.ledger.records import IncrementRecord
from diurnal.tracking.mlflow import Dataset
from diurnal.train.planner import plan_of
from diurnal.train.spec import Trial
from diurnal.train.summary import dataset_of
from diurnal.train.trial import JUDGED

_PROFILED = ("trained", "judged", "promoted")
"""States whose profiles say what is usual."""


class Cycle:
    """What the driver of a worker group asks between two increments, and before one is learned.

    Args:
        say: shows a line to a person.
        on_judged: called with the number of a version that has a verdict now.
        on_held: called with what the ledger has of an increment that is not trained, while no worker has it.
        asked: which increments, and how many.
        follow: whether more is to come, so that nothing to do now is not the end.
    """

    def __init__(
        self,
        config: Config,
        history: History,
        ledger: Ledger,
        lease: Lease,
        say: Callable[[str], None],
        *,
        on_judged: Callable[[int], None] = lambda _: None,
        on_held: Callable[[IncrementRecord], None] = lambda _: None,
        asked: Asked | None = None,
        follow: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._history = history
        self._ledger = ledger
        self._lease = lease
        self._say = say
        self._on_judged = on_judged
        self._on_held = on_held
        self._asked = asked or Asked()
        self._follow = follow
        self._clock = clock
        self._bench = Bench(config, history, ledger, lease)
        self._folders = Folders(config)
        self._one_class: set[tuple[str, str]] = set()
        """Name and fingerprint of increments whose labels are all the same."""
        self._retried: set[str] = set()
        """Increments that a person wants learned as they are."""
        self._shown: set[str] = set()
        self._untold: list[str] = []
        self.is_running = False
        """Whether workers have a version in memory, so that only its child can be next."""
        self.done: list[str] = []
        """Increments that something came of, in order."""

    def next(self) -> Sequence[Increment] | None:
        """The next increment, ready to be learned; None when it has not come yet; () when there is none to wait for,
        or the workers have to load another version first."""
        while True:
            while self._untold:
                self._on_held(self._record(self._untold.pop(0)))
            self._settle()
            agenda = self._look()
            if self.is_running and self._is_another_parent():
                return ()
            if self._asked.most is not None and len(self.done) >= self._asked.most:
                return ()
            if not agenda.todo:
                self._refuse_what_is_unreadable(agenda)
                return None if self._follow else ()
            num_done = len(self.done)
            increment = self._prepare(self._folders.increments[agenda.todo[0]])
            if increment is not None or len(self.done) > num_done:
                self._asked = agenda.asked  # what was asked for once is not done twice
            if increment is not None:
                return [increment]

    def trial_of(self, increment: Increment) -> Trial | None:
        """What is measured while an increment is fitted."""
        gate = self._config.gate
        champion, parent = self._ledger.champion(self._lease.model), self._history.parent()
        number = champion if champion is not None else parent and parent.number
        version = self._history.version(number) if number is not None else None
        path = self._history.store.path_of(version) if version else ""
        past = Pasts.of(self._config).path(version.manifest().lineage.past_after) if version else ""
        if gate.judged_on == "slice":
            if increment.held_out is None:
                return None
            plan = plan_of(self._config, slice_increment(increment.held_out, increment)).to_json()
        else:
            plan = None
        names = gate.segments, self._config.metrics.slices
        return Trial(number, path, past, plan, *(self._segments(increment.id, features) for features in names))

    def may_learn(self, increment: str, data: dict[str, Any]) -> bool:
        """Judges the parent where the increment is what it is judged on, and holds an increment on which the champion
        is far worse than usual."""
        reached("daily/scored", 0)
        report = (data["evaluated"] or {}).get("report")
        trial = data["trial"]
        if JUDGED in trial:
            (parent,) = [v for v in self._ledger.versions(self._lease.model) if v.number == trial[JUDGED]["number"]]
            if not parent.verdict:
                self._tell_verdict(parent.number, parent.increment, self._bench.decide(parent, trial))
            if self._is_another_parent():
                return False
        usual = [r.scored["ne"] for r in self._earlier(increment) if r.scored and r.scored["ne"] is not None]
        ne, rise = report and report["ne"], self._config.profile.champion_ne
        is_compared = ne is not None and increment not in self._retried
        if is_compared and len(usual) >= self._config.profile.min_history and ne > median(usual) + rise:
            reason = f"NE of the champion {ne:.4f} (usually {median(usual):.4f}; at most {rise:g} more)"
            self._hold(self._folders.increments[increment], reason, scored=report)
            return False
        self._lease.mark(increment, "profiled", scored=report)
        return True

    def dataset(self, increment_id: str) -> Dataset:
        """What tracking is told of an increment's rows."""
        increment = self._folders.increments[increment_id]
        return dataset_of(self._config, increment_id, increment.fingerprint, increment.num_rows)

    def _settle(self) -> None:
        reached("daily/trained", 0)
        judged = self._bench.settle()
        for version, verdict in judged:
            self._tell_verdict(version.number, version.increment, verdict)
        if judged and self._config.checkpoint.keep_versions:
            self._sweep_slices()

    def _sweep_slices(self) -> None:
        """Rows that were held out go with the version that has left them to the next one."""
        files: list[dict[str, Any]] = []
        for commit in self._history.commits():
            lineage = self._history.store.at(commit.path).manifest().lineage
            files += (lineage.held_out or {}).get("files", ())
            files += () if commit.is_final else lineage.joined
        records = self._ledger.increments(self._lease.model)
        at_work = [record.increment for record in records if record.state in ("claimed", "profiled")]
        named = {file["path"].rpartition("/")[2] for file in files}
        sweep_slices(slices_folder(self._config.storage, self._config.name), named, at_work)

    def _tell_verdict(self, number: int, increment: str, verdict: Any) -> None:
        reached("daily/judged", 0)
        self.done.append(increment)
        self._say(f"{increment}: version {number}: {verdict.kind}: {verdict.reason}")
        self._on_judged(number)
        reached("daily/mirrored", 0)

    def _is_another_parent(self) -> bool:
        parent = self._history.parent()
        newest = max((commit.number for commit in self._history.commits() if commit.is_final), default=None)
        return (parent and parent.number) != newest

    def _look(self) -> Agenda:
        """What is next, with all that follows from how it looks written down."""
        model = self._lease.model
        known = [_known(record) for record in self._ledger.increments(model)]
        versions = [_trained(version) for version in self._ledger.versions(model)]
        agenda = make_agenda(
            self._sightings(known, versions),
            known,
            versions,
            self._config.days,
            round(self._clock() * 1e6),
            self._asked,
        )
        for notice in agenda.notices:
            if notice.text not in self._shown:
                self._shown.add(notice.text)
                self._say(f"{notice.increment}: {notice.text} ({notice.action})")
        if agenda.rewind is not None:
            rewind = agenda.rewind
            self._lease.supersede(rewind.numbers, rewind.increments, rewind.reason)
            self._say(f"versions {', '.join(map(str, rewind.numbers))} do not count any more: {rewind.reason}")
        for decision in agenda.decisions:
            facts = {"fingerprint": decision.fingerprint, "rows": decision.rows}
            self._lease.mark(decision.increment, decision.state, reason=decision.reason, **facts)
        reached("daily/seen", 0)
        return agenda

    def _sightings(self, known: Sequence[Known], versions: Sequence[Trained]) -> list[Sighting]:
        settled = {version.increment for version in versions if not version.is_superseded}
        settled |= {record.increment for record in known if record.state in ("held", "skipped") and record.fingerprint}
        seen = self._folders.look(settled, self._asked.retrain | self._asked.retry)
        return [replace(s, one_class=True) if (s.increment, s.fingerprint) in self._one_class else s for s in seen]

    def _refuse_what_is_unreadable(self, agenda: Agenda) -> None:
        if agenda.waiting is not None:
            error = self._folders.unreadable.get(str(IncrementId.parse(agenda.waiting.increment).whole))
            if error is not None and not self._follow:
                raise error

    def _prepare(self, increment: Increment) -> Increment | None:
        """Claims and profiles an increment, and holds rows of it out; None when it is held itself."""
        config, facts = self._config, {"fingerprint": increment.fingerprint, "rows": increment.num_rows}
        self._lease.mark(increment.id, "claimed", **facts)
        reached("daily/claimed", 0)
        profile = self._profile(increment)
        is_one_class = (increment.id, increment.fingerprint) in self._one_class
        if profile.rows and not (profile.positives and profile.negatives) and not is_one_class:
            self._one_class.add((increment.id, increment.fingerprint))
            self._lease.mark(increment.id, "claimed", reason="all its labels are the same", **facts)
            return None
        if any(increment.id.startswith(name) for name in self._asked.retry):
            self._retried.add(increment.id)
        is_excused = increment.id in self._retried or is_one_class
        is_compared = config.profile.enabled and profile.rows and not is_excused
        usual = self._usual_profiles(increment.id) if is_compared else []
        findings = compare(profile, usual, config.profile, config.dataset) if is_compared else []
        if findings:
            self._hold(increment, "; ".join(map(str, findings)), profile=profile.to_json())
            return None
        held_out = None
        if config.gate.judged_on == "slice":
            path = f"{slices_folder(config.storage, config.name)}/{increment.id}-{increment.fingerprint}.parquet"
            held_out = write_slice(increment, config.dataset, config.gate.slice_share, config.seed, path)
        self._lease.mark(increment.id, "profiled", profile=profile.to_json(), **facts)
        reached("daily/profiled", 0)
        return replace(increment, held_out=held_out)

    def _profile(self, increment: Increment) -> Profile:
        kept = self._ledger.profile(self._lease.model, increment.id)
        if kept and kept.get("fingerprint") == increment.fingerprint:
            return Profile.from_json(kept)
        return profile_increment(increment, self._config.dataset)

    def _usual_profiles(self, increment: str) -> list[Profile]:
        kept = [self._ledger.profile(self._lease.model, record.increment) for record in self._earlier(increment)]
        return [Profile.from_json(profile) for profile in kept if profile]

    def _record(self, increment: str) -> IncrementRecord:
        record = self._ledger.increment(self._lease.model, increment)
        assert record is not None
        return record

    def _earlier(self, increment: str) -> list[IncrementRecord]:
        """The last increments before this one that were learned, oldest first."""
        records = self._ledger.increments(self._lease.model)
        earlier = [r for r in records if r.increment < increment and r.state in _PROFILED]
        return earlier[-self._config.profile.history :]

    def _hold(self, increment: Increment, reason: str, **kept: Any) -> None:
        facts = {"fingerprint": increment.fingerprint, "rows": increment.num_rows}
        self._lease.mark(increment.id, "held", reason=reason, **facts, **kept)
        self.done.append(increment.id)
        self._say(f"{increment.id}: held: {reason}")
        self._untold.append(increment.id)
        reached("daily/held", 0)

    def _segments(self, increment: str, names: Sequence[str]) -> tuple[Any, ...]:
        profile = self._ledger.profile(self._lease.model, increment) if names else None
        return segments_of(Profile.from_json(profile), self._config.dataset, names) if profile else ()


def _known(r: IncrementRecord) -> Known:
    return Known(r.increment, r.state, r.fingerprint, r.rows, r.version, r.first_seen_us)


def _trained(v: Any) -> Trained:
    return Trained(v.number, v.increment, v.fingerprint, v.verdict == "superseded", bool(v.verdict))
