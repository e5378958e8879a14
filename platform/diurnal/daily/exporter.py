"""How a model stands, for Prometheus: read from the ledger alone, whether anything runs or not."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily

from diurnal.config import Config
from diurnal.daily.status import PENDING, Status, due_s, status_of
from diurnal.errors import ConfigError, DiurnalError, Fault
from diurnal.ledger.claims import Ledger
from diurnal.ledger.records import IncrementRecord, VersionRecord
from diurnal.tracking import names
from diurnal.tracking.series import SERIES

SHOWN_INCREMENTS = 30
SHOWN_TROUBLES = 10
REASON_CHARS = 120
"""Labels are kept few and short: every other value of one is another series."""

REFRESH_S = 5.0
"""The ledger is asked so often at most, however many ask this process."""


@dataclass(frozen=True)
class Sample:
    metric: str
    """As `names` spells it."""
    value: float
    labels: tuple[str, ...] = ()
    """Of the series' tags after `model`."""


def samples(config: Config, ledger: Ledger, now_s: float) -> list[Sample]:
    """How the model of a configuration stands.

    Raises:
        ConfigError: the ledger does not answer.
    """
    increments, versions = ledger.increments(config.name), ledger.versions(config.name)
    found = status_of(config, ledger, increments, versions, now_s)
    is_learning = any(not attempt.outcome for attempt in ledger.attempts(config.name)) and found.holder is not None
    return [
        Sample(names.MODEL_UP, 1.0),
        *_of_model(config, found, increments, now_s),
        Sample(names.MODEL_LEARNING, float(is_learning)),
        *(sample for record in increments[-SHOWN_INCREMENTS:] for sample in _of_increment(record)),
        *_of_tables(ledger, versions),
    ]


def _of_model(config: Config, found: Status, increments: Sequence[IncrementRecord], now_s: float) -> Iterator[Sample]:
    late_s = _late_s(config, found, increments, now_s)
    yield Sample(names.MODEL_PENDING, found.num_pending)
    yield Sample(names.MODEL_LATE, float(late_s > 0))
    yield Sample(names.MODEL_LATE_S, late_s)
    yield Sample(names.MODEL_NEEDS_A_PERSON, float(found.needs_a_person))
    yield Sample(names.MODEL_HELD_BY, float(found.holder is not None), (found.holder or "nobody",))
    if found.champion is not None and found.champion_age_s is not None:
        yield Sample(names.MODEL_CHAMPION, found.champion.number)
        yield Sample(names.MODEL_CHAMPION_AGE_S, found.champion_age_s)
    if found.freshness_s is not None:
        yield Sample(names.MODEL_FRESHNESS_S, found.freshness_s)
    if increments:
        yield Sample(names.MODEL_NEWEST_STATE, 1.0, (increments[-1].increment, increments[-1].state))
    for trouble in found.troubles[-SHOWN_TROUBLES:]:
        # The age in the words of a late one would make a new series of every look.
        reason = "" if trouble.kind == "late" else _short(trouble.what.removeprefix(f"{trouble.kind}: "))
        yield Sample(names.MODEL_TROUBLE, 1.0, (trouble.increment, trouble.kind, reason))


def _late_s(config: Config, found: Status, increments: Sequence[IncrementRecord], now_s: float) -> float:
    """Of what is known and not done after the newest that is done, and of the next on the calendar."""
    if found.champion is None:
        return 0.0
    newest_done = max((r.increment for r in increments if r.state not in PENDING), default="")
    waiting = [r.increment for r in increments if r.state in PENDING and r.increment > newest_done]
    late = [now_s - due_s(config, increment) for increment in (*waiting, found.next_increment) if increment]
    return max([0.0, *late])


def _of_increment(record: IncrementRecord) -> Iterator[Sample]:
    yield Sample(names.INCREMENT_STATE, record.version or 0, (record.increment, record.state, _short(record.reason)))
    numbers = {
        names.INCREMENT_ROWS: record.rows,
        names.INCREMENT_NE: (record.scored or {}).get("ne"),
        names.INCREMENT_CALIBRATION: (record.scored or {}).get("calibration"),
    }
    for metric, value in numbers.items():
        if value is not None:
            yield Sample(metric, value, (record.increment,))


def _of_tables(ledger: Ledger, versions: Sequence[VersionRecord]) -> Iterator[Sample]:
    """Tables and ids of the newest version that has a verdict of the gate."""
    judged = next((version for version in reversed(versions) if version.judged_at), None)
    kept = judged and ledger.evidence(judged)
    if judged is None or not kept:
        return
    (parent,) = [v for v in versions if v.number == judged.parent] or [None]
    before = {t["name"]: t["learned_rows"] for t in ((parent and ledger.evidence(parent)) or {}).get("tables", ())}
    for table in kept.get("tables", ()):
        numbers = {
            names.TABLE_ROWS: table["rows"],
            names.TABLE_LEARNED_ROWS: table["learned_rows"],
            names.TABLE_NEW_ROWS: table["learned_rows"] - before.get(table["name"], 0),
            names.TABLE_DEAD_ROWS: table["dead_rows"],
            names.TABLE_NONFINITE: table["nonfinite"],
            names.TABLE_RMS: table["rms_learned"],
            names.TABLE_MAX_ABS: table["max_abs"],
        }
        yield from (Sample(metric, value, (table["name"],)) for metric, value in numbers.items())
    yield from _of_features(kept.get("counts", {}))


def _of_features(counts: dict[str, int]) -> Iterator[Sample]:
    by_feature: dict[str, dict[str, int]] = {}
    for name, count in counts.items():
        kind, feature, what = name.split("/", 2)
        if kind == "task":
            continue
        by_feature.setdefault(feature, {})[what] = count
    for feature, found in by_feature.items():
        yield Sample(names.FEATURE_IDS, found.get("ids", 0), (feature,))
        yield Sample(names.FEATURE_UNKNOWN_IDS, found.get("unknown", 0), (feature,))
        yield Sample(names.FEATURE_NO_ID, found.get("null", 0) + found.get("negative", 0), (feature,))


def _short(reason: str) -> str:
    return reason if len(reason) <= REASON_CHARS else f"{reason[: REASON_CHARS - 3]}..."


class LedgerCollector:
    """Hands `samples` to Prometheus' client library; when the ledger does not answer, that alone."""

    def __init__(self, config: Config, ledger: Ledger, clock: Callable[[], float] = time.time) -> None:
        self._config = config
        self._ledger = ledger
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self._read_s = -REFRESH_S

    def collect(self) -> Iterable[GaugeMetricFamily]:
        with self._lock:
            if time.monotonic() - self._read_s >= REFRESH_S:
                self._samples, self._read_s = self._read(), time.monotonic()
            found = self._samples
        families: dict[str, GaugeMetricFamily] = {}
        for sample in found:
            series = SERIES[sample.metric]
            family = families.get(sample.metric)
            if family is None:
                family = families[sample.metric] = GaugeMetricFamily(series.name, series.text, labels=series.tags)
            family.add_metric((self._config.name, *sample.labels), sample.value)
        return families.values()

    def _read(self) -> list[Sample]:
        try:
            return samples(self._config, self._ledger, self._clock())
        except DiurnalError:
            return [Sample(names.MODEL_UP, 0.0)]


def serve(config: Config, ledger: Ledger, listen: str, say: Callable[[str], Any] = print) -> None:
    """Answers at `http://HOST:PORT/metrics` until SIGTERM or Ctrl-C.

    Args:
        listen: `HOST:PORT`; port 0 is any that is free.
        say: told the address.

    Raises:
        ConfigError: it is no such pair, or the port is taken.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        rule = "HOST:PORT; 0.0.0.0 is every address of this machine"
        raise ConfigError([Fault("--listen", listen, rule, "--listen 127.0.0.1:9108")])
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LedgerCollector(config, ledger))  # pyright: ignore[reportArgumentType]
    ended = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: ended.set())
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        found = f"{listen}: {error.strerror or error}"
        raise ConfigError([Fault("--listen", found, "a free port of this machine", "choose another one")]) from None
    say(f"metrics: http://{host}:{server.server_port}/metrics")
    ended.wait()
    server.shutdown()
    thread.join()
