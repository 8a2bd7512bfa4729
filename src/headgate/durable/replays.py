"""Replays: events of the past, delivered once more to one subscription."""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec
from msgspec import Struct

from headgate.durable.event_log import EventLog, StoredEvent, expiry, first_id
from headgate.durable.records import Activity
from headgate.durable.subscriptions import Subscription, check_pattern, delivery, matches, takes_type
from headgate.errors import ConflictError, InvalidIdError, TokenReusedError
from headgate.store.conditions import absent, version_is
from headgate.store.port import Store
from headgate.store.schema import Key
from headgate.store.tables import SUBSCRIPTIONS
from headgate.store.writes import Put, Write

PREFIX: Final = "REPLAY#"
BATCH_MAX: Final = 90
BATCH_BYTES_MAX: Final = 3_000_000
# Events that are looked at in one step, wanted or not, so that progress is kept also where few are wanted.
_LOOKED_AT_MAX: Final = 1_000
_REPLAY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Replay(Struct, frozen=True, kw_only=True):
    """Which events are to be delivered again. Moments are when the bus took them; `until_ms` is not included."""

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


class _Progress(Struct, frozen=True, omit_defaults=True):
    request: str
    version: int = 0
    # Everything before this id has been looked at; None: it is all done.
    next_id: str | None = None
    count: int = 0


class Replays:
    """Delivers events again, in steps that each are one transaction with how far it has come."""

    def __init__(self, store: Store, log: EventLog) -> None:
        self._store = store
        self._log = log

    def run(self, replay: Replay, subscription: Subscription, now_ms: int) -> int:
        """Make the deliveries and return how many there are. The same replay again goes on where it was left.

        Raises `TokenReusedError` if the id was used for another replay, and `ConflictError` if two processes run it.
        """
        progress = self._begin(replay)
        while progress.next_id is not None:
            progress = self._step(replay, subscription, progress, now_ms)
        return progress.count

    def _begin(self, replay: Replay) -> _Progress:
        asked = hashlib.blake2b(msgspec.json.encode(replay), digest_size=16).hexdigest()
        item = self._store.get(SUBSCRIPTIONS, _key(replay), consistent=True)
        if item is None:
            return _Progress(asked, next_id=first_id(replay.since_ms))
        found = msgspec.convert(item, _Progress)
        if found.request != asked:
            raise TokenReusedError(
                f"replay {replay.id}: it was begun with other limits; choose another id", current=item
            )
        return found

    def _step(self, replay: Replay, subscription: Subscription, progress: _Progress, now_ms: int) -> _Progress:
        assert progress.next_id is not None
        wanted, next_id = self._wanted(replay, subscription, progress.next_id)
        after = _Progress(progress.request, progress.version + 1, next_id, progress.count + len(wanted))
        item = {**msgspec.to_builtins(after), **SUBSCRIPTIONS.key_attributes(_key(replay)), "ttl": expiry(now_ms)}
        condition = absent() if progress.version == 0 else version_is(progress.version)
        made = [delivery(subscription, each.event_id, each.body, now_ms, replay.id) for each in wanted]
        writes: list[Write] = [Put(SUBSCRIPTIONS, item, condition), *map(Activity.put, made)]
        try:
            self._store.transact(writes)
        except ConflictError as exc:
            raise ConflictError(f"replay {replay.id}: another process is at it; leave it to that one") from exc
        return after

    def _wanted(self, replay: Replay, subscription: Subscription, low: str) -> tuple[list[StoredEvent], str | None]:
        """Return the events of the next step, and where the one after it begins."""
        wanted: list[StoredEvent] = []
        bytes_left = BATCH_BYTES_MAX
        for looked_at, stored in enumerate(self._log.between(low, first_id(replay.until_ms))):
            size = len(stored.body.encode()) + 1_000
            is_full = len(wanted) == BATCH_MAX or (bool(wanted) and size > bytes_left)
            if is_full or looked_at == _LOOKED_AT_MAX:
                return wanted, stored.event_id
            if _is_wanted(replay, subscription, stored):
                wanted.append(stored)
                bytes_left -= size
        return wanted, None


def _is_wanted(replay: Replay, subscription: Subscription, stored: StoredEvent) -> bool:
    if replay.types and not takes_type(replay.types, stored.type):
        return False
    return takes_type(subscription.types, stored.type) and matches(subscription, stored.event)


def _key(replay: Replay) -> Key:
    return Key(replay.subscription, PREFIX + replay.id)
