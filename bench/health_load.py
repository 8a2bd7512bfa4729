"""The whole load at once over the real server, and then each part of it alone at its full rate.

The load is open: requests are due at set times whether the server keeps up or not, and how long one took counts from
when it was due.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import time
from typing import NamedTuple

from google.protobuf.message import Message

from bench import health_evidence
from bench.health_client import PACKAGE, request
from bench.health_rows import Sizes, evidence_id, filled, signal_at, signature_at, sizes, state_at, urn
from bench.health_server import serving
from bench.measure import Figure
from bench.set_times import Loaded, Row, RowResult, at_set_times
from headgate.health.model.enums import SignalState
from headgate.serve.rpc.statestore import proto as pb

SCALE = 1.0
SECONDS = 30.0
# Until a second process has come up, and what has queued before it is done.
WARM_SECONDS = 15.0
# The whole load is put on so often, and the median counts: what a host gives a machine changes from minute to minute.
ROUNDS = 5
# Further rounds in place of those in which the host left too little CPU to measure.
FURTHER_MAX = 2
# At once: a tenth of each rate, but for evidence.
SHARE = 0.1
EVIDENCE_AT_ONCE = 20_000
# One write in fifty changes a state.
TRANSITIONS_EVERY = 50


def run(scale: float = SCALE, seconds: float = SECONDS) -> list[Figure]:
    """Return the result of each row, all at once and then alone."""
    size = sizes(scale)
    with filled(scale) as home:
        figures = _loaded(home, "at once", _rows(size, SHARE, EVIDENCE_AT_ONCE), seconds, rounds=ROUNDS)
        for row in _rows(size, 1.0, health_evidence.RATE):
            figures += _loaded(home, "alone", [row], seconds, rounds=1)
    return figures


def _rows(size: Sizes, share: float, evidence: float) -> list[Row]:
    asked = _Asked(size)
    incidents = _Incidents(size)
    return [
        Row("signals written", 3_000 * share, 50.0, asked.signal_write, connections=32),
        Row("signals read", 10_000 * share, 10.0, asked.signal_read),
        Row("evidence read", 5_000 * share, 10.0, asked.evidence_read),
        Row("incidents opened, read, changed, resolved", 100 * share, 50.0, incidents.next, took=incidents.took),
        Row("configs looked up", 5_000 * share, 5.0, asked.config_read),
        health_evidence.row(size, evidence),
    ]


def _loaded(home: Path, how: str, rows: Sequence[Row], seconds: float, *, rounds: int) -> list[Figure]:
    """Put a load on a server of its own, in each round another, and return the result of each row."""
    judged: list[_Round] = []
    for _ in range(rounds + FURTHER_MAX):
        last = _round(home, rows, seconds)
        if last.loaded.quiet_seconds:
            judged.append(last)
        if len(judged) == rounds:
            break
    counted_rounds = judged or [last]
    cores, quiet_seconds = os.cpu_count() or 1, sum(each.loaded.quiet_seconds for each in counted_rounds)
    shares = (
        f"server {median(each.server_cpu for each in counted_rounds) / cores:.0%} of the machine, "
        f"load generator {median(each.loaded.own_cpu for each in counted_rounds) / cores:.0%}; "
        f"quiet: the {quiet_seconds} of {len(counted_rounds) * seconds:g} s in which the host took next to nothing"
    )
    return [_figure(how, [each.loaded.rows[place] for each in counted_rounds], shares) for place in range(len(rows))]


class _Round(NamedTuple):
    """A load put on once."""

    loaded: Loaded
    server_cpu: float


def _round(home: Path, rows: Sequence[Row], seconds: float) -> _Round:
    with serving(home, "up") as server:
        before, began = server.cpu_seconds(), time()
        loaded = at_set_times(server.http, rows, seconds, WARM_SECONDS)
        return _Round(loaded, (server.cpu_seconds() - before) / (time() - began))


def _figure(how: str, rounds: Sequence[RowResult], shares: str) -> Figure:
    """Return the result of a row: the median of its rounds, none of which may have failed requests."""
    row = rounds[0].row
    by_p99 = sorted(rounds, key=lambda each: each.quiet_p99_ms)
    middle = by_p99[len(by_p99) // 2]
    combined = middle._replace(
        failed=sum(each.failed for each in rounds),
        held=min(each.held for each in rounds),
        p99_ms=median(each.p99_ms for each in rounds),
    )
    spread = f" ({by_p99[0].quiet_p99_ms:.1f} to {by_p99[-1].quiet_p99_ms:.1f} in {len(rounds)} rounds)"
    return Figure(
        f"{row.name}, {how}: {row.rate:,.0f}/s asked",
        f"{combined.held:,.0f}/s, p99 {combined.quiet_p99_ms:.1f} ms quiet{spread if len(rounds) > 1 else ''}, "
        f"{combined.p99_ms:.1f} in all",
        f"all, <= {row.goal_ms:g} ms",
        combined.is_held,
        f"p50 {combined.p50_ms:.1f} ms, {combined.failed} failed",
        shares,
    )


class _Asked:
    """Makes requests about what there is, anywhere in the store."""

    def __init__(self, size: Sizes) -> None:
        self._size = size
        self._draw = random.Random(7)
        self._written = itertools.count()
        # What was changed to WARNING, so that it is changed back some time.
        self._changed: set[int] = set()
        # Encoded before: most that is read is read again and again.
        self._reads = _cycled(self._signal_reads())
        self._configs = _cycled(self._config_reads())

    def signal_write(self) -> bytes:
        place = self._draw.randrange(self._size.signals)
        state = self._state(place)
        dataset_urn, signal_type = signal_at(place)
        message = pb.UpdateSignalStateRequest(dataset_urn=dataset_urn, signal_type=signal_type, expected_version=-1)
        value, now_ms = message.state, int(1000 * time())
        value.state, value.score, value.slo_threshold = state, 0.999, 0.995
        value.window_start.FromMilliseconds(now_ms - 300_000)
        value.window_end.FromMilliseconds(now_ms)
        value.window_type = "TUMBLING_5MIN"
        value.metrics.evidence_count, value.metrics.pass_count, value.metrics.fail_count = 1200, 1199, 1
        if state is not SignalState.OK:
            value.failure_signature = signature_at(place)
        return request(f"{PACKAGE}SignalStateService/UpdateSignalState", message.SerializeToString())

    def _state(self, place: int) -> SignalState:
        """Return what is said of a signal: what was said before, but for one in fifty."""
        known = state_at(place)
        if known is SignalState.CRITICAL:
            return known
        if next(self._written) % TRANSITIONS_EVERY == 0:
            self._changed ^= {place}
        is_changed = place in self._changed
        return SignalState.WARNING if (known is SignalState.WARNING) != is_changed else SignalState.OK

    def signal_read(self) -> bytes:
        return next(self._reads)

    def evidence_read(self) -> bytes:
        wanted = evidence_id(self._draw.randrange(self._size.evidence))
        message = pb.GetEvidenceRequest(evidence_id=wanted)
        return request(f"{PACKAGE}EvidenceCacheService/GetEvidence", message.SerializeToString())

    def config_read(self) -> bytes:
        return next(self._configs)

    def _signal_reads(self) -> Iterator[bytes]:
        for _ in range(5_000):
            dataset_urn, signal_type = signal_at(self._draw.randrange(self._size.signals))
            message = pb.GetSignalStateRequest(dataset_urn=dataset_urn, signal_type=signal_type)
            yield request(f"{PACKAGE}SignalStateService/GetSignalState", message.SerializeToString())

    def _config_reads(self) -> Iterator[bytes]:
        for _ in range(2_000):
            message = pb.GetConfigRequest(dataset_urn=urn(self._draw.randrange(self._size.datasets)))
            yield request(f"{PACKAGE}RegistryService/GetConfig", message.SerializeToString())


def _cycled(requests: Iterator[bytes]) -> Iterator[bytes]:
    return itertools.cycle(list(requests))


class _Incidents:
    """Takes incidents through their lives: opened, read, acknowledged, resolved."""

    def __init__(self, size: Sizes) -> None:
        self._size = size
        self._draw = random.Random(9)
        self._asked = itertools.count()
        # Each as far as it has come.
        self._opened: deque[str] = deque()
        self._acknowledged: deque[str] = deque()
        self._seen: set[str] = set()
        self._own = f"{time():.6f}"

    def next(self) -> bytes:
        number = next(self._asked)
        step = number % 4
        if step == 1 and self._opened:
            return self._request("GetIncident", pb.GetIncidentRequest(incident_id=self._opened[0]))
        if step == 2 and self._opened:
            change = pb.UpdateIncidentRequest(incident_id=self._opened.popleft(), expected_version=-1)
            change.incident.status = "ACKNOWLEDGED"
            return self._request("UpdateIncident", change)
        if step == 3 and self._acknowledged:
            end = pb.ResolveIncidentRequest(incident_id=self._acknowledged.popleft(), expected_version=-1)
            end.resolution.root_cause = "a field was renamed"
            return self._request("ResolveIncident", end)
        dataset_urn, signal_type = signal_at(self._draw.randrange(self._size.signals))
        trouble = pb.CreateIncidentRequest(
            dataset_urn=dataset_urn,
            signal_type=signal_type,
            severity="SEV_3",
            failure_signatures=[f"BENCH:{self._own}-{number}"],
            title="A field is missing",
        )
        return self._request("CreateIncident", trouble)

    def took(self, body: bytes) -> None:
        incident = pb.Incident.FromString(body)
        if incident.incident_id not in self._seen:
            self._seen.add(incident.incident_id)
            self._opened.append(incident.incident_id)
        elif incident.status == "ACKNOWLEDGED":
            self._acknowledged.append(incident.incident_id)

    def _request(self, name: str, message: Message) -> bytes:
        return request(f"{PACKAGE}IncidentService/{name}", message.SerializeToString())
