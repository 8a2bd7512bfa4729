"""Loops: what the router received is remembered a few changes at a time, and nothing is begun twice by that."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headgate.durable.model.duration import Seconds
from headgate.pipelines.background_threads import CONSUMER, PipelineLoops
from headgate.pipelines.definition.model import Readiness, Schedule
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import StreamStart
from tests.pipeline_rig import DATE, ORDERS_THERE, Rig, pipeline, waiting_pipeline


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        made.define(pipeline())
        # From here on.
        made.store.changes(PIPELINES, CONSUMER, start=StreamStart.NEWEST)
        yield made


def unmarked(rig: Rig) -> int:
    """Return how many changes the process after a crash would receive."""
    return len(rig.store.changes(PIPELINES, CONSUMER).changes)


def push(rig: Rig, count: int) -> None:
    for number in range(count):
        rig.pipelines.sensors.push("silver", "other", {"count": number})


def test_route__few_changes__received_at_once_and_not_remembered_one_by_one(rig: Rig) -> None:
    loops = PipelineLoops(rig.pipelines)
    rig.pipelines.sensors.push("silver", "landed", {})

    loops.route()

    assert len(rig.executions()) == 1
    assert unmarked(rig) > 0


def test_route__many_changes__remembered(rig: Rig) -> None:
    loops = PipelineLoops(rig.pipelines)
    push(rig, 20)

    loops.route()

    assert unmarked(rig) == 0


def test_route__few_changes_and_time_passes__remembered(rig: Rig) -> None:
    loops = PipelineLoops(rig.pipelines)
    push(rig, 2)
    loops.route()
    before = unmarked(rig)

    rig.env.clock.advance(1)
    loops.route()

    assert (before, unmarked(rig)) == (4, 0)


def test_route__changes_that_come_after_those_not_remembered__received(rig: Rig) -> None:
    loops = PipelineLoops(rig.pipelines)
    push(rig, 2)
    loops.route()
    rig.pipelines.sensors.push("silver", "landed", {})

    loops.route()

    assert len(rig.executions()) == 1


def test_route__next_process_receives_again_what_was_not_remembered__begins_nothing_twice(rig: Rig) -> None:
    rig.pipelines.sensors.push("silver", "landed", {})
    PipelineLoops(rig.pipelines).route()

    PipelineLoops(rig.pipelines).route()

    assert len(rig.executions()) == 1


def test_route__config_among_the_changes__clockwork_is_reported(rig: Rig) -> None:
    loops = PipelineLoops(rig.pipelines)
    loops.tick()
    rig.pipelines.definitions.put(pipeline("gold"), "text", "ana")

    loops.route()

    assert loops._is_stale
    assert loops._wakeup.is_set()


@pytest.mark.parametrize(("interval_seconds", "is_wakeup"), [(2, True), (300, False)])
def test_route__someone_begins_to_wait__clockwork_is_reported_if_it_would_look_too_late(
    rig: Rig, interval_seconds: int, is_wakeup: bool
) -> None:
    loops = PipelineLoops(rig.pipelines)
    rig.define(waiting_pipeline(readiness=Readiness(rules=(ORDERS_THERE,), interval=Seconds(interval_seconds))))
    loops.route()
    rests_seconds = loops.tick()
    rig.pipelines.sensors.push("silver", "landed", {"date": DATE})
    loops.route()
    rig.env.run()
    before = loops._wakeup.is_set()

    loops.route()

    assert (rests_seconds, before) == (5.0, False)
    assert loops._wakeup.is_set() is is_wakeup
    assert rig.pipelines.readiness_poller.seconds_left() == interval_seconds


def test_tick__what_is_done_beside_the_clock__not_with_every_look(rig: Rig) -> None:
    calls: list[float] = []
    loops = PipelineLoops(rig.pipelines, also=lambda: calls.append(rig.env.clock.seconds()))
    for _ in range(20):
        loops.tick()
        rig.env.clock.advance(0.25)
    assert len(calls) == 5


def test_tick__definition_that_another_server_received__is_known_in_time(rig: Rig) -> None:
    loops = PipelineLoops(rig.pipelines)
    loops.tick()
    rig.pipelines.definitions.put(pipeline("gold", schedules=(Schedule(cron="5 8 * * *"),)), "text", "ana")
    # There is one checkpoint for all servers.
    PipelineLoops(rig.pipelines).route()
    rig.env.clock.advance(1.0)
    PipelineLoops(rig.pipelines).route()

    for _ in range(2):
        rig.env.clock.advance(302.0)
        loops.tick()

    assert len(rig.executions()) == 1


def test_stop__router_waits_for_news__does_not_wait_with_it(rig: Rig) -> None:
    loops = PipelineLoops(rig.pipelines)
    loops.start()
    stopped = threading.Thread(target=loops.stop)

    stopped.start()

    # Less than the router waits where nothing is committed.
    stopped.join(2)
    assert not stopped.is_alive()
