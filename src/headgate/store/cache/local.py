"""L1 of the cache: answers in this process, the least recently used dropped first.

Nothing here locks: the cache holds its own lock around every call, because an answer and the load that
races with it must be judged together.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import msgspec

from headgate.store.cache.keys import Group, Key, group_of, kind_of
from headgate.store.cache.stats import CacheStats


class Entry(msgspec.Struct):
    """One answer. `value` None means: the store said there is none. Times are monotonic seconds."""

    value: Any
    version: int | None
    confirmed_at: float
    fresh_until: float
    hard_until: float
    retry_at: float = -math.inf


class LocalLayer:
    """At most `entries_max` answers, and as many floors: versions below which nothing is taken in."""

    def __init__(self, entries_max: int, floor_seconds: float, stats: CacheStats) -> None:
        self._entries_max = entries_max
        self._floor_seconds = floor_seconds
        self._stats = stats
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._floors: OrderedDict[Key, tuple[int, float]] = OrderedDict()
        # The keys of both, by group: whole groups change with every incident, and L1 may be large.
        self._groups: dict[Group, set[Key]] = {}

    def find(self, key: Key, now: float) -> Entry | None:
        """Return the answer, fresh or not, unless it is past its hard limit."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if now >= entry.hard_until:
            del self._entries[key]
            self._left(key)
            return None
        self._entries.move_to_end(key)
        return entry

    def peek(self, key: Key) -> Entry | None:
        """Return the answer, fresh or not, and leave everything as it is."""
        return self._entries.get(key)

    def put(self, key: Key, entry: Entry, now: float) -> bool:
        """Take in `entry`, unless something newer is known. Return whether it was taken."""
        held = self.find(key, now)
        if (self._floors and self.is_below_floor(key, entry, now)) or (
            held is not None and not supersedes(entry, held)
        ):
            return False
        if held is not None and held.version == entry.version:
            entry.confirmed_at = max(entry.confirmed_at, held.confirmed_at)
            entry.hard_until = max(entry.hard_until, held.hard_until)
        self._entries[key] = entry
        if held is None:
            # Else it was moved to the end as it was found, and its group knows it.
            self._came(key)
        if len(self._entries) > self._entries_max:
            evicted, _ = self._entries.popitem(last=False)
            self._left(evicted)
            self._stats.of(kind_of(evicted)).evictions += 1
        return True

    def drop(self, key: Key, version: int | None, now: float) -> None:
        """Forget the answer if it is older than `version`, and take in nothing older; for None, forget all of it."""
        held = self._entries.get(key)
        if held is not None and (version is None or held.version is None or held.version < version):
            del self._entries[key]
        if version is None:
            self._floors.pop(key, None)
        else:
            self.raise_floor(key, version, now)
        self._left(key)

    def raise_floor(self, key: Key, version: int, now: float) -> None:
        """Refuse versions of `key` below `version` for as long as a load could still bring one."""
        floor, until = self._floors.pop(key, (0, now))
        highest = max(floor, version) if now < until else version
        self._floors[key] = (highest, now + self._floor_seconds)
        self._came(key)
        if len(self._floors) > self._entries_max:
            evicted, _ = self._floors.popitem(last=False)
            self._left(evicted)

    def is_below_floor(self, key: Key, entry: Entry, now: float) -> bool:
        """Whether a version newer than that of `entry` is known to exist."""
        floor, until = self._floors.get(key, (0, now))
        return entry.version is not None and now < until and entry.version < floor

    def drop_group(self, group: Group) -> None:
        """Forget every answer of `group`."""
        for key in self._groups.pop(group, ()):
            self._entries.pop(key, None)
            self._floors.pop(key, None)

    def _came(self, key: Key) -> None:
        group = group_of(key)
        keys = self._groups.get(group)
        if keys is None:
            self._groups[group] = {key}
        else:
            keys.add(key)

    def _left(self, key: Key) -> None:
        """Let a key be of no group any more, if it is neither an answer nor a floor."""
        if key in self._entries or key in self._floors:
            return
        group = group_of(key)
        keys = self._groups.get(group)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._groups[group]

    def expire_all(self) -> None:
        """Let no answer pass as fresh any more. They stay to be confirmed, or served stale."""
        for entry in self._entries.values():
            entry.fresh_until = entry.retry_at = -math.inf


def supersedes(new: Entry, old: Entry) -> bool:
    """Whether `new` may take the place of `old`: by version, or by time where "there is none" has no version."""
    if new.version is None:
        return new.confirmed_at > old.confirmed_at
    if old.version is None:
        return new.confirmed_at >= old.confirmed_at
    return new.version >= old.version
