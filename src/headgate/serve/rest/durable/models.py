"""Executions as the API takes and shows them."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta, Raw, Struct

from headgate.durable.client.blocked_on import Wait, error_line
from headgate.durable.model.duration import SECONDS_MAX
from headgate.durable.model.history import Note, Status, Turn, dump_command, dump_event
from headgate.durable.model.records import Execution, instant
from headgate.durable.model.starts import Reuse
from headgate.serve.http.operations import PREFIX
from headgate.serve.http.raw_json import ErrorView, error_view, missing, optional_raw

LIMIT_MAX: Final = 1000
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Reason = Annotated[str, Meta(max_length=1000)]
Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]
# As text such as 5m, or as seconds.
Duration = str | Annotated[float, Meta(ge=0, le=SECONDS_MAX)]

# What is taken.


class StartExecution(Struct, forbid_unknown_fields=True):
    """An execution to start. Without an id, the Idempotency-Key is its id, and without that it is given one."""

    workflow: str
    input: Raw = msgspec.field(default_factory=missing)
    id: str | None = None
    reuse: Reuse = Reuse.NEVER
    tags: dict[str, str] = {}
    memo: Raw = msgspec.field(default_factory=missing)
    timeout: Duration | None = None
    delay: Duration | None = None


class SignalWithStart(Struct, forbid_unknown_fields=True):
    """A signal to send, and the execution to start first if none of this id is open and `reuse` allows another."""

    workflow: str
    id: str
    name: Name
    input: Raw = msgspec.field(default_factory=missing)
    payload: Raw = msgspec.field(default_factory=missing)
    signal_id: str | None = None
    tags: dict[str, str] = {}
    reuse: Reuse = Reuse.CLOSED


class SendSignal(Struct, forbid_unknown_fields=True):
    """A signal to send. The same id again, or the same Idempotency-Key, is the same signal."""

    name: Name
    payload: Raw = msgspec.field(default_factory=missing)
    id: str | None = None


class Ask(Struct, forbid_unknown_fields=True):
    """A query to answer."""

    name: Name
    input: Raw = msgspec.field(default_factory=missing)


class AskUpdate(Struct, forbid_unknown_fields=True):
    """An update to make, and how long to wait for its answer."""

    name: Name
    input: Raw = msgspec.field(default_factory=missing)
    wait: Duration = "30s"


class Why(Struct, forbid_unknown_fields=True):
    """A reason, for whoever reads the history."""

    reason: Reason = ""


class ListQuery(Struct, forbid_unknown_fields=True):
    """Which executions to list. A tag is `name:value`."""

    status: Status | None = None
    workflow: str | None = None
    parent: str | None = None
    tag: list[str] = []
    limit: Limit = 100
    cursor: str | None = None
    order: Literal["newest", "oldest"] = "newest"


class HistoryQuery(Struct, forbid_unknown_fields=True):
    """Which turns to show: up to `limit` that come after one."""

    after: Annotated[int, Meta(ge=0)] = 0
    limit: Limit = 200


class LogQuery(Struct, forbid_unknown_fields=True):
    """Which lines to show: up to `limit` that come after a cursor."""

    limit: Limit = 200
    cursor: str | None = None


class ResultQuery(Struct, forbid_unknown_fields=True):
    """How long to wait for the end."""

    wait: str = "0s"


class StreamQuery(Struct, forbid_unknown_fields=True):
    """How long the stream is to last at most."""

    seconds: str = msgspec.field(default="1h", name="for")


# What is shown.


class Accepted(Struct, frozen=True):
    """The execution that a request was about."""

    id: str


class StartedView(Struct, frozen=True):
    """The execution that was asked for. `created` is False if it was there already."""

    id: str
    workflow: str
    created: bool


class ExecutionSummary(Struct, frozen=True, omit_defaults=True):
    """An execution in a list. `error` is why it ended, or why it is stuck."""

    id: str
    workflow: str
    status: Status
    run: int
    turn: int
    version: int
    started_at: str
    ended_at: str = ""
    parent_id: str | None = None
    tags: dict[str, str] = {}
    error: str = ""


class ExecutionPage(Struct, frozen=True):
    """Some executions, and the cursor of the next page if there is one."""

    executions: list[ExecutionSummary]
    cursor: str | None = None


class ExecutionView(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An execution with all that is known of it. `failure` is why its next turn could not be computed."""

    id: str
    workflow: str
    status: Status
    run: int
    turn: int
    version: int
    started_at: str
    ended_at: str = ""
    parent_id: str | None = None
    tags: dict[str, str] = {}
    input: Raw | None = None
    memo: Raw | None = None
    result: Raw | None = None
    error: ErrorView | None = None
    failures: int = 0
    failure: ErrorView | None = None
    timeout_at: str = ""
    archived: bool = False
    waits_for: list[Wait] = []


class ResultView(Struct, frozen=True, omit_defaults=True):
    """How an execution stands: with a result if it succeeded, an error if it ended otherwise.

    One that is STUCK has the `failure` that its next turn ended with, and goes on after a redrive.
    """

    id: str
    status: Status
    result: Raw | None = None
    error: ErrorView | None = None
    failure: ErrorView | None = None


class TurnView(Struct, frozen=True):
    """One step: what the execution was told at a moment, and what it asked for. Each has a `kind`."""

    turn: int
    run: int
    at_ms: int
    events: list[Raw]
    commands: list[Raw]
    notes: list[Note]
    worker: str


class HistoryPage(Struct, frozen=True):
    """Some turns of an execution. `next_after` asks for those that follow."""

    execution_id: str
    workflow: str
    turns: list[TurnView]
    next_after: int | None = None


class LogLine(Struct, frozen=True):
    """A line that the workflow or one of its activities logged."""

    at: str
    level: str
    source: str
    text: str


class Log(Struct, frozen=True):
    """Some of what was logged, in the order in which the execution heard of it: an activity's lines come with its end.

    The cursor is there if there may be more. A page may be short, or empty.
    """

    lines: list[LogLine]
    cursor: str | None = None


class AnswerView(Struct, frozen=True):
    """What user code answered."""

    result: Raw


class UpdateView(Struct, frozen=True, omit_defaults=True):
    """An update: `pending` as long as it has no answer."""

    id: str
    pending: bool = False
    result: Raw | None = None


def path_of(execution_id: str) -> str:
    """Return where an execution is."""
    return f"{PREFIX}/executions/{quote(execution_id, safe='')}"


def summary(row: Execution) -> ExecutionSummary:
    """Return an execution for a list."""
    return ExecutionSummary(
        id=row.execution_id,
        workflow=row.workflow,
        status=row.status,
        run=row.run,
        turn=row.turn,
        version=row.version,
        started_at=row.started_at,
        ended_at=row.ended_at,
        parent_id=row.parent_id,
        tags=row.tags,
        error=error_line(row.error or (row.failure if not row.status.is_closed else None))[:300],
    )


def view(row: Execution, input: Raw | None, waits: list[Wait]) -> ExecutionView:
    """Return an execution with all that is known of it."""
    return ExecutionView(
        id=row.execution_id,
        workflow=row.workflow,
        status=row.status,
        run=row.run,
        turn=row.turn,
        version=row.version,
        started_at=row.started_at,
        ended_at=row.ended_at,
        parent_id=row.parent_id,
        tags=row.tags,
        input=input,
        memo=optional_raw(row.memo),
        result=optional_raw(row.result),
        error=error_view(row.error),
        failures=row.failures,
        failure=error_view(row.failure),
        timeout_at="" if row.timeout_at_ms is None else instant(row.timeout_at_ms),
        archived=row.archive is not None and row.archived_through == row.turn,
        waits_for=waits,
    )


def result_view(row: Execution) -> ResultView:
    """Return how an execution stands."""
    failure = error_view(row.failure) if row.status is Status.STUCK else None
    return ResultView(row.execution_id, row.status, optional_raw(row.result), error_view(row.error), failure)


def turn_view(turn: Turn) -> TurnView:
    """Return a turn as it is stored."""
    return TurnView(
        turn.turn,
        turn.run,
        turn.at_ms,
        [Raw(dump_event(event).encode()) for event in turn.events],
        [Raw(dump_command(command).encode()) for command in turn.commands],
        list(turn.notes),
        turn.worker,
    )
