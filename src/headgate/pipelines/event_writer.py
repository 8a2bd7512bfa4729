"""Event writer: turns pipeline events into writes, for the transaction of the change that they report."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.clock import Clock, epoch_ms
from headgate.errors import ConflictError
from headgate.pipelines.definition.model import Json
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import PipelineEvent, PipelineEvents
from headgate.pipelines.runs.rows import Slot
from headgate.store.model.requests import Write
from headgate.store.port import Store


class EventWriter:
    """Writes pipeline events, as part of another transaction or in their own."""

    def __init__(self, store: Store, clock: Clock, events: PipelineEvents) -> None:
        self._store = store
        self._clock = clock
        self._events = events

    def writes(self, name: EventName, slot: Slot, detail: Mapping[str, Json], *, once: str = "") -> list[Write]:
        """Return the writes that publish an event. `once` is an idempotency key: a second event with it is refused."""
        event = PipelineEvent(
            name=name,
            pipeline_id=slot.pipeline_id,
            schedule_id=slot.schedule_id,
            date=slot.date,
            run_id=str(detail.get("run_id", "")),
            detail=dict(detail),
            once=once,
        )
        return self._events.event_writes(event, epoch_ms(self._clock))

    def publish(self, name: EventName, slot: Slot, **detail: Json) -> None:
        """Publish an event in a transaction of its own."""
        self._store.transact(self.writes(name, slot, detail))

    def publish_once(self, once: str, name: EventName, slot: Slot, **detail: Json) -> bool:
        """Publish an event under an idempotency key. False: an event with this key was published before."""
        try:
            self._store.transact(self.writes(name, slot, detail, once=once))
        except ConflictError:
            return False
        return True
