"""From what workers measured to a verdict in the ledger: pure but for the one transaction at its end."""

from __future__ import annotations

from typing import Any

from diurnal.checkpoint.history import History
from diurnal.config import Config
from diurnal.daily.gate import Hold, Promote, Undecided, Verdict, judge
from diurnal.ledger.claims import Ledger
from diurnal.ledger.lease import Lease
from diurnal.ledger.records import IncrementState, VersionRecord
from diurnal.metrics.blocks import Evidence
from diurnal.metrics.health import TableHealth
from diurnal.train.commit import COUNTS, TRIAL
from diurnal.train.trial import BASELINE, JUDGED, TABLES

_STATES: dict[str, IncrementState] = {"promote": "promoted", "hold": "held", "undecided": "judged"}


class Bench:
    """Judges the versions of one model, each once."""

    def __init__(self, config: Config, history: History, ledger: Ledger, lease: Lease) -> None:
        self._config = config
        self._history = history
        self._ledger = ledger
        self._lease = lease
        self._looked_at: set[int] = set()
        """Versions whose commits have no evidence that was not used."""

    def settle(self) -> list[tuple[VersionRecord, Verdict]]:
        """Judges every version that has no verdict yet and that a commit has the evidence for: its own, or its child's.

        In a ledger that was lost, every verdict of the gate is found again in this way.
        """
        judged = []
        versions = {version.number: version for version in self._ledger.versions(self._lease.model)}
        for number, version in versions.items():
            if number in self._looked_at:
                continue
            self._looked_at.add(number)
            trial = self._trial_of(version.path)
            about = versions.get((trial or {}).get(JUDGED, {}).get("number"))
            if trial is not None and about is not None and not about.verdict:
                judged.append((about, self.decide(about, trial)))
        return judged

    def decide(self, version: VersionRecord, trial: dict[str, Any]) -> Verdict:
        """The verdict on a version, kept in the ledger together with what follows from it.

        A version that was compared with another champion than there is now is undecided: it was not judged against
        what it would replace.
        """
        gate, baseline = self._config.gate, trial.get(BASELINE)
        champion = self._ledger.champion(self._lease.model)
        verdict = judge(
            Evidence.from_json(baseline["evidence"]) if baseline else None,
            Evidence.from_json(trial[JUDGED]["evidence"]),
            self._tables_of(version.number),
            self._tables_of(version.parent),
            gate,
        )
        compared = baseline["number"] if baseline else None
        rows = trial[JUDGED]["evidence"]["num_rows"]
        if champion is not None and champion not in (compared, version.number):
            verdict = self._compared_with_another(verdict, compared, champion)
        while not self._write(version, verdict, champion, rows):
            champion = self._ledger.champion(self._lease.model)
            verdict = self._compared_with_another(verdict, compared, champion)
        return verdict

    def _write(self, version: VersionRecord, verdict: Verdict, champion: int | None, rows: int) -> bool:
        return self._lease.judge(
            version.number,
            verdict.kind,
            verdict.reason,
            evidence={**verdict.to_json(), "rows": rows, **self._health_of(version)},
            rejected=isinstance(verdict, Hold) and self._config.gate.after_hold == "champion",
            state=_STATES[verdict.kind],
            expected_champion=champion,
            promote=isinstance(verdict, Promote),
        )

    @staticmethod
    def _compared_with_another(verdict: Verdict, compared: int | None, champion: int | None) -> Verdict:
        if isinstance(verdict, Hold):
            return verdict
        reason = f"it was compared with version {compared}, and version {champion} is the champion now"
        return Undecided(reason, verdict.checks)

    def _trial_of(self, path: str) -> dict[str, Any] | None:
        return self._history.store.at(path).manifest().lineage.metrics.get(TRIAL)

    def _tables_of(self, number: int | None) -> list[TableHealth]:
        paths = [commit.path for commit in self._history.commits() if commit.is_final and commit.number == number]
        trial = self._trial_of(paths[0]) if paths else None
        return [TableHealth.from_json(table) for table in (trial or {}).get(TABLES, ())]

    def _health_of(self, version: VersionRecord) -> dict[str, Any]:
        """What is kept of tables and ids for people to look at, however the version was judged."""
        counts = self._history.store.at(version.path).manifest().lineage.metrics.get(COUNTS, {})
        tables = [table.to_json() for table in self._tables_of(version.number)]
        return {TABLES: tables, COUNTS: {name: n for name, n in counts.items() if name.startswith("sparse/")}}
