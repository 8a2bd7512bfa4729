"""Run retention: deletes runs, reruns, backfills and run logs that are past their retention.

A run stays while something needs it: it is active, its execution or its backfill is open, or it is the last run or the
last success of its schedule. A run log stays as long as a run of its period does, and the latest one of each schedule
stays: a finished period must not start by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import structlog
from msgspec import Struct

from headgate.clock import Clock, epoch_ms
from headgate.errors import CorruptionError, NotFoundError
from headgate.pipelines.catalog.rows import DELETED, PARTITION
from headgate.pipelines.operations.backfills import Backfills, backfill_key, backfill_of
from headgate.pipelines.operations.deleted_pipelines import DeletedPipelines
from headgate.pipelines.operations.run_indexing import RunIndexing
from headgate.pipelines.runs.rerun_rows import Rerun, request_key, rerun_key, rerun_of
from headgate.pipelines.runs.rows import Run, RunLog, run_key, run_log_of, run_of
from headgate.store.catalogue.tables import PIPELINES, RUN_COPY
from headgate.store.model.conditions import absent, any_of, equals, version_is
from headgate.store.model.requests import Delete, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

_PAGE: Final = 100
_DAY_MS: Final = 86_400_000
_log = structlog.get_logger(__name__)


class _LastRuns(Struct, frozen=True):
    """The last runs of the schedules of a pipeline. `covers_all`: every schedule with a log is among them."""

    run_ids: frozenset[str]
    log_keys: frozenset[str]
    schedules: frozenset[str]
    covers_all: bool


class RunRetention:
    """Deletes what is past its retention, pipeline by pipeline."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        backfills: Backfills,
        is_open: Callable[[str], bool],
        *,
        runs_days: int,
        run_logs_days: int,
        deleted: DeletedPipelines | None = None,
        indexing: RunIndexing | None = None,
    ) -> None:
        """`is_open` answers whether an execution of the lifecycle is running.

        `deleted` indexes the pipelines that an earlier release deleted, before the first deletion of rows.
        `indexing` adds the runs of an earlier release to the lists over all pipelines.
        """
        self._store = store
        self._clock = clock
        self._backfills = backfills
        self._is_open = is_open
        self._runs_days = runs_days
        self._run_logs_days = run_logs_days
        self._deleted = deleted
        self._indexing = indexing
        # The pipeline at which the last call reached its limit.
        self._next_id = ""

    def prune(self, *, limit: int = 1000) -> int:
        """Delete up to about `limit` rows, and return their number. The next call goes on where this one ended."""
        if self._deleted is not None:
            self._deleted.index_once()
        pipeline_ids = sorted(self._pipeline_ids())
        if self._indexing is not None:
            self._indexing.index_once(pipeline_ids)
        start = next((place for place, each in enumerate(pipeline_ids) if each >= self._next_id), 0)
        deleted = 0
        for pipeline_id in [*pipeline_ids[start:], *pipeline_ids[:start]]:
            if deleted >= limit:
                self._next_id = pipeline_id
                break
            try:
                deleted += self._prune_pipeline(pipeline_id, limit - deleted)
            except CorruptionError as exc:
                # The pipeline keeps its rows until the unreadable one is corrected; others need not wait.
                _log.error("old runs are not deleted", action="runs.prune", pipeline=pipeline_id, error=exc.message)
        return deleted

    def _prune_pipeline(self, pipeline_id: str, limit: int) -> int:
        now_ms = epoch_ms(self._clock)
        runs_before_ms = now_ms - self._runs_days * _DAY_MS
        last = self._last(pipeline_id)
        deleted = self._delete(self._runs(pipeline_id, runs_before_ms, last), limit)
        deleted += self._delete(self._reruns(pipeline_id, runs_before_ms), limit - deleted)
        deleted += self._delete(self._old_backfills(pipeline_id, runs_before_ms), limit - deleted)
        logs_before_ms = now_ms - self._run_logs_days * _DAY_MS
        return deleted + self._delete(self._logs(pipeline_id, logs_before_ms, last), limit - deleted)

    def _last(self, pipeline_id: str) -> _LastRuns:
        page = self._store.query(_query(pipeline_id, "RUNLOG#", descending=True))
        latest: dict[str, RunLog] = {}
        keys = []
        for item in page.items:
            log = run_log_of(item)
            if log.schedule_id not in latest:
                latest[log.schedule_id] = log
                keys.append(str(item["SK"]))
        newest = self._store.query(_query(pipeline_id, "RUN#", descending=True, limit=1)).items
        ids = {each for log in latest.values() for each in (log.run_id, log.succeeded_run_id)}
        ids |= {run_of(item).run_id for item in newest}
        return _LastRuns(frozenset(ids), frozenset(keys), frozenset(latest), page.cursor is None)

    def _runs(self, pipeline_id: str, before_ms: int, last: _LastRuns) -> Iterator[list[Write]]:
        for item in self._old(pipeline_id, "RUN#", "created_at_ms", before_ms):
            run = run_of(item)
            if self._may_go(run, before_ms, last):
                copy = RUN_COPY.key(pipeline_id=run.pipeline_id, run_id=run.run_id)
                yield [_main(run_key(run.run_id), run.version), Delete(PIPELINES, copy)]

    def _may_go(self, run: Run, before_ms: int, last: _LastRuns) -> bool:
        if not run.status.is_terminal or run.updated_at_ms >= before_ms or run.run_id in last.run_ids:
            return False
        if not last.covers_all and run.schedule_id not in last.schedules:
            # It may be the last one of a schedule that seldom runs.
            return False
        if run.backfill_id and self._is_backfilling(run.backfill_id):
            return False
        return not (run.execution and self._is_open(run.execution))

    def _is_backfilling(self, backfill_id: str) -> bool:
        try:
            return not self._backfills.get(backfill_id).state.is_over
        except NotFoundError:
            return False

    def _reruns(self, pipeline_id: str, before_ms: int) -> Iterator[list[Write]]:
        for item in self._old(pipeline_id, "RERUN#", "requested_at_ms", before_ms, sorts_by_time=False):
            rerun = rerun_of(item)
            if rerun.status.is_open:
                continue
            copy = Delete(PIPELINES, PIPELINES.key_of(item))
            yield [_main(rerun_key(rerun.rerun_id), rerun.version), *self._request(rerun), copy]

    def _old_backfills(self, pipeline_id: str, before_ms: int) -> Iterator[list[Write]]:
        for item in self._old(pipeline_id, "BACKFILL#", "created_at_ms", before_ms):
            backfill = backfill_of(item)
            if backfill.state.is_over and backfill.updated_at_ms < before_ms:
                main = _main(backfill_key(backfill.backfill_id), backfill.version)
                yield [main, Delete(PIPELINES, PIPELINES.key_of(item))]

    def _logs(self, pipeline_id: str, before_ms: int, last: _LastRuns) -> Iterator[list[Write]]:
        for item in self._old(pipeline_id, "RUNLOG#", "updated_at_ms", before_ms):
            log = run_log_of(item)
            is_ordered = log.order is not None and not log.status.is_terminal
            is_settled = not (log.is_live or log.hold or is_ordered or log.is_rerun_due)
            is_latest = item["SK"] in last.log_keys or not (last.covers_all or log.schedule_id in last.schedules)
            if is_settled and not is_latest and not self._has_runs(log):
                yield [Delete(PIPELINES, PIPELINES.key_of(item), version_is(log.version))]

    def _has_runs(self, log: RunLog) -> bool:
        ids = {log.run_id, log.succeeded_run_id, *(attempt.run_id for attempt in log.history)} - {""}
        rows = self._store.get_many(PIPELINES, [run_key(run_id) for run_id in sorted(ids)])
        return any(row is not None for row in rows)

    def _request(self, rerun: Rerun) -> list[Write]:
        """Return the deletion of the request row of a rerun, unless a later request has replaced it."""
        key = request_key(rerun.slot)
        row = self._store.get(PIPELINES, key, consistent=True)
        if row is None or row.get("rerun_id") != rerun.rerun_id:
            return []
        return [Delete(PIPELINES, key, equals("rerun_id", rerun.rerun_id))]

    def _delete(self, candidates: Iterator[list[Write]], limit: int) -> int:
        deleted = 0
        batch: list[list[Write]] = []
        if limit <= 0:
            return 0
        for writes in candidates:
            batch.append(writes)
            if len(batch) >= min(_PAGE, limit - deleted):
                deleted += self._apply(batch)
                batch = []
                if deleted >= limit:
                    return deleted
        return deleted + self._apply(batch)

    def _apply(self, batch: Sequence[list[Write]]) -> int:
        """Delete each row with its copies, or none of them if it has changed meanwhile. Return the rows deleted."""
        errors = self._store.transact_many(batch) if batch else []
        return sum(len(writes) for writes, error in zip(batch, errors, strict=True) if error is None)

    def _old(
        self, pipeline_id: str, prefix: str, field: str, before_ms: int, *, sorts_by_time: bool = True
    ) -> Iterator[Item]:
        """Yield the rows with an older time, oldest first, up to the first page without any."""
        cursor: str | None = None
        while True:
            page = self._store.query(_query(pipeline_id, prefix, cursor=cursor))
            old = [item for item in page.items if _time(item, field) < before_ms]
            yield from old
            cursor = page.cursor
            if cursor is None or (sorts_by_time and not old):
                return

    def _pipeline_ids(self) -> Iterator[str]:
        for partition in (PARTITION, DELETED):
            cursor: str | None = None
            while True:
                page = self._store.query(
                    Query(table=PIPELINES, index="GSI1", partition=partition, limit=1000, cursor=cursor)
                )
                yield from (str(item["GSI1SK"]) for item in page.items)
                cursor = page.cursor
                if cursor is None:
                    break


def _main(key: Key, version: int) -> Write:
    """Return the deletion of a main row whose copy was read, refused if it has changed since."""
    return Delete(PIPELINES, key, any_of(absent(), version_is(version)))


def _time(item: Item, field: str) -> float:
    """Return a time of a row; a row without it is never old."""
    value: Any = item.get(field)
    return value if isinstance(value, int | float) else float("inf")


def _query(
    pipeline_id: str, prefix: str, *, descending: bool = False, limit: int = _PAGE, cursor: str | None = None
) -> Query:
    return Query(
        table=PIPELINES,
        partition=f"PIPELINE#{pipeline_id}",
        sort=Sort(Range.BEGINS_WITH, prefix),
        limit=limit,
        descending=descending,
        cursor=cursor,
        consistent=True,
    )
