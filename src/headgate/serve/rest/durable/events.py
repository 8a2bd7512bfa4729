"""Events over HTTP: emitted as CloudEvents or plainly, looked at and followed."""

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
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach
from headgate.durable.bus import events
from headgate.durable.bus.event_log import StoredEvent, first_id
from headgate.durable.bus.events import BATCH_TYPE, JSON_TYPE, STRUCTURED_TYPE, Event
from headgate.durable.model.records import instant
from headgate.durable.service import Service
from headgate.errors import HeadgateError, InvalidPayloadError
from headgate.serve.http.operations import AccessPolicy, Answer, Call, NoQuery, Operation, operation_routes
from headgate.serve.http.raw_json import checked, idempotency_key, missing
from headgate.serve.http.sse import ALIVE, ALIVE_SECONDS, MEDIA_TYPE, OPENING, message, stream, stream_seconds
from headgate.serve.rest.durable.models import Limit
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

# Among the events are those of every dataset.
_PART: Final = AccessPolicy(Permission.EVENT_READ, Permission.EVENT_WRITE, Reach.ALL)

# A page of events ends early when it is this large.
PAGE_BYTES_MAX: Final = 8_000_000
TAIL_PAGE: Final = 100
_LOOK_SECONDS: Final = 1.0
# Between two looks at the log, so that a busy bus is not asked after every event.
_PAUSE_SECONDS: Final = 0.1


class EmitEvent(Struct, forbid_unknown_fields=True):
    """An event to emit. What is left out is filled in; with an id, sending it again changes nothing."""

    type: str
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


# An event in binary mode, as the document tells of it.
_BINARY: Final = (
    "One event, plainly or as a CloudEvent, or a batch of CloudEvents; the content type says which. In binary mode the "
    "body is the data of one CloudEvent, of any content type, and its attributes are headers: ce-specversion, ce-id, "
    "ce-source and ce-type are needed, and every other ce- header is an attribute or an extension."
)
_BINARY_HEADERS: Final = {
    "ce-specversion": "1.0: the event is in binary mode. The other ce- headers are read only then.",
    "ce-id": "Its id. With the same source, sending it again changes nothing.",
    "ce-source": "Where it comes from, as a URI reference.",
    "ce-type": "Its type, such as order.created.",
    "ce-time": "When it happened, as RFC 3339 has it.",
    "ce-subject": "What it is about.",
    "ce-dataschema": "The schema of its data, as a URI.",
}


class Emitted(Struct, frozen=True):
    """The ids under which the events are kept, in their order."""

    ids: list[str]


class EventView(Struct, frozen=True):
    """An event as it is kept: its id, when it was accepted, and the CloudEvent."""

    id: str
    type: str
    source: str
    accepted_at: str
    event: Raw


class EventPage(Struct, frozen=True):
    """Some events. `next_after` asks for those that were accepted later."""

    events: list[EventView]
    next_after: str | None = None


class EventQuery(Struct, forbid_unknown_fields=True):
    """Which events: up to `limit` after an id, or the latest. The type may be a pattern such as `order.*`."""

    after: str | None = None
    type: str | None = None
    limit: Limit = 100


class TailQuery(Struct, forbid_unknown_fields=True):
    """Which events to follow: those after an id, or those from now on."""

    after: str | None = None
    type: str | None = None
    seconds: str = msgspec.field(default="1h", name="for")


def event_routes(service: Service, pool: WorkPool, *, watches: WatchHub | None = None) -> list[ControllerRouterHandler]:
    """Return the routes of events."""
    watches = watches if watches is not None else WatchHub(service.store)
    return operation_routes([*_Events(service).operations(), *_Tail(service, pool, watches).operations()], pool, _PART)


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
        given = _given(call)
        if len(given) == 1:
            return Answer(Emitted([self._bus.emit(given[0])]), 202)
        return Answer(Emitted(self._bus.emit_many(given)), 202)

    def ls(self, call: Call[None, EventQuery]) -> Answer:
        asked = call.query
        found = self._bus.tail(asked.after, type=asked.type, limit=asked.limit)
        views = [_event_view(stored) for stored in found]
        # What comes first stays: what follows can be asked for.
        kept = _fitting(views) if asked.after is not None else _fitting(views[::-1])[::-1]
        next_after = kept[-1].id if kept else asked.after
        return Answer(EventPage(kept, next_after))


class _Tail:
    """Follows the log of events."""

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
        asked = call.query
        ends_at = _now() + stream_seconds(asked.seconds)
        after = asked.after or call.headers.get("last-event-id") or first_id(int(self._clock.seconds() * 1000))
        # Before the answer begins: afterwards it is too late to say what is wrong with the question.
        found = await self._after(after, asked.type)
        return stream(self._follow(found, after, asked.type, ends_at))

    async def _follow(
        self, found: list[StoredEvent], after: str, type: str | None, ends_at: float
    ) -> AsyncIterator[bytes]:
        yield OPENING
        spoke_at = _now()
        while True:
            for stored in found:
                yield message("event", _event_view(stored), id=stored.event_id)
                after, spoke_at = stored.event_id, _now()
            if _now() >= ends_at or self._watches.is_stopping:
                return
            if _now() - spoke_at >= ALIVE_SECONDS:
                yield ALIVE
                spoke_at = _now()
            try:
                if len(found) < TAIL_PAGE:
                    await asyncio.sleep(_PAUSE_SECONDS)
                    await self._watches.committed(min(_LOOK_SECONDS, ends_at - _now()))
                found = await self._after(after, type)
            except HeadgateError:
                return  # Too late for another answer. Who comes back is told.

    async def _after(self, after: str, type: str | None) -> list[StoredEvent]:
        return await self._pool.run(partial(self._bus.tail, after, type=type, limit=TAIL_PAGE))


def _given(call: Call[None, NoQuery]) -> list[Event]:
    """Return the events of a request in any form. Raises `InvalidPayloadError`, `PayloadTooLargeError`."""
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


def _fitting(views: list[EventView]) -> list[EventView]:
    """Return as many of the first as are not too much for one answer, and at least one."""
    bytes_left = PAGE_BYTES_MAX
    for place, each in enumerate(views):
        bytes_left -= len(each.event)
        if bytes_left < 0 and place:
            return views[:place]
    return views


def _now() -> float:
    return asyncio.get_running_loop().time()
