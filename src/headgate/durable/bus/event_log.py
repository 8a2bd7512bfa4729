"""Event log: every accepted event, partitioned by day, for thirty days."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.bus import events
from headgate.durable.bus.events import Event
from headgate.durable.bus.subscriptions import check_pattern, takes_type
from headgate.errors import InvalidIdError, UserError
from headgate.ids import made_at_ms
from headgate.store.catalogue.tables import EVENTS
from headgate.store.model.conditions import absent, differs
from headgate.store.model.requests import Check, Put, Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

PREFIX: Final = "evt"
RETENTION_DAYS: Final = 30
LIMIT_MAX: Final = 1000
_DAY: Final = timedelta(days=1)
_DAY_MS: Final = 86_400_000
_PAGE: Final = 100
_ENTROPY_BITS: Final = 80
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# The last time that `datetime` can represent.
_LATEST_MS: Final = 253_402_300_799_000
# Greater than every id of an event.
_LAST: Final = f"{PREFIX}_~"


class StoredEvent(Struct, frozen=True):
    """An event as stored: as structured JSON, under an id that sorts by the time of acceptance."""

    event_id: str
    type: str
    source: str
    body: str

    @property
    def accepted_at_ms(self) -> int:
        return made_at_ms(self.event_id)

    @property
    def event(self) -> Event:
        """The event with its data decoded."""
        return events.load(self.body)


def event_id_of(source: str, id: str, now_ms: int) -> str:
    """Return the stored id of an event with a producer's id: the same for the same three values."""
    # The source has its length as a prefix, so that no other pair concatenates to the same text.
    named = f"{len(source)}:{source}{id}".encode()
    return _stamp(now_ms, int.from_bytes(hashlib.blake2b(named, digest_size=_ENTROPY_BITS // 8).digest()))


def first_id(at_ms: int) -> str:
    """Return the smallest id of an event that is accepted at this time or later."""
    return _stamp(at_ms, 0)


def event_put(event_id: str, event: Event, body: str, retention_days: int = RETENTION_DAYS) -> Put:
    """Return the write that stores an event, refused if it is stored already."""
    at_ms = made_at_ms(event_id)
    item: Item = {
        "day": _day(at_ms),
        "event_id": event_id,
        "type": event.type,
        "source": event.source,
        "id": event.id,
        "time": event.time.isoformat(),
        "body": body,
        "ttl": expiry(at_ms, retention_days),
    }
    if event.subject:
        item["subject"] = event.subject
    return Put(EVENTS, item, absent())


def not_ours(event: Event) -> list[Check]:
    """Return the check that refuses an event of this bus that comes back from another service."""
    try:
        key = Key(_day(_moment_ms(event.id)), event.id)
    except InvalidIdError:
        return []
    return [Check(EVENTS, key, differs("source", event.source))]


def expiry(at_ms: int, retention_days: int = RETENTION_DAYS) -> int:
    """Return when the rows of an event of this time expire, in seconds since 1970."""
    return (at_ms + retention_days * _DAY_MS) // 1000


class EventLog:
    """Reads accepted events."""

    def __init__(self, store: Store, clock: Clock, *, retention_days: int = RETENTION_DAYS) -> None:
        self.retention_days = retention_days
        self._store = store
        self._clock = clock

    def get(self, event_id: str, *, consistent: bool = False) -> StoredEvent | None:
        """Return the event, or None. Raises `InvalidIdError` for an invalid event id."""
        item = self._store.get(EVENTS, Key(_day(_moment_ms(event_id)), event_id), consistent=consistent)
        return None if item is None else _stored(item)

    def tail(self, after: str | None, *, type: str | None = None, limit: int = 100) -> list[StoredEvent]:
        """Return up to `limit` events in the order they were accepted: those after an id, or the latest.

        `type` is one, or a pattern such as `order.*`. With several processes whose clocks differ, an event may appear
        before one that was read already; a consumer that must not miss events needs a subscription.
        """
        if not 1 <= limit <= LIMIT_MAX:
            raise UserError(f"limit {limit} is outside 1 to {LIMIT_MAX}")
        if type is not None:
            check_pattern(type)
        if after is not None:
            _moment_ms(after)
        events: list[StoredEvent] = []
        for stored in self._tail(after, type, limit):
            events.append(stored)
            if len(events) == limit:
                break
        return events if after is not None else events[::-1]

    def between(self, low: str, high: str, *, descending: bool = False) -> Iterator[StoredEvent]:
        """Yield the events with ids from `low` up to but not including `high`, a page at a time."""
        days = self._days(low, high)
        for day in reversed(days) if descending else days:
            sort = Sort(Range.BETWEEN, low, high)
            query = Query(table=EVENTS, partition=day, sort=sort, limit=_PAGE, descending=descending, consistent=True)
            yield from (stored for stored in self._pages(query) if stored.event_id < high)

    def _tail(self, after: str | None, type: str | None, limit: int) -> Iterator[StoredEvent]:
        if type is not None and not type.endswith("*"):
            sort = None if after is None else Sort(Range.GREATER_THAN, after)
            query = Query(table=EVENTS, index="type-index", partition=type, sort=sort, limit=min(limit, _PAGE))
            yield from self._pages(replace(query, descending=after is None))
            return
        low = after if after is not None else first_id(0)
        for stored in self.between(low, _LAST, descending=after is None):
            if stored.event_id != after and (type is None or takes_type([type], stored.type)):
                yield stored

    def _days(self, low: str, high: str) -> list[str]:
        """Return the stored days of the ids in a range."""
        now_ms = int(self._clock.seconds() * 1000)
        # The clock of another process may already be past midnight.
        newest_ms = now_ms + _DAY_MS if high == _LAST else min(made_at_ms(high), now_ms + _DAY_MS)
        oldest_ms = max(made_at_ms(low), now_ms - (self.retention_days + 1) * _DAY_MS)
        day, last = _date(oldest_ms), _date(newest_ms)
        days = []
        while day <= last:
            days.append(f"{day:%Y%m%d}")
            day += _DAY
        return days

    def _pages(self, query: Query) -> Iterator[StoredEvent]:
        while True:
            page = self._store.query(query)
            yield from map(_stored, page.items)
            if page.cursor is None:
                return
            query = replace(query, cursor=page.cursor)


def _stored(item: dict[str, Any]) -> StoredEvent:
    return StoredEvent(item["event_id"], item["type"], item["source"], item["body"])


def _moment_ms(event_id: str) -> int:
    try:
        at_ms = made_at_ms(event_id)
    except UserError as exc:
        raise InvalidIdError(f"event id {event_id[:80]!r}: it is not as in {first_id(0)}") from exc
    if not event_id.startswith(f"{PREFIX}_") or at_ms > _LATEST_MS:
        raise InvalidIdError(f"event id {event_id[:80]!r}: it is not as in {first_id(0)}")
    return at_ms


def _stamp(at_ms: int, entropy: int) -> str:
    number = (at_ms << _ENTROPY_BITS) | entropy
    return f"{PREFIX}_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def _date(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _day(at_ms: int) -> str:
    return f"{_date(at_ms):%Y%m%d}"
