"""Machines and their executions as the API takes and shows them."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headgate import typed_decode
from headgate.asl.graph.render import Form
from headgate.asl.machines.executions import MACHINE_TAG, ExecutionDescription, ExecutionStatus, execution_id_of
from headgate.asl.machines.registry import StoredMachine
from headgate.asl.runtime.execution_request import MachineFailed
from headgate.durable.client.blocked_on import error_line
from headgate.durable.model.history import Status
from headgate.durable.model.records import Execution
from headgate.errors import DefinitionError, InvalidPayloadError
from headgate.serve.http.operations import PREFIX
from headgate.serve.http.raw_json import missing
from headgate.serve.rest.asl.events import said
from headgate.serve.rest.durable.models import Limit

# As an object, or as text: a template whose variables stand outside of strings is no JSON before they are filled in.
Definition = Annotated[Raw, Meta(description="The definition as an object, or as text.")]
ErrorName = Annotated[str, Meta(max_length=256)]
Cause = Annotated[str, Meta(max_length=32_768)]
Token = Annotated[str, Meta(min_length=1, max_length=4000)]
Version = Annotated[int, Meta(ge=1, le=999_999)]
# Either the definition as it is, or `PutMachine`.
AnyDefinition = Annotated[
    dict[str, Any],
    Meta(description="A definition in Amazon States Language; or an object with `definition`, `variables` and so on."),
]

# What is taken.


class GivenDefinition(Struct, forbid_unknown_fields=True):
    """A definition with what belongs to it: `variables` are for each `${name}` in it."""

    definition: Definition
    variables: dict[str, str] = {}
    # Of PUT: the newest version that the caller has seen, 0 for none.
    expected_version: Annotated[int, Meta(ge=0)] | None = None
    # Of the check: whether what Step Functions' history would not hold is a problem.
    strict_budget: bool = False

    @classmethod
    def read(cls, content: bytes) -> GivenDefinition:
        """Return what a body gives. Raises `InvalidPayloadError` for what is neither form."""
        try:
            # As text, and not as values: a name that stands twice is to be seen by who checks the definition.
            members = typed_decode.from_json(content, dict[str, Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return cls(Raw(content))
        if "definition" not in members:
            return cls(Raw(content))
        try:
            return typed_decode.from_json(content, cls)
        except msgspec.DecodeError as exc:
            raise InvalidPayloadError(f"body: {exc}") from exc

    @property
    def text(self) -> str:
        """The definition as it was written. Raises `DefinitionError` if that is no text at all."""
        content = bytes(self.definition)
        try:
            return typed_decode.from_json(content, str) if content.startswith(b'"') else content.decode()
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise DefinitionError(f"definition: it is not text in UTF-8: {exc}") from exc


class StartMachine(Struct, forbid_unknown_fields=True):
    """An execution to start. Without a name, the Idempotency-Key is its name, and without that it is given one."""

    input: Raw = msgspec.field(default_factory=missing)
    name: str | None = None
    version: Version | None = None


class StopExecution(Struct, forbid_unknown_fields=True):
    """Why it is stopped."""

    error: ErrorName = ""
    cause: Cause = ""


class TaskSuccess(Struct, forbid_unknown_fields=True, rename="camel"):
    """The result of a Task that waits for its token."""

    task_token: Token
    output: Raw


class TaskFailure(Struct, forbid_unknown_fields=True, rename="camel"):
    """Why a Task that waits for its token failed. `error` is what its Retry and Catch may name."""

    task_token: Token
    error: ErrorName = ""
    cause: Cause = ""


class TaskHeartbeat(Struct, forbid_unknown_fields=True, rename="camel"):
    """A sign of life of whoever works on a Task."""

    task_token: Token


class MachinesQuery(Struct, forbid_unknown_fields=True):
    """Which page."""

    limit: Limit = 100
    cursor: str | None = None


class MachineQuery(Struct, forbid_unknown_fields=True):
    """Which version; the newest, if none is given."""

    version: Version | None = None


class GraphQuery(Struct, forbid_unknown_fields=True):
    """How to draw. Without a format, the Accept header decides. With an execution, how far it has come is drawn."""

    format: Form | None = None
    version: Version | None = None
    execution: str | None = None


class ExecutionsQuery(Struct, forbid_unknown_fields=True):
    """Which executions of a machine to list."""

    status: ExecutionStatus | None = None
    limit: Limit = 100
    cursor: str | None = None


class EventsQuery(Struct, forbid_unknown_fields=True):
    """Which events to show: up to `limit` that come after the cursor, or before it with `reverse`."""

    limit: Limit = 100
    cursor: str | None = None
    reverse: bool = False


# What is shown.


class MachineSummary(Struct, frozen=True, omit_defaults=True):
    """A version of a machine, in a list."""

    name: str
    version: int
    created_at: str
    digest: str
    created_by: str = ""
    comment: str = ""


class MachineView(MachineSummary, frozen=True, omit_defaults=True):
    """A version of a machine. `version` is its ETag."""

    definition: Raw = msgspec.field(default_factory=missing)


class MachinePage(Struct, frozen=True):
    """Some machines or versions, and the cursor of the next page if there is one."""

    machines: list[MachineSummary]
    cursor: str | None = None


class StartedMachine(Struct, frozen=True):
    """The execution that was asked for. `created` is False if it was there already."""

    id: str
    machine: str
    created: bool


class MachineExecutionSummary(Struct, frozen=True, omit_defaults=True):
    """An execution of a machine, in a list."""

    id: str
    machine: str
    name: str
    status: ExecutionStatus
    started_at: str
    ended_at: str = ""
    error: str = ""


class MachineExecutionPage(Struct, frozen=True):
    """Some executions, and the cursor if there may be more. A page may be short, or empty."""

    executions: list[MachineExecutionSummary]
    cursor: str | None = None


class MachineExecutionView(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An execution of a machine. `states` are those that it is in now."""

    id: str
    machine: str
    name: str
    status: ExecutionStatus
    started_at: str
    # Left out as long as its first state was not come to.
    input: Any | UnsetType = UNSET
    ended_at: str = ""
    # 0: of a definition that is not kept.
    version: int = 0
    output: Any | UnsetType = UNSET
    error: str = ""
    cause: str = ""
    redrive_count: int = 0
    states: list[str] = []


class EventPage(Struct, frozen=True):
    """Some events in the shape of GetExecutionHistory, and the cursor of those that follow."""

    events: list[dict[str, Any]]
    cursor: str | None = None


class RedrivenView(Struct, frozen=True):
    """The execution that goes on, and how often it was redriven."""

    id: str
    redrive_count: int


def machine_summary(machine: StoredMachine) -> MachineSummary:
    """Return a version of a machine for a list."""
    return MachineSummary(
        machine.name, machine.version, machine.created_at, machine.digest, machine.created_by, machine.comment
    )


def machine_view(machine: StoredMachine) -> MachineView:
    """Return a version of a machine with its definition."""
    return MachineView(
        machine.name,
        machine.version,
        machine.created_at,
        machine.digest,
        machine.created_by,
        machine.comment,
        Raw(machine.definition.encode()),
    )


# Those that people tell apart for an execution of any workflow, by what Step Functions calls them.
STATUSES: dict[ExecutionStatus, frozenset[Status]] = {
    ExecutionStatus.RUNNING: frozenset({Status.RUNNING, Status.STUCK}),
    ExecutionStatus.SUCCEEDED: frozenset({Status.SUCCEEDED}),
    ExecutionStatus.FAILED: frozenset({Status.FAILED}),
    ExecutionStatus.TIMED_OUT: frozenset({Status.TIMED_OUT}),
    ExecutionStatus.ABORTED: frozenset({Status.CANCELLED, Status.TERMINATED}),
}


def execution_summary(row: Execution) -> MachineExecutionSummary:
    """Return an execution for a list."""
    machine = row.tags.get(MACHINE_TAG, "")
    return MachineExecutionSummary(
        id=row.execution_id,
        machine=machine,
        name=row.execution_id.removeprefix(execution_id_of(machine, "")),
        status=next(status for status, inner in STATUSES.items() if row.status in inner),
        started_at=row.started_at,
        ended_at=row.ended_at,
        error=_error(row),
    )


def _error(row: Execution) -> str:
    told = error_line(row.error or (row.failure if not row.status.is_closed else None))
    name, _, cause = told.removeprefix(f"{MachineFailed.__name__}: ").partition(": ")
    return said(name, cause)


def execution_view(found: ExecutionDescription) -> MachineExecutionView:
    """Return an execution with all that is known of it, which is its id alone before its first turn."""
    machine, _, name = found.execution_id.partition(":")
    return MachineExecutionView(
        id=found.execution_id,
        machine=found.machine or machine,
        name=found.name if found.machine else name,
        status=found.status,
        started_at=found.started_at,
        ended_at=found.ended_at,
        version=found.version,
        input=found.input if found.machine else UNSET,
        output=found.output if found.status is ExecutionStatus.SUCCEEDED else UNSET,
        error=found.error,
        cause=found.cause,
        redrive_count=found.redrive_count,
        states=list(found.states),
    )


def path_of(execution_id: str) -> str:
    """Return where an execution of a machine is."""
    return f"{PREFIX}/machine-executions/{quote(execution_id, safe='')}"
