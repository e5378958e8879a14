"""What the model registry is to show, from the ledger."""

from __future__ import annotations

from diurnal.ledger.claims import Ledger
from diurnal.tracking.registry import RegisteredVersion, RegistryState


def state_of(ledger: Ledger, model: str) -> RegistryState:
    """Every version, and who is champion, previous (where a rollback leads) and challenger (the newest version, while
    it is another one and was not rejected)."""
    versions = ledger.versions(model)
    champion = ledger.champion(model)
    standing = [version.number for version in versions if not version.rejected]
    challenger = max(standing, default=None)
    return RegistryState(
        versions=tuple(
            RegisteredVersion(
                v.number, v.increment, v.parent, v.path, v.verdict, v.reason, v.watermark_us, v.created_at
            )
            for v in versions
        ),
        champion=champion,
        previous=ledger.rollback_target(model),
        challenger=challenger if challenger != champion else None,
    )
