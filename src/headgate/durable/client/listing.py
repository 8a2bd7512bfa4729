"""Execution listing: pages of executions from an index, newest first, filtered by time, tags and text."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Final

from msgspec import Struct

from headgate.durable.model.history import Status
from headgate.durable.model.records import Execution, execution_of, instant
from headgate.errors import CursorError
from headgate.store.catalogue.tables import EXECUTIONS
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.port import Store

LIMIT_MAX: Final = 1000
# A search by tags reads at most this many executions for one page.
SCANNED_MAX: Final = 10_000
_PAGE: Final = 100
# Between the start time and the id in a cursor. Neither contains it.
_SEPARATOR: Final = "|"
# Sorted by id, the others by start time.
_PARENT_INDEX: Final = "parent-index"


class Listing(Struct, frozen=True):
    """A page of executions. `cursor` is None on the last."""

    executions: list[Execution]
    cursor: str | None


class ExecutionFilter(Struct, frozen=True, kw_only=True):
    """A filter of executions. A parent, a workflow or a status selects the index; the rest filters its rows.

    `error` is text in the error, and `text` in the id, the workflow, a tag or the error, both in any case. Times are as
    in the rows: from `since`, and before `until`.
    """

    status: Status | None = None
    workflow: str | None = None
    parent_id: str | None = None
    tags: dict[str, str] = {}
    # The build of the worker that took the last turn.
    build: str = ""
    error: str = ""
    text: str = ""
    started_since: str = ""
    started_until: str = ""
    ended_since: str = ""
    ended_until: str = ""


def start_text(moment: datetime | None) -> str:
    """Return a time as rows have it; empty for None."""
    return "" if moment is None else instant(round(moment.timestamp() * 1000))


def list_executions(
    store: Store, filter: ExecutionFilter, *, limit: int = 100, cursor: str | None = None, ascending: bool = False
) -> Listing:
    """Return a page of the executions that match. It may hold fewer than `limit` although there are more."""
    index, partition = _index(filter)
    limit = max(1, min(limit, LIMIT_MAX))
    executions: list[Execution] = []
    scanned = 0
    while len(executions) < limit and scanned < SCANNED_MAX:
        # Never more than the page still needs, so that the cursor points right after its last row.
        page = store.query(
            Query(
                table=EXECUTIONS,
                index=index,
                partition=partition,
                sort=None if index == _PARENT_INDEX else _start_range(filter.started_since, filter.started_until),
                limit=limit - len(executions),
                cursor=cursor,
                descending=not ascending,
            )
        )
        rows = [execution_of(item) for item in page.items]
        executions += [row for row in rows if _matches(row, filter)]
        scanned += len(rows)
        cursor = page.cursor
        if cursor is None:
            break
    return Listing(executions, cursor)


def _index(filter: ExecutionFilter) -> tuple[str, str]:
    if filter.parent_id is not None:
        return _PARENT_INDEX, filter.parent_id
    if filter.workflow is not None:
        return "workflow-index", filter.workflow
    return "status-index", (filter.status or Status.RUNNING).value


def _matches(row: Execution, filter: ExecutionFilter) -> bool:
    if filter.status is not None and row.status is not filter.status:
        return False
    if filter.workflow is not None and row.workflow != filter.workflow:
        return False
    if not _is_between(row.started_at, filter.started_since, filter.started_until):
        return False
    if (filter.ended_since or filter.ended_until) and not row.ended_at:
        return False
    if not _is_between(row.ended_at, filter.ended_since, filter.ended_until):
        return False
    if filter.build and row.build != filter.build:
        return False
    return _has_text(row, filter) and all(row.tags.get(name) == value for name, value in filter.tags.items())


def _has_text(row: Execution, filter: ExecutionFilter) -> bool:
    if filter.error and filter.error.casefold() not in (row.error or row.failure or "").casefold():
        return False
    if not filter.text:
        return True
    text = filter.text.casefold()
    tags = (f"{name}:{value}" for name, value in row.tags.items())
    return any(
        text in each.casefold() for each in (row.execution_id, row.workflow, row.error or row.failure or "", *tags)
    )


def _start_range(since: str, until: str) -> Sort | None:
    """Return the range of start times to read. Its end is included, and filtered from the rows."""
    if since and until:
        return Sort(Range.BETWEEN, since, max(since, until))
    if since:
        return Sort(Range.AT_LEAST, since)
    return Sort(Range.AT_MOST, until) if until else None


def _is_between(moment: str, since: str, until: str) -> bool:
    return since <= moment and (not until or moment < until)


def list_all(
    store: Store,
    filter: ExecutionFilter,
    *,
    without: Collection[str] = (),
    limit: int = 100,
    cursor: str | None = None,
    ascending: bool = False,
) -> Listing:
    """Return a page of the executions in any status that match, except those of the workflows `without`.

    The index is by status, so the lists of all statuses are merged. The page may hold fewer than `limit` although there
    are more. Raises `CursorError` for a cursor of another list.
    """
    after = _position_of(cursor)
    limit = max(1, min(limit, LIMIT_MAX))
    since, until = filter.started_since, filter.started_until
    if after is not None:
        since, until = (max(since, after[0]), until) if ascending else (since, min(until or after[0], after[0]))
    parts = [_in_status(store, status, after, _start_range(since, until), ascending=ascending) for status in Status]
    executions: list[Execution] = []
    for scanned, row in enumerate(heapq.merge(*parts, key=_position, reverse=not ascending), 1):
        if row.workflow not in without and _matches(row, filter):
            executions.append(row)
        if len(executions) == limit or scanned == SCANNED_MAX:
            return Listing(executions, _SEPARATOR.join(_position(row)))
    return Listing(executions, None)


def _in_status(
    store: Store, status: Status, after: tuple[str, str] | None, starts: Sort | None, *, ascending: bool
) -> Iterator[Execution]:
    """Yield the executions of a status beyond a position. The index has no order among those of one start time."""
    cursor: str | None = None
    pending: list[Execution] = []
    while True:
        page = store.query(
            Query(
                table=EXECUTIONS,
                index="status-index",
                partition=status.value,
                sort=starts,
                limit=_PAGE,
                cursor=cursor,
                descending=not ascending,
            )
        )
        rows = [execution_of(item) for item in page.items]
        pending += [row for row in rows if _is_beyond(row, after, ascending=ascending)]
        cursor = page.cursor
        last_start = pending[-1].started_at if pending and cursor is not None else None
        ready = [row for row in pending if row.started_at != last_start]
        pending = [row for row in pending if row.started_at == last_start]
        yield from sorted(ready, key=_position, reverse=not ascending)
        if cursor is None:
            return


def _is_beyond(row: Execution, after: tuple[str, str] | None, *, ascending: bool) -> bool:
    if after is None:
        return True
    return _position(row) > after if ascending else _position(row) < after


def _position(row: Execution) -> tuple[str, str]:
    return row.started_at, row.execution_id


def _position_of(cursor: str | None) -> tuple[str, str] | None:
    if cursor is None:
        return None
    started_at, separator, execution_id = cursor.partition(_SEPARATOR)
    if not separator or not started_at or not execution_id:
        raise CursorError(f"cursor {cursor[:40]!r}: not of this list; use that of the page before")
    return started_at, execution_id


def open_executions(store: Store) -> Iterator[Execution]:
    """Give every open execution, each status newest first."""
    for status in Status:
        cursor: str | None = None
        while not status.is_closed:
            page = list_executions(store, ExecutionFilter(status=status), limit=LIMIT_MAX, cursor=cursor)
            yield from page.executions
            cursor = page.cursor
            if cursor is None:
                break
