"""Event schedules: start a period when an event of a given type is published on the bus.

One subscription serves all pipelines; its event types follow the definitions. The bus keeps events for a subscription,
so none is lost while the server is down.
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
from headgate.pipelines.lifecycle.starter import LifecycleStarter
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.dependencies import event_source
from headgate.pipelines.schedule.periods import own_period, periods_of
from headgate.pipelines.schedule.timetables import schedule_id_of

SUBSCRIPTION: Final = "headgate.pipelines.events"
# A type without events, for a subscription that no definition uses yet.
NOTHING: Final = "headgate.pipelines.nothing"
# The field of an event's data that names the period.
DATE: Final = "date"


class EventSchedules:
    """Starts periods for events. Redelivery of an event starts nothing new."""

    def __init__(
        self, app: App, bus: Bus, starter: LifecycleStarter, dependents: Callable[[str], Sequence[str]]
    ) -> None:
        """`dependents` returns the ids of the pipelines that a type of event starts."""
        self._app = app
        self._bus = bus
        self._starter = starter
        self._dependents = dependents

    def subscribe(self) -> None:
        """Subscribe the app to the event types that are known so far."""
        types = self._types() or frozenset({NOTHING})
        self._app.on_event(*sorted(types), name=SUBSCRIPTION)(self.handle)

    def follow(self, types: Iterable[str]) -> None:
        """Subscribe to those of these types that start a pipeline, and unsubscribe from the others of them."""
        changed = frozenset(types)
        subscription = self._app.subscriptions.get(SUBSCRIPTION)
        if not changed or subscription is None:
            return
        before = self._types()
        wanted = (before - changed - {NOTHING}) | {each for each in changed if self._dependents(event_source(each))}
        after = wanted or frozenset({NOTHING})
        if after == before:
            return
        subscription = replace(subscription, types=tuple(sorted(after)))
        # Also for a worker that starts later and registers the subscriptions of its app.
        self._app.subscriptions[SUBSCRIPTION] = subscription
        self._bus.register([subscription], self._app.name)

    def handle(self, event: Event) -> None:
        """Start the periods that an event triggers."""
        for pipeline_id in self._dependents(event_source(event.type)):
            pipeline = self._starter.find_pipeline(pipeline_id)
            for schedule in () if pipeline is None else pipeline.schedules:
                if pipeline is not None and schedule.event == event.type:
                    self._start(pipeline, schedule, event)

    def _start(self, pipeline: Pipeline, schedule: Schedule, event: Event) -> None:
        slot = Slot(pipeline.id, schedule_id_of(schedule), date_of(pipeline, schedule, event))
        self._starter.start_run(
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
    """Return the period of an event: the `date` of its data, or else the one in which it happened."""
    periods = periods_of(pipeline, schedule)
    data = event.decoded().data
    named = data.get(DATE) if isinstance(data, dict) else None
    if isinstance(named, str):
        try:
            return own_period(periods, named)
        except UserError:
            # A date in another format: the event was not written for this purpose.
            pass
    return periods.at(event.time)
