"""Any history of arrivals, changes and kills, against a ledger that does what the agenda says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from diurnal.config.daily import Days
from diurnal.daily.agenda import Agenda, make_agenda
from diurnal.daily.book import Asked, Known, Sighting, Trained

HOUR_US = 3_600_000_000
IMPLAUSIBLE_ROWS = 3


def day(number: int) -> str:
    return str(date(2026, 1, 1) + timedelta(days=number - 1))


@dataclass
class Toy:
    """Folders and a ledger that does what the agenda says, and may die after any single write."""

    days: Days
    folders: dict[str, Sighting] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    versions: list[Trained] = field(default_factory=list)
    now_us: int = 0
    read: list[tuple[str, str]] = field(default_factory=list)

    def look(self, asked: Asked | None = None) -> Agenda:
        return make_agenda(self.folders.values(), self.known.values(), self.versions, self.days, self.now_us, asked)

    def mark(self, name: str, state: str, **values: object) -> None:
        record = self.known.get(name, Known(name, state, first_seen_us=self.now_us))
        self.known[name] = replace(record, state=state, **values)  # pyright: ignore[reportArgumentType]

    def run(self, writes: int, retrain: frozenset[str] = frozenset()) -> None:
        """One command, killed before its write number `writes`."""
        left = iter(range(writes))
        asked = Asked(retrain=retrain)
        while True:
            agenda = self.look(asked)
            asked = agenda.asked
            for decision in agenda.decisions:
                if next(left, None) is None:
                    return
                facts = {"fingerprint": decision.fingerprint, "rows": decision.rows}
                self.mark(decision.increment, decision.state, **facts)
            if agenda.rewind is not None:
                if next(left, None) is None:
                    return
                numbers = agenda.rewind.numbers
                self.versions = [
                    replace(v, is_superseded=v.is_superseded or v.number in numbers) for v in self.versions
                ]
                for name in agenda.rewind.increments:
                    self.mark(name, "superseded")
            if not agenda.todo:
                return
            if not self._train(self.folders[agenda.todo[0]], left):
                return

    def _train(self, sighting: Sighting, left: Iterator[int]) -> bool:
        name = sighting.increment
        for state in ("claimed", "profiled"):
            if next(left, None) is None:
                return False
            self.mark(name, state, fingerprint=sighting.fingerprint, rows=sighting.rows)
        if sighting.rows == IMPLAUSIBLE_ROWS:
            self.mark(name, "held")
            return True
        if next(left, None) is None:
            return False
        live = [version.increment for version in self.versions if not version.is_superseded]
        assert name not in live, "trained twice"
        assert not live or name > max(live), "out of order"
        number = len(self.versions) + 1
        self.versions.append(Trained(number, name, sighting.fingerprint or ""))
        self.mark(name, "promoted", version=number, fingerprint=sighting.fingerprint, rows=sighting.rows)
        return True


STEPS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(1, 8), st.integers(0, IMPLAUSIBLE_ROWS)),
    st.tuples(st.just("begin"), st.integers(1, 8), st.just(0)),
    st.tuples(st.just("clock"), st.integers(1, 30), st.just(0)),
    st.tuples(st.just("run"), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("retrain"), st.integers(1, 8), st.integers(0, 12)),
)
POLICIES = st.builds(
    Days,
    missing=st.sampled_from(["wait", "skip"]),
    empty=st.sampled_from(["wait", "skip"]),
    late=st.sampled_from(["skip", "retrain"]),
    changed=st.sampled_from(["skip", "retrain"]),
    max_retrained=st.integers(0, 4),
)


@settings(max_examples=400)
@given(POLICIES, st.lists(STEPS, max_size=25))
def test_nothing_is_lost_or_trained_twice_whatever_happens(days: Days, steps: list[tuple[str, int, int]]):
    toy = Toy(days)
    for count, (what, number, rows) in enumerate(steps):
        name = day(number)
        if what == "arrive":
            toy.folders[name] = Sighting(name, True, "", f"f{count}", rows)
        elif what == "begin":
            toy.folders.setdefault(name, Sighting(name, False, "it is being written"))
        elif what == "clock":
            toy.now_us += number * HOUR_US
        elif what == "run":
            toy.run(number)
        elif name in toy.folders and toy.folders[name].is_ready:
            toy.run(rows, frozenset({name}))
    toy.run(1000)
    toy.now_us += 24 * HOUR_US
    toy.run(1000)
    live = {version.increment: version.fingerprint for version in toy.versions if not version.is_superseded}
    changed = {notice.increment for notice in toy.look().notices if notice.kind == "changed"}
    for name, sighting in toy.folders.items():
        if not sighting.is_ready:
            continue
        if name in live:
            assert (live[name] != sighting.fingerprint) == (name in changed)
        else:
            assert toy.known[name].state in ("held", "skipped")
            assert toy.known[name].fingerprint == sighting.fingerprint
    settled = toy.look()
    assert (settled.todo, settled.waiting, settled.decisions, settled.rewind) == ((), None, (), None)
    assert settled == toy.look(), "the same question has the same answer"
