"""A read-through cache: L1 in this process, an optional L2 shared between processes, and the store behind both.

- A read is answered by the first layer that is fresh. Past its soft limit an answer is loaded again; if the
  store cannot be reached, the old one is served, flagged stale with its age, until its hard limit.
- "There is none" is an answer like any other. Nothing is ever replaced by a default.
- An older version never takes the place of a newer one. A load that was overtaken by a write or an
  invalidation is given to those who already waited for it, and to nobody after them.
- L2 can fail in any way without failing a read that the store can answer.

Versions of one key only ever rise, also over a deletion. Where they cannot (a table was restored), call
`invalidate` without a version first. Values are shared between callers and must not be changed.
"""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import FatalError, InvalidItemError, StoreBusyError, TransientError
from headgate.store.cache.keys import Group, Key, Kind, is_group, kind_of
from headgate.store.cache.local import Entry, LocalLayer, supersedes
from headgate.store.cache.shared import GuardedLayer, Invalidation, SharedEntry, SharedLayer, SharedRead
from headgate.store.cache.single_flight import Flight, Flights
from headgate.store.cache.stats import CacheStats

T = TypeVar("T")

# The largest whole number that L2's scripts compare exactly.
VERSION_MAX: Final = 2**53 - 1
# A soft limit is shortened by up to this share, so that what was cached together does not expire together.
JITTER: Final = 0.1
# How long an invalidated version is remembered. It must be more than the next one.
FLOOR_SECONDS: Final = 60.0
# A load that took longer is not offered to L2: the trace of what happened meanwhile may be gone there.
FILL_SECONDS_MAX: Final = 30.0


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How long an answer of one kind counts as fresh in each layer, and how long it may be served stale."""

    local_seconds: float
    shared_seconds: float = 300.0
    absent_seconds: float = 60.0
    hard_seconds: float = 86_400.0


POLICIES: Final[Mapping[Kind, Policy]] = {
    # The first evaluation of a signal creates its state: "there is none" must not outlive that by a minute.
    Kind.SIGNAL_STATE: Policy(local_seconds=0.5, absent_seconds=1.0),
    Kind.DATASET_CONFIG: Policy(local_seconds=30.0),
    Kind.RESOLUTION_RULE: Policy(local_seconds=60.0),
}


class Layer(enum.StrEnum):
    """Who gave the answer."""

    L1 = "l1"
    L2 = "l2"
    STORE = "store"


class Loaded(msgspec.Struct, Generic[T], frozen=True):
    """What the store holds, and under which version. A loader returns None if there is none."""

    value: T
    version: int


class Cached(msgspec.Struct, Generic[T], frozen=True):
    """An answer. `value` None means: there is none.

    `age_seconds` is the time since the store last confirmed it. `stale` is set if it is past its soft limit
    and the store could not be asked, or if a newer version is known to exist but was not returned.
    """

    value: T | None
    version: int | None
    age_seconds: float
    stale: bool
    layer: Layer


class Cache:
    """Answers by key. Safe to use from many threads; never carry one over a fork."""

    def __init__(
        self,
        *,
        clock: Clock,
        shared: SharedLayer | None = None,
        policies: Mapping[Kind, Policy] = POLICIES,
        entries_max: int = 10_000,
        wait_seconds_max: float = 12.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.stats = CacheStats()
        self._clock = clock
        self._policies = policies
        self._wait_seconds_max = wait_seconds_max
        self._jitter = jitter
        self._lock = threading.Lock()
        self._local = LocalLayer(entries_max, FLOOR_SECONDS, self.stats)
        self._flights = Flights()
        self._shared = GuardedLayer(shared, clock=clock, stats=self.stats) if shared is not None else None
        # Told, from any thread, what was written or invalidated here, and not what was heard from others.
        self.told: Callable[[Sequence[Invalidation]], None] | None = None
        if shared is not None:
            shared.listen(self)

    def get(
        self, key: Key, load: Callable[[], Loaded[T] | None], shape: type[T], *, consistent: bool = False
    ) -> Cached[T]:
        """Return the answer for `key`, calling `load` if no layer has a fresh one.

        `shape` is the type that L2's bytes are decoded to. Of all callers that miss one key at a time in
        this process, one loads and the others wait for its answer or error, `wait_seconds_max` at most.
        `consistent` asks the store itself and refreshes L1 with what it says.

        Raises what `load` raises, except a `TransientError` while there is an answer within its hard limit.
        A `FatalError` is not papered over: it means that someone must look.
        """
        if consistent:
            with self._lock:
                private = self._flights.depart(key, joinable=False)
            return self._lead(key, private, partial(self._read_store, key, private, load))
        while True:
            with self._lock:
                known = self._known(key)
                if known is not None:
                    return known
                other = self._flights.joinable(key)
                own = self._flights.depart(key, joinable=True) if other is None else None
            if own is not None:
                return self._lead(key, own, partial(self._read_through, key, own, load, shape))
            assert other is not None
            answer = self._follow(key, other)
            if answer is not None:
                return answer

    def peek(self, key: Key, shape: type[T]) -> T | None:
        """Return what this process holds for `key`, fresh or not, or None. Asks nobody and counts nothing."""
        [value] = self.peek_many([key], shape)
        return value

    def peek_many(self, keys: Sequence[Key], shape: type[T]) -> list[T | None]:
        """Return what this process holds for each of several keys, as `peek` does."""
        with self._lock:
            entries = [self._local.peek(key) for key in keys]
        return [each.value if each is not None and isinstance(each.value, shape) else None for each in entries]

    def wrote(self, key: Key, value: object | None, version: int) -> None:
        """Make a committed write visible here and in every other process. `value` None: it was deleted."""
        self.wrote_many([(key, value, version)])

    def wrote_many(self, writes: Sequence[tuple[Key, object | None, int]]) -> None:
        """Make committed writes visible, each as `wrote` does, and here all at once."""
        for key, _, version in writes:
            _check_version(key, version)
        entries = []
        with self._lock:
            now = self._clock.monotonic()
            for key, value, version in writes:
                entry = self._entry(key, value, version, now)
                entries.append(entry)
                self._flights.detach(key)
                self._local.put(key, entry, now)
                if value is None:
                    self._local.raise_floor(key, version, now)
        if self.told is not None:
            self.told([Invalidation(key, version) for key, _, version in writes])
        if self._shared is None:
            return
        for (key, _, version), entry in zip(writes, entries, strict=True):
            packed = self._packed(key, entry)
            if packed is not None:
                self._shared.write(key, packed)
            else:
                self._shared.invalidate(Invalidation(key, version))

    def invalidate(self, target: Key | Group, version: int | None = None) -> None:
        """Forget `target` here and in every other process.

        With a `version`, only what is older is forgotten, and a load that still returns something older is
        not kept. Without one, everything is forgotten, and so is every load that has already begun.
        """
        if version is not None:
            _check_version(target, version)
        invalidation = Invalidation(target, None if is_group(target) else version)
        self.heard(invalidation)
        if self.told is not None:
            self.told([invalidation])
        if self._shared is not None:
            self._shared.invalidate(invalidation)

    def close(self) -> None:
        """Stop listening to other processes. Closing twice is allowed."""
        if self._shared is not None:
            self._shared.close()

    def heard(self, invalidation: Invalidation) -> None:
        """Forget what another process has invalidated."""
        target, version = invalidation.target, invalidation.version
        self.stats.of(kind_of(target)).invalidations += 1
        with self._lock:
            if is_group(target):
                self._local.drop_group(Group(target))
                self._flights.detach_group(Group(target))
            else:
                self._local.drop(Key(target), version, self._clock.monotonic())
                self._flights.detach(Key(target))

    def missed(self) -> None:
        """Trust nothing in L1 as fresh: invalidations may have been lost."""
        with self._lock:
            self._local.expire_all()
            self._flights.detach_all()

    def idle(self) -> None:
        """Send what L2 could not be told when it happened."""
        if self._shared is not None:
            self._shared.settle()

    def _lead(self, key: Key, flight: Flight, read: Callable[[], Cached[T]]) -> Cached[T]:
        try:
            answer = flight.answer = read()
        except BaseException as exc:
            flight.error = exc
            raise
        finally:
            with self._lock:
                self._flights.land(key, flight)
        return answer

    def _follow(self, key: Key, flight: Flight) -> Cached[Any] | None:
        """Wait for another caller's load. None means that its caller was interrupted, and someone else must load."""
        assert flight.done is not None, "whoever is given a load to wait for can"
        if not flight.done.wait(self._wait_seconds_max):
            with self._lock:
                # Whoever comes next must not wait for the same load again: it may hang for ever.
                if self._flights.joinable(key) is flight:
                    self._flights.detach(key)
            waited = f"{key}: a load that began earlier has not ended within {self._wait_seconds_max} s; try again"
            return self._stale(key, StoreBusyError(waited))
        if isinstance(flight.error, Exception):
            raise flight.error
        answer: Cached[Any] | None = flight.answer
        return answer

    def _known(self, key: Key) -> Cached[Any] | None:
        now = self._clock.monotonic()
        counts = self.stats.of(kind_of(key))
        entry = self._local.find(key, now)
        if entry is not None and now < entry.fresh_until:
            counts.hits_l1 += 1
            return _cached(entry, Layer.L1, now)
        counts.misses_l1 += 1
        if entry is not None and now < entry.retry_at:
            counts.stale_served += 1
            return _cached(entry, Layer.L1, now, stale=True)
        return None

    def _read_through(
        self, key: Key, flight: Flight, load: Callable[[], Loaded[T] | None], shape: type[T]
    ) -> Cached[T]:
        read = self._shared.get(key) if self._shared is not None else None
        found = self._unpacked(key, read, shape)
        if found is not None:
            with self._lock:
                now = self._clock.monotonic()
                # Kept even when it is not fresh: if the store cannot be reached, it may be all there is.
                if not flight.detached and self._local.put(key, found, now) and now < found.fresh_until:
                    self.stats.of(kind_of(key)).hits_l2 += 1
                    return _cached(found, Layer.L2, now)
        if self._shared is not None:
            self.stats.of(kind_of(key)).misses_l2 += 1
        try:
            entry = self._load(key, load)
        except TransientError as exc:
            return self._stale(key, exc, found)
        refused = read is not None and self._offer(key, entry, read.mark) is False
        with self._lock:
            return self._keep(key, flight, entry, refused=refused)

    def _read_store(self, key: Key, flight: Flight, load: Callable[[], Loaded[T] | None]) -> Cached[T]:
        entry = self._load(key, load)
        with self._lock:
            now = self._clock.monotonic()
            if not flight.detached:
                self._local.put(key, entry, now)
            return _cached(entry, Layer.STORE, now)

    def _load(self, key: Key, load: Callable[[], Loaded[T] | None]) -> Entry:
        started_at = self._clock.monotonic()
        counts = self.stats.of(kind_of(key))
        counts.loads += 1
        try:
            loaded = load()
        except (TransientError, FatalError):
            counts.load_errors += 1
            raise
        if loaded is None:
            return self._entry(key, None, None, started_at)
        _check_version(key, loaded.version)
        return self._entry(key, loaded.value, loaded.version, started_at)

    def _keep(self, key: Key, flight: Flight, entry: Entry, *, refused: bool) -> Cached[Any]:
        """Take what was loaded into L1, and return the newest answer there is."""
        now = self._clock.monotonic()
        if not refused and not flight.detached and self._local.put(key, entry, now):
            return _cached(entry, Layer.STORE, now)
        held = self._local.find(key, now)
        if held is not None and not supersedes(entry, held):
            return _cached(held, Layer.L1, now)
        return _cached(entry, Layer.STORE, now, stale=self._local.is_below_floor(key, entry, now))

    def _stale(self, key: Key, error: TransientError, found: Entry | None = None) -> Cached[Any]:
        """Return what is held although it is not fresh. Raises `error` if there is nothing."""
        with self._lock:
            now = self._clock.monotonic()
            held = self._local.find(key, now)
            if held is None and found is not None and now < found.hard_until:
                # L2 gave it while an invalidation came in, so L1 did not take it; it is still better than nothing.
                held = found
            if held is None:
                raise error
            # Until then the store is left alone: each attempt could cost its whole deadline.
            held.retry_at = now + error.retry_after_seconds
            self.stats.of(kind_of(key)).stale_served += 1
            return _cached(held, Layer.L2 if held is found else Layer.L1, now, stale=True)

    def _entry(self, key: Key, value: object | None, version: int | None, confirmed_at: float) -> Entry:
        policy = self._policies[kind_of(key)]
        fresh_until = self._clock.monotonic() + self._shortened(
            policy.absent_seconds if value is None else policy.local_seconds
        )
        # "There is none" is not served stale: the thing may have been created since.
        hard_until = fresh_until if value is None else confirmed_at + policy.hard_seconds
        return Entry(value, version, confirmed_at, fresh_until, hard_until)

    def _offer(self, key: Key, entry: Entry, mark: bytes) -> bool | None:
        packed = self._packed(key, entry)
        if self._shared is None or packed is None or packed.age_seconds > FILL_SECONDS_MAX:
            return None
        return self._shared.fill(key, packed, mark)

    def _packed(self, key: Key, entry: Entry) -> SharedEntry | None:
        """Return `entry` for L2, or None for a value that has no form there, which is no reason to fail a read."""
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
        """Return what L2 holds as an entry. What cannot be decoded is removed there and counts as a miss."""
        if self._shared is None or read is None or read.entry is None:
            return None
        found = read.entry
        try:
            value = None if found.body is None else _decoder(shape).decode(found.body)
        except (msgspec.DecodeError, RecursionError):
            self.stats.of(kind_of(key)).l2_errors += 1
            self._shared.invalidate(Invalidation(key))
            return None
        now = self._clock.monotonic()
        entry = self._entry(key, value, found.version, now - found.age_seconds)
        entry.fresh_until = min(entry.fresh_until, now + found.fresh_seconds - found.age_seconds)
        if value is None:
            entry.hard_until = entry.fresh_until
        return entry

    def _shortened(self, seconds: float) -> float:
        return seconds * (1.0 - JITTER * self._jitter())


@cache
def _decoder(shape: Any) -> msgspec.msgpack.Decoder[Any]:  # noqa: ANN401 - any type is a shape
    return typed_decode.msgpack_decoder(shape)


def _cached(entry: Entry, layer: Layer, now: float, *, stale: bool = False) -> Cached[Any]:
    return Cached(entry.value, entry.version, max(0.0, now - entry.confirmed_at), stale, layer)


def _check_version(target: Key | Group, version: int) -> None:
    if not 0 <= version <= VERSION_MAX:
        raise InvalidItemError(f"{target}: version {version} is not within 0 and {VERSION_MAX}")
