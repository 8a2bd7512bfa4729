"""A shared layer of the cache in memory, for tests that need a clock of their own or faults at will."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headgate.clock import Clock
from headgate.errors import TransientError
from headgate.store.cache.keys import Group, Key, group_of, is_group
from headgate.store.cache.shared import Invalidation, InvalidationListener, SharedEntry, SharedRead


@dataclass
class _Held:
    """An answer, or (without one) what an invalidation leaves behind."""

    mark: str
    version: int | None
    put_at: float
    entry: SharedEntry | None


@dataclass
class MemoryServer:
    """What several layers share. Nothing expires by itself: the tests that need expiry run on a real server."""

    clock: Clock
    held: dict[Key, _Held] = field(default_factory=dict)
    group_marks: dict[Group, str] = field(default_factory=dict)
    layers: list[MemoryLayer] = field(default_factory=list)
    marks: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


class MemoryLayer:
    """One process's access to a server. `down` makes every call fail; messages wait until `deliver`.

    `after_get` happens between a read on the server and the arrival of its answer.
    """

    def __init__(self, server: MemoryServer) -> None:
        self.down = False
        self.calls = 0
        self.closed = False
        self.after_get: Callable[[], None] = lambda: None
        self._server = server
        self._listener: InvalidationListener | None = None
        self._inbox: list[Invalidation] = []
        server.layers.append(self)

    def get(self, key: Key) -> SharedRead:
        self._call()
        read = self._read(key)
        self.after_get()
        return read

    def fill(self, key: Key, entry: SharedEntry, mark: bytes) -> bool:
        self._call()
        return self._mark_of(key) == mark and self._store(key, entry)

    def write(self, key: Key, entry: SharedEntry) -> bool:
        self._call()
        kept = self._store(key, entry)
        if kept:
            self._publish(Invalidation(key, entry.version))
        return kept

    def invalidate(self, invalidations: Sequence[Invalidation]) -> bool:
        self._call()
        for invalidation in invalidations:
            self._forget(invalidation)
            self._publish(invalidation)
        return True

    def listen(self, listener: InvalidationListener) -> None:
        self._listener = listener

    def close(self) -> None:
        self.closed = True

    def deliver(self) -> None:
        """Hand over the messages that have arrived."""
        assert self._listener is not None, "no listener is registered"
        arrived, self._inbox = self._inbox, []
        for invalidation in arrived:
            self._listener.on_invalidated(invalidation)

    def reconnect(self) -> None:
        """Lose the messages that have arrived, and say so."""
        assert self._listener is not None, "no listener is registered"
        self._inbox.clear()
        self._listener.on_messages_lost()

    def tick(self) -> None:
        """Let the second pass after which a listener is called when nothing happens."""
        assert self._listener is not None, "no listener is registered"
        self._listener.on_idle()

    def put(self, key: Key, entry: SharedEntry) -> None:
        """Place an answer as it is, whatever was there."""
        self._server.held[key] = _Held(self._mark(), entry.version, self._server.clock.monotonic(), entry)

    def _call(self) -> None:
        self.calls += 1
        if self.down:
            raise TransientError("the shared layer is down")

    def _read(self, key: Key) -> SharedRead:
        held = self._server.held.get(key)
        if held is None or held.entry is None:
            return SharedRead(None, self._mark_of(key))
        entry = held.entry
        age_seconds = entry.age_seconds + self._server.clock.monotonic() - held.put_at
        aged = SharedEntry(
            body=entry.body, version=entry.version, age_seconds=age_seconds, fresh_seconds=entry.fresh_seconds
        )
        return SharedRead(aged, self._mark_of(key))

    def _store(self, key: Key, entry: SharedEntry) -> bool:
        held = self._server.held.get(key)
        if held and held.version is not None and entry.version is not None and held.version > entry.version:
            return False
        self.put(key, entry)
        return True

    def _forget(self, invalidation: Invalidation) -> None:
        target, version = invalidation.target, invalidation.version
        if is_group(target):
            self._server.group_marks[Group(target)] = self._mark()
            for key in [key for key in self._server.held if group_of(key) == target]:
                del self._server.held[key]
            return
        held = self._server.held.get(Key(target))
        if held is None or held.version is None or version is None or held.version < version:
            self._server.held[Key(target)] = _Held(self._mark(), version, self._server.clock.monotonic(), None)

    def _publish(self, invalidation: Invalidation) -> None:
        for layer in self._server.layers:
            if layer is not self:
                layer._inbox.append(invalidation)

    def _mark_of(self, key: Key) -> bytes:
        held = self._server.held.get(key)
        return f"{self._server.group_marks.get(group_of(key), '')}/{held.mark if held else ''}".encode()

    def _mark(self) -> str:
        return str(next(self._server.marks))
