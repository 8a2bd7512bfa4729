"""Event schedules: an event on the bus begins the period that it speaks of.

There is one subscription for all pipelines, to the types of events that their definitions name. It is kept in step
with the definitions as they change; an event that comes after that is heard, whoever was down meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from typing import Final

from msgspec.structs import replace

from headgate.durable.bus.bus import Bus
from headgate.durable.bus.events import Event
from headgate.durable.sdk.app import App
from headgate.errors import NotFoundError, UserError
from headgate.pipelines.definition.model import Pipeline, Schedule
from headgate.pipelines.enums import Cause
from headgate.pipelines.lifecycle.starter import Starter
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.dependencies import event_source
from headgate.pipelines.schedule.periods import own_period, periods_of
from headgate.pipelines.schedule.timetables import schedule_id_of

SUBSCRIPTION: Final = "headgate.pipelines.events"
# A type that nothing is emitted as, for as long as no definition names any.
NOTHING: Final = "headgate.pipelines.nothing"
# The field of an event's data that says which period it speaks of.
DATE: Final = "date"


class EventSchedules:
    """Begins periods for events. The same event, however often it is brought, asks once."""

    def __init__(self, bus: Bus, starter: Starter, dependents: Callable[[str], Sequence[str]]) -> None:
        """Take `dependents`, which gives the ids of the pipelines that are begun by a type of events."""
        self._bus = bus
        self._starter = starter
        self._dependents = dependents
        self._app: App | None = None

    def join(self, app: App) -> None:
        """Have an app take the events, of the types that are known so far."""
        types = self._types() or frozenset({NOTHING})
        app.on_event(*sorted(types), name=SUBSCRIPTION)(self.handle)
        self._app = app

    def follow(self, types: Iterable[str]) -> None:
        """Subscribe to those of these types that a pipeline is begun by, and to no other of them."""
        asked = frozenset(types)
        if not asked or self._app is None:
            return
        before = self._types()
        wanted = (before - asked - {NOTHING}) | {each for each in asked if self._dependents(event_source(each))}
        after = wanted or frozenset({NOTHING})
        if after == before:
            return
        subscription = replace(self._app.subscriptions[SUBSCRIPTION], types=tuple(sorted(after)))
        # Also for a worker that joins later, which registers what its app declares.
        self._app.subscriptions[SUBSCRIPTION] = subscription
        self._bus.register([subscription], self._app.name)

    def handle(self, event: Event) -> None:
        """Begin what an event begins."""
        for pipeline_id in self._dependents(event_source(event.type)):
            pipeline = self._starter.knows(pipeline_id)
            for schedule in () if pipeline is None else pipeline.schedules:
                if pipeline is not None and schedule.event == event.type:
                    self._begin(pipeline, schedule, event)

    def _begin(self, pipeline: Pipeline, schedule: Schedule, event: Event) -> None:
        slot = Slot(pipeline.id, schedule_id_of(schedule), date_of(pipeline, schedule, event))
        self._starter.pursue(
            slot,
            Cause.EVENT,
            token=f"{event.source}#{event.id}",
            by=event.source,
            arrived_at=event.time.astimezone(UTC).isoformat(),
        )

    def _types(self) -> frozenset[str]:
        try:
            known = self._bus.subscription(SUBSCRIPTION)
        except NotFoundError:
            return frozenset()
        return frozenset(known.subscription.types)


def date_of(pipeline: Pipeline, schedule: Schedule, event: Event) -> str:
    """Return the period that an event speaks of: what its data says under `date`, or else that in which it happened."""
    periods = periods_of(pipeline, schedule)
    data = event.decoded().data
    named = data.get(DATE) if isinstance(data, dict) else None
    if isinstance(named, str):
        try:
            return own_period(periods, named)
        except UserError:
            # A date of another kind: not every event is written for us.
            pass
    return periods.at(event.time)
