"""Loops: what the router was told is remembered a few changes at a time, and nothing is begun twice by that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.pipelines.loops import CONSUMER, PipelineLoops
from headgate.store.tables import PIPELINES
from headgate.store.writes import StreamStart
from tests.pipeline_rig import Rig, pipeline


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        made.define(pipeline())
        # From here on.
        made.store.changes(PIPELINES, CONSUMER, start=StreamStart.NEWEST)
        yield made


def unmarked(rig: Rig) -> int:
    """Return how many changes whoever comes after a crash would be told."""
    return len(rig.store.changes(PIPELINES, CONSUMER).changes)


def push(rig: Rig, count: int) -> None:
    for number in range(count):
        rig.pipelines.sensors.push("silver", "other", {"count": number})


def test_route__few_changes__heard_at_once_and_not_remembered_one_by_one(rig: Rig) -> None:
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

    assert (before, unmarked(rig)) == (2, 0)


def test_route__changes_that_come_after_those_not_remembered__heard(rig: Rig) -> None:
    loops = PipelineLoops(rig.pipelines)
    push(rig, 2)
    loops.route()
    rig.pipelines.sensors.push("silver", "landed", {})

    loops.route()

    assert len(rig.executions()) == 1


def test_route__next_process_hears_again_what_was_not_remembered__begins_nothing_twice(rig: Rig) -> None:
    rig.pipelines.sensors.push("silver", "landed", {})
    PipelineLoops(rig.pipelines).route()

    PipelineLoops(rig.pipelines).route()

    assert len(rig.executions()) == 1


def test_route__config_among_the_changes__clockwork_is_told(rig: Rig) -> None:
    loops = PipelineLoops(rig.pipelines)
    rig.pipelines.definitions.put(pipeline("gold"), "text", "ana")

    loops.route()

    assert loops._changed.is_set()
