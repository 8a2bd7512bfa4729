"""Events of pipelines: one transaction with their change, none lost, none twice, listed by time."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import ConflictError, InvalidPayloadError
from headgate.ids import IdMaker
from headgate.notify.enums import INFRASTRUCTURE, Severity
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import (
    DETAIL_BYTES_MAX,
    TEXT_MAX,
    PipelineEvent,
    PipelineEvents,
    StoredPipelineEvent,
    bounded,
)
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import exists
from headgate.store.model.requests import Check, Put
from headgate.store.model.schema import Key
from tests.unit.notify.rig import World

FAILED = PipelineEvent(
    name=EventName.JOB_FAILED,
    pipeline_id="orders",
    schedule_id="daily",
    date="2026-03-03",
    run_id="run_1",
    message="Traceback",
    detail={"category": "TRANSIENT", "error": "exit 1", "attempts": 2},
)
TRIGGERED = PipelineEvent(
    name=EventName.JOB_TRIGGERED,
    pipeline_id="orders",
    schedule_id="daily",
    date="2026-03-03",
    detail={"trigger": "glue"},
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def events(world: World) -> PipelineEvents:
    return PipelineEvents(world.store, world.clock, world.ids, world.bus)


def now_ms(world: World) -> int:
    return int(world.clock.seconds() * 1000)


def names(found: list[StoredPipelineEvent]) -> list[str]:
    return [each.name for each in found]


def test_event__reported__is_kept_whole_on_the_bus_and_reported_to_people(world: World, events: PipelineEvents) -> None:
    # D26: what is kept has all of the detail.
    assert events.publish(FAILED)
    world.run()

    stored = events.ls("orders").events[0]
    assert stored.detail == {"category": "TRANSIENT", "error": "exit 1", "attempts": 2}
    assert stored.text == "orders daily 2026-03-03: the job failed (TRANSIENT): exit 1"
    assert (stored.run_id, stored.severity, stored.message) == ("run_1", Severity.CRITICAL, "Traceback")
    on_bus = world.bus.tail(type="headgate.pipeline.job_failed")[0].event
    assert (on_bus.id, on_bus.source, on_bus.subject) == (stored.event_id, "/headgate/pipelines", "orders")
    assert on_bus.time == datetime.fromtimestamp(now_ms(world) / 1000, UTC)
    published = world.sent()[0]
    assert published["title"] == stored.text
    assert published["lines"] == ["Traceback", "error: exit 1", "category: TRANSIENT", "attempts: 2"]


def test_event__kept__is_forgotten_after_90_days(world: World, events: PipelineEvents) -> None:
    events.publish(FAILED)

    world.clock.advance(90 * 86_400 - 10)
    assert len(events.ls("orders").events) == 1
    world.clock.advance(20)
    assert events.ls("orders").events == []


def test_event__the_change_is_refused__neither_kept_nor_on_the_bus(world: World, events: PipelineEvents) -> None:
    # bug 68: an event is stored, published and committed with its change, or none of these.
    change = Check(CONTROL, Key("RUN", "STATE"), exists())

    with pytest.raises(ConflictError):
        world.store.transact([change, *events.event_writes(FAILED, now_ms(world))])
    world.run()

    assert events.ls("orders").events == []
    assert world.bus.tail(type="headgate.pipeline.*") == []
    assert world.sent() == []


def test_event__with_its_change__both_are_there(world: World, events: PipelineEvents) -> None:
    change = Put(CONTROL, {"PK": "RUN", "SK": "STATE"})

    world.store.transact([change, *events.event_writes(FAILED, now_ms(world))])
    world.run()

    assert names(events.ls("orders").events) == ["JOB_FAILED"]
    assert len(world.sent()) == 1
    assert len(events.event_writes(FAILED, now_ms(world))) <= 8


def test_event__same_kind_in_the_same_millisecond__none_overwrites_another(
    world: World, events: PipelineEvents
) -> None:
    # D26: under a key of time and type alone, all but the last were lost. Here two processes tell at once.
    other = PipelineEvents(world.store, world.clock, IdMaker(world.clock), world.bus)
    threads = [
        threading.Thread(target=lambda teller=teller: [teller.publish(FAILED) for _ in range(20)])
        for teller in (events, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = events.ls("orders", limit=1000).events
    assert len(found) == 40
    assert len({each.event_id for each in found}) == 40


@pytest.mark.parametrize("detail", [{}, {"category": "TRANSIENT"}, {"error": "x"}])
def test_event__detail_lacks_a_field__is_refused_and_not_passed_over(
    world: World, events: PipelineEvents, detail: dict[str, Any]
) -> None:
    # bug 69: an event that cannot be published is an error of the publisher, not a log line.
    event = PipelineEvent(name=EventName.JOB_FAILED, pipeline_id="orders", detail=detail)

    with pytest.raises(InvalidPayloadError, match="JOB_FAILED: its detail has no"):
        events.event_writes(event, now_ms(world))


def test_event__the_store_is_gone__the_teller_receives_it(world: World, events: PipelineEvents) -> None:
    # bug 69
    world.store.close()

    with pytest.raises(Exception, match="closed"):
        events.publish(FAILED)


def test_once__reported_twice__the_second_is_not_reported(world: World, events: PipelineEvents) -> None:
    missed = PipelineEvent(
        name=EventName.SCHEDULE_MISSED, pipeline_id="orders", date="2026-03-03", once="missed#orders#2026-03-03"
    )
    assert events.publish(missed)
    assert not events.publish(missed)
    world.run()

    assert len(events.ls("orders").events) == len(world.sent()) == 1
    with pytest.raises(ConflictError) as raised:
        world.store.transact([Put(CONTROL, {"PK": "X", "SK": "X"}), *events.event_writes(missed, now_ms(world))])
    assert raised.value.write_index == 1
    assert world.store.get(CONTROL, Key("X", "X")) is None


def test_event__severity_and_key_given__are_used(world: World, events: PipelineEvents) -> None:
    event = PipelineEvent(
        name=EventName.SLA_WARNING,
        pipeline_id="orders",
        detail={"deadline": "08:00", "status": "not started"},
        severity=Severity.CRITICAL,
        dedup_key="mine",
    )

    events.publish(event)
    world.run()

    alert = world.alerts.ls().alerts[0]
    assert (alert.severity, alert.dedup_key) == (Severity.CRITICAL, "mine")
    assert events.ls("orders").events[0].severity is Severity.CRITICAL


def test_event__of_the_installation__is_under_its_own_name(world: World, events: PipelineEvents) -> None:
    # bug 65: the watchdog's own failure is an event and an alert.
    events.publish(PipelineEvent(name=EventName.WATCHDOG_DEGRADED, detail={"checks": "sla-scheduling"}))
    world.run()

    assert names(events.ls(INFRASTRUCTURE).events) == ["WATCHDOG_DEGRADED"]
    assert world.titles() == ["checks of the watchdog failed: sla-scheduling"]


def test_completed__after_a_failure__resolves_its_alert(world: World, events: PipelineEvents) -> None:
    events.publish(FAILED)
    world.run()
    world.clock.advance(60)

    done = PipelineEvent(
        name=EventName.PIPELINE_COMPLETED, pipeline_id="orders", schedule_id="daily", date="2026-03-03"
    )
    events.publish(done)
    world.run()

    assert world.titles()[1] == "resolved: orders daily 2026-03-03: the job failed (TRANSIENT): exit 1"
    assert len(world.sent()) == 2


def test_ls__by_time_name_and_page__goes_through_all(world: World, events: PipelineEvents) -> None:
    moments = []
    for number in range(5):
        moments.append(now_ms(world))
        events.publish(FAILED if number % 2 else TRIGGERED)
        world.clock.advance(1)
    events.publish(PipelineEvent(name=EventName.VALIDATION_PASSED, pipeline_id="others"))

    newest, oldest = events.ls("orders"), events.ls("orders", descending=False)
    assert [each.at_ms for each in newest.events] == moments[::-1]
    assert [each.at_ms for each in oldest.events] == moments
    between = events.ls("orders", since_ms=moments[1], until_ms=moments[3], descending=False)
    assert [each.at_ms for each in between.events] == moments[1:4]
    assert names(events.ls("orders", names=["JOB_FAILED"]).events) == ["JOB_FAILED"] * 2
    paged: list[int] = []
    cursor = None
    while True:
        page = events.ls("orders", limit=2, cursor=cursor)
        paged += [each.at_ms for each in page.events]
        cursor = page.cursor
        if cursor is None:
            break
    assert paged == moments[::-1]
    with pytest.raises(InvalidPayloadError):
        events.ls("orders", limit=0)


def test_bounded__anything_goes__is_json_and_fits() -> None:
    # A change must not fail because of how much is said about it.
    detail = {
        "error": "x" * 10_000,
        "rows": ["y" * 100] * 1_000,
        "moment": datetime(2026, 3, 3, tzinfo=UTC),
        "path": Path("/x"),
        "ratio": math.nan,
        "count": 3,
    }

    kept = bounded(detail)

    assert len(kept["error"]) == TEXT_MAX
    assert kept["left_out"] == ["rows"]
    assert (kept["moment"], kept["path"], kept["ratio"], kept["count"]) == ("2026-03-03T00:00:00Z", "/x", None, 3)
    assert bounded({"a": "b"}) == {"a": "b"}
    assert len(json.dumps(kept)) < DETAIL_BYTES_MAX + 100


def test_event__huge_and_odd_detail__receives_all_the_same(world: World, events: PipelineEvents) -> None:
    detail = {"category": "PERMANENT", "error": "e" * 500_000, "dump": "z" * 3_000_000, "ratio": math.inf}

    assert events.publish(PipelineEvent(name=EventName.JOB_FAILED, pipeline_id="orders", detail=detail))
    world.run()

    assert len(events.ls("orders").events[0].text) <= TEXT_MAX
    assert len(world.sent()) == 1
