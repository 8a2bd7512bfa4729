"""OpenLineage inbox: stores events before answering, and processes them later, in order for each job.

Producers wait for the answer and time out after seconds. So accepting is one write, and processing follows. An event
that fails goes to the dead letters with its error, and can be retried.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import ConflictError, NotFoundError, ThrottledError, TransientError, UserError
from headgate.health.ingest import events as openlineage_events
from headgate.health.ingest.drain import DEAD, DrainResult, Handlers, Shard
from headgate.health.model.timestamps import instant, milliseconds
from headgate.health.observer import HealthObserver, NullObserver
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import CONTROL
from headgate.store.deadlines import deadline_within
from headgate.store.model.conditions import absent, any_of, at_most, equals, exists
from headgate.store.model.requests import Delete, Poll, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

SHARDS: Final = 8
# Events can be large: few are held in memory at once.
PAGE: Final = 20
DRAIN_EVENTS: Final = 100
DEDUP_SECONDS: Final = 7 * 24 * 3600
LEASE_MS: Final = 10_000
# No new work starts this close to the end of the lease.
LEASE_MARGIN_MS: Final = 4_000
ABOUT_LENGTH_MAX: Final = 300
# Clients time out after five seconds: answer with an error before that.
ACCEPT_SECONDS_MAX: Final = 4.0
# Older waiting events show a backlog; the inbox rejects more until it shrinks.
BEHIND_SECONDS_MAX: Final = 900.0
BEHIND_RETRY_SECONDS: Final = 30.0
_LEASE: Final = "LEASE"
# Event ids start with a digit; the lease row of a shard does not.
_EVENTS: Final = Sort(Range.LESS_THAN, "A")


class Receipt(Struct, frozen=True):
    """The receipt of an accepted event. `is_duplicate`: it was accepted before, under that id."""

    event_id: str
    is_duplicate: bool = False


class Refusal(Struct, frozen=True):
    """Why an event of a batch was rejected, and whether a retry may succeed."""

    index: int
    reason: str
    is_retriable: bool


class BatchReceipt(Struct, frozen=True):
    """The number of accepted events of a batch, and the rejected ones."""

    received: int
    accepted: int
    refusals: tuple[Refusal, ...] = ()


class DeadEvent(Struct, frozen=True, kw_only=True):
    """A dead letter: an event that failed. `about` is its job or dataset."""

    event_id: str
    received_at: str
    failed_at: str
    reason: str
    about: str
    body: str


class DeadEvents(Struct, frozen=True):
    """A page of dead letters, and the cursor of the next page."""

    events: list[DeadEvent]
    cursor: str | None = None


class OpenLineageInbox:
    """Accepts and processes events. Safe to use from many threads and processes."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, observer: HealthObserver | None = None) -> None:
        self._observer = observer if observer is not None else NullObserver()
        # The age of the oldest event at this process's last drain.
        self.oldest_seconds = 0.0
        # The shards with a backlog, and its age.
        self._behind: dict[int, float] = {}
        self._store = store
        self._clock = clock
        self._ids = ids
        self._owner = ids.make("drain")

    # Accepting.

    def accept(self, body: bytes) -> Receipt:
        """Store an event durably for processing.

        The same bytes within a week change nothing. Raises `InvalidPayloadError` and `PayloadTooLargeError` for an
        invalid event, and `ThrottledError` during a backlog.
        """
        item, writes = self._acceptance(body)
        try:
            with deadline_within(ACCEPT_SECONDS_MAX, self._clock):
                self._store.transact(writes)
        except ConflictError as exc:
            return _duplicate(exc)
        self._observer.on_lineage_event_accepted()
        return Receipt(item["SK"])

    def accept_batch(self, body: bytes) -> BatchReceipt:
        """Store the events of a batch independently. Raises as `accept` does for an invalid batch."""
        bodies = openlineage_events.split(body)
        refusals: list[Refusal] = []
        kept: dict[str, tuple[int, list[Write]]] = {}
        for index, each in enumerate(bodies):
            try:
                item, writes = self._acceptance(each)
            except (UserError, ThrottledError) as exc:
                refusals.append(Refusal(index, exc.message, is_retriable=isinstance(exc, ThrottledError)))
                continue
            kept.setdefault(item["digest"], (index, writes))
        with deadline_within(ACCEPT_SECONDS_MAX, self._clock):
            outcomes = self._store.transact_many([writes for _, writes in kept.values()]) if kept else []
        for (index, _), error in zip(kept.values(), outcomes, strict=True):
            if error is not None and not isinstance(error, ConflictError):
                refusals.append(Refusal(index, error.message, is_retriable=isinstance(error, TransientError)))
        self._observer.on_lineage_event_accepted()
        refusals.sort(key=lambda refusal: refusal.index)
        return BatchReceipt(len(bodies), len(bodies) - len(refusals), tuple(refusals))

    # Processing.

    def drain(self, handlers: Handlers, *, limit: int = DRAIN_EVENTS) -> DrainResult:
        """Process up to about `limit` events of each shard that no other process has leased.

        Events of one job are processed in the order of acceptance; if one is postponed, the later ones wait. Raises the
        `FatalError` of a handler: its event stays.
        """
        done = dead = deferred = 0
        for number in self._busy_shards():
            until_ms = self._lease(number)
            if until_ms is None:
                continue
            shard = Shard(self._store, self._clock, handlers, until_ms - LEASE_MARGIN_MS)
            try:
                self._go_through(number, shard, limit)
            finally:
                self._release(number)
            done, dead, deferred = done + shard.done, dead + shard.dead, deferred + shard.deferred
        return DrainResult(done, dead, deferred)

    # Dead letters.

    def dead(self, *, limit: int = PAGE, cursor: str | None = None) -> DeadEvents:
        """Return a page of dead letters, in the order of acceptance."""
        page = self._store.query(Query(table=CONTROL, partition=DEAD, limit=limit, cursor=cursor, consistent=True))
        return DeadEvents([_dead_event(item) for item in page.items], page.cursor)

    def redrive(self, event_id: str) -> Receipt:
        """Queue a dead letter again, behind the waiting events. Raises `NotFoundError`."""
        item = self._dead_item(event_id)
        kept = {name: item[name] for name in ("shard", "digest", "order_key", "about", "received_at", "body")}
        key = Key(_shard(item["shard"]), self._ids.ulid())
        again = {**CONTROL.key_attributes(key), **kept, "attempts": 0}
        self._move(event_id, [Put(CONTROL, again), Delete(CONTROL, CONTROL.key_of(item), exists())])
        self._observer.on_lineage_event_accepted()
        return Receipt(again["SK"])

    def discard(self, event_id: str) -> None:
        """Delete a dead letter. Raises `NotFoundError`."""
        item = self._dead_item(event_id)
        self._move(event_id, [Delete(CONTROL, CONTROL.key_of(item), exists())])

    def _acceptance(self, body: bytes) -> tuple[Item, list[Write]]:
        event = openlineage_events.parse(body)
        about = event.job or event.dataset
        assert about is not None, "a parsed event has a job or a dataset"
        now_ms = self._now_ms()
        digest = hashlib.blake2b(body, digest_size=16).hexdigest()
        order_key = hashlib.blake2b(event.order_key.encode(), digest_size=8).digest()
        shard = order_key[0] % SHARDS
        if shard in self._behind:
            raise _behind(about.name, self._behind[shard])
        item = {
            **CONTROL.key_attributes(Key(_shard(shard), self._ids.ulid())),
            "shard": shard,
            "digest": digest,
            "order_key": order_key.hex(),
            "about": f"{about.namespace} {about.name}"[:ABOUT_LENGTH_MAX],
            "received_at": instant(now_ms),
            "attempts": 0,
            "body": body.decode(),
        }
        dedup = {
            "PK": f"DEDUP#openlineage#{digest}", "SK": "DEDUP",
            "event_id": item["SK"], "ttl": now_ms // 1000 + DEDUP_SECONDS,
        }  # fmt: skip
        return item, [Put(CONTROL, dedup, absent()), Put(CONTROL, item)]

    def _heads(self) -> list[list[Item]]:
        queries = [
            Query(table=CONTROL, partition=_shard(number), sort=_EVENTS, limit=1, consistent=True, poll=Poll.RELAXED)
            for number in range(SHARDS)
        ]
        return [page.items for page in self._store.query_many(queries)]

    def _busy_shards(self) -> list[int]:
        heads = self._heads()
        now_ms = self._now_ms()
        waited = {
            number: (now_ms - milliseconds(item["received_at"])) / 1000
            for number, head in enumerate(heads)
            for item in head
        }
        self.oldest_seconds = max(waited.values(), default=0.0)
        self._behind = {number: seconds for number, seconds in waited.items() if seconds > BEHIND_SECONDS_MAX}
        return [number for number, head in enumerate(heads) if head]

    def _go_through(self, number: int, shard: Shard, limit: int) -> None:
        cursor: str | None = None
        while shard.looked_at < limit and shard.has_time():
            page = self._store.query(
                Query(
                    table=CONTROL,
                    partition=_shard(number),
                    sort=_EVENTS,
                    limit=min(PAGE, limit - shard.looked_at),
                    cursor=cursor,
                    consistent=True,
                )
            )
            shard.carry_out(page.items)
            cursor = page.cursor
            if cursor is None:
                return

    def _lease(self, number: int) -> int | None:
        """Lease a shard and return the end of the lease; None if another process has it."""
        now_ms = self._now_ms()
        item = {"PK": _shard(number), "SK": _LEASE, "owner": self._owner, "expires_ms": now_ms + LEASE_MS}
        free = any_of(absent(), at_most("expires_ms", now_ms))
        try:
            self._store.put(CONTROL, {**item, "ttl": now_ms // 1000 + DEDUP_SECONDS}, condition=free)
        except ConflictError:
            return None
        return now_ms + LEASE_MS

    def _release(self, number: int) -> None:
        try:
            self._store.delete(CONTROL, Key(_shard(number), _LEASE), condition=equals("owner", self._owner))
        except ConflictError:
            # The lease expired, and another process has it.
            return

    def _dead_item(self, event_id: str) -> Item:
        item = self._store.get(CONTROL, Key(DEAD, event_id or "-"), consistent=True)
        if item is None:
            raise NotFoundError(f"OpenLineage event {event_id[:64]}: no dead letter has this id")
        return item

    def _move(self, event_id: str, writes: Sequence[Write]) -> None:
        try:
            self._store.transact(writes)
        except ConflictError as exc:
            raise NotFoundError(f"OpenLineage event {event_id}: another process has just handled it") from exc

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _behind(name: str, seconds: float) -> ThrottledError:
    error = ThrottledError(
        f"OpenLineage event of {name[:80]}: backlog of {seconds:.0f} s; the event was not stored, send it again"
    )
    error.retry_after_seconds = BEHIND_RETRY_SECONDS
    return error


def _duplicate(refusal: ConflictError) -> Receipt:
    earlier = refusal.failures.get(0)
    if earlier is None:
        raise refusal
    return Receipt(earlier["event_id"], is_duplicate=True)


def _dead_event(item: Item) -> DeadEvent:
    return DeadEvent(
        event_id=item["SK"],
        received_at=item["received_at"],
        failed_at=item["failed_at"],
        reason=item["reason"],
        about=item["about"],
        body=item["body"],
    )


def _shard(number: int) -> str:
    return f"OLIN#{number}"
