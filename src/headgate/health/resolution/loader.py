"""Rule loader: the compiled rules of one process, reloaded when they change.

One row has the version of the rule set and a checksum of the enabled rules. It is read through the cache, so that a
change is noticed as soon as the cache allows. Rules are read from an index, which may lag: if their checksum differs
from the row's, they are used but soon read again.
"""

from __future__ import annotations

import threading
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import CorruptionError, TransientError
from headgate.health.resolution.matcher import Matcher
from headgate.health.resolution.rules import ENABLED, Rule, RuleKey, marks, rule_of
from headgate.store.cache import keys as cache_keys
from headgate.store.cache.read_through import Cache, Loaded
from headgate.store.catalogue.tables import DATASET_RESOLUTION, RULE_SET
from headgate.store.model.requests import Query
from headgate.store.model.values import Item
from headgate.store.port import Store

PAGE: Final = 1000
# The reload interval while the checksum differs: the first, and the maximum after backoff.
UNSETTLED_SECONDS: Final = 0.5
UNSETTLED_SECONDS_MAX: Final = 60.0


class RuleSet(Struct, frozen=True, kw_only=True):
    """The version of the rule set, and the checksum of its enabled rules."""

    version: int = 0
    marks: str = "0" * 16


class RuleBook:
    """Provides the matcher. Safe to use from many threads: one reloads the rules, the others use the old ones."""

    def __init__(self, store: Store, clock: Clock, cache: Cache) -> None:
        # How often old rules were used because a reload failed.
        self.stale_used = 0
        self._store = store
        self._clock = clock
        self._cache = cache
        self._lock = threading.Lock()
        self._matcher: Matcher | None = None
        self._retry_at: float | None = None
        self._pause = UNSETTLED_SECONDS
        # Changes of this process that the index may not show yet, each with the version of the set it made.
        self._own: dict[RuleKey, tuple[Rule | None, int]] = {}
        self._own_version = 0

    def matcher(self) -> Matcher:
        """Return the current matcher. Raises `TransientError` if the rules were never loaded and cannot be."""
        held = self._matcher
        try:
            known = self._cache.get(_KEY, self._load_set, RuleSet).value or RuleSet()
        except TransientError:
            if held is None:
                raise
            self.stale_used += 1
            return held
        if held is not None and not self._is_due(held, known):
            return held
        # After a change of a rule by this server, the rules before that must not be used.
        is_needed = held is None or held.version < self._own_version or self._cache.has_peers
        if not self._lock.acquire(blocking=is_needed):
            assert held is not None
            return held
        try:
            held = self._matcher
            if held is not None and not self._is_due(held, known):
                return held
            return self._reload(known, held)
        finally:
            self._lock.release()

    def wrote(self, known: RuleSet, key: RuleKey, rule: Rule | None) -> None:
        """Add a change that this process committed. None: the rule was deleted."""
        with self._lock:
            self._own[key] = (rule, known.version)
            self._own_version = max(self._own_version, known.version)
        self._cache.wrote(_KEY, known, known.version)

    def _is_due(self, held: Matcher, known: RuleSet) -> bool:
        if known.version > held.version:
            return True
        return self._retry_at is not None and self._clock.monotonic() >= self._retry_at

    def _reload(self, known: RuleSet, held: Matcher | None) -> Matcher:
        try:
            # Read before the rules: a change in between makes the rules newer than their version, and they are read
            # again. In the other order, it could be missing from rules of a version that includes it.
            latest = self._load_set()
            rules, broken = self._read()
        except TransientError as exc:
            if held is None:
                raise
            self.stale_used += 1
            self._retry_at = self._clock.monotonic() + exc.retry_after_seconds
            return held
        current = known if latest is None or latest.version < known.version else latest.value
        if f"{marks(rules.values()):016x}" == current.marks:
            # The index shows everything up to this version, so older changes need not be added.
            self._own = {key: own for key, own in self._own.items() if own[1] > current.version}
        made = Matcher(self._with_own(rules), version=current.version, earlier=held)
        made.broken.update(broken)
        if f"{made.marks:016x}" == current.marks:
            self._retry_at, self._pause = None, UNSETTLED_SECONDS
        else:
            self._retry_at = self._clock.monotonic() + self._pause
            self._pause = min(2 * self._pause, UNSETTLED_SECONDS_MAX)
        self._matcher = made
        return made

    def _read(self) -> tuple[dict[RuleKey, Rule], dict[RuleKey, str]]:
        """Return every enabled rule, and the invalid rows: one bad row must not disable the other rules."""
        found: dict[RuleKey, Rule] = {}
        broken: dict[RuleKey, str] = {}
        cursor: str | None = None
        while True:
            page = self._store.query(
                Query(table=DATASET_RESOLUTION, index="enabled-index", partition=ENABLED, limit=PAGE, cursor=cursor)
            )
            for item in page.items:
                try:
                    rule = rule_of(item)
                except CorruptionError as exc:
                    broken[RuleKey(str(item["PK"]), str(item["SK"]))] = str(exc)
                else:
                    found[rule.key] = rule
            cursor = page.cursor
            if cursor is None:
                return found, broken

    def _with_own(self, rules: dict[RuleKey, Rule]) -> list[Rule]:
        for key, (own, version) in self._own.items():
            shown = rules.get(key)
            if shown is not None and shown.set_version > version:
                continue
            rules.pop(key, None)
            if own is not None and own.enabled:
                rules[key] = own
        return list(rules.values())

    def _load_set(self) -> Loaded[RuleSet] | None:
        found = rule_set_of(self._store.get(DATASET_RESOLUTION, RULE_SET.key(), consistent=True))
        return Loaded(found, found.version) if found.version else None


def rule_set_of(item: Item | None) -> RuleSet:
    """Return the rule set of its row."""
    return RuleSet() if item is None else typed_decode.convert(item, RuleSet)


def rule_set_item(rules: RuleSet) -> Item:
    """Return the row of the rule set."""
    return {**DATASET_RESOLUTION.key_attributes(RULE_SET.key()), **msgspec.to_builtins(rules)}


# The cache has a key for each topic pattern; the rule set uses the pattern that matches every topic.
_KEY: Final = cache_keys.resolution_rules("*")
