"""The catalogue: what each event of a pipeline means, carries and weighs, who hears of it, and what to do about it.

An event type cannot be declared without saying who hears of it, and alert routing has no other source: an event takes
what is said here with it over the bus.
"""

from __future__ import annotations

from typing import Final

from headgate.errors import NotFoundError
from headgate.pipelines.events.event_types import EventType
from headgate.pipelines.events.names import ALIASES, EventName
from headgate.pipelines.events.run_event_types import RUN_EVENT_TYPES
from headgate.pipelines.events.watch_event_types import WATCH_EVENT_TYPES

CATALOGUE: Final[dict[EventName, EventType]] = {each.name: each for each in (*RUN_EVENT_TYPES, *WATCH_EVENT_TYPES)}


def find(name: str) -> EventType:
    """Return the type of an event by its name or another that was in use for it. Raises `NotFoundError`."""
    known = ALIASES.get(name)
    try:
        return CATALOGUE[known if known is not None else EventName(name)]
    except ValueError as exc:
        raise NotFoundError(f"event {name!r}: there is none of this name; 'headgate event types' lists them") from exc


def alerting() -> tuple[EventType, ...]:
    """Return the types that someone is told of by default."""
    return tuple(each for each in CATALOGUE.values() if each.alerts)


def resolved_keys(kind: EventType, pipeline_id: str, schedule_id: str, date: str) -> tuple[str, ...]:
    """Return the keys of the troubles that are over with an event of this type."""
    return tuple(CATALOGUE[name].key(pipeline_id, schedule_id, date) for name in kind.resolves)
