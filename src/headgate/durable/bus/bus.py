"""The bus: takes events, keeps them, and makes a delivery for each subscription that wants them.

An event and its deliveries are one transaction. Where that would be too large, the event and the names of the
subscriptions that are still to be served are one, and the other deliveries follow: at once if all goes well, and by
`sweep` after a crash.
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
from headgate.durable.bus.event_log import PREFIX, EventLog, StoredEvent, event_id_of, event_put, expiry, not_ours
from headgate.durable.bus.events import UNTIMED, Event
from headgate.durable.bus.replays import DROPPED_MAX, Replay, Replays, ReplayState, StoppedReplay
from headgate.durable.bus.subscriptions import Filter, Registered, Registry, Subscription, delivery, matches, matching
from headgate.durable.model.observer import NULL_OBSERVER, DurableObserver
from headgate.errors import ConflictError, HeadgateError, InvalidPayloadError, NotFoundError
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import CONTROL, IDEMPOTENCY
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Delete, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

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
# What one transaction of our own takes; in someone else's there is less room.
DELIVERIES_MAX: Final = 90
DELIVERIES_BYTES_MAX: Final = 3_000_000
SHARED_DELIVERIES_MAX: Final = 20
SHARED_BYTES_MAX: Final = 500_000
# How long a second event with the source and the id of a first one is taken for that one.
DEDUP_SECONDS: Final = 24 * 3600
# Transactions that are tried with one wait for the disk.
EMIT_BATCH: Final = 50
UNDELIVERED: Final = "DELIVERIES"
_REST: Final = "REST"
# What a delivery takes besides the event.
_DELIVERY_BYTES: Final = 1_000
# From making a delivery to its being committed. What takes longer is found by a look that nobody asks for.
_COMMIT_SECONDS: Final = 1.0


class Bus:
    """Takes events and brings them to subscriptions. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        source: str = SOURCE_DEFAULT,
        observer: DurableObserver = NULL_OBSERVER,
    ) -> None:
        self._observer = observer
        self._delivery_at = -math.inf
        self._store = store
        self._clock = clock
        self._ids = ids
        self._source = source
        self._registry = Registry(store, clock)
        self._log = EventLog(store, clock)
        self._dead_letters = DeadLetters(store, self._registry)
        self._replays = Replays(store, self._log)

    # Subscriptions.

    def register(self, subscriptions: Sequence[Subscription], app: str) -> None:
        """Make the subscriptions of an app known to all processes; one that was retired is in force again.

        Other processes notice within two seconds. A subscription that is no longer declared stays in force until it
        is retired. Raises `DefinitionError` for a name that is given twice or belongs to another app.
        """
        self._registry.register(subscriptions, app)

    def retire(self, name: str) -> None:
        """Deliver no more events to a subscription that no app declares any more. Raises `NotFoundError`."""
        self._registry.retire(name)

    def subscriptions(self) -> tuple[Registered, ...]:
        """Return every subscription, retired ones included, as of at most two seconds ago."""
        return self._registry.all()

    def refresh(self) -> tuple[Registered, ...]:
        """Read the subscriptions anew and return them."""
        return self._registry.refresh()

    def subscription(self, name: str) -> Registered:
        """Return the subscription of this name, retired or not. Raises `NotFoundError`."""
        found = self._registry.find(name)
        if found is None:
            raise NotFoundError(f"subscription {name}: there is none; 'headgate event subscriptions' lists them")
        return found

    # Emitting.

    def emit(self, event: Event) -> str:
        """Keep an event, make its deliveries durable, and return the id it is kept under.

        With an id of the producer's own, the same source and id again within a day change nothing and return the id
        that the first has. Raises `InvalidPayloadError` or `PayloadTooLargeError` for what is not an event.
        """
        event_id, writes = self._emission(event)
        try:
            self._store.transact(writes)
        except ConflictError as exc:
            return _earlier(exc)
        self._go_on(event_id, writes)
        self.on_committed()
        return event_id

    def emit_many(self, given: Sequence[Event]) -> list[str]:
        """Emit several events, each by itself all or nothing, and return their ids.

        If it raises, some may have been emitted: events with ids of their own can all be sent again.
        """
        emitted: list[str] = []
        emissions = [self._emission(event) for event in given]
        for start in range(0, len(emissions), EMIT_BATCH):
            batch = emissions[start : start + EMIT_BATCH]
            outcomes = self._store.transact_many([writes for _, writes in batch])
            for (event_id, writes), refusal in zip(batch, outcomes, strict=True):
                emitted.append(event_id if refusal is None else _earlier(refusal))
                if refusal is None:
                    self._go_on(event_id, writes)
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
        """Return the writes that emit an event with an id of its own, for a transaction of the caller's.

        There are at most two more than `deliveries_max`; what does not fit follows by `sweep`. Subscriptions that the
        caller knows to be told in vain are `unwanted`. The first write is refused if the same event was emitted with
        the same `now_ms` before. Raises as `emit` does.
        """
        complete = self._complete(event, event.id, datetime.fromtimestamp(now_ms / 1000, UTC))
        event_id = event_id_of(complete.source, complete.id, now_ms)
        return self._writes(complete, event_id, now_ms, deliveries_max, bytes_max, unwanted)

    def on_committed(self) -> None:
        """Report the commit of `event_writes`, so that a local worker polls for the deliveries, if there are any.

        A poll costs more than most commits, and most events match no subscription.
        """
        if self._clock.monotonic() - self._delivery_at <= _COMMIT_SECONDS:
            self._observer.on_work_stored()

    def sweep(self, *, limit: int = 100) -> int:
        """Make the deliveries that someone was about to make and did not, and return how many."""
        due = Sort(Range.AT_MOST, self._now_ms())
        page = self._store.query(Query(table=CONTROL, index="due-index", partition=UNDELIVERED, sort=due, limit=limit))
        return sum(self._deliver_rest(item["event_id"]) for item in page.items)

    # What was emitted.

    def get(self, event_id: str) -> StoredEvent | None:
        """Return an event by the id it is kept under, or None. Raises `InvalidIdError`."""
        return self._log.get(event_id)

    def tail(self, after: str | None = None, *, type: str | None = None, limit: int = 100) -> list[StoredEvent]:
        """Return up to `limit` events in the order they were accepted: those after an id, or the latest.

        `type` is one, or a pattern such as `order.*`. Who must not miss any event subscribes to it.
        """
        return self._log.tail(after, type=type, limit=limit)

    # What failed.

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
        """Return deliveries that failed for good and match all that is given, by when the events were accepted.

        `type` is one, or a pattern such as `order.*`; ages count from when they failed for good. A page may be short,
        or empty, although there are more: the cursor tells.
        """
        wanted = LetterFilter(
            subscription=subscription,
            type=type,
            older_than_seconds=older_than_seconds,
            newer_than_seconds=newer_than_seconds,
        )
        return self._dead_letters.page(wanted, self._now_ms(), limit=limit, cursor=cursor)

    def dead_letter(self, subscription: str, event_id: str) -> DeadLetter:
        """Return the delivery of an event that failed for good. Raises `NotFoundError`."""
        return self._dead_letters.get(subscription, event_id)

    def redeliver(self, subscription: str, event_id: str) -> None:
        """Turn a dead letter into a delivery that has all its attempts before it.

        Raises `NotFoundError` if there is no such dead letter, and `ConflictError` if the event is being delivered or
        the subscription is retired.
        """
        self._dead_letters.redeliver(subscription, event_id, self._now_ms())
        self._observer.on_work_stored()

    def purge(self, subscription: str, event_id: str | None = None) -> int:
        """Throw away one dead letter of a subscription, or all of them, and return how many there were."""
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
        """Deliver again what was accepted from `since` up to `until` and the subscription wants; return how many.

        With `types`, only those. The same replay under the same id goes on where it was left and delivers nothing
        twice. Raises `NotFoundError` for an unknown subscription, and `ConflictError` if that is retired or the replay
        is stopped.
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
        """Make no further deliveries of a replay, and drop those that wait; what a worker has taken goes on.

        About `limit` waiting deliveries are looked at, and the cursor goes on with the rest. Raises `NotFoundError`.
        """
        found = self.subscription(subscription).subscription
        return self._replays.stop(found, replay_id, limit=limit, cursor=cursor)

    def _emission(self, event: Event) -> tuple[str, list[Write]]:
        """Return the id of a new event and the writes of one transaction; with an id given, the first is its dedup."""
        now_ms = self._now_ms()
        minted = self._ids.make(PREFIX)
        complete = self._complete(event, event.id or minted, self._clock.now())
        if not event.id:
            return minted, self._writes(complete, minted, now_ms, DELIVERIES_MAX, DELIVERIES_BYTES_MAX)
        event_id = event_id_of(complete.source, complete.id, now_ms)
        writes = self._writes(complete, event_id, now_ms, DELIVERIES_MAX, DELIVERIES_BYTES_MAX)
        dedup = {"idempotency_key": _dedup_key(complete), "event_id": event_id, "ttl": now_ms // 1000 + DEDUP_SECONDS}
        return event_id, [Put(IDEMPOTENCY, dedup, absent()), *not_ours(complete), *writes]

    def _complete(self, event: Event, id: str, now: datetime) -> Event:
        time = now if event.time == UNTIMED else event.time
        return replace(event, id=id, source=event.source or self._source, time=time)

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
        wanted = [each for each in matching(self._registry.all(), event) if each.name not in unwanted]
        if wanted:
            self._delivery_at = self._clock.monotonic()
        room = _room(body, deliveries_max, bytes_max)
        made = [delivery(each, event_id, body, now_ms).put() for each in wanted[:room]]
        writes: list[Write] = [event_put(event_id, event, body), *made]
        if wanted[room:]:
            names = [each.name for each in wanted[room:]]
            item = {**CONTROL.key_attributes(_rest_key(event_id)), "event_id": event_id, "names": names, "version": 1}
            due = {"due_pk": UNDELIVERED, "due_at_ms": now_ms, "ttl": expiry(now_ms)}
            writes.append(Put(CONTROL, {**item, **due}))
        return writes

    def _go_on(self, event_id: str, writes: Sequence[Write]) -> None:
        """Make the deliveries that did not fit, if there are any. The event is safe whatever happens here."""
        if writes[-1].table is not CONTROL:
            return
        try:
            self._deliver_rest(event_id)
        except HeadgateError:
            # The caller must not hear of a failure, and emit again what has been accepted: the sweep goes on with it.
            return

    def _deliver_rest(self, event_id: str) -> int:
        """Make the deliveries that are left, each step of them one transaction, and return how many."""
        count = 0
        key = _rest_key(event_id)
        while (row := self._store.get(CONTROL, key, consistent=True)) is not None:
            stored = self._log.get(event_id, consistent=True)
            names: list[str] = row["names"] if stored is not None else []
            body = "" if stored is None else stored.body
            room = max(1, _room(body, DELIVERIES_MAX, DELIVERIES_BYTES_MAX))
            found = self._registry.find_many(names[:room])
            made = [delivery(each.subscription, event_id, body, self._now_ms()).put() for each in found.values()]
            unchanged = version_is(row["version"])
            left = {**row, "names": names[room:], "version": row["version"] + 1}
            step: Write = Put(CONTROL, left, unchanged) if names[room:] else Delete(CONTROL, key, unchanged)
            try:
                self._store.transact([step, *made])
            except ConflictError:
                # Another process is at it.
                return count
            count += len(made)
        return count

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _earlier(refusal: HeadgateError) -> str:
    """Return the id of the event that was emitted before with this source and id. Raises what else went wrong."""
    found = refusal.failures.values() if isinstance(refusal, ConflictError) else ()
    for earlier in found:
        if earlier is not None and "event_id" in earlier:
            return str(earlier["event_id"])
    raise refusal


def _room(body: str, deliveries_max: int, bytes_max: int) -> int:
    """Return how many deliveries of an event fit beside the event itself."""
    size = len(body.encode()) + _DELIVERY_BYTES
    return max(0, min(deliveries_max, bytes_max // size - 1))


def _dedup_key(event: Event) -> str:
    named = f"{len(event.source)}:{event.source}{event.id}".encode()
    return f"event#{hashlib.blake2b(named, digest_size=16).hexdigest()}"


def _rest_key(event_id: str) -> Key:
    return Key(f"{UNDELIVERED}#{event_id}", _REST)


def _ms(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise InvalidPayloadError(f"{moment.isoformat()}: a moment without a time zone; give one such as UTC")
    return round(moment.timestamp() * 1000)
