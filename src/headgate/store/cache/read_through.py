"""Read-through cache: L1 in this process, an optional L2 shared between processes, and the store behind both.

- A read is served by the first layer with a fresh entry. Past its soft limit an entry is reloaded; if the store cannot
  be reached, the old entry is served, flagged stale with its age, until its hard limit.
- Absence is cached like a value. Nothing is ever replaced by a default.
- An older version never replaces a newer one. A load that was overtaken by a write or an invalidation is returned to
  its waiting callers and not cached.
- A failure of L2 never fails a read that the store can serve.
- An entry that a serving process of the same server has changed since is not fresh (`store/peer_changes.py`).

The versions of a key only increase, also across a deletion. Where they do not (a restored table), call `invalidate`
without a version first. Values are shared between callers and must not be changed.
"""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import FatalError, InvalidItemError, StoreBusyError, TransientError
from headgate.store.cache.keys import CacheKind, Group, Key, group_of, is_group, kind_of
from headgate.store.cache.local import Entry, LocalLayer, supersedes
from headgate.store.cache.shared import GuardedLayer, Invalidation, SharedEntry, SharedLayer, SharedRead
from headgate.store.cache.single_flight import InFlightLoad, InFlightLoads
from headgate.store.cache.stats import CacheStats
from headgate.store.peer_changes import NO_PEERS, PeerChanges

T = TypeVar("T")

# The largest integer that the Lua scripts of L2 compare exactly.
VERSION_MAX: Final = 2**53 - 1
# A soft limit is shortened by up to this share, so that entries cached together do not expire together.
JITTER: Final = 0.1
# How long an invalidated version is remembered. Must exceed `FILL_SECONDS_MAX`.
FLOOR_SECONDS: Final = 60.0
# A slower load is not written to L2, which may have forgotten an invalidation that happened meanwhile.
FILL_SECONDS_MAX: Final = 30.0


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long an entry of one kind is fresh in each layer, and how long it may be served stale."""

    local_seconds: float
    shared_seconds: float = 300.0
    absent_seconds: float = 60.0
    hard_seconds: float = 86_400.0


POLICIES: Final[Mapping[CacheKind, CachePolicy]] = {
    # Short for absence: the first evaluation of a signal creates its state.
    CacheKind.SIGNAL_STATE: CachePolicy(local_seconds=0.5, absent_seconds=1.0),
    CacheKind.DATASET_CONFIG: CachePolicy(local_seconds=30.0),
    CacheKind.RESOLUTION_RULE: CachePolicy(local_seconds=60.0),
}


class CacheLayer(enum.StrEnum):
    """The layer that served a read."""

    L1 = "l1"
    L2 = "l2"
    STORE = "store"


class Loaded(msgspec.Struct, Generic[T], frozen=True):
    """A value loaded from the store, and its version. A loader returns None if the item does not exist."""

    value: T
    version: int


class Cached(msgspec.Struct, Generic[T], frozen=True):
    """The result of a read. `value` is None if the item does not exist.

    `age_seconds` is the time since the store last confirmed it. `stale` is set if it is past its soft limit and the
    store could not be reached, or if a newer version is known to exist.
    """

    value: T | None
    version: int | None
    age_seconds: float
    stale: bool
    layer: CacheLayer


class Cache:
    """The cache. Thread-safe; must not be used after a fork."""

    def __init__(
        self,
        *,
        clock: Clock,
        shared: SharedLayer | None = None,
        policies: Mapping[CacheKind, CachePolicy] = POLICIES,
        entries_max: int = 10_000,
        wait_seconds_max: float = 12.0,
        jitter: Callable[[], float] = random.random,
        peer_changes: PeerChanges = NO_PEERS,
    ) -> None:
        """Count changes in `peer_changes` for the other serving processes of this server, and heed theirs."""
        self.stats = CacheStats()
        self._clock = clock
        self._policies = policies
        # By the text of the kind: an enum as the key of a dict is slow, and every write of a signal needs it.
        self._policy_by_prefix = {kind.value: policy for kind, policy in policies.items()}
        self._wait_seconds_max = wait_seconds_max
        self._jitter = jitter
        self._lock = threading.Lock()
        self._local = LocalLayer(entries_max, FLOOR_SECONDS, self.stats)
        self._flights = InFlightLoads()
        self._shared = GuardedLayer(shared, clock=clock, stats=self.stats) if shared is not None else None
        self.peer_changes = peer_changes
        # Whether this server has other serving processes.
        self.has_peers = peer_changes is not NO_PEERS
        self._peers: tuple[Callable[[Sequence[Invalidation]], None], ...] = ()
        if shared is not None:
            shared.listen(self)

    def get(
        self, key: Key, load: Callable[[], Loaded[T] | None], shape: type[T], *, consistent: bool = False
    ) -> Cached[T]:
        """Return the value of `key`, calling `load` if no layer has a fresh entry.

        `shape` is the type that L2's bytes are decoded to. Of concurrent misses of a key in this process, one caller
        loads and the others wait for its result or error, at most `wait_seconds_max`. `consistent` reads the store and
        refreshes L1.

        Raises the errors of `load`, except a `TransientError` while there is an entry within its hard limit. A
        `FatalError` is always raised.
        """
        seen = self._seen(key)
        if consistent:
            with self._lock:
                private = self._flights.start(key, joinable=False, seen=seen)
            return self._lead(key, private, partial(self._read_store, key, private, load))
        while True:
            with self._lock:
                known = self._known(key, seen)
                if known is not None:
                    return known
                other = self._flights.joinable(key, seen)
                own = self._flights.start(key, joinable=True, seen=seen) if other is None else None
            if own is not None:
                return self._lead(key, own, partial(self._read_through, key, own, load, shape))
            assert other is not None
            answer = self._follow(key, other)
            if answer is not None:
                return answer

    def peek(self, key: Key, shape: type[T]) -> T | None:
        """Return the value of `key` in L1, fresh or not, or None. Loads and counts nothing.

        Values that another serving process of this server has changed are left out as far as is known now.
        """
        [value] = self.peek_many([key], shape)
        return value

    def peek_many(self, keys: Sequence[Key], shape: type[T]) -> list[T | None]:
        """Return the L1 values of several keys, as `peek` does."""
        seen = [self._seen(key) for key in keys]
        with self._lock:
            entries = [self._local.peek(key) for key in keys]
        return [
            each.value if each is not None and each.seen == count and isinstance(each.value, shape) else None
            for each, count in zip(entries, seen, strict=True)
        ]

    def wrote(self, key: Key, value: object | None, version: int) -> None:
        """Publish a committed write to this and all other processes. `value` is None for a deletion."""
        self.wrote_many([(key, value, version)])

    def wrote_many(self, writes: Sequence[tuple[Key, object | None, int]]) -> None:
        """Publish committed writes as `wrote` does, atomically in L1."""
        for key, _, version in writes:
            _check_version(key, version)
        if self.has_peers:
            self._count(*(key for key, _, _ in writes))
        entries = self._write_local(writes)
        if self._peers:
            self._forward([Invalidation(key, version) for key, _, version in writes])
        if self._shared is None:
            return
        for (key, _, version), entry in zip(writes, entries, strict=True):
            packed = self._packed(key, entry)
            if packed is not None:
                self._shared.write(key, packed)
            else:
                self._shared.invalidate(Invalidation(key, version))

    def invalidate(self, target: Key | Group, version: int | None = None) -> None:
        """Invalidate `target` in this and all other processes.

        With a `version`, only older entries are dropped, and a running load of an older version is not cached. Without
        one, all entries are dropped, and no running load is cached.
        """
        if version is not None:
            _check_version(target, version)
        invalidation = Invalidation(target, None if is_group(target) else version)
        self._count(target)
        self.on_invalidated(invalidation)
        self._forward([invalidation])
        if self._shared is not None:
            self._shared.invalidate(invalidation)

    def changes_elsewhere(self, kind: CacheKind) -> int:
        """Return a number that differs after another process has reported a change of an entry of this kind."""
        return self.stats.of(kind).invalidations + self.peer_changes.by_others(kind)

    @contextmanager
    def forwarding(self, peer: Callable[[Sequence[Invalidation]], None]) -> Iterator[None]:
        """Pass this process's writes and invalidations to `peer` while the block runs, from any thread.

        Invalidations received from other processes are not forwarded.
        """
        with self._lock:
            self._peers = (*self._peers, peer)
        try:
            yield
        finally:
            with self._lock:
                self._peers = tuple(each for each in self._peers if each is not peer)

    def close(self) -> None:
        """Stop listening to other processes. Idempotent."""
        if self._shared is not None:
            self._shared.close()

    def on_invalidated(self, invalidation: Invalidation) -> None:
        """Apply an invalidation of another process."""
        target, version = invalidation.target, invalidation.version
        self.stats.of(kind_of(target)).invalidations += 1
        with self._lock:
            if is_group(target):
                self._local.drop_group(Group(target))
                self._flights.detach_group(Group(target))
            else:
                self._local.drop(Key(target), version, self._clock.monotonic())
                self._flights.detach(Key(target))

    def on_messages_lost(self) -> None:
        """Treat nothing in L1 as fresh: invalidations may have been lost."""
        with self._lock:
            self._local.expire_all()
            self._flights.detach_all()

    def on_idle(self) -> None:
        """Send the invalidations that L2 did not receive earlier."""
        if self._shared is not None:
            self._shared.send_pending()

    def _write_local(self, writes: Sequence[tuple[Key, object | None, int]]) -> list[Entry]:
        """Put committed writes into L1 and return their entries."""
        entries = []
        with self._lock:
            now = self._clock.monotonic()
            has_flights = bool(self._flights)
            for key, value, version in writes:
                entry = self._entry(key, value, version, now, now)
                if self.has_peers:
                    # A peer may have committed a newer version since, and counted it already.
                    entry.seen, entry.is_confirmed = self._seen(key), False
                entries.append(entry)
                if has_flights:
                    self._flights.detach(key)
                self._local.put(key, entry, now)
                if value is None:
                    self._local.raise_floor(key, version, now)
        return entries

    def _count(self, *targets: Key | Group) -> None:
        """Count changes for the other serving processes."""
        if self.has_peers:
            for target in targets:
                self.peer_changes.count(target)
                self.peer_changes.count(kind_of(target))

    def _seen(self, key: Key) -> int:
        """Return how many changes of a key or its group the other serving processes have counted."""
        return self.peer_changes.by_others(key, group_of(key)) if self.has_peers else 0

    def _forward(self, invalidations: Sequence[Invalidation]) -> None:
        for peer in self._peers:
            peer(invalidations)

    def _lead(self, key: Key, flight: InFlightLoad, read: Callable[[], Cached[T]]) -> Cached[T]:
        try:
            answer = flight.answer = read()
        except BaseException as exc:
            flight.error = exc
            raise
        finally:
            with self._lock:
                self._flights.finish(key, flight)
        return answer

    def _follow(self, key: Key, flight: InFlightLoad) -> Cached[Any] | None:
        """Wait for another caller's load. Returns None if that caller was interrupted, so that this one must load."""
        assert flight.done is not None, "a joinable load has an event"
        if not flight.done.wait(self._wait_seconds_max):
            with self._lock:
                # The load may hang forever, so later callers must not wait for it.
                if self._flights.joinable(key, flight.seen) is flight:
                    self._flights.detach(key)
            message = f"{key}: an earlier load has not ended within {self._wait_seconds_max} s; try again"
            return self._stale(key, StoreBusyError(message))
        if isinstance(flight.error, Exception):
            raise flight.error
        answer: Cached[Any] | None = flight.answer
        return answer

    def _known(self, key: Key, seen: int) -> Cached[Any] | None:
        now = self._clock.monotonic()
        counts = self.stats.of(kind_of(key))
        entry = self._local.find(key, now)
        if entry is not None and now < entry.fresh_until and entry.seen == seen and entry.is_confirmed:
            counts.hits_l1 += 1
            return _cached(entry, CacheLayer.L1, now)
        counts.misses_l1 += 1
        if entry is not None and now < entry.retry_at:
            counts.stale_served += 1
            return _cached(entry, CacheLayer.L1, now, stale=True)
        return None

    def _read_through(
        self, key: Key, flight: InFlightLoad, load: Callable[[], Loaded[T] | None], shape: type[T]
    ) -> Cached[T]:
        read = self._shared.get(key) if self._shared is not None else None
        shared_entry = self._unpacked(key, read, shape)
        if shared_entry is not None:
            shared_entry.seen = flight.seen
            with self._lock:
                now = self._clock.monotonic()
                # Put into L1 even if it is not fresh: it can be served stale if the store cannot be reached.
                if not flight.detached and self._local.put(key, shared_entry, now) and now < shared_entry.fresh_until:
                    self.stats.of(kind_of(key)).hits_l2 += 1
                    return _cached(shared_entry, CacheLayer.L2, now)
        if self._shared is not None:
            self.stats.of(kind_of(key)).misses_l2 += 1
        try:
            entry = self._load(key, load, flight.seen)
        except TransientError as exc:
            return self._stale(key, exc, shared_entry)
        refused = read is not None and self._offer(key, entry, read.mark) is False
        with self._lock:
            return self._keep(key, flight, entry, refused=refused)

    def _read_store(self, key: Key, flight: InFlightLoad, load: Callable[[], Loaded[T] | None]) -> Cached[T]:
        entry = self._load(key, load, flight.seen)
        with self._lock:
            now = self._clock.monotonic()
            if not flight.detached:
                self._local.put(key, entry, now)
            return _cached(entry, CacheLayer.STORE, now)

    def _load(self, key: Key, load: Callable[[], Loaded[T] | None], seen: int) -> Entry:
        """Load an entry. `seen` was read before: a change during the load may be missing from it."""
        started_at = self._clock.monotonic()
        counts = self.stats.of(kind_of(key))
        counts.loads += 1
        try:
            loaded = load()
        except (TransientError, FatalError):
            counts.load_errors += 1
            raise
        if loaded is None:
            entry = self._entry(key, None, None, started_at)
        else:
            _check_version(key, loaded.version)
            entry = self._entry(key, loaded.value, loaded.version, started_at)
        entry.seen = seen
        return entry

    def _keep(self, key: Key, flight: InFlightLoad, entry: Entry, *, refused: bool) -> Cached[Any]:
        """Put a loaded entry into L1 and return the newest entry."""
        now = self._clock.monotonic()
        if not refused and not flight.detached and self._local.put(key, entry, now):
            return _cached(entry, CacheLayer.STORE, now)
        current = self._local.find(key, now)
        if current is not None and not supersedes(entry, current):
            return _cached(current, CacheLayer.L1, now)
        return _cached(entry, CacheLayer.STORE, now, stale=self._local.is_below_floor(key, entry, now))

    def _stale(self, key: Key, error: TransientError, shared_entry: Entry | None = None) -> Cached[Any]:
        """Return a stale entry. Raises `error` if there is none."""
        with self._lock:
            now = self._clock.monotonic()
            current = self._local.find(key, now)
            if current is None and shared_entry is not None and now < shared_entry.hard_until:
                # Read from L2 during an invalidation, so it is not in L1; it can still be served stale.
                current = shared_entry
            if current is None:
                raise error
            # No load before then: each attempt could take its whole deadline.
            current.retry_at = now + error.retry_after_seconds
            self.stats.of(kind_of(key)).stale_served += 1
            return _cached(current, CacheLayer.L2 if current is shared_entry else CacheLayer.L1, now, stale=True)

    def _entry(
        self, key: Key, value: object | None, version: int | None, confirmed_at: float, now: float | None = None
    ) -> Entry:
        policy = self._policy_by_prefix[key[: key.index(":")]]
        fresh_seconds = policy.absent_seconds if value is None else policy.local_seconds
        fresh_until = (self._clock.monotonic() if now is None else now) + self._shortened(fresh_seconds)
        # Absence is not served stale: the item may have been created since.
        hard_until = fresh_until if value is None else confirmed_at + policy.hard_seconds
        return Entry(value, version, confirmed_at, fresh_until, hard_until)

    def _offer(self, key: Key, entry: Entry, mark: bytes) -> bool | None:
        packed = self._packed(key, entry)
        if self._shared is None or packed is None or packed.age_seconds > FILL_SECONDS_MAX:
            return None
        return self._shared.fill(key, packed, mark)

    def _packed(self, key: Key, entry: Entry) -> SharedEntry | None:
        """Encode an entry for L2. Returns None for a value that cannot be encoded, which must not fail a read."""
        policy = self._policies[kind_of(key)]
        age_seconds = self._clock.monotonic() - entry.confirmed_at
        if entry.value is None:
            fresh_seconds, keep_seconds = policy.absent_seconds, max(policy.absent_seconds, FLOOR_SECONDS)
        else:
            fresh_seconds, keep_seconds = policy.shared_seconds, policy.hard_seconds
        try:
            body = None if entry.value is None else msgspec.msgpack.encode(entry.value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            self.stats.of(kind_of(key)).l2_errors += 1
            return None
        return SharedEntry(
            body=body,
            version=entry.version,
            age_seconds=age_seconds,
            fresh_seconds=self._shortened(fresh_seconds),
            keep_seconds=keep_seconds,
        )

    def _unpacked(self, key: Key, read: SharedRead | None, shape: Any) -> Entry | None:  # noqa: ANN401
        """Decode an entry of L2. One that cannot be decoded is removed from L2 and counts as a miss."""
        if self._shared is None or read is None or read.entry is None:
            return None
        packed = read.entry
        try:
            value = None if packed.body is None else _decoder(shape).decode(packed.body)
        except (msgspec.DecodeError, RecursionError):
            self.stats.of(kind_of(key)).l2_errors += 1
            self._shared.invalidate(Invalidation(key))
            return None
        now = self._clock.monotonic()
        entry = self._entry(key, value, packed.version, now - packed.age_seconds)
        entry.fresh_until = min(entry.fresh_until, now + packed.fresh_seconds - packed.age_seconds)
        if value is None:
            entry.hard_until = entry.fresh_until
        return entry

    def _shortened(self, seconds: float) -> float:
        return seconds * (1.0 - JITTER * self._jitter())


@cache
def _decoder(shape: Any) -> msgspec.msgpack.Decoder[Any]:  # noqa: ANN401 - any type is a shape
    return typed_decode.msgpack_decoder(shape)


def _cached(entry: Entry, layer: CacheLayer, now: float, *, stale: bool = False) -> Cached[Any]:
    return Cached(entry.value, entry.version, max(0.0, now - entry.confirmed_at), stale, layer)


def _check_version(target: Key | Group, version: int) -> None:
    if not 0 <= version <= VERSION_MAX:
        raise InvalidItemError(f"{target}: version {version} is not between 0 and {VERSION_MAX}")
