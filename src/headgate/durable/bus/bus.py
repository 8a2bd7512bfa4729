"""Event bus: stores events, and creates a delivery for each matching subscription.

An event and its deliveries are one transaction. If that would be too large, the event and the names of the remaining
subscriptions are one transaction, and the other deliveries follow: at once, or by `sweep` after a crash.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.bus import events
from headgate.durable.bus.dead_letters import DeadLetter, DeadLetterPage, DeadLetters, LetterFilter, dead_letter
from headgate.durable.bus.event_log import (
    PREFIX,
    RETENTION_DAYS,
    EventLog,
    StoredEvent,
    event_id_of,
    event_put,
    expiry,
    not_ours,
)
from headgate.durable.bus.events import EXTENSIONS_MAX, TRACEPARENT, UNTIMED, Event
from headgate.durable.bus.replays import DROPPED_MAX, Replay, Replays, ReplayState, StoppedReplay
from headgate.durable.bus.subscriptions import Filter, Registered, Registry, Subscription, delivery, matches, matching
from headgate.durable.model.observer import NULL_OBSERVER, DurableObserver
from headgate.errors import ConflictError, HeadgateError, InvalidPayloadError, NotFoundError
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import CONTROL, IDEMPOTENCY
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Delete, Poll, Put, Query, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store
from headgate.telemetry import traceparent

__all__ = [
    "Bus",
    "DeadLetter",
    "DeadLetterPage",
    "Filter",
    "Registered",
    "StoredEvent",
    "Subscription",
    "dead_letter",
    "matches",
]

SOURCE_DEFAULT: Final = "/headgate"
# Limits of a transaction of the bus; in a transaction of a caller there is less room.
DELIVERIES_MAX: Final = 90
DELIVERIES_BYTES_MAX: Final = 3_000_000
SHARED_DELIVERIES_MAX: Final = 20
SHARED_BYTES_MAX: Final = 500_000
# How long the source and the id of an event deduplicate a second one.
DEDUP_SECONDS: Final = 24 * 3600
# Transactions that share one disk flush.
EMIT_BATCH: Final = 50
UNDELIVERED: Final = "DELIVERIES"
_REST: Final = "REST"
# The size of a delivery without its event.
_DELIVERY_BYTES: Final = 1_000
# The time from `event_writes` to the commit. Deliveries of a slower commit are found by the next regular poll.
_COMMIT_SECONDS: Final = 1.0


class Bus:
    """Accepts events and delivers them to subscriptions. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        source: str = SOURCE_DEFAULT,
        observer: DurableObserver = NULL_OBSERVER,
        retention_days: int = RETENTION_DAYS,
    ) -> None:
        self._observer = observer
        self._delivery_at = -math.inf
        self._store = store
        self._clock = clock
        self._ids = ids
        self._source = source
        self._registry = Registry(store, clock)
        self._retention_days = retention_days
        self._log = EventLog(store, clock, retention_days=retention_days)
        self._dead_letters = DeadLetters(store, self._registry)
        self._replays = Replays(store, self._log)

    # Subscriptions.

    def register(self, subscriptions: Sequence[Subscription], app: str) -> None:
        """Register the subscriptions of an app for all processes; a retired one is active again.

        Other processes notice within two seconds. A subscription that is no longer declared stays active until it is
        retired. Raises `DefinitionError` for a duplicate name, or one that belongs to another app.
        """
        self._registry.register(subscriptions, app)

    def retire(self, name: str) -> None:
        """Stop deliveries to a subscription that no app declares any more. Raises `NotFoundError`."""
        self._registry.retire(name)

    def subscriptions(self) -> tuple[Registered, ...]:
        """Return every subscription, retired ones included, as of at most two seconds ago."""
        return self._registry.all()

    def refresh(self) -> tuple[Registered, ...]:
        """Read the subscriptions again and return them."""
        return self._registry.refresh()

    def subscription(self, name: str) -> Registered:
        """Return the subscription of this name, retired or not. Raises `NotFoundError`."""
        registered = self._registry.find(name)
        if registered is None:
            raise NotFoundError(f"subscription {name}: there is none; 'headgate event subscriptions' lists them")
        return registered

    # Emission.

    def emit(self, event: Event) -> str:
        """Store an event with its deliveries, and return its stored id.

        If the producer sets an id, the same source and id within a day are a duplicate, and the first stored id is
        returned. Raises `InvalidPayloadError` or `PayloadTooLargeError` for an invalid event.
        """
        event_id, writes = self._emission(event)
        try:
            self._store.transact(writes)
        except ConflictError as exc:
            return _earlier(exc)
        self._deliver_overflow(event_id, writes)
        self.on_committed()
        return event_id

    def emit_many(self, new_events: Sequence[Event]) -> list[str]:
        """Emit several events, each atomically, and return their stored ids.

        If it raises, some may have been emitted: events with an id of their producer can all be sent again.
        """
        emitted: list[str] = []
        emissions = [self._emission(event) for event in new_events]
        for start in range(0, len(emissions), EMIT_BATCH):
            batch = emissions[start : start + EMIT_BATCH]
            outcomes = self._store.transact_many([writes for _, writes in batch])
            for (event_id, writes), refusal in zip(batch, outcomes, strict=True):
                emitted.append(event_id if refusal is None else _earlier(refusal))
                if refusal is None:
                    self._deliver_overflow(event_id, writes)
        self.on_committed()
        return emitted

    def event_writes(
        self,
        event: Event,
        now_ms: int,
        *,
        deliveries_max: int = SHARED_DELIVERIES_MAX,
        bytes_max: int = SHARED_BYTES_MAX,
        unwanted: Collection[str] = (),
    ) -> list[Write]:
        """Return the writes that emit an event with a producer's id, for a transaction of the caller.

        There are at most two more than `deliveries_max`; the other deliveries follow by `sweep`. `unwanted` are
        subscriptions that need no delivery of this event. The store refuses the first write if the same event was
        emitted with the same `now_ms` before. Raises as `emit` does.
        """
        complete = self._complete(event, event.id, datetime.fromtimestamp(now_ms / 1000, UTC))
        event_id = event_id_of(complete.source, complete.id, now_ms)
        return self._writes(complete, event_id, now_ms, deliveries_max, bytes_max, unwanted)

    def unique_event_writes(self, event: Event, now_ms: int) -> list[Write]:
        """Return the writes of `event_writes`, which the store refuses if source and id were emitted within a day."""
        event_id = event_id_of(event.source, event.id, now_ms)
        return [_dedup(event, event_id, now_ms), *not_ours(event), *self.event_writes(event, now_ms)]

    def on_committed(self) -> None:
        """Report the commit of `event_writes`, so that a local worker polls for the deliveries, if there are any.

        A poll costs more than most commits, and most events match no subscription.
        """
        if self._clock.monotonic() - self._delivery_at <= _COMMIT_SECONDS:
            self._observer.on_work_stored()

    def sweep(self, *, limit: int = 100) -> int:
        """Create the deliveries that an interrupted process has left, and return how many."""
        now_ms = self._now_ms()
        page = self._store.query(
            Query(table=CONTROL, index="due-index", partition=UNDELIVERED, limit=limit, poll=Poll.RELAXED)
        )
        return sum(self._deliver_rest(item["event_id"]) for item in page.items if item["due_at_ms"] <= now_ms)

    # The event log.

    def get(self, event_id: str) -> StoredEvent | None:
        """Return an event by its stored id, or None. Raises `InvalidIdError`."""
        return self._log.get(event_id)

    def tail(self, after: str | None = None, *, type: str | None = None, limit: int = 100) -> list[StoredEvent]:
        """Return up to `limit` events in the order they were accepted: those after an id, or the latest.

        `type` is one, or a pattern such as `order.*`. A consumer that must not miss events needs a subscription.
        """
        return self._log.tail(after, type=type, limit=limit)

    # Dead letters and replays.

    def dead_letters(
        self,
        subscription: str | None = None,
        *,
        type: str | None = None,
        older_than_seconds: float | None = None,
        newer_than_seconds: float | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> DeadLetterPage:
        """Return dead letters that match every filter, in the order in which their events were accepted.

        `type` is one, or a pattern such as `order.*`; ages count from the last failure. A page may be short or empty
        although a cursor leads to more.
        """
        filter = LetterFilter(
            subscription=subscription,
            type=type,
            older_than_seconds=older_than_seconds,
            newer_than_seconds=newer_than_seconds,
        )
        return self._dead_letters.page(filter, self._now_ms(), limit=limit, cursor=cursor)

    def dead_letter(self, subscription: str, event_id: str) -> DeadLetter:
        """Return the dead letter of an event. Raises `NotFoundError`."""
        return self._dead_letters.get(subscription, event_id)

    def redeliver(self, subscription: str, event_id: str) -> None:
        """Turn a dead letter into a new delivery with all its attempts.

        Raises `NotFoundError` if there is no such dead letter, and `ConflictError` if the event is being delivered or
        the subscription is retired.
        """
        self._dead_letters.redeliver(subscription, event_id, self._now_ms())
        self._observer.on_work_stored()

    def purge(self, subscription: str, event_id: str | None = None) -> int:
        """Delete one dead letter of a subscription, or all of them, and return how many."""
        return self._dead_letters.purge(subscription, event_id)

    def replay(
        self,
        subscription: str,
        *,
        since: datetime,
        until: datetime,
        types: Sequence[str] = (),
        replay_id: str | None = None,
    ) -> int:
        """Deliver matching events again that were accepted from `since` up to `until`, and return how many.

        With `types`, only events of those types. The same replay under the same id resumes where it stopped and
        delivers no event twice. Raises `NotFoundError` for an unknown subscription, and `ConflictError` if that is
        retired or the replay is stopped.
        """
        registered = self.subscription(subscription)
        registered.check_in_force()
        request = Replay(
            id=replay_id if replay_id is not None else self._ids.make("replay"),
            subscription=subscription,
            since_ms=_ms(since),
            until_ms=_ms(until),
            types=tuple(types),
        )
        count = self._replays.run(request, registered.subscription, self._now_ms())
        self._observer.on_work_stored()
        return count

    def replays(self, subscription: str) -> list[ReplayState]:
        """Return the replays of a subscription of the last thirty days, by id. Raises `NotFoundError`."""
        return self._replays.ls(self.subscription(subscription).subscription.name)

    def stop_replay(
        self, subscription: str, replay_id: str, *, limit: int = DROPPED_MAX, cursor: str | None = None
    ) -> StoppedReplay:
        """Stop a replay and drop its queued deliveries; those that a worker has claimed go on.

        About `limit` queued deliveries are checked, and the cursor continues with the rest. Raises `NotFoundError`.
        """
        target = self.subscription(subscription).subscription
        return self._replays.stop(target, replay_id, limit=limit, cursor=cursor)

    def _emission(self, event: Event) -> tuple[str, list[Write]]:
        """Return the id and the writes of a new event; the first write deduplicates a producer's id."""
        now_ms = self._now_ms()
        minted = self._ids.make(PREFIX)
        complete = self._complete(event, event.id or minted, self._clock.now())
        if not event.id:
            return minted, self._writes(complete, minted, now_ms, DELIVERIES_MAX, DELIVERIES_BYTES_MAX)
        event_id = event_id_of(complete.source, complete.id, now_ms)
        writes = self._writes(complete, event_id, now_ms, DELIVERIES_MAX, DELIVERIES_BYTES_MAX)
        return event_id, [_dedup(complete, event_id, now_ms), *not_ours(complete), *writes]

    def _complete(self, event: Event, id: str, now: datetime) -> Event:
        time = now if event.time == UNTIMED else event.time
        extensions, trace = event.extensions, traceparent()
        if trace and TRACEPARENT not in extensions and len(extensions) < EXTENSIONS_MAX:
            extensions = {**extensions, TRACEPARENT: trace}
        return replace(event, id=id, source=event.source or self._source, time=time, extensions=extensions)

    def _writes(
        self,
        event: Event,
        event_id: str,
        now_ms: int,
        deliveries_max: int,
        bytes_max: int,
        unwanted: Collection[str] = (),
    ) -> list[Write]:
        body = events.dump(event)
        receivers = [each for each in matching(self._registry.all(), event) if each.name not in unwanted]
        if receivers:
            self._delivery_at = self._clock.monotonic()
        room = _room(body, deliveries_max, bytes_max)
        deliveries = [delivery(each, event_id, body, now_ms).put() for each in receivers[:room]]
        writes: list[Write] = [event_put(event_id, event, body, self._retention_days), *deliveries]
        if receivers[room:]:
            names = [each.name for each in receivers[room:]]
            item = {**CONTROL.key_attributes(_rest_key(event_id)), "event_id": event_id, "names": names, "version": 1}
            due = {"due_pk": UNDELIVERED, "due_at_ms": now_ms, "ttl": expiry(now_ms, self._retention_days)}
            writes.append(Put(CONTROL, {**item, **due}))
        return writes

    def _deliver_overflow(self, event_id: str, writes: Sequence[Write]) -> None:
        """Create the deliveries that did not fit, if there are any. The event is stored already."""
        if writes[-1].table is not CONTROL:
            return
        try:
            self._deliver_rest(event_id)
        except HeadgateError:
            # Not an error of the caller, which would emit the stored event again: the sweep continues.
            return

    def _deliver_rest(self, event_id: str) -> int:
        """Create the remaining deliveries, in steps of one transaction each, and return how many."""
        count = 0
        key = _rest_key(event_id)
        while (row := self._store.get(CONTROL, key, consistent=True)) is not None:
            stored = self._log.get(event_id, consistent=True)
            names: list[str] = row["names"] if stored is not None else []
            body = "" if stored is None else stored.body
            room = max(1, _room(body, DELIVERIES_MAX, DELIVERIES_BYTES_MAX))
            remaining = self._registry.find_many(names[:room]).values()
            deliveries = [delivery(each.subscription, event_id, body, self._now_ms()).put() for each in remaining]
            unchanged = version_is(row["version"])
            left = {**row, "names": names[room:], "version": row["version"] + 1}
            step: Write = Put(CONTROL, left, unchanged) if names[room:] else Delete(CONTROL, key, unchanged)
            try:
                self._store.transact([step, *deliveries])
            except ConflictError:
                # Another process does it.
                return count
            count += len(deliveries)
        return count

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _earlier(refusal: HeadgateError) -> str:
    """Return the id of the earlier event with this source and id. Raises any other refusal."""
    rows = refusal.failures.values() if isinstance(refusal, ConflictError) else ()
    for earlier in rows:
        if earlier is not None and "event_id" in earlier:
            return str(earlier["event_id"])
    raise refusal


def _room(body: str, deliveries_max: int, bytes_max: int) -> int:
    """Return how many deliveries of an event fit beside the event itself."""
    size = len(body.encode()) + _DELIVERY_BYTES
    return max(0, min(deliveries_max, bytes_max // size - 1))


def _dedup(event: Event, event_id: str, now_ms: int) -> Put:
    """Return the write that refuses a second event of the same source and id."""
    item = {"idempotency_key": _dedup_key(event), "event_id": event_id, "ttl": now_ms // 1000 + DEDUP_SECONDS}
    return Put(IDEMPOTENCY, item, absent())


def _dedup_key(event: Event) -> str:
    named = f"{len(event.source)}:{event.source}{event.id}".encode()
    return f"event#{hashlib.blake2b(named, digest_size=16).hexdigest()}"


def _rest_key(event_id: str) -> Key:
    return Key(f"{UNDELIVERED}#{event_id}", _REST)


def _ms(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise InvalidPayloadError(f"{moment.isoformat()}: a moment without a time zone; give one such as UTC")
    return round(moment.timestamp() * 1000)
