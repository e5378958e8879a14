"""What MLflow is to show of the daily loop: told in the background, and told again where it may have been lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diurnal.checkpoint.store import Store
from diurnal.config import Config
from diurnal.ledger.claims import Ledger
from diurnal.ledger.records import IncrementRecord, VersionRecord
from diurnal.tracking import names
from diurnal.tracking.mlflow import Tracker
from diurnal.tracking.registry import RegisteredVersion, RegistryState
from diurnal.train.summary import AGAIN, dataset_of


class Mirror:
    """Tells a tracker what the ledger says of one model."""

    def __init__(self, tracker: Tracker, ledger: Ledger, config: Config) -> None:
        self._tracker = tracker
        self._ledger = ledger
        self._config = config
        self._model = config.name

    def catch_up(self) -> None:
        """What a process that was killed, or a store that was away, may have missed: the last verdicts, what was held,
        and the registry. What is there already is not written again."""
        judged = [version for version in self._ledger.versions(self._model) if version.verdict]
        for version in judged[-AGAIN:]:
            self._tell(version)
        held = [r for r in self._ledger.increments(self._model) if r.state == "held" and r.version is None]
        for record in held[-1:]:
            self.held(record)
        if judged:
            self._tracker.mirror(state_of(self._ledger, self._config))

    def judged(self, number: int) -> None:
        """A version has a verdict."""
        (version,) = [version for version in self._ledger.versions(self._model) if version.number == number]
        self._tell(version)
        self._tracker.mirror(state_of(self._ledger, self._config))

    def held(self, record: IncrementRecord) -> None:
        """An increment is not trained."""
        name, rows = record.increment, record.rows or 0
        attempt = max(1, len(self._ledger.attempts(self._model, name)))
        dataset = dataset_of(self._config, name, record.fingerprint or "", rows)
        metrics = {names.PROFILE_ROWS: float(rows)}
        self._tracker.held(name, attempt=attempt, reason=record.reason, dataset=dataset, metrics=metrics)

    def _tell(self, version: VersionRecord) -> None:
        tags = names.verdict_tags(version.verdict, version.reason)
        metrics = gate_metrics(self._ledger.evidence(version) or {})
        metrics[names.GATE_PROMOTED] = float(version.verdict == "promote")
        self._tracker.verdict(version.increment, tags, metrics, version=version.number)


def gate_metrics(evidence: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers of a verdict that was kept."""
    checks = {check["name"]: check for check in evidence.get("checks", ())}
    rise, calibration = checks.get("ne_rise", {}), checks.get("calibration", {})
    return {
        names.GATE_NE_RISE: rise.get("value"),
        names.GATE_NE_RISE_LOW: rise.get("low"),
        names.GATE_NE_RISE_HIGH: rise.get("high"),
        names.GATE_CALIBRATION: calibration.get("value"),
        names.GATE_ROWS: evidence.get("rows"),
    }


def state_of(ledger: Ledger, config: Config) -> RegistryState:
    """Every version, and who is champion, previous (where a rollback leads) and challenger (the newest version, while
    it is another one and was not rejected)."""
    model = config.name
    versions, champion = ledger.versions(model), ledger.champion(model)
    folder = Store(config.storage, model).root
    challenger = max((version.number for version in versions if not version.rejected), default=None)
    return RegistryState(
        versions=tuple(
            RegisteredVersion(
                v.number, v.increment, v.parent, str(folder / v.path), v.verdict, v.reason, v.watermark_us, v.created_at
            )
            for v in versions
        ),
        champion=champion,
        previous=ledger.rollback_target(model),
        challenger=challenger if challenger != champion else None,
    )
