"""Machine executions: start, describe, stop and redrive, with the terms and limits of Step Functions."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.asl.expressions.scope import Json
from headgate.asl.machines.registry import MachineRegistry
from headgate.asl.model.definition import Machine, MapSpec, ParallelSpec, TaskSpec
from headgate.asl.model.names import check_not_built_in, is_built_in
from headgate.asl.runtime.durable_host import WORKFLOW
from headgate.asl.runtime.execution_request import ExecutionRequest, StopReason, compiled
from headgate.asl.runtime.frame import Frame
from headgate.asl.runtime.history import HistoryEvent
from headgate.asl.runtime.interpreter import DATA_BYTES_MAX, Limits
from headgate.asl.runtime.replay import HistoryReplayer, ReplayResult
from headgate.asl.runtime.task_router import FUNCTION_NAME, reserved_function
from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback, read_token
from headgate.asl.tasks.local_tasks import LocalTasks
from headgate.asl.tasks.resource_map import ResourceMap
from headgate.asl.tasks.resources import Callee, target_of
from headgate.asl.tasks.task_routes import TaskRoutes, case_of
from headgate.clock import Clock
from headgate.durable.client.client import Client
from headgate.durable.model import payload
from headgate.durable.model.history import Status
from headgate.durable.model.names import is_built_in as is_built_in_function
from headgate.durable.model.records import Execution, instant
from headgate.durable.model.starts import Reuse
from headgate.durable.replay.mailbox import AWAITED_MAX
from headgate.errors import (
    AlreadyStartedError,
    ConflictError,
    DefinitionError,
    ExecutionClosedError,
    InvalidIdError,
    InvalidPayloadError,
    NotFoundError,
    PayloadTooLargeError,
    StaleClaimError,
)
from headgate.ids import IdMaker
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Write

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,79}")
MACHINE_TAG: Final = "machine"
# The idempotency keys of redrives that are remembered.
_REDRIVE_IDS_MAX: Final = 32
_ERROR_MAX: Final = 256


class ExecutionStatus(enum.StrEnum):
    """The status of an execution, as Step Functions names it."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    ABORTED = "ABORTED"


_STATUSES: Final = {
    Status.RUNNING: ExecutionStatus.RUNNING,
    Status.STUCK: ExecutionStatus.RUNNING,
    Status.SUCCEEDED: ExecutionStatus.SUCCEEDED,
    Status.FAILED: ExecutionStatus.FAILED,
    Status.TIMED_OUT: ExecutionStatus.TIMED_OUT,
    Status.CANCELLED: ExecutionStatus.ABORTED,
    Status.TERMINATED: ExecutionStatus.ABORTED,
}


class ExecutionDescription(Struct, frozen=True, omit_defaults=True):
    """An execution of a machine, for display."""

    execution_id: str
    machine: str
    name: str
    status: ExecutionStatus
    started_at: str
    version: int = 0
    ended_at: str = ""
    input: Json = None
    output: Json = None
    error: str = ""
    cause: str = ""
    redrive_count: int = 0
    # The current states: each outer state before those of its branches.
    states: tuple[str, ...] = ()


class _StartMemo(Struct, frozen=True):
    """Identifies a start, stored as the memo of the execution: two starts with the same memo are the same."""

    machine: str
    input_digest: str


class MachineExecutions:
    """The executions of machines in a store."""

    def __init__(
        self,
        client: Client,
        machines: MachineRegistry,
        replayer: HistoryReplayer,
        keyring: Keyring,
        clock: Clock,
        ids: IdMaker,
        *,
        known_functions: Callable[[], set[str]],
        local_tasks: LocalTasks | None = None,
        routes: TaskRoutes | None = None,
    ) -> None:
        """`local_tasks` refuses Tasks that cannot run here; `routes` are those of the Tasks in this process."""
        self.machines = machines
        self._client = client
        self._replayer = replayer
        self._keyring = keyring
        self._clock = clock
        self._ids = ids
        self._known_functions = known_functions
        self.local_tasks = local_tasks
        self._routes = routes

    def start(
        self,
        machine: str,
        input: Json = None,
        *,
        name: str | None = None,
        version: int | None = None,
        limits: Limits | None = None,
        delay_seconds: float | None = None,
        also: Sequence[Write] = (),
        is_internal: bool = False,
    ) -> tuple[str, bool]:
        """Start a machine, and return the id of the execution and whether it is new.

        A start is idempotent by name and input. `also` is written in the transaction of a new start. Only an internal
        start may name a built-in machine.
        Raises `NotFoundError` if the machine or one of its functions does not exist, `AlreadyStartedError` if the
        name was used with another input, `InvalidIdError` for a built-in machine or a function of Headgate,
        `PayloadTooLargeError`.
        """
        stored = self.machines.get(machine, version)
        return self.start_definition(
            machine,
            stored.definition,
            input,
            name=name,
            version=stored.version,
            limits=limits,
            delay_seconds=delay_seconds,
            also=also,
            is_internal=is_internal,
        )

    def start_definition(  # noqa: PLR0913 - as `start`, with a definition
        self,
        machine: str,
        definition: str,
        input: Json = None,
        *,
        name: str | None = None,
        version: int = 0,
        limits: Limits | None = None,
        delay_seconds: float | None = None,
        also: Sequence[Write] = (),
        is_internal: bool = False,
        test_case: str = "",
    ) -> tuple[str, bool]:
        """Start a definition that is not necessarily stored, also with the answers of a mocked test case.

        Otherwise as `start`.
        """
        request = self.request(
            machine,
            definition,
            input,
            name=name,
            version=version,
            limits=limits,
            is_internal=is_internal,
            test_case=test_case,
        )
        execution_id = execution_id_of(machine, request.name)
        memo = payload.encode(_StartMemo(machine, _digest(input)), what="memo")
        try:
            handle = self._client.start(
                WORKFLOW,
                payload.encode(request, what=f"input of machine {machine}"),
                execution_id=execution_id,
                reuse=Reuse.NEVER,
                tags={MACHINE_TAG: machine},
                memo=memo,
                timeout_seconds=compiled(definition).timeout_seconds,
                delay_seconds=delay_seconds,
                also=also,
                is_internal=True,
            )
        except AlreadyStartedError:
            # Compared by memo: the workflow's input also holds the start time and the version.
            existing = self._row(execution_id)
            if existing.memo == bytes(memo).decode():
                return execution_id, False
            status = _STATUSES[existing.status].value
            raise AlreadyStartedError(
                f"machine {machine}: the name {request.name} is taken by an execution with another input ({status}); "
                "choose another name, or give the same input",
                current={"execution_id": execution_id, "status": status},
            ) from None
        return handle.id, handle.was_started

    def request(
        self,
        machine: str,
        definition: str,
        input: Json,
        *,
        name: str | None = None,
        version: int = 0,
        limits: Limits | None = None,
        is_internal: bool = False,
        test_case: str = "",
    ) -> ExecutionRequest:
        """Return the workflow input of a new execution. Raises as `start` does."""
        if not is_internal:
            check_not_built_in(machine)
        name = self._ids.ulid() if name is None else name
        if not _NAME.fullmatch(name):
            raise InvalidIdError(
                f"execution name {name[:90]!r}: use 1 to 80 letters, digits, '-', '_' and '.', not beginning with '.'"
            )
        limits = limits or Limits()
        size = len(msgspec.json.encode(input))
        if size > limits.data_bytes_max:
            raise PayloadTooLargeError(
                f"input of machine {machine}: {size:,} bytes; at most {limits.data_bytes_max:,}; pass a reference"
            )
        case = self._case(machine, test_case)
        self._check_tasks(machine, compiled(definition), is_internal=is_internal, case=case)
        return ExecutionRequest(
            machine,
            name,
            # A stored definition is referenced, not copied into each of its executions.
            "" if version else definition,
            self._now_ms(),
            input,
            version,
            limits,
            is_routed=self._is_routed(is_internal=is_internal),
            case=case,
        )

    def _is_routed(self, *, is_internal: bool) -> bool:
        """Whether the calls of a machine may be replaced; those of Headgate's own machines never are."""
        return self._routes is not None and self._routes.is_active and not is_internal

    def _case(self, machine: str, test_case: str) -> str:
        if test_case:
            (ResourceMap() if self._routes is None else self._routes.resources).mocks.check_case(machine, test_case)
        return case_of(machine, test_case)

    def _check_tasks(self, machine: str, definition: Machine, *, is_internal: bool, case: str = "") -> None:
        """Raise `DefinitionError` for a Task that cannot run here, `NotFoundError` if no worker has its function.

        Raises `InvalidIdError` for a function of Headgate itself, unless the machine is internal.
        """
        named = functions_of(definition)
        if not is_internal:
            mocked = self._mocked_states(case)
            tasks = [(name, spec) for name, spec in tasks_of(definition) if name not in mocked]
            refused = None if self.local_tasks is None else _refusal(self.local_tasks, tasks)
            if refused is not None:
                raise DefinitionError(f"machine {machine}: {refused}")
            named = self._called_functions(tasks)
        reserved = sorted(filter(is_built_in_function, named))
        if reserved and not is_internal:
            raise InvalidIdError(f"machine {machine}: {reserved_function(', '.join(reserved))}")
        known = self._known_functions()
        missing = sorted(named - known)
        if missing:
            raise NotFoundError(
                f"machine {machine}: no worker has the function {', '.join(missing)}; register it with @app.activity, "
                f"or start a worker of the app that has it; there is {_user_functions(known) or 'none'}"
            )

    def _mocked_states(self, case: str) -> set[str]:
        if self._routes is None or not case:
            return set()
        machine, _, name = case.partition("#")
        return set(self._routes.resources.mocks.cases[machine][name])

    def _called_functions(self, tasks: Sequence[tuple[str, TaskSpec]]) -> set[str]:
        """Return the functions that these Tasks call, without those that a route may replace."""
        routes = self._routes
        return {
            function
            for _, spec in tasks
            if (function := function_of(spec)) is not None
            and (routes is None or not routes.may_replace(spec.resource, spec.function, spec.constants))
        }

    def describe(self, execution_id: str) -> ExecutionDescription:
        """Return the description of an execution. Raises `NotFoundError`."""
        row = self._row(execution_id)
        replayed = self.replay(row)
        name = execution_id.partition(":")[2]
        request = replayed.request or ExecutionRequest(row.tags.get(MACHINE_TAG, ""), name, "{}", 0)
        last = replayed.events[-1] if replayed.events else None
        is_failed = last is not None and row.status.is_closed and last.type in ("ExecutionFailed", "ExecutionAborted")
        details: Mapping[str, Any] = last.details if last is not None and is_failed else {}
        return ExecutionDescription(
            execution_id=execution_id,
            machine=request.machine,
            name=request.name,
            status=_STATUSES[row.status],
            started_at=instant(request.started_at_ms) if request.started_at_ms else row.started_at,
            version=request.version,
            ended_at=row.ended_at,
            input=request.input,
            output=None if row.result is None else msgspec.json.decode(row.result),
            error=details.get("error", ""),
            cause=details.get("cause", ""),
            redrive_count=request.redrive_count,
            states=() if row.status.is_closed or replayed.frame is None else tuple(_states(replayed.frame)),
        )

    def history(self, execution_id: str) -> list[HistoryEvent]:
        """Return every event of an execution, redrives included. Raises `NotFoundError`."""
        return self.replay(self._row(execution_id)).events

    def replay(self, row: Execution) -> ReplayResult:
        """Replay an execution: its events, its last request and its current frame."""
        return self._replayer.replay(row, self._client.history(row.execution_id))

    def stop(self, execution_id: str, *, error: str = "", cause: str = "") -> None:
        """Cancel an execution with an error and a cause. Raises `NotFoundError`, `ExecutionClosedError`."""
        self._row(execution_id)
        self._client.cancel(execution_id, StopReason(error[:_ERROR_MAX], cause).text())

    def redrive(self, execution_id: str, *, reason: str = "", request_id: str = "") -> int:
        """Resume an execution at the state that failed, and return the redrive count.

        States that succeeded do not run again. A second request with the same `request_id` changes nothing. Raises
        `NotFoundError`, and `ConflictError` if it runs or succeeded.
        """
        row = self._row(execution_id)
        earlier = self._redriven_by(row, request_id)
        if earlier is not None:
            return earlier.redrive_count
        if not row.status.is_closed or row.status is Status.SUCCEEDED:
            raise ConflictError(
                f"execution {execution_id}: it is {_STATUSES[row.status].value}; only what failed, timed out or was "
                "aborted can be redriven"
            )
        replayed = self.replay(row)
        if replayed.frame is None:
            raise ConflictError(f"execution {execution_id}: it ended before its first state; start it again")
        return self._resume(row, replayed, replayed.frame, Reuse.FAILED, reason, request_id)

    def reset(self, execution_id: str, state: str, *, reason: str = "", request_id: str = "") -> int:
        """Run an ended execution again from a state that it has entered, and return the redrive count.

        The state gets the input and the variables of its last entry; the history so far is kept. `state` is one of the
        outermost level. Raises `NotFoundError` if the execution has not entered it, `ConflictError` if it runs.
        """
        row = self._row(execution_id)
        earlier = self._redriven_by(row, request_id)
        if earlier is not None:
            return earlier.redrive_count
        if not row.status.is_closed:
            raise ConflictError(
                f"execution {execution_id}: it is {_STATUSES[row.status].value}; stop it first: "
                f"'headgate asl stop {execution_id}'"
            )
        replayed = self._replayer.replay(row, self._client.history(execution_id), keeps_frames=True)
        if replayed.request is not None and replayed.request.is_built_in:
            raise InvalidPayloadError(
                f"execution {execution_id}: it is the lifecycle of a run, which goes one way; rerun the period: "
                "'headgate run rerun'"
            )
        frame = replayed.entered.get(state)
        if frame is None:
            raise NotFoundError(
                f"execution {execution_id}: it has not entered a state {state!r} of the outermost level; it has "
                f"entered {', '.join(replayed.entered) or 'none'}; the states of a Parallel or Map begin again with it"
            )
        return self._resume(row, replayed, frame, Reuse.CLOSED, reason, request_id)

    def _redriven_by(self, row: Execution, request_id: str) -> ExecutionRequest | None:
        """Return the request of the last run if a redrive had this idempotency key."""
        if not request_id:
            return None
        last = typed_decode.from_json(self._client.started(row, first=True).input, ExecutionRequest)
        return last if request_id in last.redrive_ids else None

    def _resume(
        self, row: Execution, replayed: ReplayResult, frame: Frame, reuse: Reuse, reason: str, request_id: str
    ) -> int:
        """Start the next run of an ended execution at a frame, and return the redrive count."""
        execution_id = row.execution_id
        if row.parent_id is not None:
            raise ConflictError(
                f"execution {execution_id}: its parent {row.parent_id} has it; redrive that one, which starts it again"
            )
        assert replayed.request is not None, "an execution that has entered a state has a request"
        count = replayed.request.redrive_count + 1
        request = replace(
            replayed.request,
            resume=frame,
            redrive_reason=reason,
            redrive_ids=(*replayed.request.redrive_ids, *([request_id] if request_id else []))[-_REDRIVE_IDS_MAX:],
            events=replayed.journaled,
            redrive_count=count,
            is_redriven=True,
            is_routed=self._is_routed(is_internal=replayed.request.is_built_in),
            ended_as=replayed.events[-1].type if len(replayed.events) > replayed.journaled else "",
        )
        machine = compiled(request.definition or self.machines.definition(request.machine, request.version))
        self._check_tasks(request.machine, machine, is_internal=request.is_built_in, case=request.case)
        self._client.start(
            WORKFLOW,
            payload.encode(request, what=f"input of machine {request.machine}"),
            execution_id=execution_id,
            reuse=reuse,
            tags=row.tags,
            memo=Raw(b"null") if row.memo is None else Raw(row.memo.encode()),
            timeout_seconds=machine.timeout_seconds,
            tells_end=row.tells_end,
            is_internal=True,
        )
        return count

    def send_callback(self, token: str, callback: TaskCallback, *, is_internal: bool = False) -> None:
        """Report success, failure or a heartbeat to the Task that waits for a token.

        Only an internal caller may complete a Task of a built-in machine; others get `InvalidIdError`. Raises
        `SignatureError`, `PayloadTooLargeError`, and `StaleClaimError` if the Task no longer waits.
        """
        read = read_token(self._keyring, token)
        size = len(msgspec.json.encode(callback.output))
        if size > DATA_BYTES_MAX:
            raise PayloadTooLargeError(
                f"output of a Task: {size:,} bytes; at most {DATA_BYTES_MAX:,}; pass a reference"
            )
        row = self._row(read.execution_id)
        if not is_internal and is_built_in(row.tags.get(MACHINE_TAG, "")):
            raise InvalidIdError(
                f"execution {read.execution_id}: the Tasks of this machine are completed by Headgate only; push a "
                "sensor, or report the end of a job: 'headgate run complete'"
            )
        # The row lists at most AWAITED_MAX of the signals that the execution waits for.
        may_wait = read.signal in row.awaits or len(row.awaits) >= AWAITED_MAX
        if row.status.is_closed or not may_wait:
            raise StaleClaimError(
                f"execution {read.execution_id}: the Task of this token no longer waits; nothing is done"
            )
        try:
            # A Task completes once: a second callback has the same signal id and changes nothing.
            signal_id = None if callback.callback is CallbackKind.HEARTBEAT else read.signal
            encoded = payload.encode(callback, what="answer to a Task")
            self._client.signal(read.execution_id, read.signal, encoded, signal_id=signal_id, is_internal=True)
        except ExecutionClosedError as exc:
            raise StaleClaimError(f"execution {read.execution_id}: it has ended, nothing is done") from exc

    def _row(self, execution_id: str) -> Execution:
        row = self._client.get(execution_id)
        if row.workflow != WORKFLOW:
            raise NotFoundError(
                f"execution {execution_id}: it is one of workflow {row.workflow}, not of a machine; "
                "see 'headgate execution'"
            )
        return row

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _user_functions(functions: set[str]) -> str:
    return ", ".join(sorted(name for name in functions if not is_built_in_function(name)))


def _digest(input: Json) -> str:
    return hashlib.sha256(msgspec.json.encode(input, order="sorted")).hexdigest()


def execution_id_of(machine: str, name: str) -> str:
    """Return the id of an execution by its machine and name."""
    return f"{machine}:{name}"


def functions_of(machine: Machine) -> set[str]:
    """Return the names of the functions that a machine calls, including its branches and iterations."""
    return {function for _, spec in tasks_of(machine) if (function := function_of(spec)) is not None}


def function_of(spec: TaskSpec) -> str | None:
    """Return the name of the function that a Task calls, if it is known before it runs."""
    target = target_of(spec.resource)
    if target.callee in (Callee.FUNCTION, Callee.ACTIVITY):
        return target.name
    invoked = FUNCTION_NAME.fullmatch(spec.function)
    return None if invoked is None else invoked[1]


def tasks_of(machine: Machine) -> Iterator[tuple[str, TaskSpec]]:
    """Return the Tasks of a machine by the names of their states, including its branches and iterations."""
    for name, state in machine.states.items():
        match state.spec:
            case TaskSpec() as spec:
                yield name, spec
            case ParallelSpec() as spec:
                for branch in spec.branches:
                    yield from tasks_of(branch)
            case MapSpec() as spec:
                yield from tasks_of(spec.processor)
            case _:
                continue


def _refusal(local: LocalTasks, tasks: Sequence[tuple[str, TaskSpec]]) -> str | None:
    """Return why the first Task that cannot run here cannot."""
    for name, spec in tasks:
        found = local.refusal(spec.resource, spec.constants, is_complete=spec.has_only_constants)
        if found is not None:
            return f"state '{name}': {found}"
    return None


def _states(frame: Frame) -> list[str]:
    return [frame.state, *(name for index in sorted(frame.branches) for name in _states(frame.branches[index]))]
