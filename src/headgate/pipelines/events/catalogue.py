"""Event catalogue: meaning, fields, severity and alert routing of each pipeline event.

Alert routing has no other source: an event carries the data of its type over the bus.
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
    """Return an event type by its name or an alias. Raises `NotFoundError`."""
    known = ALIASES.get(name)
    try:
        return CATALOGUE[known if known is not None else EventName(name)]
    except ValueError as exc:
        raise NotFoundError(f"event {name!r}: there is none of this name; docs/reference/events.md lists them") from exc


def resolved_keys(kind: EventType, pipeline_id: str, schedule_id: str, date: str) -> tuple[str, ...]:
    """Return the keys of the alerts that an event of this type resolves."""
    return tuple(CATALOGUE[name].key(pipeline_id, schedule_id, date) for name in kind.resolves)
