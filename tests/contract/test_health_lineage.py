"""Lineage rows on every backend: edges, manifests, the graph, and the inbox that they are fed from."""

from __future__ import annotations

import json
from typing import Final

from headgate.clock import VirtualClock
from headgate.health.ingest.drain import DrainResult, Handlers
from headgate.health.ingest.inbox import OpenLineageInbox
from headgate.health.ingest.names import NameResolver
from headgate.health.lineage.blast_radius import BlastRadii
from headgate.health.lineage.graph import LineageGraph
from headgate.health.lineage.manifests import Outcome
from headgate.health.lineage.service import SWEEP_AFTER_MS, Lineage, ProducerLineage
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.timestamps import instant
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import (
    COLUMN_READERS,
    COLUMN_WRITERS,
    CONTROL,
    DATASET_READERS,
    DATASET_WRITERS,
    PIPELINES,
)
from headgate.store.port import Store
from tests.contract.conftest import Eventually
from tests.integration.health.lineage.test_service import CrashError, CrashingStore

TABLES = (CONTROL, DATASET_WRITERS, DATASET_READERS, COLUMN_WRITERS, COLUMN_READERS, PIPELINES)
JOB: Final = "job:landing"
SINK: Final = "urn:dp:finance:revenue"


def _spec(clock: VirtualClock, commit: str, start: int, count: int, *, seconds: float = 0) -> LineageSpec:
    return LineageSpec(
        spec_id=f"lspec:landing:git:{commit}",
        producer_id=JOB,
        updated_at=instant(int((clock.seconds() + seconds) * 1000)),
        dataset_reads=tuple(f"urn:dp:wide:t{number:04d}" for number in range(start, start + count)),
        dataset_writes=(SINK,),
        column_reads=("urn:col:urn:dp:wide:t0100:id",),
        column_writes=(f"urn:col:{SINK}:amount",),
    )


def test_update__specs_one_after_another__leave_the_edges_of_the_newest(
    store: Store, clock: VirtualClock, eventually: Eventually
) -> None:
    lineage = Lineage(store, clock)
    old, new = _spec(clock, "a1", 0, 120), _spec(clock, "b2", 60, 120, seconds=1)

    assert lineage.update(old).outcome is Outcome.APPLIED
    assert lineage.update(new).removed == 60
    assert lineage.update(old).outcome is Outcome.STALE
    assert lineage.update(new).outcome is Outcome.UNCHANGED

    result = ProducerLineage(
        producer_id=JOB, dataset_writes=new.dataset_writes, dataset_reads=new.dataset_reads,
        column_writes=new.column_writes, column_reads=new.column_reads, complete=True,
    )  # fmt: skip
    eventually(lambda: lineage.by_producer(JOB), lambda found: found == result)
    (writer,) = eventually(lambda: lineage.writers(SINK).entries, lambda entries: len(entries) == 1)
    assert (writer.entity_id, writer.spec_id, writer.commit) == (JOB, "lspec:landing:git:b2", "b2")
    assert [entry.entity_id for entry in lineage.column_readers("urn:col:urn:dp:wide:t0100:id").entries] == [JOB]
    assert lineage.spec("lspec:landing:git:b2").dataset_reads == new.dataset_reads
    assert [each.commit for each in lineage.specs("landing").specs] == ["a1", "b2"]
    assert lineage.specs_of_commit("b2").specs == [lineage.spec("lspec:landing:git:b2")]
    assert lineage.specs_of_commit("b").specs == []


def test_sweep__a_change_left_half_done__is_finished(store: Store, clock: VirtualClock, eventually: Eventually) -> None:
    lineage = Lineage(store, clock)
    spec = _spec(clock, "a1", 0, 250)
    crashing = CrashingStore(store)
    crashing.crash_at = 4
    try:
        Lineage(crashing, clock).update(spec)
    except CrashError:
        pass
    assert lineage.readers(spec.dataset_reads[-1]).entries == []

    clock.advance(SWEEP_AFTER_MS / 1000 + 1)
    eventually(lineage.sweep, lambda finished: finished == 1)

    eventually(
        lambda: lineage.by_producer(JOB),
        lambda found: (found.dataset_reads, found.dataset_writes) == (spec.dataset_reads, (SINK,)),
    )
    assert lineage.update(spec).outcome is Outcome.UNCHANGED
    eventually(lineage.sweep, lambda finished: finished == 0)


def test_downstream__over_three_producers__is_reached_and_follows_changes(
    store: Store, clock: VirtualClock, eventually: Eventually
) -> None:
    lineage = Lineage(store, clock)
    radii = BlastRadii(LineageGraph(store, clock, refresh_seconds=0), clock, lambda _urns: {})

    def tell(number: int, commit: str, reads: str, writes: str) -> None:
        clock.advance(1)
        lineage.update(
            LineageSpec(
                spec_id=f"lspec:job:p{number}:git:{commit}",
                producer_id=f"job:p{number}",
                updated_at=instant(int(clock.seconds() * 1000)),
                dataset_reads=(reads,),
                dataset_writes=(writes,),
            )
        )

    for number in range(3):
        tell(number, "a", f"urn:dp:d:t{number}", f"urn:dp:d:t{number + 1}")
    found = eventually(lambda: radii.downstream("urn:dp:d:t0"), lambda radius: radius.dataset_count == 3)
    assert [each.distance for each in found.datasets] == [1, 2, 3]

    tell(1, "b", "urn:dp:d:elsewhere", "urn:dp:d:t2")
    found = eventually(lambda: radii.downstream("urn:dp:d:t0"), lambda radius: radius.dataset_count == 1)
    assert [each.entity_id for each in found.entities] == ["job:p0"]


def test_inbox__events_of_a_run__are_kept_once_and_become_lineage(
    store: Store, clock: VirtualClock, eventually: Eventually
) -> None:
    inbox = OpenLineageInbox(store, clock, IdMaker(clock))
    lineage = Lineage(store, clock)
    signals: list[object] = []
    handlers = Handlers(
        names=NameResolver(),
        configs=lambda _urn: None,
        lineage=lineage.update,
        signal=signals.append,
        results=signals.extend,
        discovered=lambda _effect: None,
        alias=lambda _effect: None,
    )
    bodies = []
    for state, side in (("START", "inputs"), ("COMPLETE", "outputs")):
        clock.advance(1)
        event = {
            "eventType": state, "eventTime": clock.now().isoformat(), "run": {"runId": "r1"},
            "job": {"namespace": "ns", "name": "j"},
            side: [{"namespace": "pg", "name": side, "outputFacets": {"outputStatistics": {"rowCount": 3}}}],
        }  # fmt: skip
        bodies.append(json.dumps(event).encode())
    receipts = [inbox.accept(body) for body in (*bodies, bodies[0])]

    assert [receipt.is_duplicate for receipt in receipts] == [False, False, True]
    assert receipts[0].event_id == receipts[2].event_id
    assert inbox.drain(handlers) == DrainResult(done=2)
    assert inbox.drain(handlers) == DrainResult()
    assert len(signals) == 2, "the volume, and the run"
    edges = (("urn:dp:pg:inputs",), ("urn:dp:pg:outputs",))
    eventually(
        lambda: lineage.by_producer("job:ns.j"), lambda found: (found.dataset_reads, found.dataset_writes) == edges
    )


def test_inbox__an_event_put_aside__is_listed_and_can_be_sent_in_again(store: Store, clock: VirtualClock) -> None:
    inbox = OpenLineageInbox(store, clock, IdMaker(clock))
    lineage = Lineage(store, clock)
    handlers = Handlers(
        names=NameResolver(),
        configs=lambda _urn: None,
        lineage=lineage.update,
        signal=lambda _effect: None,
        results=lambda _effects: None,
        discovered=lambda _effect: None,
        alias=lambda _effect: None,
    )
    event = {
        "eventTime": instant(int((clock.seconds() + 3600) * 1000)), "run": {"runId": "r1"}, "eventType": "COMPLETE",
        "job": {"namespace": "ns", "name": "j"}, "outputs": [{"namespace": "pg", "name": "t"}],
    }  # fmt: skip
    event_id = inbox.accept(json.dumps(event).encode()).event_id

    assert inbox.drain(handlers) == DrainResult(dead=1)
    assert [(dead.event_id, dead.about) for dead in inbox.dead().events] == [(event_id, "ns j")]
    clock.advance(3600)
    inbox.redrive(event_id)
    assert inbox.drain(handlers) == DrainResult(done=1)
    assert [entry.entity_id for entry in lineage.writers("urn:dp:pg:t").entries] == ["job:ns.j"]
