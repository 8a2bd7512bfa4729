"""What people and pipelines wait for: the story of an incident, and the gate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from bench.health_rows import Sizes, evidence_id, evidence_like, incident_id, signal_at, urn
from bench.health_signals import opened
from bench.measure import Figure, seconds
from headgate.bootstrap.store import BLOBS
from headgate.health.evidence.archive import Archive, Line
from headgate.health.evidence.rows import line_of
from headgate.health.gate.decisions import GateQuestion
from headgate.health.incidents.rows import Unsealed, incident_key, incident_of, incident_row
from headgate.health.service import HealthService
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.catalogue.tables import INCIDENT_INDEX
from headgate.store.resilience.guarded_store import AnyStore

CONTEXT_MS_MAX, GATE_MS_MAX = 500.0, 5.0
# A blob of the archive is full.
ARCHIVED = 5_000


def run(home: Path, size: Sizes, contexts: int, gates: int) -> list[Figure]:
    """Return the figures, asked in this process of a full store."""
    with opened(home) as (health, store):
        return [_contexts(home, health, store, contexts), _gates(health, store, size, gates)]


def _contexts(home: Path, health: HealthService, store: AnyStore, times: int) -> Figure:
    incidents = _with_archived(home, health, store, min(times, 50))
    asked = iter(range(times + 1))

    def ask() -> None:
        story = health.contexts.of(incidents[next(asked) % len(incidents)])
        # Of a full store the lineage is larger than is followed, and the story says so.
        assert {each.part for each in story.missing} <= {"blast_radius"}, story.missing
        assert any(each.archived for each in story.evidence)

    first = 1000 * seconds(ask)
    return _figure(
        "story of an incident with one archived evidence, p99",
        ask,
        times,
        CONTEXT_MS_MAX,
        store,
        f"the first, which reads the lineage, {first:.0f} ms",
    )


def _with_archived(home: Path, health: HealthService, store: AnyStore, count: int) -> list[str]:
    """Let some open incidents speak of evidence that only the archive has, and return their ids."""
    now_ms = int(1000 * health.clock.seconds())
    # Numbered from where no row is.
    numbers = range(10**9, 10**9 + ARCHIVED)
    lines = [
        Line(evidence_id(number), line_of(evidence_like(number, urn(0)), evidence_id(number), now_ms))
        for number in numbers
    ]
    Archive(FolderBlobs(home / BLOBS)).write(lines, now_ms)
    changed = []
    for number in range(count):
        row = store.get(INCIDENT_INDEX, incident_key(incident_id(number)))
        assert row is not None
        incident = incident_of(row, Unsealed())
        if incident.is_open:
            more = (*incident.evidence_sample, evidence_id(numbers[number * ARCHIVED // count]))
            store.put(INCIDENT_INDEX, incident_row(replace(incident, evidence_sample=more), Unsealed()))
            changed.append(incident.incident_id)
    return changed


def _gates(health: HealthService, store: AnyStore, size: Sizes, times: int) -> Figure:
    question = GateQuestion(principal="bench")
    asked = iter(range(times + 1))

    def ask() -> None:
        # Each time another one, over all of them.
        dataset_urn, _ = signal_at(next(asked) * 7919 % size.signals)
        health.gatekeeper.check([dataset_urn], question)

    ask()
    return _figure(
        f"gate decision with {size.datasets:,} datasets, in process, p99", ask, times, GATE_MS_MAX, store, ""
    )


def _figure(name: str, ask: Callable[[], None], times: int, goal_ms: float, store: AnyStore, notes: str) -> Figure:
    before = store.stats.snapshot()
    took = sorted(1000 * seconds(ask) for _ in range(times))
    spent = {each: value - before[each] for each, value in store.stats.snapshot().items()}
    p50, p99 = (took[int(share * (times - 1))] for share in (0.5, 0.99))
    return Figure(
        name,
        f"{p99:.2f} ms",
        f"<= {goal_ms:g} ms",
        p99 <= goal_ms,
        f"{spent['reads'] / times:.1f} rows and {spent['queries'] / times:.1f} queries each, {times} times",
        "; ".join(filter(None, (f"p50 {p50:.2f} ms, slowest {took[-1]:.2f} ms", notes))),
        took,
    )
