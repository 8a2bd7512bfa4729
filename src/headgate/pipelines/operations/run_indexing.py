"""Run indexing: adds runs and backfills of an earlier release to the lists over all pipelines.

Earlier releases listed them by pipeline only. Their rows are read once for a store; a row of the control table records
that it is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import structlog

from headgate.errors import ConflictError, CorruptionError
from headgate.pipelines.operations.backfills import backfill_of, backfill_writes
from headgate.pipelines.runs.rows import run_of, run_writes
from headgate.store.catalogue.tables import CONTROL, PIPELINES
from headgate.store.model.conditions import all_of, exists, lacks
from headgate.store.model.requests import Put, Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

DONE: Final = Key("DEDUP#runs-indexed", "DEDUP")
_INDEX: Final = ("GSI1PK", "GSI1SK")
_log = structlog.get_logger(__name__)


class RunIndexing:
    """Indexes the runs and backfills of earlier releases once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_done = False

    def index_once(self, pipeline_ids: Iterable[str]) -> int:
        """Add the rows of these pipelines that are not in the index, and return how many. Idempotent."""
        if self._is_done or self._store.get(CONTROL, DONE, consistent=True) is not None:
            self._is_done = True
            return 0
        count = sum(self._index(put) for pipeline_id in pipeline_ids for put in self._puts(pipeline_id))
        self._store.put(CONTROL, {**CONTROL.key_attributes(DONE), "count": count})
        self._is_done = True
        return count

    def _puts(self, pipeline_id: str) -> Iterator[Put]:
        """Yield the rows of a pipeline as this release would write them."""
        for item in self._rows(pipeline_id, "RUN#"):
            try:
                yield from run_writes(run_of(item))
            except CorruptionError as exc:
                # The pipeline's own list reports it; the others need not wait.
                _log.error("run not indexed", pipeline=pipeline_id, error=str(exc))
        for item in self._rows(pipeline_id, "BACKFILL#"):
            try:
                # The main row of an unfinished backfill has always been in the index.
                yield backfill_writes(backfill_of(item))[1]
            except CorruptionError as exc:
                _log.error("backfill not indexed", pipeline=pipeline_id, error=str(exc))

    def _index(self, put: Put) -> int:
        attributes = {name: put.item[name] for name in _INDEX if name in put.item}
        if not attributes:
            return 0
        try:
            # Only the index attributes are set: the row may have changed since it was read.
            self._store.update(
                PIPELINES, PIPELINES.key_of(put.item), set=attributes, condition=all_of(exists(), lacks("GSI1PK"))
            )
        except ConflictError:
            return 0
        return 1

    def _rows(self, pipeline_id: str, prefix: str) -> Iterator[Item]:
        cursor: str | None = None
        while True:
            query = Query(
                table=PIPELINES,
                partition=f"PIPELINE#{pipeline_id}",
                sort=Sort(Range.BEGINS_WITH, prefix),
                cursor=cursor,
            )
            page = self._store.query(query)
            yield from page.items
            cursor = page.cursor
            if cursor is None:
                return
