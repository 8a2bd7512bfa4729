"""Execution listing: pages of executions from an index, newest first, filtered by tags."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.durable.model.history import Status
from headgate.durable.model.records import Execution, execution_of
from headgate.store.catalogue.tables import EXECUTIONS
from headgate.store.model.requests import Query
from headgate.store.port import Store

LIMIT_MAX: Final = 1000
# A search by tags reads at most this many executions for one page.
SCANNED_MAX: Final = 10_000


class Listing(Struct, frozen=True):
    """A page of executions. `cursor` is None on the last."""

    executions: list[Execution]
    cursor: str | None


class ExecutionFilter(Struct, frozen=True, kw_only=True):
    """A filter of executions. A parent, a workflow or a status selects the index; tags filter its rows."""

    status: Status | None = None
    workflow: str | None = None
    parent_id: str | None = None
    tags: dict[str, str] = {}


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
        return "parent-index", filter.parent_id
    if filter.workflow is not None:
        return "workflow-index", filter.workflow
    return "status-index", (filter.status or Status.RUNNING).value


def _matches(row: Execution, filter: ExecutionFilter) -> bool:
    if filter.status is not None and row.status is not filter.status:
        return False
    if filter.workflow is not None and row.workflow != filter.workflow:
        return False
    return all(row.tags.get(name) == value for name, value in filter.tags.items())
