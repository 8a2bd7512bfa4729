"""Machine execution API: start, list, describe, stop and redrive; and task callbacks by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from headgate.asl.errors import StateError
from headgate.asl.machines.executions import MACHINE_TAG, MachineExecutions
from headgate.asl.runtime.durable_host import WORKFLOW
from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback
from headgate.durable.client.client import Client
from headgate.durable.client.listing import Listing
from headgate.errors import (
    AlreadyStartedError,
    ConflictError,
    CursorError,
    HeadgateError,
    PayloadTooLargeError,
    SignatureError,
    StaleClaimError,
)
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation, Result
from headgate.serve.http.problem import Problem, response
from headgate.serve.http.raw_json import checked, idempotency_key
from headgate.serve.rest.asl.events import event_view
from headgate.serve.rest.asl.models import (
    STATUSES,
    EventPage,
    EventsQuery,
    ExecutionsQuery,
    MachineExecutionPage,
    MachineExecutionView,
    RedrivenView,
    StartedMachine,
    StartMachine,
    StopExecution,
    TaskFailure,
    TaskHeartbeat,
    TaskSuccess,
    execution_summary,
    execution_view,
    path_of,
)
from headgate.serve.rest.durable.executions import HISTORY_BYTES_MAX
from headgate.serve.rest.durable.models import Accepted

Names = Mapping[type[HeadgateError], str]
# Step Functions' names of errors.
_START_ERRORS: Final[Names] = {AlreadyStartedError: "ExecutionAlreadyExists"}
_REDRIVE_ERRORS: Final[Names] = {ConflictError: "ExecutionNotRedrivable"}
_TASK_ERRORS: Final[Names] = {SignatureError: "InvalidToken", StaleClaimError: "TaskTimedOut"}


def machine_execution_operations(executions: MachineExecutions, client: Client) -> list[Operation]:
    """Return the operations on machine executions and task tokens."""
    return [*_Executions(executions, client).operations(), *_Tasks(executions).operations()]


class _Executions:
    def __init__(self, executions: MachineExecutions, client: Client) -> None:
        self._executions = executions
        self._client = client

    def operations(self) -> list[Operation]:
        many, one = "/machines/{name}/executions", "/machine-executions/{id}"
        started = {201: StartedMachine, 200: StartedMachine, 409: Problem}
        return [
            Operation("POST", many, "Start a machine", self.start, started, body=StartMachine),
            Operation(
                "GET", many, "List executions of a machine", self.ls, {200: MachineExecutionPage}, query=ExecutionsQuery
            ),
            Operation("GET", one, "Describe an execution of a machine", self.show, {200: MachineExecutionView}),
            Operation(
                "GET",
                f"{one}/history",
                "Show the history as Step Functions does",
                self.history,
                {200: EventPage},
                query=EventsQuery,
            ),
            Operation("POST", f"{one}/stop", "Stop an execution", self.stop, {202: Accepted}, body=StopExecution),
            Operation(
                "POST",
                f"{one}/redrive",
                "Redrive from the failed state",
                self.redrive,
                {202: RedrivenView, 409: Problem},
            ),
        ]

    def start(self, call: Call[StartMachine, NoQuery]) -> Result:
        machine, body = call.path["name"], call.body
        name = body.name if body.name is not None else idempotency_key(call.headers)

        def start() -> Answer:
            execution_id, created = self._executions.start(
                machine, _input(body.input, machine), name=name, version=body.version
            )
            headers = {"location": path_of(execution_id)}
            return Answer(StartedMachine(execution_id, machine, created), 201 if created else 200, headers)

        return _named(start, _START_ERRORS)

    def ls(self, call: Call[None, ExecutionsQuery]) -> Answer:
        query = call.query
        machine = call.path["name"]
        statuses = None if query.status is None else STATUSES[query.status]
        page = self._listed(machine, query)
        if not page.executions and query.cursor is None and page.cursor is None:
            # Executions may exist without a stored definition; with neither, the name is wrong.
            self._executions.machines.get(machine)
        rows = [row for row in page.executions if statuses is None or row.status in statuses]
        return Answer(MachineExecutionPage([execution_summary(row) for row in rows], page.cursor))

    def _listed(self, machine: str, query: ExecutionsQuery) -> Listing:
        # A Step Functions status that maps to two of ours is filtered here.
        inner = STATUSES[query.status] if query.status is not None else frozenset()
        return self._client.list(
            workflow=WORKFLOW,
            status=next(iter(inner)) if len(inner) == 1 else None,
            tags={MACHINE_TAG: machine},
            limit=query.limit,
            cursor=query.cursor,
        )

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(execution_view(self._executions.describe(call.path["id"])))

    def history(self, call: Call[None, EventsQuery]) -> Answer:
        query = call.query
        events = self._executions.history(call.path["id"])
        place = _place(query.cursor)
        if query.reverse:
            events = [each for each in reversed(events) if place is None or each.id < place]
        else:
            events = [each for each in events if place is None or each.id > place]
        page: list[Raw] = []
        bytes_left = HISTORY_BYTES_MAX
        for event in events[: query.limit]:
            content = msgspec.json.encode(event_view(event))
            bytes_left -= len(content)
            if page and bytes_left < 0:
                break
            page.append(Raw(content))
        has_more = len(page) < len(events)
        cursor = str(events[len(page) - 1].id) if has_more else None
        return Answer({"events": page, "cursor": cursor})

    def stop(self, call: Call[StopExecution, NoQuery]) -> Answer:
        self._executions.stop(call.path["id"], error=call.body.error, cause=call.body.cause)
        return Answer(Accepted(call.path["id"]), 202)

    def redrive(self, call: Call[None, NoQuery]) -> Result:
        def redrive() -> Answer:
            return Answer(RedrivenView(call.path["id"], self._executions.redrive(call.path["id"])), 202)

        return _named(redrive, _REDRIVE_ERRORS)


class _Tasks:
    """Task callbacks. The token identifies the task and authorizes the caller."""

    def __init__(self, executions: MachineExecutions) -> None:
        self._executions = executions

    def operations(self) -> list[Operation]:
        done = {204: None, 400: Problem, 409: Problem}
        return [
            Operation("POST", "/tasks/success", "Complete a task", self.succeed, done, body=TaskSuccess),
            Operation("POST", "/tasks/failure", "Fail a task", self.fail, done, body=TaskFailure),
            Operation("POST", "/tasks/heartbeat", "Send a heartbeat of a task", self.beat, done, body=TaskHeartbeat),
        ]

    def succeed(self, call: Call[TaskSuccess, NoQuery]) -> Result:
        output = msgspec.json.decode(checked(call.body.output, "output"))
        return self._send_callback(call.body.signed_token(), TaskCallback(CallbackKind.SUCCESS, output=output))

    def fail(self, call: Call[TaskFailure, NoQuery]) -> Result:
        return self._send_callback(
            call.body.signed_token(), TaskCallback(CallbackKind.FAILURE, error=call.body.error, cause=call.body.cause)
        )

    def beat(self, call: Call[TaskHeartbeat, NoQuery]) -> Result:
        return self._send_callback(call.body.signed_token(), TaskCallback(CallbackKind.HEARTBEAT))

    def _send_callback(self, token: str, callback: TaskCallback) -> Result:
        def send() -> Answer:
            try:
                self._executions.send_callback(token, callback)
            except StateError as exc:
                raise PayloadTooLargeError(
                    f"output: {exc.cause}; store the data elsewhere and pass a reference"
                ) from exc
            return Answer(status=204)

        return _named(send, _TASK_ERRORS)


def _named(run: Callable[[], Answer], names: Names) -> Result:
    """Return the response, or a problem with the Step Functions name of the error."""
    try:
        return run()
    except tuple(names) as exc:
        name = next(name for kind, name in names.items() if isinstance(exc, kind))
        return response(Problem.of(exc.http_status, exc.code, exc.message, errors=[{"name": name}]))


def _input(value: Raw, machine: str) -> Any:  # noqa: ANN401 - JSON
    """Parse the input; as with Step Functions the default is an empty object."""
    return {} if len(value) == 0 else msgspec.json.decode(checked(value, f"input of machine {machine}"))


def _place(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 12):
        raise CursorError(f"cursor {cursor[:40]!r}: not valid for a history; start again without it")
    return int(cursor)
