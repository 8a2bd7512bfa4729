"""The whole load at once over the real server, and then each part of it alone at the highest rate that it holds.

The load is open: requests are due at set times whether the server keeps up or not, and how long one took counts from
when it was due. Every second counts, also those in which the host of a virtual machine took part of its cores: a bare
server in a process of its own is asked in the same seconds, and its p99 is printed beside.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import time
from typing import NamedTuple

from google.protobuf.message import Message
from msgspec.structs import replace

from bench import bare_server, health_evidence
from bench.health_client import PACKAGE, request
from bench.health_rows import Sizes, evidence_id, filled, signal_at, signature_at, sizes, state_at, urn
from bench.health_server import serving
from bench.measure import Figure
from bench.set_times import Loaded, Row, RowResult, at_set_times
from headgate.health.model.enums import SignalState
from headgate.serve.rpc.statestore import proto as pb
from headgate.settings import Address

SCALE = 1.0
SECONDS = 30.0
# Until a second process has come up, and what has queued before it is done.
WARM_SECONDS = 15.0
# The whole load is put on so often, and has to hold each time.
ROUNDS = 5
# At once: a tenth of each rate, but for evidence.
SHARE = 0.1
EVIDENCE_AT_ONCE = 20_000
# One write in fifty changes a state.
TRANSITIONS_EVERY = 50
# The search for the highest rate: how full the store is, how long a trial takes, its warm-up, and when the bounds are
# close enough. All searches together take about six minutes.
RATES_SCALE = 0.3
TRIAL_SECONDS, TRIAL_WARM_SECONDS = 4.0, 1.0
CLOSE_ENOUGH = 1.15
# No rate beyond it is tried: the load generator could not send it.
RATE_MAX = 40_000.0
# What the bare server is asked beside the load.
BARE_RATE = 200.0


def run(scale: float = SCALE, seconds: float = SECONDS) -> list[Figure]:
    """Return the result of each row, all at once and then alone."""
    return [*run_mixed(scale, seconds), *run_rates(scale)]


def run_mixed(scale: float = SCALE, seconds: float = SECONDS, rounds: int = ROUNDS) -> list[Figure]:
    """Return the result of each row, all at once."""
    size = sizes(scale)
    with filled(scale) as home, bare_server.serving() as bare:
        rows = [*_rows(size, SHARE, EVIDENCE_AT_ONCE), _bare_row(bare, BARE_RATE)]
        return _figures([_round(home, rows, seconds) for _ in range(rounds)], seconds)


def run_rates(scale: float = RATES_SCALE, trial_seconds: float = TRIAL_SECONDS) -> list[Figure]:
    """Return the highest rate that each row holds alone, beside the seed's rate and that of a bare server."""
    size = sizes(scale)
    figures = []
    with filled(scale) as home, bare_server.serving() as bare:
        # Evidence has a search of its own (`health_evidence`): its batches take long to make.
        for row in _rows(size, 1.0, health_evidence.RATE)[:-1]:
            with serving(home, "up", log=home / "bench-server.log") as server:
                # The second process comes up under load.
                at_set_times(server.http, [replace(row, rate=row.rate / 10)], WARM_SECONDS / 2, 1.0)
                ours = _highest_rate(server.http, row, trial_seconds, row.rate / 2)
            same = replace(row, took=lambda _body: None)
            # A bare server holds more, so that its search begins there.
            begin = row.rate if ours is None else 2 * ours.row.rate
            figure = _rate_figure(row, ours, _highest_rate(bare, same, trial_seconds, begin), size)
            print(f"{figure.name}: {figure.value}; {figure.counted}", file=sys.stderr, flush=True)
            figures.append(figure)
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


def _bare_row(address: Address, rate: float) -> Row:
    content = request("/", b"x" * 60)
    return Row("a bare server", rate, 5.0, lambda: content, address=address)


def _highest_rate(address: Address, row: Row, seconds: float, begin: float) -> RowResult | None:
    """Return the result at the highest rate that a server holds, or None if it holds none that was tried.

    The first trial is at the rate `begin`; then the rate is doubled or halved, and the interval halved.
    """

    def tried(rate: float) -> RowResult:
        return at_set_times(address, [replace(row, rate=rate)], seconds, TRIAL_WARM_SECONDS).rows[0]

    best: RowResult | None = None
    low, high, rate = 0.0, float("inf"), min(begin, RATE_MAX)
    while high / max(low, 1.0) > CLOSE_ENOUGH:
        result = tried(rate)
        if result.is_held:
            best, low = result, rate
        else:
            high = rate
        if low >= RATE_MAX:
            break
        rate = min(2 * low, RATE_MAX) if high == float("inf") else (low + high) / 2 if low else high / 2
        if rate < row.rate / 64:
            break
    return best


def _rate_figure(row: Row, ours: RowResult | None, bare: RowResult | None, size: Sizes) -> Figure:
    rate = 0.0 if ours is None else ours.row.rate
    return Figure(
        f"{row.name}, alone: highest rate with p99 <= {row.goal_ms:g} ms",
        f"{rate:,.0f}/s" + ("" if ours is None else f", p99 {ours.p99_ms:.1f} ms"),
        f">= {row.rate:,.0f}/s",
        rate >= row.rate,
        "a bare server holds none" if bare is None else f"a bare server {_or_more(bare.row.rate)}",
        f"{rate / row.rate:.2f} of the seed's rate; server and load generator on {os.cpu_count() or 1} cores, "
        f"{size.signals:,} signals and {size.evidence:,} pieces of evidence",
    )


def _or_more(rate: float) -> str:
    return f"{rate:,.0f}/s" + (" or more" if rate >= RATE_MAX else "")


class _Round(NamedTuple):
    """A load put on once."""

    loaded: Loaded
    server_cpu: float


def _round(home: Path, rows: Sequence[Row], seconds: float) -> _Round:
    with serving(home, "up") as server:
        before, began = server.cpu_seconds(), time()
        loaded = at_set_times(server.http, rows, seconds, WARM_SECONDS)
        return _Round(loaded, (server.cpu_seconds() - before) / (time() - began))


def _figures(rounds: Sequence[_Round], seconds: float) -> list[Figure]:
    """Return the result of each row but the last, which is the bare server."""
    cores, quiet_seconds = os.cpu_count() or 1, sum(each.loaded.quiet_seconds for each in rounds)
    *ours, bare = zip(*(each.loaded.rows for each in rounds), strict=True)
    shares = (
        f"server {median(each.server_cpu for each in rounds) / cores:.0%} of the machine, "
        f"load generator {median(each.loaded.own_cpu for each in rounds) / cores:.0%}; "
        f"quiet: the {quiet_seconds} of {len(rounds) * seconds:g} s in which the host took next to nothing; "
        f"a bare server in the same seconds: p99 {_listed(each.p99_ms for each in bare)} ms"
    )
    return [_figure(row, shares) for row in ours]


def _figure(rounds: Sequence[RowResult], shares: str) -> Figure:
    """Return the result of a row, which has to hold in each round, counted over all seconds."""
    row = rounds[0].row
    held = sum(each.is_held for each in rounds)
    return Figure(
        f"{row.name}, at once: {row.rate:,.0f}/s asked",
        f"held in {held} of {len(rounds)} rounds, p99 {_listed(each.p99_ms for each in rounds)} ms",
        f"all, <= {row.goal_ms:g} ms",
        held == len(rounds),
        f"{min(each.held for each in rounds):,.0f}/s, p50 {median(each.p50_ms for each in rounds):.1f} ms, "
        f"p99 in quiet seconds {_listed(each.quiet_p99_ms for each in rounds)} ms, "
        f"{sum(each.failed for each in rounds)} failed",
        shares,
    )


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in numbers)


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
