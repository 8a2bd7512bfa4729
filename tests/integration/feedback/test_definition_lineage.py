"""Definition lineage: stored, changed and removed definitions, with repeated and reordered events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.durable.bus.event_log import first_id
from headgate.durable.bus.events import Event
from headgate.feedback.definition_lineage import TYPES, DefinitionLineage
from headgate.notify.notices import Notice
from headgate.pipelines.catalog.store import PipelineChange
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.events.names import EventName
from headgate.store.model.requests import Write
from tests.integration.feedback.feedback_rig import ORDERS, LoopRig, reader, writer
from tests.pipeline_rig import slot_of
from tests.simulation.durable_processes import Crash, Fault, ProcessStore

REVENUE = "urn:dp:shop:revenue:v1"
REPORTS = "urn:dp:shop:reports:v1"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LoopRig]:
    with LoopRig(tmp_path) as opened:
        yield opened


def define(rig: LoopRig, *pipelines: Pipeline) -> None:
    """Put definitions as the API and the folder do."""
    for each in pipelines:
        rig.pipelines.definitions.put(each, "text", "ana", also=rig.pipelines.definition_events)
    rig.pump()


def remove(rig: LoopRig, pipeline_id: str) -> None:
    def also(change: PipelineChange) -> list[Write]:
        detail = {"by": "ana", "version": change.stored.version, "reason": ""}
        return rig.event_writer.writes(EventName.PIPELINE_DELETED, slot_of(pipeline_id), detail)

    rig.pipelines.definitions.delete(pipeline_id, "ana", also=also)
    rig.pump()


def edges(rig: LoopRig, pipeline_id: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = rig.health.lineage.by_producer(f"pipeline:{pipeline_id}")
    return found.dataset_reads, found.dataset_writes


def lineage_events(rig: LoopRig) -> list[Event]:
    """Return every definition that was reported, in order."""
    found = rig.env.service.bus.tail(first_id(0), limit=1_000)
    return [each.event for each in found if each.event.type in TYPES]


def test_lineage__pipelines_are_defined__the_blast_radius_follows_them(rig: LoopRig) -> None:
    # One says what it reads, the other waits for its health.
    define(rig, writer(), reader("silver", writes=(REVENUE,)), writer("gold", REPORTS, reads=(REVENUE,)))

    reached = rig.health.blast_radii.downstream(ORDERS)

    assert [(each.dataset_urn, each.distance) for each in reached.datasets] == [(REVENUE, 1), (REPORTS, 2)]
    assert [each.entity_id for each in reached.entities] == ["pipeline:silver", "pipeline:gold"]


def test_lineage__a_definition_changes_and_is_removed__what_it_no_longer_says_is_gone(rig: LoopRig) -> None:
    first = writer("silver", REVENUE, reads=(ORDERS,))
    seen = []
    for definition in (first, replace(first, reads=(REPORTS,)), replace(first, dry_run=True), first):
        rig.advance("1m")
        define(rig, definition)
        seen.append(edges(rig, "silver"))
    remove(rig, "silver")
    seen.append(edges(rig, "silver"))

    nothing = ((), ())
    assert seen == [((ORDERS,), (REVENUE,)), ((REPORTS,), (REVENUE,)), nothing, ((ORDERS,), (REVENUE,)), nothing]
    assert rig.health.blast_radii.downstream(ORDERS).downstream_count == 0


def test_lineage__events_come_again_late_and_in_another_order__it_says_what_is_in_force(rig: LoopRig) -> None:
    first = writer("silver", REVENUE)
    define(rig, first)
    remove(rig, "silver")
    define(rig, replace(first, writes=(REPORTS,)))

    # As another process receives them.
    other = DefinitionLineage(rig.pipelines, rig.health)
    for event in reversed(lineage_events(rig)):
        other.handle(event)

    assert edges(rig, "silver") == ((), (REPORTS,))


def test_lineage__the_clock_was_set_back__the_newer_definition_counts(rig: LoopRig) -> None:
    define(rig, writer("silver", REVENUE))
    rig.env.clock.step(-3_600)
    define(rig, writer("silver", REPORTS))
    behind = edges(rig, "silver")
    rig.advance("2h")

    assert (behind, edges(rig, "silver")) == (((), (REVENUE,)), ((), (REPORTS,)))


def test_lineage__the_process_dies_at_any_call__is_as_the_definition_says_once_reported_again(rig: LoopRig) -> None:
    rig.app.handlers["headgate.loop.lineage"].function = str
    define(rig, *[writer(f"silver-{number}", REVENUE, reads=(ORDERS,)) for number in range(1, 9)])
    events, survived = lineage_events(rig), 0

    for number, event in enumerate(events, 1):
        dying = ProcessStore(rig.store)  # type: ignore[arg-type]
        dying.fault = Fault(number, is_done=number % 2 == 0)
        try:
            DefinitionLineage(rig.pipelines, rig.open_health(dying)).handle(event)
            survived += 1
        except Crash:
            DefinitionLineage(rig.pipelines, rig.health).handle(event)
        assert edges(rig, event.data_as(Notice).pipeline_id) == ((ORDERS,), (REVENUE,))

    assert 0 < survived < len(events)


def test_lineage__a_definition_that_no_one_reported__is_known_once_a_run_of_it_has_ended(rig: LoopRig) -> None:
    rig.define(writer())
    before = edges(rig, "bronze")
    rig.jobs.succeed()
    rig.push("bronze", "landed", date="2026-03-03")
    rig.advance("1m")

    assert (before, edges(rig, "bronze")) == (((), ()), ((), (ORDERS,)))


def test_lineage__names_that_no_dataset_can_have__are_left_out_and_harm_no_other(rig: LoopRig) -> None:
    define(rig, writer("silver", "orders", REVENUE), writer("copper", "orders"))

    assert edges(rig, "silver") == ((), (REVENUE,))
    assert rig.health.lineage.specs("pipeline:copper").specs == []
