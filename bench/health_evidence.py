"""Evidence: how much a second is taken in, sampled, stored and answered, and what limits it."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final

from bench import health_client
from bench.health_client import PACKAGE, Loaded, Row, at_set_times, request
from bench.health_rows import SIGNATURE, Sizes, evidence_like, urn
from bench.health_server import serving, top
from bench.health_signals import opened
from bench.measure import Figure
from headgate.health.evidence import Evidence
from headgate.serve import statestore as pb
from headgate.settings import Address

RATE = 50_000
RATES = (50_000, 40_000, 30_000, 25_000, 20_000, 15_000, 10_000, 5_000)
P99_MS_MAX = 100.0
BATCH = 500
FAILS_EVERY = 50
SECONDS, TRIAL_SECONDS = 10.0, 3.0
# Before it is sent, the middle of each id is put in: so no two are alike, and nothing is encoded again.
_TIME: Final = "01M7GXYEA8"
_MIDDLE: Final = "ZZZZZZZZZZ"
_TEMPLATES: Final = 20
_PUT: Final = f"{PACKAGE}EvidenceCacheService/BatchPutEvidence"


class Batches:
    """Makes batches of evidence as they come over the wire: of 1,000 datasets, one in fifty failing."""

    def __init__(self, size: Sizes, batch: int = BATCH) -> None:
        draw = random.Random(1)
        datasets = min(1_000, size.datasets)
        self._templates = [
            request(
                _PUT,
                pb.BatchPutEvidenceRequest(
                    evidence=[_message(place, urn(draw.randrange(datasets))) for place in range(batch)]
                ).SerializeToString(),
            )
            for _ in range(_TEMPLATES)
        ]
        self._made = random.Random().randrange(10**9)

    def __call__(self) -> bytes:
        self._made += 1
        return self._templates[self._made % _TEMPLATES].replace(_MIDDLE.encode(), b"%010d" % self._made)


def _message(place: int, dataset_urn: str) -> pb.Evidence:
    fails = place % FAILS_EVERY == 0
    message = pb.Evidence(
        evidence_id=f"evd-{_TIME}{_MIDDLE}{place:06d}",
        dataset_urn=dataset_urn,
        payload_ref=f"s3://bench-lake/orders/{place:012d}",
        payload_size_bytes=2048,
    )
    message.producer.producer_id, message.producer.version, message.producer.confidence = (
        "svc:checkout",
        "3.4.1",
        "HIGH",
    )
    message.source.topic, message.source.partition, message.source.offset = "orders.created", place % 12, place
    message.validation.result = "FAIL" if fails else "PASS"
    if fails:
        message.validation.failed_gates.append("contract")
        message.validation.reason_codes.append(SIGNATURE)
    message.fingerprints.schema_fingerprint, message.fingerprints.payload_hash = "b2:7c9e6a3d10f4", f"{place:016x}"
    message.otel.trace_id, message.otel.span_id = f"{place:032x}", f"{place:016x}"
    message.correlation.run_id = f"run-{place:09d}"
    return message


def run(home: Path, size: Sizes, seconds: float, trial_seconds: float) -> list[Figure]:
    """Return the figures of evidence on a full store. Prints what limits it."""
    return [_in_process(home, size), _over_the_wire(home, size, seconds, trial_seconds)]


def row(size: Sizes, rate: float = RATE) -> Row:
    """Return evidence as a load."""
    return Row("evidence written", rate, P99_MS_MAX, Batches(size), connections=8, each=BATCH)


def _in_process(home: Path, size: Sizes, count: int = 100_000) -> Figure:
    """How much one thread takes in when nothing comes over a wire."""
    with opened(home) as (health, store):
        batches = list(_structs(size, count))
        before = store.stats.commits
        started = perf_counter()
        for batch in batches:
            health.evidence.put_many(batch)
        took = perf_counter() - started
        stats, commits = health.evidence.stats, store.stats.commits - before
    return Figure(
        "evidence taken in by one thread, nothing over a wire",
        f"{count / took:,.0f}/s",
        "printed",
        reached=True,
        counted=f"{commits / len(batches):.2f} commits a batch of {BATCH}",
        notes=f"{stats.stored:,} of {stats.offered:,} stored, {stats.shed:,} shed",
    )


def _structs(size: Sizes, count: int) -> Iterator[list[Evidence]]:
    start = 10**12 + random.Random().randrange(10**9) * 10**6
    datasets = min(1_000, size.datasets)
    for first in range(0, count, BATCH):
        yield [
            evidence_like(start + number, urn(number * 7919 % datasets), fails=number % FAILS_EVERY == 0)
            for number in range(first, first + BATCH)
        ]


def _over_the_wire(home: Path, size: Sizes, seconds: float, trial_seconds: float) -> Figure:
    """Find the highest rate that is held for a moment, and see that it is held for long."""
    with serving(home, "up") as server:
        rate = _highest(server.http, size, trial_seconds)
        before, started = server.cpu_seconds(), perf_counter()
        told = _offered(server.http, size, rate, seconds)
        server_cpu = (server.cpu_seconds() - before) / (perf_counter() - started)
    _print_profile(home, size, rate, trial_seconds)
    found, cores = told.rows[0], os.cpu_count() or 1
    return Figure(
        f"evidence offered over Connect in batches of {BATCH}, held for {seconds:g} s",
        f"{found.held:,.0f}/s",
        f">= {RATE:,}/s",
        found.is_held and rate >= RATE,
        f"p50 {found.p50_ms:.1f} ms, p99 {found.p99_ms:.1f} ms, {found.failed} failed",
        f"of {cores} cores the server took {server_cpu:.2f} and the load generator {told.own_cpu:.2f}",
    )


def _highest(address: Address, size: Sizes, seconds: float) -> float:
    """Return the highest rate of `RATES` that is held for a moment, or the lowest if none is."""
    low, high = 0, len(RATES) - 1
    while low < high:
        middle = (low + high) // 2 if low else 0
        if _offered(address, size, RATES[middle], seconds).rows[0].is_held:
            high = middle
        else:
            low = middle + 1
    return RATES[low]


def _offered(address: Address, size: Sizes, rate: float, seconds: float) -> Loaded:
    return health_client.run(at_set_times(address, [row(size, rate)], seconds))


def _print_profile(home: Path, size: Sizes, rate: float, seconds: float) -> None:
    """Say in which functions the server spends its time at a rate. It is slower while it is watched."""
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        profile = Path(folder) / "profile"
        with serving(home, "up", profile) as server:
            _offered(server.http, size, rate, seconds)
        lines = top(profile)
    print(f"what evidence costs the server, at {rate:,.0f} offered a second:", *lines, sep="\n  ", file=sys.stderr)
