"""Evidence: how much a second is taken in, sampled, stored and answered, and what limits it."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final

from bench.health_client import PACKAGE, request
from bench.health_rows import SIGNATURE, Sizes, evidence_like, urn
from bench.health_server import parted, serving, top
from bench.health_signals import opened
from bench.measure import Figure
from bench.set_times import Loaded, Row, at_set_times
from headgate.health.evidence.cache import Evidence
from headgate.serve.rpc.statestore import proto as pb
from headgate.settings import Address

RATE = 50_000
# The ladder that is gone up until one is not held, and how near to each other the two rates in between are brought.
RATES = (5_000, 10_000, 20_000, 30_000, 40_000, 50_000)
STEP = 1_000
# A rate that is held for a moment and not for long is lowered by so much, so many times.
LOWERED, LOWERED_TIMES = 0.9, 10
P99_MS_MAX = 100.0
BATCH = 500
FAILS_EVERY = 50
SECONDS, TRIAL_SECONDS = 60.0, 10.0
# Before it is sent, the middle of each id is put in: so no two are alike, and nothing is encoded again.
_TIME: Final = "01M7GXYEA8"
_MIDDLE: Final = "ZZZZZZZZZZ"
_TEMPLATES: Final = 20
_PUT: Final = f"{PACKAGE}EvidenceCacheService/BatchPutEvidence"
# The parts of the server by where their code is; what comes first counts. What is called takes part with its caller.
_PARTS: Final = (
    ("store", ("headgate/store/", "health/evidence_writes", "health/evidence_rows", "health/evidence_archive",
               "health/evidence_contrast", "headgate/ids")),
    ("decide", ("headgate/health/",)),
    ("decode", ("serve/statestore", "serve/rpc_dispatch", "google/protobuf")),
    ("HTTP", ("uvicorn/", "asyncio/", "serve/connect", "concurrent/", "serve/pool", "httptools")),
)  # fmt: skip


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
    return Row("evidence written", rate, P99_MS_MAX, Batches(size), connections=8, each=BATCH, is_ahead=True)


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
    """Find the highest rate that is held for a moment, see that it is held for long, and say what limits it."""
    with serving(home, "up") as server:

        def is_held(rate: float) -> bool:
            # Not held is what is not held twice: something else may have been busy for a moment.
            return any(_offered(server.http, size, rate, trial_seconds).rows[0].is_held for _ in range(2))

        rate = _highest(is_held)
        for _ in range(LOWERED_TIMES):
            before, started = server.cpu_seconds(), perf_counter()
            loaded = _offered(server.http, size, rate, seconds)
            server_cpu = (server.cpu_seconds() - before) / (perf_counter() - started)
            if loaded.rows[0].is_held:
                break
            rate *= LOWERED
    found, cores = loaded.rows[0], os.cpu_count() or 1
    shares = _profiled(home, size, found.held, trial_seconds)
    spent = [("generator", loaded.own_cpu), *((part, share * server_cpu) for part, share in shares)]
    whole = sum(cpu for _, cpu in spent)
    return Figure(
        f"evidence offered over Connect in batches of {BATCH}, highest rate held for {seconds:g} s",
        f"{found.held:,.0f}/s",
        f"{RATE:,}/s, or the highest with p99 <= {P99_MS_MAX:g} ms",
        found.is_held,
        f"p50 {found.p50_ms:.1f} ms, p99 {found.quiet_p99_ms:.1f} ms in the {loaded.quiet_seconds} s in which the host "
        f"took next to nothing, {found.p99_ms:.1f} ms in all, {found.failed} failed",
        f"of {cores} cores the server took {server_cpu:.2f} and the load generator {loaded.own_cpu:.2f}; of that time "
        + ", ".join(f"{part} {cpu / whole:.0%}" for part, cpu in spent),
    )


def _highest(is_held: Callable[[float], bool]) -> float:
    """Return the highest rate that is held: up the ladder, and then halfway between what is held and what is not.

    If none is, the lowest of the ladder.
    """
    held: float | None = None
    for step in RATES:
        if not is_held(step):
            break
        held = step
    if held is None or held == RATES[-1]:
        return held or RATES[0]
    high: float = RATES[RATES.index(int(held)) + 1]
    while high - held > STEP:
        middle = (held + high) / 2
        held, high = (middle, high) if is_held(middle) else (held, middle)
    return held


def _offered(address: Address, size: Sizes, rate: float, seconds: float) -> Loaded:
    return at_set_times(address, [row(size, rate)], seconds)


def _profiled(home: Path, size: Sizes, rate: float, seconds: float) -> list[tuple[str, float]]:
    """Return the shares of the parts of the server in its time at a rate, the greatest first, and print its functions.

    It is slower while it is watched.
    """
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        profile = Path(folder) / "profile"
        with serving(home, "up", profile) as server:
            _offered(server.http, size, rate, seconds)
        lines, shares = top(profile), parted(profile, _PARTS)
    print(f"what evidence costs the server, at {rate:,.0f} offered a second:", *lines, sep="\n  ", file=sys.stderr)
    return shares
