"""Dead letters: deliveries that failed for good, kept until someone delivers them again or throws them away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate.durable import events
from headgate.durable.events import Event
from headgate.durable.failures import ErrorInfo
from headgate.durable.records import Activity
from headgate.durable.subscriptions import Registry, delivery
from headgate.errors import ConflictError, NotFoundError
from headgate.store.conditions import absent, exists
from headgate.store.port import Store
from headgate.store.schema import Key
from headgate.store.tables import ACTIVITIES, SUBSCRIPTIONS
from headgate.store.writes import Delete, Put, Query, Range, Sort, Write

KIND: Final = "DEAD"
PREFIX: Final = "DEAD#"
RETENTION_DAYS: Final = 90


class DeadLetter(Struct, frozen=True):
    """A delivery that failed for good: the event as structured JSON, and the error of the last attempt."""

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
    """Some dead letters, and the cursor of the next page if there is one."""

    letters: list[DeadLetter]
    cursor: str | None = None


def dead_letter(activity: Activity, error: ErrorInfo, now_ms: int) -> list[Write]:
    """Return the writes that keep a delivery which is not tried again, for the transaction that ends it."""
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
        "ttl": now_ms // 1000 + RETENTION_DAYS * 86_400,
    }
    return [Put(SUBSCRIPTIONS, item)]


class DeadLetters:
    """What failed for good, of all subscriptions."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry

    def page(self, subscription: str | None, *, limit: int = 100, cursor: str | None = None) -> DeadLetterPage:
        """Return the dead letters of one subscription or of all, in the order the events were accepted."""
        if subscription is None:
            query = Query(table=SUBSCRIPTIONS, index="kind-index", partition=KIND, limit=limit, cursor=cursor)
        else:
            sort = Sort(Range.BEGINS_WITH, PREFIX)
            query = Query(table=SUBSCRIPTIONS, partition=subscription, sort=sort, consistent=True)
            query = msgspec.structs.replace(query, limit=limit, cursor=cursor)
        found = self._store.query(query)
        return DeadLetterPage([_letter(item) for item in found.items], found.cursor)

    def redeliver(self, subscription: str, event_id: str, now_ms: int) -> None:
        """Turn a dead letter into a delivery that has all its attempts before it.

        Raises `NotFoundError` if there is no such dead letter, and `ConflictError` if the event is being delivered.
        """
        key = Key(subscription, PREFIX + event_id)
        item = self._store.get(SUBSCRIPTIONS, key, consistent=True)
        registered = self._registry.find(subscription)
        if item is None or registered is None:
            raise NotFoundError(f"subscription {subscription}: it has no dead letter of event {event_id}")
        made = delivery(registered.subscription, event_id, item["body"], now_ms)
        try:
            self._store.transact([Delete(SUBSCRIPTIONS, key, exists()), Put(ACTIVITIES, _row(made), absent())])
        except ConflictError as exc:
            if 0 in exc.failures:
                raise NotFoundError(f"subscription {subscription}: event {event_id} was taken up by another") from exc
            raise

    def purge(self, subscription: str, event_id: str | None = None) -> int:
        """Throw away one dead letter of a subscription, or all of them, and return how many there were."""
        if event_id is not None:
            return int(self._store.delete(SUBSCRIPTIONS, Key(subscription, PREFIX + event_id)) is not None)
        count = 0
        cursor: str | None = None
        while True:
            page = self.page(subscription, cursor=cursor)
            keys = [Key(subscription, PREFIX + letter.event_id) for letter in page.letters]
            self._store.batch_write([Delete(SUBSCRIPTIONS, key) for key in keys])
            count += len(keys)
            cursor = page.cursor
            if cursor is None:
                return count


def _row(activity: Activity) -> Mapping[str, Any]:
    return activity.put().item


def _letter(item: Mapping[str, Any]) -> DeadLetter:
    return DeadLetter(
        item["subscription"],
        item["event_id"],
        item["body"],
        msgspec.json.decode(item["error"], type=ErrorInfo),
        item["attempts"],
        item["scheduled_at_ms"],
        item["dead_at_ms"],
    )
