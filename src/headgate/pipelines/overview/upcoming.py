"""Upcoming slots: when the schedules of all pipelines are due next, in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

import structlog

from headgate.clock import epoch_ms
from headgate.errors import HeadgateError
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import ControlState
from headgate.pipelines.schedule.timetables import DueSlot, Timetable, timetables
from headgate.pipelines.service import PipelineService

_log = structlog.get_logger(__name__)


class UpcomingSlot(NamedTuple):
    """A slot of a schedule. With `obstacle` no run starts at that time as things are now."""

    at: datetime
    pipeline: Pipeline
    slot: DueSlot
    obstacle: str


def upcoming(
    pipelines: PipelineService, until: datetime, limit: int, *, is_wanted: Callable[[str], bool]
) -> list[UpcomingSlot]:
    """Return the next slots of all pipelines that the clock makes due, in order of time.

    Schedules that start on data, an upstream or an event have no slots.
    """
    now = pipelines.clock.now()
    calendars = pipelines.reader.calendars()
    feeds: list[Iterator[tuple[datetime, str, str, Pipeline, DueSlot]]] = []
    for stored in pipelines.definitions.all().pipelines:
        if not is_wanted(stored.pipeline.id):
            continue
        try:
            feeds += [_feed(each, now, until) for each in timetables(stored.pipeline, calendars) if each.schedule.cron]
        except HeadgateError as exc:
            # `validate` reports it; it must not hide the others.
            _log.warning("schedule skipped", pipeline=stored.pipeline.id, error=str(exc))
    found: list[UpcomingSlot] = []
    for at, _, _, pipeline, slot in heapq.merge(*feeds, key=lambda each: each[:3]):
        found.append(UpcomingSlot(at, pipeline, slot, _obstacle(pipelines, slot, pipeline)))
        if len(found) == limit:
            break
    return found


def _feed(
    timetable: Timetable, now: datetime, until: datetime
) -> Iterator[tuple[datetime, str, str, Pipeline, DueSlot]]:
    for slot in timetable.slots(now, until):
        yield slot.at, timetable.pipeline.id, slot.schedule_id, timetable.pipeline, slot


def _obstacle(pipelines: PipelineService, slot: DueSlot, pipeline: Pipeline) -> str:
    if slot.excluded:
        return f"excluded: {slot.excluded}"
    control = pipelines.stores.controls.get(pipeline.id)
    state = control.state_at(epoch_ms(pipelines.clock))
    if state is ControlState.ACTIVE or (
        control.until_ms is not None and control.until_ms <= slot.at.timestamp() * 1000
    ):
        return ""
    return f"{state.value.lower()}: {control.reason}"
