"""Random orders of what several holders do, compared with a ledger that is four variables."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from diurnal.errors import LeaseHeld, LeaseLost
from diurnal.ledger.claims import Ledger
from diurnal.ledger.holders import Holder
from diurnal.ledger.lease import Lease
from diurnal.ledger.records import Commit

MEMORY = "/dev/shm"
"""A disk of some milliseconds a transaction would make this a test of the disk."""
LEASE_S = 30.0
HOLDERS = st.integers(0, 2)


class Machine(RuleBasedStateMachine):
    """Three holders that claim, die, freeze, wake up and write whenever they like; each may keep leases it has lost."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(dir=MEMORY if os.path.isdir(MEMORY) else None)
        self.now_s = 1_767_312_000.0
        url = f"sqlite:///{self.folder}/ledger.db"
        self.ledgers = [Ledger(url, clock=lambda: self.now_s) for _ in range(3)]
        self.leases: list[tuple[int, Lease]] = []
        self.dead: set[int] = set()
        self.owner: Lease | None = None
        self.owner_of = -1
        self.renewed_s = 0.0
        self.tokens: list[int] = []
        self.visible: list[str] = []
        self.paths = 0

    def teardown(self) -> None:
        for ledger in self.ledgers:
            ledger.close()
        shutil.rmtree(self.folder)

    def is_free(self) -> bool:
        silent = self.now_s - self.renewed_s >= LEASE_S
        return self.owner is None or silent or self.owner_of in self.dead

    @rule(who=HOLDERS)
    def claim(self, who: int) -> None:
        me = replace(Holder.here(), pid=10_000 + who)
        with (
            mock.patch.object(Holder, "here", return_value=me),
            mock.patch.object(Holder, "is_dead", lambda holder: holder.pid - 10_000 in self.dead),
        ):
            if not self.is_free():
                with pytest.raises(LeaseHeld, match=f"process {10_000 + self.owner_of} on"):
                    self.ledgers[who].claim("clicks", f"day {who}", LEASE_S)
                return
            lease = self.ledgers[who].claim("clicks", f"day {who}", LEASE_S)
        assert lease.token > max(self.tokens, default=0)
        self.tokens.append(lease.token)
        self.leases.append((who, lease))
        self.owner, self.owner_of, self.renewed_s = lease, who, self.now_s
        self.dead.discard(who)

    @rule(seconds=st.sampled_from([1.0, 10.0, 29.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(who=HOLDERS)
    def die(self, who: int) -> None:
        self.dead.add(who)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        _, lease = data.draw(st.sampled_from(self.leases))
        if lease is self.owner:
            lease.renew()
            self.renewed_s = self.now_s
        else:
            with pytest.raises(LeaseLost):
                lease.renew()

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        _, lease = data.draw(st.sampled_from(self.leases))
        self.paths += 1
        path = f"1/1-{self.paths}"
        at = {"global_step": self.paths, "steps": self.paths, "num_steps": 10**6, "rows": 1, "path": path}
        told = {"model": "clicks", "number": 1, "increment": "d", "fingerprint": "", "attempt": 1, "created_at": ""}
        commit = Commit(**at, **told, token=lease.token, watermark_us=None)
        if lease is self.owner:
            lease.publish(commit)
            self.visible.append(path)
        else:
            with pytest.raises(LeaseLost):
                lease.publish(commit)

    @precondition(lambda self: self.leases and self.visible)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        _, lease = data.draw(st.sampled_from(self.leases))
        path = data.draw(st.sampled_from(self.visible))
        if lease is self.owner:
            lease.withdraw([path])
            self.visible.remove(path)
        else:
            with pytest.raises(LeaseLost):
                lease.withdraw([path])

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        _, lease = data.draw(st.sampled_from(self.leases))
        lease.release()
        if lease is self.owner:
            self.owner, self.owner_of = None, -1

    @invariant()
    def only_what_the_holder_published_is_visible(self) -> None:
        assert [commit.path for commit in self.ledgers[0].commits("clicks")] == self.visible

    @invariant()
    def one_holder_at_most(self) -> None:
        held = self.ledgers[0].held("clicks")
        assert (held is None) == (self.owner is None)
        assert held is None or held.startswith(f"process {10_000 + self.owner_of} on")


TestInterleavings = Machine.TestCase
TestInterleavings.settings = settings(max_examples=15, stateful_step_count=25)
