"""Request and response structs of the execution API."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta, Raw, Struct

from headgate import typed_decode
from headgate.durable.client.blocked_on import Wait, error_line
from headgate.durable.client.failed_attempts import AttemptFailure
from headgate.durable.model.history import Note, Status, Turn, dump_command, dump_event
from headgate.durable.model.records import Execution, activity_id, instant
from headgate.durable.model.retry import Retry
from headgate.durable.model.starts import Reuse
from headgate.serve.http.operations import PREFIX
from headgate.serve.http.raw_json import ErrorView, error_view, missing, optional_raw
from headgate.serve.http.views import shown
from headgate.serve.rest.parameters import (
    Cursor,
    Duration,
    DurationText,
    Limit,
    Moment,
    Name,
    NewExecutionId,
    NonEmpty,
    Reason,
    Tag,
    described,
)

# Requests.


class RetryPolicy(Struct, forbid_unknown_fields=True):
    """How often, and after which delays, a failed run is followed by another with the same input.

    `attempts` includes the first; 0 is no limit. `never` has the names of errors that are not retried.
    """

    attempts: Annotated[int, Meta(ge=0)] = 10
    first: Duration = 1.0
    factor: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    most: Duration = 300.0
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2
    deaths: Annotated[int, Meta(ge=0)] = 0
    never: list[
        Annotated[str, described(r"([A-Za-z_][A-Za-z0-9_]*|<locals>)(\.([A-Za-z_][A-Za-z0-9_]*|<locals>))*")]
    ] = []

    def checked(self) -> Retry:
        """Return the policy. Raises `UserError`."""
        return Retry(
            attempts=self.attempts,
            first=self.first,
            factor=self.factor,
            most=self.most,
            jitter=self.jitter,
            deaths=self.deaths,
            never=tuple(self.never),
        )


class StartExecution(Struct, forbid_unknown_fields=True):
    """An execution to start. The id defaults to the Idempotency-Key, or to a generated one."""

    workflow: str
    input: Raw = msgspec.field(default_factory=missing)
    id: NewExecutionId | None = None
    reuse: Reuse = Reuse.NEVER
    tags: dict[str, str] = {}
    memo: Raw = msgspec.field(default_factory=missing)
    timeout: Duration | None = None
    delay: Duration | None = None
    # In place of the retry policy that the workflow declares.
    retry: RetryPolicy | None = None
    # Passed on to activities, children and signals of the execution.
    headers: dict[str, str] = {}


class SignalWithStart(Struct, forbid_unknown_fields=True):
    """A signal to send; starts the execution first if none with this id is open and `reuse` allows it."""

    workflow: str
    id: NewExecutionId
    name: Name
    input: Raw = msgspec.field(default_factory=missing)
    payload: Raw = msgspec.field(default_factory=missing)
    signal_id: Name | None = None
    tags: dict[str, str] = {}
    memo: Raw = msgspec.field(default_factory=missing)
    timeout: Duration | None = None
    # In place of the retry policy that the workflow declares.
    retry: RetryPolicy | None = None
    reuse: Reuse = Reuse.CLOSED
    # Passed on to activities, children and signals of the execution.
    headers: dict[str, str] = {}


class SendSignal(Struct, forbid_unknown_fields=True):
    """A signal to send. It is deduplicated by id or Idempotency-Key."""

    name: Name
    payload: Raw = msgspec.field(default_factory=missing)
    id: Name | None = None
    headers: dict[str, str] = {}


class Ask(Struct, forbid_unknown_fields=True):
    """A query."""

    name: Name
    input: Raw = msgspec.field(default_factory=missing)


class AskUpdate(Struct, forbid_unknown_fields=True):
    """An update, and how long to wait for its answer. It is deduplicated by id or Idempotency-Key."""

    name: Name
    input: Raw = msgspec.field(default_factory=missing)
    wait: Duration = "30s"
    id: Annotated[str, described(r"[A-Za-z0-9._:@=+-]{1,100}")] | None = None


class Why(Struct, forbid_unknown_fields=True):
    """A reason, recorded in the audit log, and in the history if the execution goes on with it."""

    reason: Reason = ""


class ListQuery(Struct, forbid_unknown_fields=True):
    """Filter of executions. A tag is `name:value`. Without `machines`, executions of state machines are left out.

    They were started from `since` on and before `until`; `text` is in the id, the workflow, a tag or the error.
    """

    status: Status | None = None
    workflow: NonEmpty | None = None
    parent: NonEmpty | None = None
    tag: list[Tag] = []
    since: Moment | None = None
    until: Moment | None = None
    text: Annotated[str, Meta(max_length=200)] = ""
    limit: Limit = 100
    cursor: Cursor | None = None
    order: Literal["newest", "oldest"] = "newest"
    machines: bool = True


class HistoryQuery(Struct, forbid_unknown_fields=True):
    """Up to `limit` turns after a turn number."""

    after: Annotated[int, Meta(ge=0)] = 0
    limit: Limit = 200


class LogQuery(Struct, forbid_unknown_fields=True):
    """Up to `limit` lines after a cursor."""

    limit: Limit = 200
    cursor: Cursor | None = None


class FailuresQuery(Struct, forbid_unknown_fields=True):
    """Up to `limit` failed attempts."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class ResultQuery(Struct, forbid_unknown_fields=True):
    """How long to wait for the result."""

    wait: DurationText = "0s"


class StreamQuery(Struct, forbid_unknown_fields=True):
    """Maximum duration of the stream."""

    seconds: DurationText = msgspec.field(default="1h", name="for")


# Responses.


class Accepted(Struct, frozen=True):
    """The execution that accepted the request."""

    id: str


class StartedView(Struct, frozen=True):
    """The started execution. `created` is False if it existed already."""

    id: str
    workflow: str
    created: bool


class ExecutionSummary(Struct, frozen=True, omit_defaults=True):
    """An execution in a list. `error` is the reason of its failure, or why it is stuck."""

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
    # The build of the last turn; of a pinned execution, the one that takes every turn.
    build: str = ""
    pinned: bool = False


class ExecutionPage(Struct, frozen=True):
    """A page of executions."""

    executions: list[ExecutionSummary]
    cursor: str | None = None


class ExecutionView(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An execution in full. `failure` is the error of its last failed turn."""

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
    # The retry policy that it was started with, if not the one that its workflow declares.
    retry: RetryPolicy | None = None
    # The build of the last turn; of a pinned execution, the one that takes every turn.
    build: str = ""
    pinned: bool = False
    # The builds whose code failed at the next turn, or does not fit the history.
    failed_builds: list[str] = []
    # The turns of earlier runs that this run begins with after a reset.
    kept_turns: str = ""
    archived: bool = False
    waits_for: list[Wait] = []


class ResultView(Struct, frozen=True, omit_defaults=True):
    """Status of an execution, with the result or the error if it has ended.

    A STUCK execution has the `failure` of its last turn, and continues after a redrive.
    """

    id: str
    status: Status
    result: Raw | None = None
    error: ErrorView | None = None
    failure: ErrorView | None = None


class TurnView(Struct, frozen=True):
    """One turn: the events consumed and the commands issued. Each has a `kind`."""

    turn: int
    run: int
    at_ms: int
    events: list[Raw]
    commands: list[Raw]
    notes: list[Note]
    worker: str


class HistoryPage(Struct, frozen=True):
    """A page of history. `next_after` requests the following turns."""

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
    """A page of the log, in the order the execution recorded it: an activity's lines come with its completion.

    Lines of failed attempts at an activity that goes on are at the end of the last page. A page may be short or empty
    and still have a cursor.
    """

    lines: list[LogLine]
    cursor: str | None = None


class FailureView(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A failed attempt at an activity. `final`: there was no further one."""

    activity: str
    activity_id: str
    attempt: int
    final: bool
    at: str
    started_at: str = ""
    worker: str = ""
    error: ErrorView


class FailurePage(Struct, frozen=True):
    """The last failed attempts at activities, newest first. Of each activity the last five attempts are kept."""

    failures: list[FailureView]


class AnswerView(Struct, frozen=True):
    """The answer of user code."""

    result: Raw


class UpdateView(Struct, frozen=True, omit_defaults=True):
    """An update: `pending` until it has an answer."""

    id: str
    pending: bool = False
    result: Raw | None = None


def path_of(execution_id: str) -> str:
    """Return the URL path of an execution."""
    return f"{PREFIX}/executions/{quote(execution_id, safe='')}"


def summary(row: Execution) -> ExecutionSummary:
    error = error_line(row.error or (row.failure if not row.status.is_closed else None))[:300]
    return shown(ExecutionSummary, row, id=row.execution_id, error=error, pinned=row.is_pinned)


def view(row: Execution, input: Raw | None, waits: list[Wait]) -> ExecutionView:
    return shown(
        ExecutionView,
        row,
        id=row.execution_id,
        input=input,
        memo=optional_raw(row.memo),
        result=optional_raw(row.result),
        error=error_view(row.error),
        failure=error_view(row.failure),
        timeout_at="" if row.timeout_at_ms is None else instant(row.timeout_at_ms),
        retry=None if row.retry is None else typed_decode.from_json(row.retry, RetryPolicy),
        archived=row.archive is not None and row.archived_through == row.turn,
        waits_for=waits,
        pinned=row.is_pinned,
        failed_builds=[*row.unfit_builds, *row.failed_builds],
    )


def failure_view(execution_id: str, failure: AttemptFailure) -> FailureView:
    error = error_view(failure.error)
    assert error is not None
    return FailureView(
        activity=failure.activity,
        activity_id=activity_id(execution_id, failure.run, failure.seq),
        attempt=failure.attempt,
        final=failure.is_final,
        at=instant(failure.ended_at_ms),
        started_at=instant(failure.started_at_ms) if failure.started_at_ms else "",
        worker=failure.worker,
        error=error,
    )


def result_view(row: Execution) -> ResultView:
    failure = error_view(row.failure) if row.status is Status.STUCK else None
    return ResultView(row.execution_id, row.status, optional_raw(row.result), error_view(row.error), failure)


def turn_view(turn: Turn) -> TurnView:
    events = [Raw(dump_event(event).encode()) for event in turn.events]
    commands = [Raw(dump_command(command).encode()) for command in turn.commands]
    return shown(TurnView, turn, events=events, commands=commands)
