"""Locks: a lease on a period with a fencing token.

An expired lock is free: the store treats it as absent. It is never revived, and only its holder releases it, so a
process that wakes from a long pause does no harm. Writes of a holder can carry the `held` check, and are refused when
the lock is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, StaleClaimError
from headgate.ids import IdMaker
from headgate.pipelines.definition.job_times import window_seconds
from headgate.pipelines.definition.model import JOB_CHECK_SECONDS_MAX, Pipeline
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import LOCK, PIPELINES
from headgate.store.model.conditions import absent, all_of, equals, version_is
from headgate.store.model.requests import Check, Delete, Put, Update, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

# What an execution may take beyond the times of its definition.
MARGIN_SECONDS: Final = 1_800.0
# The state machine retries the trigger after 30, 60, 120 and 240 seconds.
TRIGGER_RETRY_SECONDS: Final = 450.0
_RACES_MAX: Final = 5


class Lock(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lease on a key. `token` identifies this lease; `owner` is the holder under any token."""

    key: str
    owner: str
    token: str
    version: int
    acquired_at_ms: int
    # Seconds since 1970 at which the lock expires.
    expires_at: int


class Locks:
    """Stores locks. Thread-safe."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    def acquire(self, key: str, owner: str, seconds: float, *, also: Sequence[Write] = ()) -> Lock | None:
        """Take the lock for `seconds`, or return None if another owner has it.

        A repeated call of the owner returns the same lease, and does not write `also` again. Raises `ConflictError` if
        a write of `also` is refused.
        """
        for _ in range(_RACES_MAX):
            now_seconds = self._clock.seconds()
            lock = Lock(
                key=key,
                owner=owner,
                token=self._ids.make("lock"),
                version=1,
                acquired_at_ms=int(now_seconds * 1000),
                expires_at=math.ceil(now_seconds + seconds),
            )
            try:
                self._store.transact([Put(PIPELINES, _item(lock), absent()), *also])
            except ConflictError as exc:
                held = exc.failures.get(0)
                if held is None:
                    raise
                current = struct_of(held, Lock)
                if current.owner != owner:
                    return None
                try:
                    return self.renew(current, seconds)
                except StaleClaimError:
                    # It expired or was released in between: try again.
                    continue
            return lock
        return None

    def renew(self, lock: Lock, seconds: float) -> Lock:
        """Extend the lock to at least `seconds` from now. Raises `StaleClaimError` if it is lost or has expired."""
        current = lock
        for _ in range(_RACES_MAX):
            expires_at = max(current.expires_at, math.ceil(self._clock.seconds() + seconds))
            renewed = replace(current, version=current.version + 1, expires_at=expires_at)
            try:
                mine = all_of(equals("token", lock.token), version_is(current.version))
                self._store.put(PIPELINES, _item(renewed), condition=mine)
            except ConflictError as exc:
                if exc.current is None or exc.current.get("token") != lock.token:
                    raise lost(lock.key, lock.token, exc) from exc
                current = struct_of(exc.current, Lock)
            else:
                return renewed
        return current

    def restore(self, key: str, owner: str, token: str, seconds: float) -> bool:
        """Take an expired lock again under the same token, if it is free. False: it is held.

        Only for a caller that knows that no other execution has held it since, for example after a downtime.
        """
        now_seconds = self._clock.seconds()
        lock = Lock(
            key=key,
            owner=owner,
            token=token,
            version=1,
            acquired_at_ms=int(now_seconds * 1000),
            expires_at=math.ceil(now_seconds + seconds),
        )
        try:
            self._store.put(PIPELINES, _item(lock), condition=absent())
        except ConflictError:
            return False
        return True

    def release(self, key: str, token: str, *, also: Sequence[Write] = ()) -> bool:
        """Release the lease of a token. False: the token no longer holds the lock, and nothing is written.

        Raises `ConflictError` if a write of `also` is refused.
        """
        return self._let_go(Delete(PIPELINES, lock_row_key(key), equals("token", token)), also)

    def owner_writes(self, key: str, token: str, owner: str) -> list[Write]:
        """Return the write that makes another execution the owner of a lease. It is refused if the token lost it."""
        return [Update(PIPELINES, lock_row_key(key), set={"owner": owner}, condition=equals("token", token))]

    def release_owned(self, key: str, owner: str, *, also: Sequence[Write] = ()) -> bool:
        """Release the lease of an owner that has lost its token. False: it has none."""
        return self._let_go(Delete(PIPELINES, lock_row_key(key), equals("owner", owner)), also)

    def find(self, key: str) -> Lock | None:
        """Return the current lease of a key, or None."""
        item = self._store.get(PIPELINES, lock_row_key(key), consistent=True)
        return None if item is None else struct_of(item, Lock)

    def _let_go(self, delete: Delete, also: Sequence[Write]) -> bool:
        try:
            self._store.transact([delete, *also])
        except ConflictError as exc:
            if 0 not in exc.failures:
                raise
            if exc.failures[0] is None:
                self._remove_expired(delete.key)
            return False
        return True

    def _remove_expired(self, key: Key) -> None:
        """Remove the row of an expired lease: a clock that is set back would make it valid again, without an owner."""
        with suppress(ConflictError):
            self._store.delete(PIPELINES, key, condition=absent())


def evaluation_key(slot: Slot) -> str:
    """Return the key of the lock on a period."""
    return f"eval:{slot.pipeline_id}:{slot.schedule_id}:{slot.date}"


def lock_row_key(key: str) -> Key:
    """Return the key of a lock's row."""
    return LOCK.key(lock_key=key)


def held(key: str, token: str) -> Check:
    """Return the check that lets a transaction pass only while the token holds the lock."""
    return Check(PIPELINES, lock_row_key(key), equals("token", token))


def lost(key: str, token: str, refusal: ConflictError) -> StaleClaimError:
    """Return the error for a lost lease."""
    current = refusal.current
    holder = "no one" if current is None else str(current.get("owner"))
    return StaleClaimError(
        f"lock {key}: {token} no longer holds it, {holder} does; stop, what you do may be done by another",
        current=current,
        write_index=refusal.write_index,
        failures=refusal.failures,
    )


def lifetime_seconds(pipeline: Pipeline) -> float:
    """Return the longest time that one attempt may hold its lock, so that no lock expires before its execution."""
    monitoring = pipeline.post_run.monitoring
    readiness, trigger = pipeline.readiness, pipeline.trigger
    # The last evaluation may start just before the window closes, and its traits take time.
    evaluating = (
        readiness.window + readiness.interval + max((each.timeout for each in readiness.traits.values()), default=0)
    )
    polling = 0.0 if trigger is None else window_seconds(trigger) + max(trigger.check_interval, JOB_CHECK_SECONDS_MAX)
    watching = monitoring.duration + monitoring.interval if monitoring.enabled else 0.0
    return evaluating + TRIGGER_RETRY_SECONDS + polling + watching + pipeline.retry.backoff_max + MARGIN_SECONDS


def _item(lock: Lock) -> Item:
    return row(lock_row_key(lock.key), lock, ttl=lock.expires_at)
