"""Bulk API: one action on many executions, page by page, with a dry run."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from headgate.durable.model.history import Status
from headgate.durable.model.records import Execution
from headgate.durable.service import Service
from headgate.errors import ConflictError, CursorError, UserError
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.rest.parameters import Cursor, NonEmpty, Reason

PAGE_MAX: Final = 1000


class Action(enum.StrEnum):
    """Bulk actions."""

    CANCEL = "cancel"
    TERMINATE = "terminate"
    REDRIVE = "redrive"
    RETRY = "retry"


# Statuses an action applies to. Succeeded executions are retried only if the status is given.
_APPLIES: Final[Mapping[Action, tuple[Status, ...]]] = {
    Action.CANCEL: (Status.RUNNING, Status.STUCK),
    Action.TERMINATE: (Status.RUNNING, Status.STUCK),
    Action.REDRIVE: (Status.STUCK,),
    Action.RETRY: (Status.FAILED, Status.CANCELLED, Status.TERMINATED, Status.TIMED_OUT),
}


class Where(Struct, forbid_unknown_fields=True):
    """Filter of executions; all conditions must match, and the action must apply."""

    status: Status | None = None
    workflow: NonEmpty | None = None
    tag: dict[str, str] = {}


class Bulk(Struct, forbid_unknown_fields=True):
    """An action on up to `limit` executions. The cursor in the response continues after them."""

    action: Action
    where: Where
    reason: Reason = ""
    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = PAGE_MAX
    cursor: Cursor | None = None


class Refusal(Struct, frozen=True):
    """An execution that refused the action, and the reason."""

    id: str
    code: str
    detail: str


class BulkView(Struct, frozen=True):
    """Counts of matched and processed executions, and the refusals. `cursor` is set if more may follow."""

    action: Action
    dry_run: bool
    matched: int
    done: int
    ids: list[str]
    refused: list[Refusal]
    cursor: str | None = None


def bulk_operations(service: Service) -> list[Operation]:
    """Return the bulk operation."""
    bulk = _Bulk(service)
    return [
        Operation(
            "POST", "/executions/bulk", "Apply an action to many executions", bulk.run, {200: BulkView}, body=Bulk
        )
    ]


class _Bulk:
    def __init__(self, service: Service) -> None:
        self._client = service.client

    def run(self, call: Call[Bulk, NoQuery]) -> Answer:
        body = call.body
        rows, cursor = self._matching(body)
        refused = [] if body.dry_run else [each for row in rows if (each := self._do(body, row)) is not None]
        done = 0 if body.dry_run else len(rows) - len(refused)
        ids = [row.execution_id for row in rows]
        return Answer(BulkView(body.action, body.dry_run, len(rows), done, ids, refused, cursor))

    def _matching(self, body: Bulk) -> tuple[list[Execution], str | None]:
        """Return a page of executions, starting at the status in the cursor."""
        statuses = _statuses(body)
        current, inner = _position(body.cursor, statuses)
        rows: list[Execution] = []
        while True:
            listing = self._client.list(
                status=statuses[current],
                workflow=body.where.workflow,
                tags=body.where.tag or None,
                limit=body.limit - len(rows),
                cursor=inner,
            )
            rows += listing.executions
            inner = listing.cursor
            if inner is None:
                current += 1
            if current == len(statuses):
                return rows, None
            if len(rows) >= body.limit:
                return rows, f"{statuses[current].value}|{inner or ''}"

    def _do(self, body: Bulk, row: Execution) -> Refusal | None:
        """Act on one execution; return the refusal instead of raising, so that the others proceed."""
        actions: Mapping[Action, Callable[[], object]] = {
            Action.CANCEL: lambda: self._client.cancel(row.execution_id, body.reason),
            Action.TERMINATE: lambda: self._client.terminate(row.execution_id, body.reason),
            Action.REDRIVE: lambda: self._client.redrive(row.execution_id),
            Action.RETRY: lambda: self._client.retry(row.execution_id),
        }
        try:
            actions[body.action]()
        except (ConflictError, UserError) as exc:
            return Refusal(row.execution_id, exc.code, exc.message)
        return None


def _statuses(body: Bulk) -> list[Status]:
    """Return the statuses to process. Raises `UserError` if the action does not apply to the given one."""
    applies = _APPLIES[body.action]
    status = body.where.status
    if status is None:
        return list(applies)
    if status not in applies and not (body.action is Action.RETRY and status is Status.SUCCEEDED):
        names = ", ".join(each.value for each in applies)
        raise UserError(f"{body.action.value} with status {status.value}: it applies to {names}")
    return [status]


def _position(cursor: str | None, statuses: list[Status]) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    name, separator, inner = cursor.partition("|")
    names = [status.value for status in statuses]
    if not separator or name not in names:
        raise CursorError("cursor: not valid for this action and filter; start again without it")
    return names.index(name), inner or None
