"""Execution API: start, list, describe, signal, cancel, terminate, redrive and retry executions."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from litestar.types import ControllerRouterHandler
from msgspec import Raw, Struct
from msgspec.structs import asdict

from headgate.asl.runtime.durable_host import WORKFLOW as MACHINE_WORKFLOW
from headgate.auth.roles import Permission
from headgate.bootstrap.store import AppService
from headgate.durable.client.blocked_on import BlockedOn
from headgate.durable.client.listing import ExecutionFilter, list_all, start_text
from headgate.durable.client.patches import open_patches
from headgate.durable.client.start_lookup import is_served
from headgate.durable.engine.function_apps import serving_members
from headgate.durable.model.declarations import Declarations
from headgate.durable.model.duration import optional_seconds
from headgate.durable.model.input_specs import signature_of
from headgate.durable.model.names import is_built_in
from headgate.durable.model.payload_codec import sealed_of
from headgate.durable.model.records import Execution, instant
from headgate.durable.service import Service
from headgate.errors import NotFoundError, UnknownWorkflowError, UserError
from headgate.serve.http.idempotency import RETENTION_SECONDS, IdempotencyStore
from headgate.serve.http.operations import AccessPolicy, Answer, Auditing, Call, NoQuery, Operation, operation_routes
from headgate.serve.http.raw_json import checked, idempotency_key
from headgate.serve.rest.durable.execution_bulk import bulk_operations
from headgate.serve.rest.durable.execution_resets import reset_operations
from headgate.serve.rest.durable.execution_waits import wait_operations
from headgate.serve.rest.durable.models import (
    Accepted,
    ExecutionPage,
    ExecutionView,
    FailurePage,
    FailuresQuery,
    HistoryPage,
    HistoryQuery,
    ListQuery,
    Log,
    LogLine,
    LogQuery,
    SendSignal,
    SignalWithStart,
    StartedView,
    StartExecution,
    TurnView,
    Why,
    failure_view,
    path_of,
    summary,
    turn_view,
    view,
)
from headgate.serve.rest.parameters import ExecutionId
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

_POLICY: Final = AccessPolicy(Permission.EXECUTION_READ, Permission.EXECUTION_WRITE)

# Maximum size of a page of history.
HISTORY_BYTES_MAX: Final = 8_000_000


class WorkflowView(Struct, frozen=True, omit_defaults=True):
    """A workflow that is loaded here or served by live workers."""

    name: str
    loaded: bool
    live_workers: int
    description: str = ""
    timeout_seconds: float | None = None
    retention_seconds: float | None = None


class WorkflowPage(Struct, frozen=True):
    """All known workflows."""

    workflows: list[WorkflowView]


class PatchView(Struct, frozen=True, omit_defaults=True):
    """The open executions of a workflow, by their mark of one patch."""

    workflow: str
    patch: str
    # They need `patched` or `deprecate_patch` in the code.
    with_mark: int
    # They need neither.
    with_deprecated_mark: int
    # They may still need the old branch.
    without_mark: int
    oldest_with_mark: str | None = None
    oldest_without_mark: str | None = None


class PatchPage(Struct, frozen=True):
    """Every patch that an open execution has marked, or that the code of a live worker has."""

    patches: list[PatchView]


def execution_routes(
    service: AppService,
    pool: WorkPool,
    *,
    watches: WatchHub | None = None,
    auditing: Auditing | None = None,
    idempotency_seconds: int = RETENTION_SECONDS,
) -> list[ControllerRouterHandler]:
    """Return the routes of workflows and executions. Responses by Idempotency-Key are kept `idempotency_seconds`."""
    watches = watches if watches is not None else WatchHub(service.store)
    executions = Executions(service)
    single = [*executions.operations(), *reset_operations(service)]
    operations = [
        *single,
        *bulk_operations(service, single if auditing is None else auditing.audited(single)),
        *wait_operations(service, pool, watches),
    ]
    idempotency = IdempotencyStore(service.store, service.clock, kept_seconds=idempotency_seconds)
    return operation_routes(
        operations, pool, _POLICY, auditing=auditing, idempotency=idempotency, path_types={"id": ExecutionId}
    )


class Executions:
    """Operations on executions that do not wait."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client = service.client
        self._pending = BlockedOn(service.store, service.clock, service.archive)

    def operations(self) -> list[Operation]:
        """Return the operations."""
        one = "/executions/{id}"
        accepted = {202: Accepted}
        return [
            Operation("GET", "/workflows", "List workflows", self.workflows, {200: WorkflowPage}),
            Operation("GET", "/workflows/patches", "List patches of open executions", self.patches, {200: PatchPage}),
            Operation(
                "POST",
                "/executions",
                "Start an execution",
                self.start,
                {201: StartedView, 200: StartedView},
                body=StartExecution,
            ),
            Operation(
                "POST",
                "/executions/signal-with-start",
                "Send a signal, starting the execution if it is not open",
                self.signal_with_start,
                {201: StartedView, 200: StartedView},
                body=SignalWithStart,
            ),
            Operation("GET", "/executions", "List executions", self.ls, {200: ExecutionPage}, query=ListQuery),
            Operation(
                "GET", one, "Describe an execution and its pending waits", self.show, {200: ExecutionView, 304: None}
            ),
            Operation(
                "GET", f"{one}/history", "Show the history", self.history, {200: HistoryPage}, query=HistoryQuery
            ),
            Operation("GET", f"{one}/logs", "Show the log", self.logs, {200: Log}, query=LogQuery),
            Operation(
                "GET",
                f"{one}/failures",
                "List failed attempts at activities with their tracebacks",
                self.failures,
                {200: FailurePage},
                query=FailuresQuery,
            ),
            Operation("POST", f"{one}/signals", "Send a signal", self.signal, accepted, body=SendSignal),
            Operation(
                "POST", f"{one}/cancel", "Request cancellation", self.cancel, accepted, body=Why, repeatable=True
            ),
            Operation(
                "POST",
                f"{one}/terminate",
                "Terminate without running its code",
                self.terminate,
                accepted,
                body=Why,
                repeatable=True,
            ),
            Operation(
                "POST",
                f"{one}/redrive",
                "Redrive a stuck execution",
                self.redrive,
                accepted,
                body=Why,
                repeatable=True,
            ),
            Operation(
                "POST",
                f"{one}/retry",
                "Retry from the start",
                self.retry,
                {201: StartedView},
                body=Why,
                repeatable=True,
            ),
        ]

    def start(self, call: Call[StartExecution, NoQuery]) -> Answer:
        body = call.body
        handle = self._client.start(
            body.workflow,
            self._input(body.workflow, body.input),
            execution_id=body.id if body.id is not None else idempotency_key(call.headers),
            reuse=body.reuse,
            tags=body.tags,
            memo=checked(body.memo, "memo"),
            timeout_seconds=optional_seconds(body.timeout, name="timeout"),
            delay_seconds=optional_seconds(body.delay, name="delay"),
            retry=None if body.retry is None else body.retry.checked(),
            headers=body.headers,
        )
        return _started(handle.id, body.workflow, created=handle.was_started)

    def signal_with_start(self, call: Call[SignalWithStart, NoQuery]) -> Answer:
        body = call.body
        handle = self._client.signal_with_start(
            body.workflow,
            self._input(body.workflow, body.input),
            body.name,
            checked(body.payload, f"payload of signal {body.name}"),
            execution_id=body.id,
            tags=body.tags,
            memo=checked(body.memo, "memo"),
            timeout_seconds=optional_seconds(body.timeout, name="timeout"),
            retry=None if body.retry is None else body.retry.checked(),
            signal_id=body.signal_id if body.signal_id is not None else idempotency_key(call.headers),
            reuse=body.reuse,
            headers=body.headers,
        )
        return _started(handle.id, body.workflow, created=handle.was_started)

    def retry(self, call: Call[Why, NoQuery]) -> Answer:
        handle = self._client.retry(call.path["id"])
        return _started(handle.id, self._client.get(handle.id).workflow, created=True)

    def _input(self, workflow: str, value: Raw) -> Raw:
        """Validate the input against the workflow's parameters, as loaded here or as a worker has declared them."""
        definition = self._service.app.workflows.get(workflow)
        what = f"input of workflow {workflow}"
        input = checked(value, what)
        if sealed_of(input) is not None:
            return input  # Encrypted: the client that has the key has checked it.
        if definition is not None:
            definition.signature.unpack(input, what=what)
        elif spec := Declarations(self._service.store).spec(workflow):
            signature_of(spec).unpack(input, what=what)
        return input

    def workflows(self, _call: Call[None, NoQuery]) -> Answer:
        now_ms = int(self._service.clock.seconds() * 1000)
        served: dict[str, int] = {}
        for member in serving_members(self._service.store, now_ms):
            for name in member.workflows:
                served[name] = served.get(name, 0) + 1
        loaded = self._service.app.workflows
        views = []
        for name in sorted(each for each in {*loaded, *served} if not is_built_in(each)):
            if name in loaded:
                one = loaded[name]
                about = (one.function.__doc__ or "").strip().partition("\n")[0]
                limits = (one.timeout_seconds, one.retention_seconds)
                views.append(WorkflowView(name, True, served.get(name, 0), about, *limits))  # noqa: FBT003
            else:
                views.append(WorkflowView(name, False, served[name]))  # noqa: FBT003
        return Answer(WorkflowPage(views))

    def patches(self, _call: Call[None, NoQuery]) -> Answer:
        uses = open_patches(self._service.store, int(self._service.clock.seconds() * 1000))
        return Answer(PatchPage([PatchView(**asdict(each)) for each in uses]))

    def ls(self, call: Call[None, ListQuery]) -> Answer:
        query = call.query
        tags = _tags(query.tag)
        ascending = query.order == "oldest"
        without = () if query.machines else (MACHINE_WORKFLOW,)
        if query.status is None and query.workflow is None and query.parent is None:
            wanted = ExecutionFilter(
                tags=tags or {},
                text=query.text,
                started_since=start_text(query.since),
                started_until=start_text(query.until),
            )
            listing = list_all(
                self._service.store,
                wanted,
                without=without,
                limit=query.limit,
                cursor=query.cursor,
                ascending=ascending,
            )
            return Answer(ExecutionPage([summary(row) for row in listing.executions], listing.cursor))
        listing = self._client.list(
            status=query.status,
            workflow=query.workflow,
            parent_id=query.parent,
            tags=tags,
            since=query.since,
            until=query.until,
            text=query.text,
            limit=query.limit,
            cursor=query.cursor,
            ascending=ascending,
        )
        shown = [summary(row) for row in listing.executions if row.workflow not in without]
        return Answer(ExecutionPage(shown, listing.cursor))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        row = self._client.get(call.path["id"])
        tag = f'"{row.version}"'
        if call.headers.get("if-none-match") == tag:
            return Answer(status=304, headers={"etag": tag})
        return Answer(view(row, self._started_with(row), self._pending.waits(row)), headers={"etag": tag})

    def history(self, call: Call[None, HistoryQuery]) -> Answer:
        row = self._client.get(call.path["id"])
        turns: list[TurnView] = []
        bytes_left = HISTORY_BYTES_MAX
        for turn in islice(self._client.history(row.execution_id, after=call.query.after), call.query.limit):
            shown = turn_view(turn)
            bytes_left -= sum(map(len, [*shown.events, *shown.commands]))
            if turns and bytes_left < 0:
                break
            turns.append(shown)
        has_more = bool(turns) and turns[-1].turn < row.turn
        next_after = turns[-1].turn if has_more else None
        return Answer(HistoryPage(row.execution_id, row.workflow, turns, next_after))

    def logs(self, call: Call[None, LogQuery]) -> Answer:
        page = self._client.log_page(call.path["id"], limit=call.query.limit, cursor=call.query.cursor)
        lines = [LogLine(instant(note.at_ms), note.level, note.source, note.text) for note in page.notes]
        return Answer(Log(lines, page.cursor))

    def failures(self, call: Call[None, FailuresQuery]) -> Answer:
        execution_id = call.path["id"]
        found = self._client.failures(execution_id, limit=call.query.limit)
        return Answer(FailurePage([failure_view(execution_id, each) for each in found]))

    def _started_with(self, row: Execution) -> Raw | None:
        try:
            return self._client.started(row).input
        except NotFoundError:
            return None  # Before its first turn.

    def signal(self, call: Call[SendSignal, NoQuery]) -> Answer:
        body = call.body
        value = checked(body.payload, f"payload of signal {body.name}")
        signal_id = body.id if body.id is not None else idempotency_key(call.headers)
        self._client.signal(call.path["id"], body.name, value, signal_id=signal_id, headers=body.headers)
        return _accepted(call)

    def cancel(self, call: Call[Why, NoQuery]) -> Answer:
        self._client.cancel(call.path["id"], call.body.reason)
        return _accepted(call)

    def terminate(self, call: Call[Why, NoQuery]) -> Answer:
        self._client.terminate(call.path["id"], call.body.reason)
        return _accepted(call)

    def redrive(self, call: Call[Why, NoQuery]) -> Answer:
        self._client.redrive(call.path["id"])
        return _accepted(call)


def require_workflow(service: Service, workflow: str) -> None:
    """Raise `UnknownWorkflowError` if this server, live workers and functions all lack the workflow."""
    now_ms = int(service.clock.seconds() * 1000)
    if workflow not in service.app.workflows and not is_served(service.store, workflow, now_ms):
        raise UnknownWorkflowError(
            f"workflow {workflow!r}: no server, live worker or function has it; see 'headgate workflow ls'"
        )


def _started(execution_id: str, workflow: str, *, created: bool) -> Answer:
    headers = {"location": path_of(execution_id)}
    return Answer(StartedView(execution_id, workflow, created), 201 if created else 200, headers)


def _accepted(call: Call[Any, Any]) -> Answer:
    return Answer(Accepted(call.path["id"]), 202)


def _tags(texts: list[str]) -> dict[str, str] | None:
    tags = {}
    for text in texts:
        name, separator, value = text.partition(":")
        if not separator or not name:
            raise UserError(f"tag {text[:80]!r}: write name:value")
        tags[name] = value
    return tags or None
