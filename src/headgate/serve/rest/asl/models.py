"""Request and response structs of the state machine API."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headgate import typed_decode
from headgate.asl.compile.severities import Target
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
from headgate.serve.http.views import shown
from headgate.serve.rest.asl.events import error_text
from headgate.serve.rest.parameters import Cursor, ExecutionId, Limit, TokenBody, described

# An object, or text: a template with variables outside of strings is not JSON before substitution.
Definition = Annotated[Raw, Meta(description="The definition as an object, or as text in JSON or YAML.")]
ErrorName = Annotated[str, Meta(max_length=256)]
Cause = Annotated[str, Meta(max_length=32_768)]
Version = Annotated[int, Meta(ge=1, le=999_999)]
# The plain definition, or `GivenDefinition`.
AnyDefinition = Annotated[
    dict[str, Any],
    Meta(description="A definition in Amazon States Language; or an object with `definition`, `variables` and so on."),
]

# Validation answers for any body.
Anything = Annotated[Any, Meta(description="A definition as for PUT; anything else is reported as a problem.")]

# Requests.


class GivenDefinition(Struct, forbid_unknown_fields=True):
    """A definition with the `variables` for each `${name}` in it."""

    definition: Definition
    variables: dict[str, str] = {}
    # For PUT: the newest version known to the caller, 0 for none.
    expected_version: Annotated[int, Meta(ge=0)] | None = None
    # For validation: whether exceeding Step Functions' history limit is a problem.
    strict_budget: bool = False
    # For validation: whether every warning is a problem.
    strict: bool = False
    # For validation: where it is to run. For AWS, what only AWS can run is a note.
    target: Target = Target.LOCAL

    @classmethod
    def read(cls, content: bytes) -> GivenDefinition:
        """Parse a body of either form. Raises `InvalidPayloadError`."""
        try:
            # Values stay raw, so that validation sees duplicate keys.
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
        """The definition as text. Raises `DefinitionError` if it is not UTF-8."""
        content = bytes(self.definition)
        try:
            return typed_decode.from_json(content, str) if content.startswith(b'"') else content.decode()
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise DefinitionError(f"definition: not UTF-8 text: {exc}") from exc


class StartMachine(Struct, forbid_unknown_fields=True):
    """An execution to start. The name defaults to the Idempotency-Key, or to a generated one."""

    input: Raw = msgspec.field(default_factory=missing)
    name: Annotated[str, described(r"[A-Za-z0-9._-]{0,80}")] | None = None
    version: Version | None = None


class StopExecution(Struct, forbid_unknown_fields=True):
    """Reason of the stop."""

    error: ErrorName = ""
    cause: Cause = ""


class TaskSuccess(TokenBody, kw_only=True):
    """The result of a task with a token."""

    output: Raw


class TaskFailure(TokenBody, kw_only=True):
    """The error of a task with a token. Retry and Catch match on `error`."""

    error: ErrorName = ""
    cause: Cause = ""


class TaskHeartbeat(TokenBody):
    """A heartbeat of a task."""


class MachineQuery(Struct, forbid_unknown_fields=True):
    """Version; the newest by default."""

    version: Version | None = None


class GraphQuery(Struct, forbid_unknown_fields=True):
    """Format, by default from the Accept header; and an execution whose progress is drawn."""

    format: Form | None = None
    version: Version | None = None
    execution: ExecutionId | None = None


class ExecutionsQuery(Struct, forbid_unknown_fields=True):
    """Filter of executions."""

    status: ExecutionStatus | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class EventsQuery(Struct, forbid_unknown_fields=True):
    """Up to `limit` events after the cursor, or before it with `reverse`."""

    limit: Limit = 100
    cursor: Cursor | None = None
    reverse: bool = False


# Responses.


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
    """A page of machines or versions."""

    machines: list[MachineSummary]
    cursor: str | None = None


class StartedMachine(Struct, frozen=True):
    """The started execution. `created` is False if it existed already."""

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
    """A page of executions. It may be short or empty and still have a cursor."""

    executions: list[MachineExecutionSummary]
    cursor: str | None = None


class MachineExecutionView(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An execution of a machine, with its current `states`."""

    id: str
    machine: str
    name: str
    status: ExecutionStatus
    started_at: str
    # Absent before the first state.
    input: Any | UnsetType = UNSET
    ended_at: str = ""
    # 0: the definition is not stored.
    version: int = 0
    output: Any | UnsetType = UNSET
    error: str = ""
    cause: str = ""
    redrive_count: int = 0
    states: list[str] = []


class EventPage(Struct, frozen=True):
    """A page of events in the shape of GetExecutionHistory."""

    events: list[dict[str, Any]]
    cursor: str | None = None


class RedrivenView(Struct, frozen=True):
    """The redriven execution, and its number of redrives."""

    id: str
    redrive_count: int


def machine_summary(machine: StoredMachine) -> MachineSummary:
    return shown(MachineSummary, machine)


def machine_view(machine: StoredMachine) -> MachineView:
    return shown(MachineView, machine, definition=Raw(machine.definition.encode()))


# Our execution statuses by Step Functions status.
STATUSES: dict[ExecutionStatus, frozenset[Status]] = {
    ExecutionStatus.RUNNING: frozenset({Status.RUNNING, Status.STUCK}),
    ExecutionStatus.SUCCEEDED: frozenset({Status.SUCCEEDED}),
    ExecutionStatus.FAILED: frozenset({Status.FAILED}),
    ExecutionStatus.TIMED_OUT: frozenset({Status.TIMED_OUT}),
    ExecutionStatus.ABORTED: frozenset({Status.CANCELLED, Status.TERMINATED}),
}


def execution_summary(row: Execution) -> MachineExecutionSummary:
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
    text = error_line(row.error or (row.failure if not row.status.is_closed else None))
    name, _, cause = text.removeprefix(f"{MachineFailed.__name__}: ").partition(": ")
    return error_text(name, cause)


def execution_view(described: ExecutionDescription) -> MachineExecutionView:
    """Return an execution in full; before its first turn only the id is known."""
    machine, _, name = described.execution_id.partition(":")
    return shown(
        MachineExecutionView,
        described,
        id=described.execution_id,
        machine=described.machine or machine,
        name=described.name if described.machine else name,
        input=described.input if described.machine else UNSET,
        output=described.output if described.status is ExecutionStatus.SUCCEEDED else UNSET,
    )


def path_of(execution_id: str) -> str:
    """Return the URL path of a machine execution."""
    return f"{PREFIX}/machine-executions/{quote(execution_id, safe='')}"
