"""Answers of the API, as the client returns them."""

from __future__ import annotations

from msgspec import Raw, Struct

from headgate.durable.client.blocked_on import Wait
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import NULL, Status
from headgate.durable.model.retry import Retry
from headgate.durable.schedules.slots import CatchUp, Overlap


class ExecutionSummary(Struct, frozen=True, kw_only=True):
    """An execution in a list. `error` is why it failed, or why it is stuck."""

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
    """A page of executions. `cursor` is None on the last."""

    executions: list[ExecutionSummary]
    cursor: str | None = None


class ExecutionDetails(Struct, frozen=True, kw_only=True):
    """An execution in full. `failure` is the error of its last failed turn, `waits_for` what it waits for."""

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
    input: Raw = NULL
    memo: Raw = NULL
    result: Raw = NULL
    error: ErrorInfo | None = None
    failures: int = 0
    failure: ErrorInfo | None = None
    timeout_at: str = ""
    # The retry policy that it was started with, if not the one that its workflow declares.
    retry: Retry | None = None
    waits_for: list[Wait] = []


class ExecutionEnd(Struct, frozen=True, kw_only=True):
    """The status of an execution, with its result or error once it has ended."""

    id: str
    status: Status
    result: Raw = NULL
    error: ErrorInfo | None = None


class StartedExecution(Struct, frozen=True):
    """A started execution. `created` is False if it existed already."""

    id: str
    workflow: str
    created: bool


class QueryAnswer(Struct, frozen=True):
    """The answer of a query."""

    result: Raw = NULL


class UpdateAnswer(Struct, frozen=True):
    """The answer of an update; `pending` if there is none yet."""

    id: str
    pending: bool = False
    result: Raw = NULL


class HeartbeatAnswer(Struct, frozen=True):
    """Whether the activity was cancelled."""

    cancelled: bool


class EmittedEvents(Struct, frozen=True):
    """The ids of stored events."""

    ids: list[str]


class ScheduleDetails(Struct, frozen=True, kw_only=True):
    """A schedule. `next` is its next slot, `open_executions` are those that have not ended."""

    id: str
    revision: int
    workflow: str
    cron: str
    zone: str
    overlap: Overlap
    catchup: CatchUp
    paused: bool
    input: Raw = NULL
    next: str | None = None
    reason: str = ""
    tags: dict[str, str] = {}
    started_count: int = 0
    skipped_count: int = 0
    open_executions: list[str] = []


class SchedulePage(Struct, frozen=True):
    """A page of schedules. `cursor` is None on the last."""

    schedules: list[ScheduleDetails]
    cursor: str | None = None


class TriggeredSlot(Struct, frozen=True):
    """A start by hand: the execution, or why it was skipped."""

    slot: str
    execution_id: str | None = None
    skipped: str | None = None
