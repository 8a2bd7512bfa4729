"""Event API: emit events as CloudEvents or plain JSON, list them and follow the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from litestar import Response
from litestar.types import ControllerRouterHandler
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.auth.principals import require
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach
from headgate.durable.bus import events
from headgate.durable.bus.event_log import StoredEvent, first_id
from headgate.durable.bus.events import BATCH_TYPE, JSON_TYPE, STRUCTURED_TYPE, Event
from headgate.durable.model.names import is_built_in
from headgate.durable.model.records import instant
from headgate.durable.service import Service
from headgate.errors import HeadgateError, InvalidPayloadError
from headgate.serve.http.operations import AccessPolicy, Answer, Auditing, Call, NoQuery, Operation, operation_routes
from headgate.serve.http.raw_json import checked, idempotency_key, missing
from headgate.serve.http.sse import ALIVE, ALIVE_SECONDS, MEDIA_TYPE, OPENING, message, stream, stream_seconds
from headgate.serve.rest.parameters import DurationText, EventId, EventPattern, EventType, Limit
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

# Events of every dataset are included.
_POLICY: Final = AccessPolicy(Permission.EVENT_READ, Permission.EVENT_WRITE, Reach.ALL)

# Maximum size of a page of events.
PAGE_BYTES_MAX: Final = 8_000_000
TAIL_PAGE: Final = 100
_POLL_SECONDS: Final = 1.0
# Minimum time between polls, so that a busy bus is not read after every event.
_PAUSE_SECONDS: Final = 0.1


class EmitEvent(Struct, forbid_unknown_fields=True):
    """An event to emit. Omitted fields get defaults; with an id the request is idempotent."""

    type: EventType
    data: Raw = msgspec.field(default_factory=missing)
    source: str = ""
    id: str = ""
    subject: str = ""
    time: Annotated[datetime, Meta(tz=True)] | None = None
    dataschema: str = ""
    extensions: dict[str, str] = {}


class CloudEvent(Struct):
    """A CloudEvent 1.0 as structured JSON. Other members are its extensions."""

    specversion: str
    id: str
    source: str
    type: str
    time: Annotated[datetime, Meta(tz=True)] | None = None
    subject: str = ""
    datacontenttype: str = ""
    dataschema: str = ""
    data: Raw = msgspec.field(default_factory=missing)
    data_base64: str = ""


# Documentation of binary mode.
_BINARY: Final = (
    "One event as plain JSON or CloudEvent, or a batch of CloudEvents, by content type. In binary mode the "
    "body is the data of one CloudEvent, of any content type, and its attributes are headers: ce-specversion, ce-id, "
    "ce-source and ce-type are required, and every other ce- header is an attribute or an extension."
)
_BINARY_HEADERS: Final = {
    "ce-specversion": "1.0: the event is in binary mode; the other ce- headers apply only then.",
    "ce-id": "Event id; idempotent together with the source.",
    "ce-source": "Source, as a URI reference.",
    "ce-type": "Event type, such as order.created.",
    "ce-time": "Time of occurrence (RFC 3339).",
    "ce-subject": "Subject of the event.",
    "ce-dataschema": "Schema of the data, as a URI.",
}


class Emitted(Struct, frozen=True):
    """Ids of the stored events, in request order."""

    ids: list[str]


class EventView(Struct, frozen=True):
    """A stored event with its acceptance time."""

    id: str
    type: str
    source: str
    accepted_at: str
    event: Raw


class EventPage(Struct, frozen=True):
    """A page of events. `next_after` requests the following ones."""

    events: list[EventView]
    next_after: str | None = None


class EventQuery(Struct, forbid_unknown_fields=True):
    """Up to `limit` events after an id, or the latest. The type may be a pattern such as `order.*`."""

    after: EventId | None = None
    type: EventPattern | None = None
    limit: Limit = 100


class TailQuery(Struct, forbid_unknown_fields=True):
    """Events to follow: after an id, or from now on."""

    after: EventId | None = None
    type: EventPattern | None = None
    seconds: DurationText = msgspec.field(default="1h", name="for")


def event_routes(
    service: Service, pool: WorkPool, *, watches: WatchHub | None = None, auditing: Auditing | None = None
) -> list[ControllerRouterHandler]:
    """Return the routes of events."""
    watches = watches if watches is not None else WatchHub(service.store)
    return operation_routes(
        [*_Events(service).operations(), *_Tail(service, pool, watches).operations()], pool, _POLICY, auditing=auditing
    )


class _Events:
    def __init__(self, service: Service) -> None:
        self._bus = service.bus

    def operations(self) -> list[Operation]:
        forms = {JSON_TYPE: EmitEvent, STRUCTURED_TYPE: CloudEvent, BATCH_TYPE: list[CloudEvent]}
        return [
            Operation(
                "POST",
                "/events",
                "Emit events",
                self.emit,
                {202: Emitted},
                body_forms={**forms, "*/*": Raw},
                description=_BINARY,
                headers=_BINARY_HEADERS,
            ),
            Operation("GET", "/events", "List events", self.ls, {200: EventPage}, query=EventQuery),
        ]

    def emit(self, call: Call[None, NoQuery]) -> Answer:
        parsed = _parse_events(call)
        for event in parsed:
            if is_built_in(event.type):
                # They change dataset health and lineage. A server that forwards its events here has such a key.
                require(call.principal, Permission.PIPELINE_DEFINE)
        if len(parsed) == 1:
            return Answer(Emitted([self._bus.emit(parsed[0])]), 202)
        return Answer(Emitted(self._bus.emit_many(parsed)), 202)

    def ls(self, call: Call[None, EventQuery]) -> Answer:
        query = call.query
        found = self._bus.tail(query.after, type=query.type, limit=query.limit)
        views = [_event_view(stored) for stored in found]
        # Truncate at the end that the client pages toward.
        page = _truncated(views) if query.after is not None else _truncated(views[::-1])[::-1]
        next_after = page[-1].id if page else query.after
        return Answer(EventPage(page, next_after))


class _Tail:
    """Streams the event log."""

    def __init__(self, service: Service, pool: WorkPool, watches: WatchHub) -> None:
        self._bus = service.bus
        self._clock = service.clock
        self._pool = pool
        self._watches = watches

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/events/tail",
                "Follow events as server-sent events",
                self.tail,
                {200: EventView},
                query=TailQuery,
                answer_media=MEDIA_TYPE,
            )
        ]

    async def tail(self, call: Call[None, TailQuery]) -> Response[Any]:
        query = call.query
        ends_at = _now() + stream_seconds(query.seconds)
        after = query.after or call.headers.get("last-event-id") or first_id(int(self._clock.seconds() * 1000))
        # Read once before streaming starts, so that errors still have a status code.
        found = await self._after(after, query.type)
        return stream(self._follow(found, after, query.type, ends_at))

    async def _follow(
        self, found: list[StoredEvent], after: str, type: str | None, ends_at: float
    ) -> AsyncIterator[bytes]:
        yield OPENING
        sent_at = _now()
        while True:
            for stored in found:
                yield message("event", _event_view(stored), id=stored.event_id)
                after, sent_at = stored.event_id, _now()
            if _now() >= ends_at or self._watches.is_stopping:
                return
            if _now() - sent_at >= ALIVE_SECONDS:
                yield ALIVE
                sent_at = _now()
            try:
                if len(found) < TAIL_PAGE:
                    await asyncio.sleep(_PAUSE_SECONDS)
                    await self._watches.committed(min(_POLL_SECONDS, ends_at - _now()))
                found = await self._after(after, type)
            except HeadgateError:
                return  # The stream has started; the client sees the error when it reconnects.

    async def _after(self, after: str, type: str | None) -> list[StoredEvent]:
        return await self._pool.run(partial(self._bus.tail, after, type=type, limit=TAIL_PAGE))


def _parse_events(call: Call[None, NoQuery]) -> list[Event]:
    """Parse the events of a request in any form. Raises `InvalidPayloadError`, `PayloadTooLargeError`."""
    media_type = call.headers.get("content-type", "").partition(";")[0].strip().lower()
    if "ce-specversion" in call.headers or media_type.startswith("application/cloudevents"):
        return events.from_http(call.headers, call.content)
    try:
        members = typed_decode.from_json(call.content, dict[str, Raw])
        if "specversion" in members:
            return [events.parse(call.content)]
        body = typed_decode.from_json(call.content, EmitEvent)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidPayloadError(
            f"body: {exc}; send an object with a type, or a CloudEvent as {STRUCTURED_TYPE} or with ce- headers"
        ) from exc
    data = checked(body.data, f"data of event {body.type}")
    event = Event(
        type=body.type,
        source=body.source,
        id=body.id or idempotency_key(call.headers) or "",
        subject=body.subject,
        dataschema=body.dataschema,
        extensions=body.extensions,
        data=None if bytes(data) == b"null" else data,
    )
    return [event if body.time is None else replace(event, time=body.time)]


def _event_view(stored: StoredEvent) -> EventView:
    accepted_at = instant(stored.accepted_at_ms)
    return EventView(stored.event_id, stored.type, stored.source, accepted_at, Raw(stored.body.encode()))


def _truncated(views: list[EventView]) -> list[EventView]:
    """Return the first views that fit into one response, at least one."""
    bytes_left = PAGE_BYTES_MAX
    for place, each in enumerate(views):
        bytes_left -= len(each.event)
        if bytes_left < 0 and place:
            return views[:place]
    return views


def _now() -> float:
    return asyncio.get_running_loop().time()
