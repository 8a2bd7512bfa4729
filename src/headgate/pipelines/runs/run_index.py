"""Run index: runs of all pipelines, latest first, and those that are open now.

Two sparse entries in the index of the table serve it. The main row of a run is listed under the day of its creation;
its copy is listed under the open runs until it ends. Both are spread over shards, so that no index partition takes the
writes of all runs. The answer may lag behind the newest changes by a moment.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import InvalidPayloadError
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.runs.rows import RUN_SHARDS, Run, run_of, run_sort
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.port import Store

# A page is returned, with a cursor, after this many runs were read, whether or not they match.
READS_MAX: Final = 2_000
# Days without any run that one page passes over.
_DAYS_MAX: Final = 400
_PAGE: Final = 100
_POSITION: Final = re.compile(r"[0-9]{13}#[\x21-\x7e]{1,200}")
OPEN_STATUSES: Final = frozenset(status for status in RunStatus if not status.is_terminal)


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs to list. Empty: all."""

    statuses: frozenset[RunStatus] = frozenset()
    since_ms: int | None = None
    # Whether a run of this pipeline is wanted.
    is_wanted: Callable[[str], bool] = lambda _pipeline_id: True

    def matches(self, run: Run) -> bool:
        """Whether a run passes the filter."""
        if self.statuses and run.status not in self.statuses:
            return False
        if self.since_ms is not None and run.created_at_ms < self.since_ms:
            return False
        return self.is_wanted(run.pipeline_id)


class ListedRuns(Struct, frozen=True):
    """A page of runs, latest first. It may be short or empty and still have a cursor."""

    runs: list[Run]
    cursor: str | None = None


class RunIndex:
    """Lists runs of all pipelines. Thread-safe."""

    def __init__(self, store: Store, clock: Clock, *, kept_days: int) -> None:
        """`kept_days` is the retention of runs: no earlier day is read."""
        self._store = store
        self._clock = clock
        self._kept_days = kept_days

    def ls(self, wanted: RunFilter, *, limit: int = 100, cursor: str | None = None) -> ListedRuns:
        """Return a page of the matching runs. Raises `InvalidPayloadError` for an invalid cursor."""
        if cursor is not None and not _POSITION.fullmatch(cursor):
            raise InvalidPayloadError(f"cursor {cursor[:40]!r}: not of this list; use that of the page before")
        is_open_only = bool(wanted.statuses) and wanted.statuses <= OPEN_STATUSES
        runs = self._open(cursor) if is_open_only else self._by_day(wanted, cursor)
        found: list[Run] = []
        for number, run in enumerate(runs, 1):
            if wanted.since_ms is not None and run.created_at_ms < wanted.since_ms:
                return ListedRuns(found)
            if wanted.matches(run):
                found.append(run)
            if len(found) == limit or number == READS_MAX:
                return ListedRuns(found, run_sort(run))
        return ListedRuns(found)

    def open_runs(self) -> Iterator[Run]:
        """Yield the runs that have not ended, latest first."""
        return self._open(None)

    def _open(self, before: str | None) -> Iterator[Run]:
        shards = (f"OPEN-RUNS#{shard}" for shard in range(RUN_SHARDS))
        return _merged([self._partition(shard, before) for shard in shards])

    def _by_day(self, wanted: RunFilter, before: str | None) -> Iterator[Run]:
        now = self._clock.now()
        first = now if before is None else datetime.fromtimestamp(int(before[:13]) / 1000, UTC)
        oldest = now - timedelta(days=min(self._kept_days + 1, _DAYS_MAX))
        if wanted.since_ms is not None:
            oldest = max(oldest, datetime.fromtimestamp(wanted.since_ms / 1000, UTC))
        day = first
        while day.date() >= oldest.date():
            shards = (f"RUNS#{day:%Y%m%d}#{shard}" for shard in range(RUN_SHARDS))
            yield from _merged([self._partition(shard, before) for shard in shards])
            day -= timedelta(days=1)

    def _partition(self, partition: str, before: str | None) -> Iterator[Run]:
        cursor: str | None = None
        while True:
            query = Query(
                table=PIPELINES,
                index="GSI1",
                partition=partition,
                sort=None if before is None else Sort(Range.LESS_THAN, before),
                limit=_PAGE,
                cursor=cursor,
                descending=True,
            )
            page = self._store.query(query)
            yield from (run_of(item) for item in page.items)
            cursor = page.cursor
            if cursor is None:
                return


def _merged(parts: list[Iterator[Run]]) -> Iterator[Run]:
    return heapq.merge(*parts, key=run_sort, reverse=True)
