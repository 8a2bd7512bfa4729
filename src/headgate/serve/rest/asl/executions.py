"""Executions of machines over HTTP: started, listed, described, stopped, redriven, and told of their Tasks."""

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
# What Step Functions calls the errors that its callers handle.
_START_ERRORS: Final[Names] = {AlreadyStartedError: "ExecutionAlreadyExists"}
_REDRIVE_ERRORS: Final[Names] = {ConflictError: "ExecutionNotRedrivable"}
_TASK_ERRORS: Final[Names] = {SignatureError: "InvalidToken", StaleClaimError: "TaskTimedOut"}


def machine_execution_operations(executions: MachineExecutions, client: Client) -> list[Operation]:
    """Return what can be asked of the executions of machines, and said of their Tasks."""
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
            Operation("GET", many, "List its executions", self.ls, {200: MachineExecutionPage}, query=ExecutionsQuery),
            Operation("GET", one, "Describe an execution of a machine", self.show, {200: MachineExecutionView}),
            Operation(
                "GET",
                f"{one}/history",
                "Show its events as Step Functions does",
                self.history,
                {200: EventPage},
                query=EventsQuery,
            ),
            Operation("POST", f"{one}/stop", "Stop it", self.stop, {202: Accepted}, body=StopExecution),
            Operation(
                "POST",
                f"{one}/redrive",
                "Have it go on from where it failed",
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
        asked = call.query
        machine = call.path["name"]
        wanted = None if asked.status is None else STATUSES[asked.status]
        page = self._listed(machine, asked)
        if not page.executions and asked.cursor is None and page.cursor is None:
            # There may be executions of a definition that is not kept; where there is neither, it is a wrong name.
            self._executions.machines.get(machine)
        rows = [row for row in page.executions if wanted is None or row.status in wanted]
        return Answer(MachineExecutionPage([execution_summary(row) for row in rows], page.cursor))

    def _listed(self, machine: str, asked: ExecutionsQuery) -> Listing:
        # Where two of the engine's statuses are one of Step Functions', the page is read whole and narrowed here.
        inner = STATUSES[asked.status] if asked.status is not None else frozenset()
        return self._client.list(
            workflow=WORKFLOW,
            status=next(iter(inner)) if len(inner) == 1 else None,
            tags={MACHINE_TAG: machine},
            limit=asked.limit,
            cursor=asked.cursor,
        )

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(execution_view(self._executions.describe(call.path["id"])))

    def history(self, call: Call[None, EventsQuery]) -> Answer:
        asked = call.query
        events = self._executions.history(call.path["id"])
        place = _place(asked.cursor)
        if asked.reverse:
            events = [each for each in reversed(events) if place is None or each.id < place]
        else:
            events = [each for each in events if place is None or each.id > place]
        shown: list[Raw] = []
        bytes_left = HISTORY_BYTES_MAX
        for event in events[: asked.limit]:
            content = msgspec.json.encode(event_view(event))
            bytes_left -= len(content)
            if shown and bytes_left < 0:
                break
            shown.append(Raw(content))
        has_more = len(shown) < len(events)
        cursor = str(events[len(shown) - 1].id) if has_more else None
        return Answer({"events": shown, "cursor": cursor})

    def stop(self, call: Call[StopExecution, NoQuery]) -> Answer:
        self._executions.stop(call.path["id"], error=call.body.error, cause=call.body.cause)
        return Answer(Accepted(call.path["id"]), 202)

    def redrive(self, call: Call[None, NoQuery]) -> Result:
        def redrive() -> Answer:
            return Answer(RedrivenView(call.path["id"], self._executions.redrive(call.path["id"])), 202)

        return _named(redrive, _REDRIVE_ERRORS)


class _Tasks:
    """What whoever has the token of a Task can say. The token says which, and that they may."""

    def __init__(self, executions: MachineExecutions) -> None:
        self._executions = executions

    def operations(self) -> list[Operation]:
        done = {204: None, 400: Problem, 409: Problem}
        return [
            Operation("POST", "/tasks/success", "End a Task with its result", self.succeed, done, body=TaskSuccess),
            Operation("POST", "/tasks/failure", "End a Task with an error", self.fail, done, body=TaskFailure),
            Operation("POST", "/tasks/heartbeat", "Say that a Task is alive", self.beat, done, body=TaskHeartbeat),
        ]

    def succeed(self, call: Call[TaskSuccess, NoQuery]) -> Result:
        output = msgspec.json.decode(checked(call.body.output, "output"))
        return self._tell(call.body.task_token, TaskCallback(CallbackKind.SUCCESS, output=output))

    def fail(self, call: Call[TaskFailure, NoQuery]) -> Result:
        return self._tell(
            call.body.task_token, TaskCallback(CallbackKind.FAILURE, error=call.body.error, cause=call.body.cause)
        )

    def beat(self, call: Call[TaskHeartbeat, NoQuery]) -> Result:
        return self._tell(call.body.task_token, TaskCallback(CallbackKind.HEARTBEAT))

    def _tell(self, token: str, told: TaskCallback) -> Result:
        def tell() -> Answer:
            try:
                self._executions.send_callback(token, told)
            except StateError as exc:
                raise PayloadTooLargeError(
                    f"output: {exc.cause}; store the data elsewhere and pass a reference"
                ) from exc
            return Answer(status=204)

        return _named(tell, _TASK_ERRORS)


def _named(run: Callable[[], Answer], names: Names) -> Result:
    """Return an answer; or the problem, with the name that Step Functions has for it among its errors."""
    try:
        return run()
    except tuple(names) as exc:
        name = next(name for kind, name in names.items() if isinstance(exc, kind))
        return response(Problem.of(exc.http_status, exc.code, exc.message, errors=[{"name": name}]))


def _input(given: Raw, machine: str) -> Any:  # noqa: ANN401 - JSON
    """Return the input of an execution, which is an empty object if none is given, as with Step Functions."""
    return {} if len(given) == 0 else msgspec.json.decode(checked(given, f"input of machine {machine}"))


def _place(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 12):
        raise CursorError(f"cursor {cursor[:40]!r}: it is not one of a history; begin again without")
    return int(cursor)
