"""The graph of datasets and those who write and read them, held in this process and kept up to date.

Going down a lineage row by row would take a query a step. So each producer has one small row with its datasets, and an
index lists those rows by when they last changed: a first look reads all of them, every further one what is new.
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
from headgate.store.port import Store

REFRESH_SECONDS: Final = 1.0
# What no look for news can notice (rows that expired, a clock that was far off) a look at everything does.
RELOAD_SECONDS: Final = 3600.0
# How far the clocks of those who write may be apart, with the lag of the index.
SKEW_MS: Final = 60_000
_PAGE: Final = 1000
_NONE: Final[Mapping[str, Confidence]] = {}


class ProducerLinks:
    """Who reads and writes which dataset, in both directions. Not safe to use from several threads at once."""

    def __init__(self) -> None:
        self.producers: dict[str, ProducerDatasets] = {}
        self._readers: dict[str, dict[str, Confidence]] = {}
        self._writers: dict[str, dict[str, Confidence]] = {}

    def take(self, ties: ProducerDatasets) -> None:
        """Replace what is known of a producer, unless that is newer."""
        known = self.producers.get(ties.producer_id)
        if known is not None:
            # A producer that was away until its rows expired begins anew at version 1.
            if known.version >= ties.version and known.expires >= ties.expires:
                return
            self._drop(known)
        self.producers[ties.producer_id] = ties
        for side, targets in ((self._readers, ties.reads), (self._writers, ties.writes)):
            for target, confidence in targets.items():
                tied = side.get(target)
                if tied is None:
                    side[target] = {ties.producer_id: confidence}
                else:
                    tied[ties.producer_id] = confidence

    def has(self, producer_id: str, version: int, ttl: int) -> bool:
        """Whether this very row was taken before."""
        known = self.producers.get(producer_id)
        return known is not None and known.version == version and known.ttl == ttl

    def knows(self, urn: str) -> bool:
        """Whether anyone writes or reads the dataset."""
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
    """The links as of a second ago, and what this process has said since. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        refresh_seconds: float = REFRESH_SECONDS,
        reload_seconds: float = RELOAD_SECONDS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._refresh_seconds = refresh_seconds
        self._reload_seconds = reload_seconds
        self._lock = threading.Lock()
        self._links = ProducerLinks()
        # What was said here since the last look, by producer.
        self._noted: dict[str, ProducerDatasets] = {}
        self._looked_ms = 0
        self._refreshed: float | None = None
        self._reloaded = 0.0

    @contextmanager
    def links(self) -> Iterator[ProducerLinks]:
        """Lend the links, read anew if they are older than a second. Raises what the store raises."""
        with self._lock:
            self._refresh()
            while self._noted:
                # One at a time: others may note more meanwhile.
                self._links.take(self._noted.popitem()[1])
            yield self._links

    def note(self, ties: ProducerDatasets) -> None:
        """Let whoever asks next see what a producer was just said to have to do with: it is durable.

        Nobody waits here: all links may be being read.
        """
        self._noted[ties.producer_id] = ties

    @property
    def as_of_ms(self) -> int:
        """When the links were last read. What others said after that may be missing."""
        return self._looked_ms

    def warm(self) -> None:
        """Read the links if nobody has yet, so that the first who asks need not wait for all of them to be read."""
        if self._refreshed is None:
            with self._lock:
                self._refresh()

    def _refresh(self) -> None:
        now, now_ms = self._clock.monotonic(), int(self._clock.seconds() * 1000)
        if self._refreshed is not None and now - self._refreshed < self._refresh_seconds:
            return
        is_whole = self._refreshed is None or now - self._reloaded >= self._reload_seconds
        links = ProducerLinks() if is_whole else self._links
        for item in self._rows(None if is_whole else Sort(Range.AT_LEAST, self._looked_ms - SKEW_MS)):
            # Most rows of the margin were seen a second ago.
            if not links.has(item["producer_id"], item["version"], item["ttl"]):
                links.take(ties_of(item))
        self._links, self._looked_ms, self._refreshed = links, now_ms, now
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
