"""Dead letters: deliveries without another attempt, stored until they are redelivered or purged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.durable.bus import events
from headgate.durable.bus.events import Event
from headgate.durable.bus.subscriptions import Registry, check_pattern, delivery, takes_type
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.records import Activity
from headgate.errors import ConflictError, NotFoundError
from headgate.store.catalogue.tables import ACTIVITIES, SUBSCRIPTIONS
from headgate.store.model.conditions import absent, exists
from headgate.store.model.requests import Delete, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

KIND: Final = "DEAD"
PREFIX: Final = "DEAD#"
RETENTION_DAYS: Final = 90
# A page reads at most this many letters.
SCANNED_MAX: Final = 2_000
# A page ends early at this size; letters are read in chunks.
PAGE_BYTES_MAX: Final = 8_000_000
CHUNK: Final = 50


class DeadLetter(Struct, frozen=True):
    """A failed delivery: the event as structured JSON, and the error of the last attempt."""

    subscription: str
    event_id: str
    body: str
    error: ErrorInfo
    attempts: int
    scheduled_at_ms: int
    dead_at_ms: int

    @property
    def event(self) -> Event:
        """The event with its data decoded."""
        return events.load(self.body)


class DeadLetterPage(Struct, frozen=True):
    """A page of dead letters. `cursor` is None on the last page."""

    letters: list[DeadLetter]
    cursor: str | None = None


class LetterFilter(Struct, frozen=True, kw_only=True):
    """A filter of dead letters. `type` is one, or a pattern such as `order.*`.

    Ages are in seconds since the last failure. Raises `DefinitionError` for an invalid pattern.
    """

    subscription: str | None = None
    type: str | None = None
    older_than_seconds: float | None = None
    newer_than_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.type is not None:
            check_pattern(self.type, what="type of dead letters")

    def admits(self, letter: DeadLetter, now_ms: int) -> bool:
        """Whether a dead letter matches, apart from its subscription."""
        age_seconds = (now_ms - letter.dead_at_ms) / 1000
        if self.older_than_seconds is not None and age_seconds < self.older_than_seconds:
            return False
        if self.newer_than_seconds is not None and age_seconds > self.newer_than_seconds:
            return False
        return self.type is None or takes_type([self.type], typed_decode.from_json(letter.body, _Typed).type)


class _Typed(Struct):
    type: str


class _Identified(Struct):
    id: str


def dead_letter(
    activity: Activity, error: ErrorInfo, now_ms: int, *, retention_days: int = RETENTION_DAYS
) -> list[Write]:
    """Return the writes that store a dead letter, for the transaction that ends its delivery."""
    assert activity.subscription is not None, f"{activity.activity_id} is not a delivery"
    event_id = activity.activity_id.split("#")[1]
    item = {
        "subscription": activity.subscription,
        "SK": PREFIX + event_id,
        "kind": KIND,
        "event_id": event_id,
        "body": activity.input,
        "error": msgspec.json.encode(error).decode(),
        "attempts": activity.attempt,
        "scheduled_at_ms": activity.scheduled_at_ms,
        "dead_at_ms": now_ms,
        "ttl": now_ms // 1000 + retention_days * 86_400,
    }
    return [Put(SUBSCRIPTIONS, item)]


class DeadLetters:
    """The dead letters of all subscriptions."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry

    def page(self, filter: LetterFilter, now_ms: int, *, limit: int = 100, cursor: str | None = None) -> DeadLetterPage:
        """Return matching dead letters, in the order in which their events were accepted.

        A page may be short or empty although its cursor leads to more.
        """
        matching: list[DeadLetter] = []
        scanned = 0
        bytes_left = PAGE_BYTES_MAX
        while len(matching) < limit and scanned < SCANNED_MAX and bytes_left > 0:
            # Never more than the page still needs, so that the cursor points right after its last row.
            page = self._store.query(_query(filter.subscription, min(CHUNK, limit - len(matching)), cursor))
            letters = [_letter(item) for item in page.items]
            admitted = [letter for letter in letters if filter.admits(letter, now_ms)]
            matching += admitted
            scanned += len(letters)
            bytes_left -= sum(len(letter.body) for letter in admitted)
            cursor = page.cursor
            if cursor is None:
                break
        return DeadLetterPage(matching, cursor)

    def get(self, subscription: str, event_id: str) -> DeadLetter:
        """Return the dead letter of an event, by its stored id or by the id that its producer gave it.

        Raises `NotFoundError`, and `ConflictError` if several producers gave the id.
        """
        item = self._store.get(SUBSCRIPTIONS, Key(subscription, PREFIX + event_id), consistent=True)
        if item is not None:
            return _letter(item)
        found = self._of_producers(subscription, event_id)
        if not found:
            raise _unknown(subscription, event_id)
        if len(found) > 1:
            stored = ", ".join(letter.event_id for letter in found)
            raise ConflictError(
                f"subscription {subscription}: {len(found)} events have the id {event_id}; use one of {stored}"
            )
        return found[0]

    def _of_producers(self, subscription: str, producer_id: str) -> list[DeadLetter]:
        """Return the dead letters whose producer gave this id. Reads all of the subscription."""
        found: list[DeadLetter] = []
        cursor: str | None = None
        while True:
            page = self._store.query(_query(subscription, CHUNK, cursor))
            letters = [_letter(item) for item in page.items]
            found += [each for each in letters if typed_decode.from_json(each.body, _Identified).id == producer_id]
            cursor = page.cursor
            if cursor is None:
                return found

    def redeliver(self, subscription: str, event_id: str, now_ms: int) -> None:
        """Turn a dead letter into a new delivery with all its attempts.

        Raises `NotFoundError` if there is no such dead letter, and `ConflictError` if the event is being delivered or
        the subscription is retired.
        """
        key = Key(subscription, PREFIX + event_id)
        item = self._store.get(SUBSCRIPTIONS, key, consistent=True)
        registered = self._registry.find(subscription)
        if item is None or registered is None:
            raise _unknown(subscription, event_id)
        registered.check_in_force()
        redelivery = delivery(registered.subscription, event_id, item["body"], now_ms)
        try:
            self._store.transact(
                [Delete(SUBSCRIPTIONS, key, exists()), Put(ACTIVITIES, redelivery.put().item, absent())]
            )
        except ConflictError as exc:
            if 0 in exc.failures:
                raise NotFoundError(
                    f"subscription {subscription}: event {event_id} was redelivered or purged by another process"
                ) from exc
            raise

    def purge(self, subscription: str, event_id: str | None = None) -> int:
        """Delete one dead letter of a subscription, or all of them, and return how many."""
        if event_id is not None:
            return int(self._store.delete(SUBSCRIPTIONS, Key(subscription, PREFIX + event_id)) is not None)
        count = 0
        cursor: str | None = None
        while True:
            page = self._store.query(_query(subscription, 100, cursor))
            keys = [Key(subscription, item["SK"]) for item in page.items]
            self._store.batch_write([Delete(SUBSCRIPTIONS, key) for key in keys])
            count += len(keys)
            cursor = page.cursor
            if cursor is None:
                return count


def _query(subscription: str | None, limit: int, cursor: str | None) -> Query:
    if subscription is None:
        return Query(table=SUBSCRIPTIONS, index="kind-index", partition=KIND, limit=limit, cursor=cursor)
    sort = Sort(Range.BEGINS_WITH, PREFIX)
    return Query(table=SUBSCRIPTIONS, partition=subscription, sort=sort, limit=limit, cursor=cursor, consistent=True)


def _unknown(subscription: str, event_id: str) -> NotFoundError:
    return NotFoundError(
        f"subscription {subscription}: it has no dead letter of event {event_id}; 'headgate event dead' lists them"
    )


def _letter(item: Mapping[str, Any]) -> DeadLetter:
    return DeadLetter(
        item["subscription"],
        item["event_id"],
        item["body"],
        typed_decode.from_json(item["error"], ErrorInfo),
        item["attempts"],
        item["scheduled_at_ms"],
        item["dead_at_ms"],
    )
