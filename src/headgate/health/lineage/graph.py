"""Lineage graph: the datasets, writers and readers of all producers, in memory and refreshed every second.

Walking the edge tables would take a query for each step. So each producer has one small row with its datasets, and an
index lists those rows by their last change: the first load reads all of them, a refresh only the new ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from headgate.clock import Clock
from headgate.health.lineage.rows import GRAPH, ProducerDatasets, ties_of
from headgate.health.model.enums import Confidence
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.values import Item
from headgate.store.peer_changes import NO_PEERS, PeerChanges
from headgate.store.port import Store

REFRESH_SECONDS: Final = 1.0
# A full reload catches what a refresh cannot see: expired rows, and writers whose clock was far off.
RELOAD_SECONDS: Final = 3600.0
# The maximum clock difference of writers, plus the lag of the index.
SKEW_MS: Final = 60_000
_PAGE: Final = 1000
# The name under which changes of lineage are counted for the other serving processes.
_CHANGES: Final = "lineage"
_NONE: Final[Mapping[str, Confidence]] = {}


class ProducerLinks:
    """The readers and writers of datasets, in both directions. Not thread-safe."""

    def __init__(self) -> None:
        self.producers: dict[str, ProducerDatasets] = {}
        self._readers: dict[str, dict[str, Confidence]] = {}
        self._writers: dict[str, dict[str, Confidence]] = {}

    def take(self, ties: ProducerDatasets) -> bool:
        """Replace the datasets of a producer, unless the known row is newer. Return whether an edge changed."""
        known = self.producers.get(ties.producer_id)
        if known is not None:
            # A producer whose rows had expired starts again at version 1.
            if known.version >= ties.version and known.expires >= ties.expires:
                return False
            self._drop(known)
        self.producers[ties.producer_id] = ties
        for side, targets in ((self._readers, ties.reads), (self._writers, ties.writes)):
            for target, confidence in targets.items():
                tied = side.get(target)
                if tied is None:
                    side[target] = {ties.producer_id: confidence}
                else:
                    tied[ties.producer_id] = confidence
        return known is None or (known.reads, known.writes) != (ties.reads, ties.writes)

    def has(self, producer_id: str, version: int, ttl: int) -> bool:
        """Whether this very row was applied before."""
        known = self.producers.get(producer_id)
        return known is not None and known.version == version and known.ttl == ttl

    def knows(self, urn: str) -> bool:
        """Whether the dataset has a writer or reader."""
        return bool(self._readers.get(urn) or self._writers.get(urn))

    def readers(self, urn: str) -> Mapping[str, Confidence]:
        return self._readers.get(urn, _NONE)

    def writers(self, urn: str) -> Mapping[str, Confidence]:
        return self._writers.get(urn, _NONE)

    def _drop(self, ties: ProducerDatasets) -> None:
        for side, targets in ((self._readers, ties.reads), (self._writers, ties.writes)):
            for target in targets:
                found = side[target]
                del found[ties.producer_id]
                if not found:
                    del side[target]


class LineageGraph:
    """The links, at most a second old, with the changes of this server. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        refresh_seconds: float = REFRESH_SECONDS,
        reload_seconds: float = RELOAD_SECONDS,
        peer_changes: PeerChanges = NO_PEERS,
    ) -> None:
        """Count changes in `peer_changes`. Those of the other serving processes of this server cause a refresh."""
        self._store = store
        self._clock = clock
        self._refresh_seconds = refresh_seconds
        self._reload_seconds = reload_seconds
        self._lock = threading.Lock()
        self._links = ProducerLinks()
        # Changes of this process since the last refresh, by producer.
        self._noted: dict[str, ProducerDatasets] = {}
        self._looked_ms = 0
        self._peer_changes = peer_changes
        self._seen = 0
        self._revision = 0
        self._refreshed: float | None = None
        self._reloaded = 0.0

    @contextmanager
    def links(self) -> Iterator[ProducerLinks]:
        """Lend the links, refreshed if they are older than a second. Raises what the store raises."""
        with self._lock:
            self._refresh()
            while self._noted:
                # One at a time: other threads may add more meanwhile.
                self._revision += self._links.take(self._noted.popitem()[1])
            yield self._links

    def note(self, ties: ProducerDatasets) -> None:
        """Add a committed change of a producer, for the next query.

        It does not wait for a reload in progress.
        """
        self._noted[ties.producer_id] = ties
        self._peer_changes.count(_CHANGES)

    def revision(self) -> int:
        """Return a number that changes with the edges, refreshed if it is older than a second."""
        with self.links():
            return self._revision

    @property
    def as_of_ms(self) -> int:
        """When the links were last refreshed. Later changes by other processes may be missing."""
        return self._looked_ms

    def warm(self) -> None:
        """Load the links if they are not loaded, so that the first query need not wait for a full load."""
        if self._refreshed is None:
            with self._lock:
                self._refresh()

    def _refresh(self) -> None:
        now, now_ms = self._clock.monotonic(), int(self._clock.seconds() * 1000)
        # Before the rows are read: a change during the read may be missing from them.
        seen = self._peer_changes.by_others(_CHANGES)
        if self._refreshed is not None and now - self._refreshed < self._refresh_seconds and seen == self._seen:
            return
        is_whole = self._refreshed is None or now - self._reloaded >= self._reload_seconds
        links = ProducerLinks() if is_whole else self._links
        for item in self._rows(None if is_whole else Sort(Range.AT_LEAST, self._looked_ms - SKEW_MS)):
            # Most rows within the margin were applied a second ago.
            if not links.has(item["producer_id"], item["version"], item["ttl"]):
                self._revision += links.take(ties_of(item))
        self._links, self._looked_ms, self._refreshed, self._seen = links, now_ms, now, seen
        if is_whole:
            self._reloaded = now

    def _rows(self, since: Sort | None) -> Iterator[Item]:
        cursor: str | None = None
        while True:
            page = self._store.query(
                Query(table=CONTROL, index="due-index", partition=GRAPH, sort=since, limit=_PAGE, cursor=cursor)
            )
            yield from page.items
            cursor = page.cursor
            if cursor is None:
                return
