"""Listings of executions, newest first, by what the indexes know and narrowed by tags."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.durable.model.history import Status
from headgate.durable.model.records import Execution, execution_of
from headgate.store.catalogue.tables import EXECUTIONS
from headgate.store.model.requests import Query
from headgate.store.port import Store

LIMIT_MAX: Final = 1000
# A search by tags looks at this many executions a page at most, and says where to go on.
SCANNED_MAX: Final = 10_000


class Listing(Struct, frozen=True):
    """A page of executions. `cursor` is None on the last."""

    executions: list[Execution]
    cursor: str | None


class Wanted(Struct, frozen=True, kw_only=True):
    """What is looked for. A parent, a workflow and a status are indexes; tags only narrow what these find."""

    status: Status | None = None
    workflow: str | None = None
    parent_id: str | None = None
    tags: dict[str, str] = {}


def list_executions(
    store: Store, wanted: Wanted, *, limit: int = 100, cursor: str | None = None, ascending: bool = False
) -> Listing:
    """Return a page of the executions that match. It may hold fewer than `limit` although there are more."""
    index, partition = _index(wanted)
    limit = max(1, min(limit, LIMIT_MAX))
    found: list[Execution] = []
    scanned = 0
    while len(found) < limit and scanned < SCANNED_MAX:
        # Never more than what is still wanted, so that the cursor is exactly behind the last that is returned.
        page = store.query(
            Query(
                table=EXECUTIONS,
                index=index,
                partition=partition,
                limit=limit - len(found),
                cursor=cursor,
                descending=not ascending,
            )
        )
        rows = [execution_of(item) for item in page.items]
        found += [row for row in rows if _matches(row, wanted)]
        scanned += len(rows)
        cursor = page.cursor
        if cursor is None:
            break
    return Listing(found, cursor)


def _index(wanted: Wanted) -> tuple[str, str]:
    if wanted.parent_id is not None:
        return "parent-index", wanted.parent_id
    if wanted.workflow is not None:
        return "workflow-index", wanted.workflow
    return "status-index", (wanted.status or Status.RUNNING).value


def _matches(row: Execution, wanted: Wanted) -> bool:
    if wanted.status is not None and row.status is not wanted.status:
        return False
    if wanted.workflow is not None and row.workflow != wanted.workflow:
        return False
    return all(row.tags.get(name) == value for name, value in wanted.tags.items())
