"""Events on the bus begin periods: the one they speak of, once, and only while a definition says so."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from headgate.durable.bus.events import Event
from headgate.pipelines.definition.model import Json, Pipeline, Schedule
from headgate.pipelines.enums import Cause
from headgate.pipelines.event_schedules import NOTHING, SUBSCRIPTION
from tests.pipeline_rig import DATE, Rig, pipeline, slot_of
from tests.unit.pipelines.loading_rig import errors

EXPORTED = "shop.exported"


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as opened:
        opened.jobs.succeed()
        yield opened


def begun_by_events(pipeline_id: str = "silver") -> Pipeline:
    return pipeline(pipeline_id, schedules=(Schedule(event=EXPORTED),))


def emit(rig: Rig, data: Json = None, event_id: str = "1", at: str = "2026-03-03T08:00:00") -> None:
    moment = datetime.fromisoformat(at).replace(tzinfo=UTC)
    rig.env.service.bus.emit(Event(type=EXPORTED, source="/shop", id=event_id, time=moment, data=data))
    rig.pump()


def begun(rig: Rig, pipeline_id: str = "silver") -> list[str]:
    return sorted(log.date for log in rig.stores.runs.logs(pipeline_id).logs if log.attempts)


def test_event_schedule__an_event_comes__its_period_begins(rig: Rig) -> None:
    rig.define(begun_by_events(), pipeline("other"))
    rig.pump()

    emit(rig)

    assert (begun(rig), begun(rig, "other")) == ([DATE], [])
    run = rig.run(slot_of())
    assert (run.cause, run.by) == (Cause.EVENT, "/shop")


@pytest.mark.parametrize(
    ("data", "at", "date"),
    [
        ({"date": "2026-02-27"}, "2026-03-03T08:00:00", "2026-02-27"),
        ({"date": "2026-02-27T07"}, "2026-03-03T08:00:00", "2026-02-27"),
        ({"date": "yesterday"}, "2026-03-02T23:59:00", "2026-03-02"),
        (["no object"], "2026-03-02T23:59:00", "2026-03-02"),
    ],
    ids=["its own date", "an hour of it", "no date", "no object"],
)
def test_event_schedule__what_the_event_says__is_the_period(rig: Rig, data: Json, at: str, date: str) -> None:
    rig.define(begun_by_events())
    rig.pump()

    emit(rig, data, at=at)

    assert begun(rig) == [date]


def test_event_schedule__the_same_event_twice_and_another__two_requests(rig: Rig) -> None:
    rig.define(begun_by_events())
    rig.pump()
    handler = rig.app.handlers[SUBSCRIPTION].function

    emit(rig)
    for event_id in ("1", "2"):
        handler(Event(type=EXPORTED, source="/shop", id=event_id, time=rig.now, data={"date": "2026-03-03"}))

    assert len(rig.executions()) == 2


def test_event_schedule__definition_is_taken_away__events_are_no_longer_received(rig: Rig) -> None:
    rig.define(begun_by_events("silver"), begun_by_events("gold"))
    rig.pump()
    bus = rig.env.service.bus
    rig.forget("silver")
    rig.pump()
    one_left = bus.subscription(SUBSCRIPTION).subscription.types
    rig.define(pipeline("gold"))
    rig.pump()

    emit(rig)

    assert one_left == (EXPORTED,)
    assert bus.subscription(SUBSCRIPTION).subscription.types == (NOTHING,)
    assert rig.executions() == []


@pytest.mark.parametrize(
    ("event", "fact"),
    [
        ("headgate.pipeline.pipeline_completed", "is an event of pipelines"),
        ("order.*", "is no type of events"),
    ],
)
def test_event_schedule__what_could_never_begin_it_or_always_would__is_refused(event: str, fact: str) -> None:
    found = errors(f"id: orders\nschedules: [{{event: '{event}'}}]\ntrigger: {{type: command}}\n")

    assert [(each.field, fact in each.fact) for each in found] == [("schedules[0].event", True)]
