"""Bus events: events of EventBridge as events of Headgate's bus.

An entry whose detail is a CloudEvent, as Headgate publishes them, is that event; of any other entry, the detail is the
data. Either has an extension that names where it came from, so that it is not published again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from headgate.aws.events.targets import ORIGIN
from headgate.durable.bus import events
from headgate.durable.bus.events import SPECVERSION, Event
from headgate.durable.model.names import is_built_in
from headgate.errors import InvalidPayloadError

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._~:/-]")


def event_of(entry: Mapping[str, Any]) -> Event:
    """Return the event of an entry. Raises `InvalidPayloadError` if it is none, or of a reserved type."""
    try:
        source, detail_type, detail = entry["source"], entry["detail-type"], entry["detail"]
        entry_id, time = entry["id"], datetime.fromisoformat(entry["time"])
    except (KeyError, TypeError, ValueError) as exc:
        raise InvalidPayloadError(f"event: {exc!r}; this function takes events of EventBridge") from exc
    if isinstance(detail, Mapping) and detail.get("specversion") == SPECVERSION and "type" in detail:
        event = events.load(msgspec.json.encode(detail).decode())
        # Another deployment publishes events of its own under names of Headgate; outside they have others.
        event = replace(event, type=detail_type) if is_built_in(event.type) else event
    else:
        # An id of EventBridge is that of the entry: the same for every delivery of it.
        event = Event(type=detail_type, source=_UNSAFE.sub("-", source), id=entry_id, time=time, data=detail)
    if is_built_in(event.type):
        raise InvalidPayloadError(f"event type {event.type}: names that begin with headgate. are Headgate's own")
    return replace(event, extensions={**event.extensions, ORIGIN: source})
