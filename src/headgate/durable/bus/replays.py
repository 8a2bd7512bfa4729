"""Replays: deliver past events again to one subscription."""

from __future__ import annotations

import enum
import hashlib
import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.durable.bus.event_log import EventLog, StoredEvent, expiry, first_id
from headgate.durable.bus.subscriptions import Subscription, check_pattern, delivery, matches, takes_type
from headgate.durable.model.records import Activity, activity_of
from headgate.errors import ConflictError, InvalidIdError, NotFoundError, TokenReusedError
from headgate.store.catalogue.tables import ACTIVITIES, SUBSCRIPTIONS
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

PREFIX: Final = "REPLAY#"
BATCH_MAX: Final = 90
BATCH_BYTES_MAX: Final = 3_000_000
# Queued deliveries that one call of `stop` checks.
DROPPED_MAX: Final = 10_000
# Events that one step reads, matching or not, so that progress is saved even if few match.
_STEP_EVENTS_MAX: Final = 1_000
_PAGE: Final = 100
# More conflicts than this with a running replay are not a race any more.
_TRIES: Final = 25
_REPLAY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Replay(Struct, frozen=True, kw_only=True):
    """The events to deliver again, by their time of acceptance; `until_ms` is not included."""

    id: str
    subscription: str
    since_ms: int
    until_ms: int
    types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _REPLAY_ID.fullmatch(self.id):
            raise InvalidIdError(f"replay id {self.id[:80]!r}: use 1 to 64 letters, digits, '_', '.' and '-'")
        if not 0 <= self.since_ms <= self.until_ms:
            raise InvalidIdError(f"replay {self.id}: it ends before it begins; give `until` later than `since`")
        for pattern in self.types:
            check_pattern(pattern, what=f"replay {self.id}")


class ReplayStatus(enum.StrEnum):
    """The status of a replay."""

    # A process creates deliveries, or has died; the same replay again resumes it.
    UNFINISHED = "UNFINISHED"
    DONE = "DONE"
    STOPPED = "STOPPED"


class ReplayState(Struct, frozen=True):
    """A replay: its request, and how many deliveries were created."""

    id: str
    subscription: str
    status: ReplayStatus
    count: int
    since_ms: int
    until_ms: int
    types: tuple[str, ...]


class StoppedReplay(Struct, frozen=True):
    """A stopped replay, and how many of its deliveries were dropped. With a cursor there may be more."""

    replay: ReplayState
    dropped: int
    cursor: str | None = None


class _Progress(Struct, frozen=True, omit_defaults=True):
    request: str
    version: int = 0
    # All events before this id are done; None if the replay is complete.
    next_id: str | None = None
    count: int = 0
    is_stopped: bool = False
    # The request, for display.
    since_ms: int = 0
    until_ms: int = 0
    types: tuple[str, ...] = ()

    @property
    def status(self) -> ReplayStatus:
        if self.is_stopped:
            return ReplayStatus.STOPPED
        return ReplayStatus.DONE if self.next_id is None else ReplayStatus.UNFINISHED


class Replays:
    """Delivers events again, in steps; each is one transaction that includes the progress."""

    def __init__(self, store: Store, log: EventLog) -> None:
        self._store = store
        self._log = log

    def run(self, replay: Replay, subscription: Subscription, now_ms: int) -> int:
        """Create the deliveries and return how many there are. The same replay again resumes where it stopped.

        Raises `TokenReusedError` if the id was used for another replay, and `ConflictError` if two processes run it, or
        if it is stopped.
        """
        progress = self._begin(replay)
        while progress.status is ReplayStatus.UNFINISHED:
            progress = self._step(replay, subscription, progress, now_ms)
        if progress.is_stopped:
            raise ConflictError(
                f"replay {replay.id}: it was stopped after {progress.count} deliveries; to go on, choose another id"
            )
        return progress.count

    def ls(self, subscription: str) -> list[ReplayState]:
        """Return the stored replays of a subscription, by id."""
        states: list[ReplayState] = []
        query = Query(table=SUBSCRIPTIONS, partition=subscription, sort=Sort(Range.BEGINS_WITH, PREFIX))
        while True:
            page = self._store.query(query)
            states += [_state(item) for item in page.items]
            if page.cursor is None:
                return states
            query = msgspec.structs.replace(query, cursor=page.cursor)

    def stop(
        self, subscription: Subscription, replay_id: str, *, limit: int = DROPPED_MAX, cursor: str | None = None
    ) -> StoppedReplay:
        """Stop a replay and drop its queued deliveries; those that a worker has claimed go on.

        About `limit` queued deliveries are checked. Raises `NotFoundError`.
        """
        state = self._mark_stopped(Key(subscription.name, PREFIX + replay_id))
        suffix = f"#{replay_id}"
        looked_at = dropped = 0
        while looked_at < limit:
            query = Query(table=ACTIVITIES, index="queue-index", partition=f"Q#{subscription.queue}", limit=_PAGE)
            page = self._store.query(msgspec.structs.replace(query, cursor=cursor))
            waiting = [activity_of(item) for item in page.items if item.get("subscription") == subscription.name]
            ours = [each for each in waiting if each.activity_id.endswith(suffix)]
            # One transaction each: a delivery that a worker has just claimed stays.
            outcomes = self._store.transact_many([[each.ended()] for each in ours]) if ours else []
            dropped += sum(refusal is None for refusal in outcomes)
            looked_at += len(page.items)
            cursor = page.cursor
            if cursor is None:
                break
        return StoppedReplay(state, dropped, cursor)

    def _mark_stopped(self, key: Key) -> ReplayState:
        for _ in range(_TRIES):
            item = self._store.get(SUBSCRIPTIONS, key, consistent=True)
            if item is None:
                replay_id = str(key.sort).removeprefix(PREFIX)
                raise NotFoundError(
                    f"subscription {key.partition}: it has no replay {replay_id}; 'headgate event replays' lists them"
                )
            if item.get("is_stopped"):
                return _state(item)
            stopped = {**item, "is_stopped": True, "version": item["version"] + 1}
            try:
                self._store.put(SUBSCRIPTIONS, stopped, condition=version_is(item["version"]))
            except ConflictError:
                continue  # The replay is running, and has made another step.
            return _state(stopped)
        raise ConflictError(f"replay {key.sort}: it kept going on while it was to be stopped; try again")

    def _begin(self, replay: Replay) -> _Progress:
        request = hashlib.blake2b(msgspec.json.encode(replay), digest_size=16).hexdigest()
        item = self._store.get(SUBSCRIPTIONS, _key(replay), consistent=True)
        if item is None:
            terms = {"since_ms": replay.since_ms, "until_ms": replay.until_ms, "types": replay.types}
            return msgspec.structs.replace(_Progress(request, next_id=first_id(replay.since_ms)), **terms)
        progress = typed_decode.convert(item, _Progress)
        if progress.request != request:
            raise TokenReusedError(
                f"replay {replay.id}: it was begun with other limits; choose another id", current=item
            )
        return progress

    def _step(self, replay: Replay, subscription: Subscription, progress: _Progress, now_ms: int) -> _Progress:
        assert progress.next_id is not None
        events, next_id = self._next_events(replay, subscription, progress.next_id)
        after = msgspec.structs.replace(
            progress, version=progress.version + 1, next_id=next_id, count=progress.count + len(events)
        )
        item = {
            **msgspec.to_builtins(after),
            **SUBSCRIPTIONS.key_attributes(_key(replay)),
            "ttl": expiry(now_ms, self._log.retention_days),
        }
        condition = absent() if progress.version == 0 else version_is(progress.version)
        deliveries = [delivery(subscription, each.event_id, each.body, now_ms, replay.id) for each in events]
        writes: list[Write] = [Put(SUBSCRIPTIONS, item, condition), *map(Activity.put, deliveries)]
        try:
            self._store.transact(writes)
        except ConflictError as exc:
            current = self._store.get(SUBSCRIPTIONS, _key(replay), consistent=True)
            if current is not None and current.get("is_stopped"):
                return typed_decode.convert(current, _Progress)
            raise ConflictError(f"replay {replay.id}: another process is running it; leave it to that one") from exc
        return after

    def _next_events(
        self, replay: Replay, subscription: Subscription, low: str
    ) -> tuple[list[StoredEvent], str | None]:
        """Return the events of the next step, and the id where the step after it starts."""
        events: list[StoredEvent] = []
        bytes_left = BATCH_BYTES_MAX
        for looked_at, stored in enumerate(self._log.between(low, first_id(replay.until_ms))):
            size = len(stored.body.encode()) + 1_000
            is_full = len(events) == BATCH_MAX or (bool(events) and size > bytes_left)
            if is_full or looked_at == _STEP_EVENTS_MAX:
                return events, stored.event_id
            if _is_replayed(replay, subscription, stored):
                events.append(stored)
                bytes_left -= size
        return events, None


def _is_replayed(replay: Replay, subscription: Subscription, stored: StoredEvent) -> bool:
    if replay.types and not takes_type(replay.types, stored.type):
        return False
    return takes_type(subscription.types, stored.type) and matches(subscription, stored.event)


def _state(item: dict[str, Any]) -> ReplayState:
    progress = typed_decode.convert(item, _Progress)
    replay_id = str(item["SK"]).removeprefix(PREFIX)
    request = (progress.since_ms, progress.until_ms, progress.types)
    return ReplayState(replay_id, item["subscription"], progress.status, progress.count, *request)


def _key(replay: Replay) -> Key:
    return Key(replay.subscription, PREFIX + replay.id)
