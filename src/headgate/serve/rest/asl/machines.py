"""State machine API: store, validate, show and draw versioned machines; and the routes of all of rest/asl."""

from __future__ import annotations

from typing import Any, Final

from litestar import Response
from litestar.types import ControllerRouterHandler

from headgate.asl.graph.render import Form, draw
from headgate.asl.machines.executions import MachineExecutions
from headgate.asl.machines.registry import MachineRegistry, StoredMachine, parse
from headgate.asl.tasks.local_tasks import LocalTasks
from headgate.auth.roles import Permission
from headgate.auth.rules import Rule
from headgate.bootstrap.store import AppService
from headgate.errors import DefinitionError
from headgate.serve.http.operations import (
    JSON,
    PREFIX,
    AccessPolicy,
    Answer,
    Auditing,
    Call,
    NoQuery,
    Operation,
    Result,
    operation_routes,
)
from headgate.serve.http.preconditions import etag, matching
from headgate.serve.http.problem import Problem, response
from headgate.serve.rest.asl.checks import Checked, Strictness, check_definition, unreadable
from headgate.serve.rest.asl.events import event_view
from headgate.serve.rest.asl.executions import machine_execution_operations
from headgate.serve.rest.asl.models import (
    AnyDefinition,
    Anything,
    GivenDefinition,
    GraphQuery,
    MachinePage,
    MachineQuery,
    MachineView,
    machine_summary,
    machine_view,
)
from headgate.serve.rest.asl.state_visits import statuses
from headgate.serve.rest.parameters import ExecutionId, MachineName, PageQuery
from headgate.serve.runtime.thread_pool import WorkPool

SVG: Final = "image/svg+xml"
_MEDIA: Final = {Form.SVG: SVG, Form.MERMAID: "text/vnd.mermaid", Form.TEXT: "text/plain"}


def machine_operations(executions: MachineExecutions) -> list[Operation]:
    """Return the operations on machines."""
    return _Machines(executions).operations()


class _Machines:
    def __init__(self, executions: MachineExecutions) -> None:
        self._executions = executions
        self._machines: MachineRegistry = executions.machines

    def operations(self) -> list[Operation]:
        one, shown, forms = "/machines/{name}", {200: MachineView}, {JSON: AnyDefinition}
        stored = {200: MachineView, 201: MachineView, 400: Problem, 412: Problem}
        return [
            Operation("GET", "/machines", "List machines", self.ls, {200: MachinePage}, query=PageQuery),
            Operation(
                "POST",
                "/machines/validate",
                "Validate a definition",
                self.validate,
                {200: Checked},
                body_forms={JSON: Anything},
                is_body_optional=True,
                rule=Rule(Permission.EXECUTION_READ),
            ),
            Operation("PUT", one, "Store a definition as the newest version", self.put, stored, body_forms=forms),
            Operation("GET", one, "Show a machine version", self.show, shown, query=MachineQuery),
            Operation(
                "GET",
                f"{one}/versions",
                "List versions of a machine",
                self.versions,
                {200: MachinePage},
                query=PageQuery,
            ),
            Operation(
                "GET",
                f"{one}/graph",
                "Draw a machine, with the progress of an execution if given",
                self.graph,
                {200: str},
                query=GraphQuery,
                answer_media=tuple(_MEDIA.values()),
            ),
        ]

    def ls(self, call: Call[None, PageQuery]) -> Answer:
        page = self._machines.ls(limit=call.query.limit, cursor=call.query.cursor)
        return Answer(MachinePage([machine_summary(each) for each in page.machines], page.cursor))

    def show(self, call: Call[None, MachineQuery]) -> Answer:
        found = self._machines.get(call.path["name"], call.query.version)
        return Answer(machine_view(found), headers=etag(found.version))

    def versions(self, call: Call[None, PageQuery]) -> Answer:
        name = call.path["name"]
        self._machines.get(name)
        page = self._machines.versions(name, limit=call.query.limit, cursor=call.query.cursor)
        return Answer(MachinePage([machine_summary(each) for each in page.machines], page.cursor))

    def put(self, call: Call[None, NoQuery]) -> Result:
        name, body = call.path["name"], GivenDefinition.read(call.content)
        validation = _validated(body)
        if validation.problems:
            first = "; ".join(map(str, validation.problems[:3]))
            rest = f"; and {len(validation.problems) - 3} more" if len(validation.problems) > 3 else ""
            detail = f"machine {name}: {first}{rest}"
            return response(Problem.of(400, DefinitionError.code, detail, errors=validation.problems))
        newest = self._machines.find(name)

        def store(expected_version: int | None) -> StoredMachine:
            return self._machines.put(
                name,
                body.text,
                variables=body.variables,
                created_by=call.principal.name,
                expected_version=expected_version,
            )

        stored = matching(call.headers, body.expected_version, store)
        is_new = newest is None or newest.version != stored.version
        headers = {**etag(stored.version), "location": f"{PREFIX}/machines/{name}?version={stored.version}"}
        return Answer(machine_view(stored), 201 if is_new else 200, headers)

    def validate(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(_validated(GivenDefinition.read(call.content), self._executions.local_tasks))

    def graph(self, call: Call[None, GraphQuery]) -> Response[Any]:
        query = call.query
        form = query.format or _accepted(call.headers.get("accept", ""))
        version, progress = query.version, None
        if query.execution is not None:
            # The version of the execution, unless its definition is not stored.
            version = version or self._executions.describe(query.execution).version or None
            progress = statuses(event_view(each) for each in self._executions.history(query.execution))
        drawn = draw(parse(self._machines.get(call.path["name"], version).definition), form, progress)
        headers = {"cache-control": "no-store", "vary": "accept"}
        return Response(drawn.encode(), status_code=200, media_type=_MEDIA[form], headers=headers)


def _validated(body: GivenDefinition, tasks: LocalTasks | None = None) -> Checked:
    try:
        text = body.text
    except DefinitionError as exc:
        return unreadable(exc)
    strictness = Strictness(all=body.strict, budget=body.strict_budget)
    return check_definition(text, body.variables, target=body.target, strictness=strictness, tasks=tasks)


def _accepted(accept: str) -> Form:
    """Return the first format in Accept that is supported; SVG by default."""
    for part in accept.split(","):
        media = part.partition(";")[0].strip().lower()
        for form, own in _MEDIA.items():
            if media == own:
                return form
    return Form.SVG


_POLICY: Final = AccessPolicy(Permission.EXECUTION_READ, Permission.EXECUTION_WRITE)


def machine_routes(
    service: AppService, pool: WorkPool, *, auditing: Auditing | None = None
) -> list[ControllerRouterHandler]:
    """Return the routes of machines."""
    executions = service.asl.executions
    operations = [*machine_operations(executions), *machine_execution_operations(executions, service.client)]
    return operation_routes(
        operations,
        pool,
        _POLICY,
        namespace="machines.",
        auditing=auditing,
        path_types={"name": MachineName, "id": ExecutionId},
    )
