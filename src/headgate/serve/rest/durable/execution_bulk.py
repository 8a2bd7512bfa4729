"""Bulk API: one action on many executions, page by page, with a dry run."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct

from headgate.durable.client.listing import ExecutionFilter, list_executions, start_text
from headgate.durable.client.resets import Messages
from headgate.durable.model.history import Status
from headgate.durable.model.records import Execution
from headgate.durable.service import Service
from headgate.errors import ConflictError, CursorError, UserError
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.raw_json import missing
from headgate.serve.rest.durable.execution_resets import Reset
from headgate.serve.rest.durable.models import ExecutionSummary, SendSignal, Why, summary
from headgate.serve.rest.parameters import Cursor, Moment, Name, NonEmpty, Reason

PAGE_MAX: Final = 1000


class Action(enum.StrEnum):
    """Bulk actions."""

    CANCEL = "cancel"
    TERMINATE = "terminate"
    REDRIVE = "redrive"
    RETRY = "retry"
    RETRY_FROM_FAILURE = "retry-from-failure"
    RESET = "reset"
    SIGNAL = "signal"


# Statuses an action applies to without a status in the filter.
_APPLIES: Final[Mapping[Action, tuple[Status, ...]]] = {
    Action.CANCEL: (Status.RUNNING, Status.STUCK),
    Action.TERMINATE: (Status.RUNNING, Status.STUCK),
    Action.REDRIVE: (Status.STUCK,),
    Action.RETRY: (Status.FAILED, Status.CANCELLED, Status.TERMINATED, Status.TIMED_OUT),
    Action.RETRY_FROM_FAILURE: (Status.FAILED, Status.TIMED_OUT, Status.STUCK),
    Action.RESET: (),
    Action.SIGNAL: (Status.RUNNING, Status.STUCK),
}
# Statuses it applies to only if they are given.
_ALSO: Final[Mapping[Action, tuple[Status, ...]]] = {
    Action.RETRY: (Status.SUCCEEDED,),
    Action.RETRY_FROM_FAILURE: (Status.CANCELLED, Status.TERMINATED),
    Action.RESET: tuple(Status),
}
_PATHS: Final[Mapping[Action, str]] = {Action.SIGNAL: "signals"}
SAMPLE_MAX: Final = 10


class Where(Struct, forbid_unknown_fields=True):
    """Filter of executions; all conditions must match, and the action must apply."""

    status: Status | None = None
    workflow: NonEmpty | None = None
    tag: dict[str, str] = {}
    # The build of the worker that took the last turn.
    build: NonEmpty | None = None
    # Text in the error, in any case.
    error: NonEmpty | None = None
    started_since: Moment | None = None
    started_until: Moment | None = None
    ended_since: Moment | None = None
    ended_until: Moment | None = None


class Bulk(Struct, forbid_unknown_fields=True):
    """An action on up to `limit` executions. The cursor in the response continues after them.

    `to` and `signals` are for a reset, `name` and `payload` for a signal. With `request_id`, an execution is reset,
    continued or signalled once, however often the request is sent.
    """

    action: Action
    where: Where
    to: Annotated[int, Meta(ge=1)] | NonEmpty | None = None
    signals: Messages | None = None
    name: Name | None = None
    payload: Raw = msgspec.field(default_factory=missing)
    request_id: Name | None = None
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
    # Of a dry run: some of the executions.
    sample: list[ExecutionSummary] = []


def bulk_operations(service: Service, single: Sequence[Operation]) -> list[Operation]:
    """Return the bulk operation, which applies one of the `single` operations to each match."""
    bulk = _Bulk(service, {each.path: each for each in single if each.method == "POST"})
    return [
        Operation(
            "POST", "/executions/bulk", "Apply an action to many executions", bulk.run, {200: BulkView}, body=Bulk
        )
    ]


class _Bulk:
    def __init__(self, service: Service, single: Mapping[str, Operation]) -> None:
        self._store = service.store
        self._one = {action: single[f"/executions/{{id}}/{_PATHS.get(action, action.value)}"] for action in Action}

    def run(self, call: Call[Bulk, NoQuery]) -> Answer:
        body = call.body
        _check_fields(body)
        rows, cursor = self._matching(body)
        refused = [] if body.dry_run else [each for row in rows if (each := self._do(call, row)) is not None]
        done = 0 if body.dry_run else len(rows) - len(refused)
        ids = [row.execution_id for row in rows]
        sample = [summary(row) for row in rows[:SAMPLE_MAX]] if body.dry_run else []
        return Answer(BulkView(body.action, body.dry_run, len(rows), done, ids, refused, cursor, sample))

    def _matching(self, body: Bulk) -> tuple[list[Execution], str | None]:
        """Return a page of executions, starting at the status in the cursor."""
        statuses = _statuses(body)
        current, inner = _position(body.cursor, statuses)
        rows: list[Execution] = []
        while True:
            listing = list_executions(
                self._store, _filter(body.where, statuses[current]), limit=body.limit - len(rows), cursor=inner
            )
            rows += listing.executions
            inner = listing.cursor
            if inner is None:
                current += 1
            if current == len(statuses):
                return rows, None
            if len(rows) >= body.limit:
                return rows, f"{statuses[current].value}|{inner or ''}"

    def _do(self, call: Call[Bulk, NoQuery], row: Execution) -> Refusal | None:
        """Act on one execution; return the refusal instead of raising, so that the others proceed."""
        body = call.body
        # The operation on one execution, with an audit entry of its own.
        headers = {} if body.request_id is None else {"idempotency-key": body.request_id}
        one = Call({"id": row.execution_id}, NoQuery(), _body(body), headers, b"", call.principal)
        try:
            self._one[body.action].run(one)
        except (ConflictError, UserError) as exc:
            return Refusal(row.execution_id, exc.code, exc.message)
        return None


def _statuses(body: Bulk) -> list[Status]:
    """Return the statuses to process. Raises `UserError` if the action does not apply to the given one."""
    applies = _APPLIES[body.action]
    status = body.where.status
    if status is None and not applies:
        raise UserError(f"{body.action.value}: where.status is required; use one of {', '.join(Status)}")
    if status is None:
        return list(applies)
    allowed = (*applies, *_ALSO.get(body.action, ()))
    if status not in allowed:
        names = ", ".join(each.value for each in allowed)
        raise UserError(f"{body.action.value} with status {status.value}: it applies to {names}")
    return [status]


def _check_fields(body: Bulk) -> None:
    """Raise `UserError` if no filter or no field of the action is given, or a field of another action."""
    if body.where == Where():
        # Every execution of every app, and of state machines, which lists leave out by default.
        raise UserError(f"where: it is empty; give at least one of {', '.join(Where.__struct_fields__)}")
    if body.action is Action.RESET and body.to is None:
        raise UserError("to: a reset needs the turn or the activity to begin with")
    if body.action is Action.SIGNAL and body.name is None:
        raise UserError("name: the name of the signal is required")
    given = {
        "to": (Action.RESET, body.to is not None),
        "signals": (Action.RESET, body.signals is not None),
        "name": (Action.SIGNAL, body.name is not None),
        "payload": (Action.SIGNAL, len(body.payload) > 0),
    }
    for field, (action, is_given) in given.items():
        if is_given and body.action is not action:
            raise UserError(
                f"{field}: only for the action {action.value}, and this one is {body.action.value}; leave it out"
            )


def _body(body: Bulk) -> Struct:
    """Return the body of the operation on one execution."""
    match body.action:
        case Action.RESET:
            assert body.to is not None, "checked by the caller"
            return Reset(body.to, body.signals or Messages.KEEP, body.reason)
        case Action.SIGNAL:
            assert body.name is not None, "checked by the caller"
            return SendSignal(body.name, body.payload)
        case _:
            return Why(body.reason)


def _filter(where: Where, status: Status) -> ExecutionFilter:
    return ExecutionFilter(
        status=status,
        workflow=where.workflow,
        tags=where.tag,
        build=where.build or "",
        error=where.error or "",
        started_since=start_text(where.started_since),
        started_until=start_text(where.started_until),
        ended_since=start_text(where.ended_since),
        ended_until=start_text(where.ended_until),
    )


def _position(cursor: str | None, statuses: list[Status]) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    name, separator, inner = cursor.partition("|")
    names = [status.value for status in statuses]
    if not separator or name not in names:
        raise CursorError("cursor: not valid for this action and filter; start again without it")
    return names.index(name), inner or None
