"""Local cache layer (L1): an LRU of entries in this process.

It takes no locks: the cache holds its own lock around every call, because an entry and a concurrent load must be
compared atomically.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import msgspec

from headgate.store.cache.keys import Group, Key, group_of, kind_of
from headgate.store.cache.stats import CacheStats


class Entry(msgspec.Struct, gc=False):
    """One entry. `value` is None if the item does not exist. Times are monotonic seconds."""

    value: Any
    version: int | None
    confirmed_at: float
    fresh_until: float
    hard_until: float
    retry_at: float = -math.inf
    # Changes of the other serving processes that were counted before the value was read, and whether it was read: the
    # value of a write of this process may be older than one that was counted before it.
    seen: int = 0
    is_confirmed: bool = True


class LocalLayer:
    """At most `entries_max` entries, and as many version floors, below which no entry is accepted."""

    def __init__(self, entries_max: int, floor_seconds: float, stats: CacheStats) -> None:
        self._entries_max = entries_max
        self._floor_seconds = floor_seconds
        self._stats = stats
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._floors: OrderedDict[Key, tuple[int, float]] = OrderedDict()
        # The keys of both by group: every incident invalidates a whole group, and L1 may be large.
        self._groups: dict[Group, set[Key]] = {}

    def find(self, key: Key, now: float) -> Entry | None:
        """Return the entry, fresh or not, unless it is past its hard limit."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now >= entry.hard_until:
            del self._entries[key]
            self._remove_from_group(key)
            return None
        self._entries.move_to_end(key)
        return entry

    def peek(self, key: Key) -> Entry | None:
        """Return the entry, fresh or not, without touching the LRU order."""
        return self._entries.get(key)

    def put(self, key: Key, entry: Entry, now: float) -> bool:
        """Store `entry` unless a newer version is known. Returns whether it was stored."""
        current = self.find(key, now)
        if (self._floors and self.is_below_floor(key, entry, now)) or (
            current is not None and not supersedes(entry, current)
        ):
            return False
        if current is not None and current.version == entry.version:
            entry.confirmed_at = max(entry.confirmed_at, current.confirmed_at)
            entry.hard_until = max(entry.hard_until, current.hard_until)
        self._entries[key] = entry
        if current is None:
            # An existing entry is already in its group, and `find` moved it to the end.
            self._add_to_group(key)
        if len(self._entries) > self._entries_max:
            evicted, _ = self._entries.popitem(last=False)
            self._remove_from_group(evicted)
            self._stats.of(kind_of(evicted)).evictions += 1
        return True

    def drop(self, key: Key, version: int | None, now: float) -> None:
        """Drop the entry if it is older than `version` and refuse older ones; with None, drop any version."""
        current = self._entries.get(key)
        if current is not None and (version is None or current.version is None or current.version < version):
            del self._entries[key]
        if version is None:
            self._floors.pop(key, None)
        else:
            self.raise_floor(key, version, now)
        self._remove_from_group(key)

    def raise_floor(self, key: Key, version: int, now: float) -> None:
        """Refuse versions of `key` below `version` while a running load could still return one."""
        floor, until = self._floors.pop(key, (0, now))
        highest = max(floor, version) if now < until else version
        self._floors[key] = (highest, now + self._floor_seconds)
        self._add_to_group(key)
        if len(self._floors) > self._entries_max:
            evicted, _ = self._floors.popitem(last=False)
            self._remove_from_group(evicted)

    def is_below_floor(self, key: Key, entry: Entry, now: float) -> bool:
        """Whether a version newer than that of `entry` is known to exist."""
        floor, until = self._floors.get(key, (0, now))
        return entry.version is not None and now < until and entry.version < floor

    def drop_group(self, group: Group) -> None:
        """Drop every entry of `group`."""
        for key in self._groups.pop(group, ()):
            self._entries.pop(key, None)
            self._floors.pop(key, None)

    def _add_to_group(self, key: Key) -> None:
        group = group_of(key)
        keys = self._groups.get(group)
        if keys is None:
            self._groups[group] = {key}
        else:
            keys.add(key)

    def _remove_from_group(self, key: Key) -> None:
        """Remove a key from its group if it has neither an entry nor a floor."""
        if key in self._entries or key in self._floors:
            return
        group = group_of(key)
        keys = self._groups.get(group)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._groups[group]

    def expire_all(self) -> None:
        """Mark all entries as not fresh. They can be reloaded or served stale."""
        for entry in self._entries.values():
            entry.fresh_until = entry.retry_at = -math.inf


def supersedes(new: Entry, old: Entry) -> bool:
    """Whether `new` may replace `old`: by version, or by time if one of them is an absence without version."""
    if new.version is None:
        return new.confirmed_at > old.confirmed_at
    if old.version is None:
        return new.confirmed_at >= old.confirmed_at
    return new.version >= old.version
