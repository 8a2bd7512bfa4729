"""Event outbox: publishes pipeline events in the transaction of their change, stores them for 90 days, and lists them.

The stored event and the bus message are written together, so neither exists without the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.events import Event
from headgate.durable.model.records import instant
from headgate.errors import ConflictError, InvalidPayloadError
from headgate.ids import IdMaker
from headgate.notify.enums import INFRASTRUCTURE, Severity
from headgate.notify.notices import Notice, event_type
from headgate.pipelines.events.catalogue import CATALOGUE, resolved_keys
from headgate.pipelines.events.event_types import EventType
from headgate.pipelines.events.names import EventName
from headgate.pipelines.row_codec import row, struct_of
from headgate.store.catalogue.tables import CONTROL, PIPELINE_EVENT, PIPELINES
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

SOURCE: Final = "/headgate/pipelines"
RETENTION_DAYS: Final = 90
# Limits for one text of an event's detail, and for the whole detail.
TEXT_MAX: Final = 4_000
DETAIL_BYTES_MAX: Final = 32_000
# How many subscriptions are served in the transaction of the change; the rest follows.
DELIVERIES_MAX: Final = 4
LIMIT_MAX: Final = 1_000
_ONCE_PREFIX: Final = "DEDUP#told#"
_FIRST: Final = "EVENT#"
_LAST: Final = "EVENT#~"


class PipelineEvent(Struct, frozen=True, kw_only=True):
    """An event of a pipeline, or of the installation. The catalogue says which fields its detail needs.

    `severity` overrides that of the catalogue. `dedup_key` is the alert key where the period does not identify it, and
    `resolves` names further alerts that it resolves. `once` is an idempotency key.
    """

    name: EventName
    pipeline_id: str = INFRASTRUCTURE
    schedule_id: str = ""
    date: str = ""
    run_id: str = ""
    message: str = ""
    detail: Mapping[str, Any] = {}
    severity: Severity | None = None
    dedup_key: str = ""
    resolves: tuple[str, ...] = ()
    once: str = ""


class StoredPipelineEvent(Struct, frozen=True, kw_only=True):
    """An event as stored."""

    event_id: str
    name: str
    pipeline_id: str
    at_ms: int
    timestamp: str
    severity: Severity
    text: str
    schedule_id: str = ""
    date: str = ""
    run_id: str = ""
    message: str = ""
    detail: dict[str, Any] = {}


class EventPage(Struct, frozen=True):
    """A page of events. It may be short or empty although there are more: the cursor decides."""

    events: list[StoredPipelineEvent]
    cursor: str | None = None


class PipelineEvents:
    """Publishes and lists pipeline events. Thread-safe."""

    def __init__(
        self, store: Store, clock: Clock, ids: IdMaker, bus: Bus, *, retention_days: int = RETENTION_DAYS
    ) -> None:
        self._retention_seconds = retention_days * 86_400
        self._store = store
        self._clock = clock
        self._ids = ids
        self._bus = bus

    def event_writes(self, event: PipelineEvent, now_ms: int) -> list[Write]:
        """Return the writes that publish an event, for the transaction of its change.

        There are at most eight. With `once`, the first is refused if the event was published before, and the
        transaction with it. Raises `InvalidPayloadError` if the detail lacks a field of the catalogue.
        """
        kind = CATALOGUE[event.name]
        event_id = self._ids.ulid()
        stored = _stored(kind, event, event_id, now_ms)
        key = PIPELINE_EVENT.key(pipeline_id=event.pipeline_id, timestamp=_digits(now_ms), event_id=event_id)
        expires = now_ms // 1000 + self._retention_seconds
        item = row(key, stored, ttl=expires)
        once: list[Write] = [Put(CONTROL, _once_row(event, event_id, expires), absent())] if event.once else []
        on_bus = Event(
            id=event_id,
            type=event_type(event.name),
            source=SOURCE,
            subject=event.pipeline_id,
            time=datetime.fromtimestamp(now_ms / 1000, UTC),
            # Plain values: subscriptions filter by them.
            data=msgspec.to_builtins(_notice(kind, event, stored)),
        )
        return [
            *once,
            # Routine events follow from changes that are in the stream themselves. Others are counted from there.
            Put(PIPELINES, item, absent(), quiet=kind.severity is Severity.INFO),
            *self._bus.event_writes(on_bus, now_ms, deliveries_max=DELIVERIES_MAX),
        ]

    def publish(self, event: PipelineEvent, *, also: Sequence[Write] = ()) -> bool:
        """Publish an event with the writes of `also`. Returns False if it was published before, which needs `once`.

        Raises `ConflictError` if a write of `also` is refused.
        """
        writes = [*self.event_writes(event, int(self._clock.seconds() * 1000)), *also]
        try:
            self._store.transact(writes)
        except ConflictError as exc:
            if event.once and exc.failures.get(0) is not None:
                return False
            raise
        self._bus.on_committed()
        return True

    def ls(
        self,
        pipeline_id: str,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        names: Sequence[str] = (),
        limit: int = 100,
        cursor: str | None = None,
        descending: bool = True,
    ) -> EventPage:
        """Return events of a pipeline by time, latest first; both ends of the time are included.

        With `names`, the page is filtered. Raises `InvalidPayloadError` for an invalid limit.
        """
        if not 1 <= limit <= LIMIT_MAX:
            raise InvalidPayloadError(f"limit {limit} is outside 1 to {LIMIT_MAX}")
        low = _FIRST if since_ms is None else f"{_FIRST}{_digits(since_ms)}"
        # The suffix after the digits of a time sorts before a tilde.
        high = _LAST if until_ms is None else f"{_FIRST}{_digits(until_ms)}#~"
        page = self._store.query(
            Query(
                table=PIPELINES,
                partition=f"PIPELINE#{pipeline_id}",
                sort=Sort(Range.BETWEEN, low, high),
                limit=limit,
                cursor=cursor,
                descending=descending,
            )
        )
        events = [struct_of(item, StoredPipelineEvent) for item in page.items]
        return EventPage([each for each in events if not names or each.name in names], page.cursor)


def bounded(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return a detail within the limits: long texts are cut, and the largest fields are dropped by name.

    A change must not fail because of the size of its event.
    """
    cut = {
        name: f"{value[: TEXT_MAX - 1]}…" if isinstance(value, str) and len(value) > TEXT_MAX else value
        for name, value in detail.items()
    }
    # As JSON: other types become text, and NaN becomes null.
    encoded = {name: msgspec.json.encode(value, enc_hook=str) for name, value in cut.items()}
    sizes = {name: len(body) for name, body in encoded.items()}
    gone: list[str] = []
    while sum(sizes.values()) > DETAIL_BYTES_MAX:
        largest = max(sizes, key=lambda name: sizes[name])
        del sizes[largest]
        gone.append(largest)
    decoded: dict[str, Any] = {name: msgspec.json.decode(encoded[name]) for name in sizes}
    return {**decoded, "left_out": sorted(gone)} if gone else decoded


def _stored(kind: EventType, event: PipelineEvent, event_id: str, now_ms: int) -> StoredPipelineEvent:
    detail = bounded(event.detail)
    return StoredPipelineEvent(
        event_id=event_id,
        name=event.name.value,
        pipeline_id=event.pipeline_id,
        at_ms=now_ms,
        timestamp=instant(now_ms),
        severity=event.severity or kind.severity,
        # Formatted before the detail is cut: the text may use a dropped field.
        text=kind.line(event.pipeline_id, event.schedule_id, event.date, event.detail)[:TEXT_MAX],
        schedule_id=event.schedule_id,
        date=event.date,
        run_id=event.run_id,
        message=event.message[:TEXT_MAX],
        detail=detail,
    )


def _notice(kind: EventType, event: PipelineEvent, stored: StoredPipelineEvent) -> Notice:
    about = (event.pipeline_id, event.schedule_id, event.date)
    return Notice(
        event=stored.name,
        event_id=stored.event_id,
        severity=stored.severity,
        route=kind.route,
        alerts=kind.alerts,
        is_news=kind.alerts or bool(kind.resolves) or bool(event.resolves),
        text=stored.text,
        dedup_key=event.dedup_key or kind.key(*about),
        at_ms=stored.at_ms,
        pipeline_id=stored.pipeline_id,
        schedule_id=stored.schedule_id,
        date=stored.date,
        run_id=stored.run_id,
        message=stored.message,
        hint=kind.hint,
        resolves=(*resolved_keys(kind, *about), *event.resolves),
        detail=stored.detail,
    )


def _once_row(event: PipelineEvent, event_id: str, expires: int) -> dict[str, Any]:
    key = CONTROL.key_attributes(Key(f"{_ONCE_PREFIX}{event.once}", "DEDUP"))
    return {**key, "event_id": event_id, "ttl": expires}


def _digits(at_ms: int) -> str:
    return f"{at_ms:013d}"
