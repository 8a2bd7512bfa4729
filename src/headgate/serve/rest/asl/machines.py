"""The routes of state machines under `/api/v1`: machines, their executions, and the Tasks that wait for a token.

Machines over HTTP: kept by name and version, checked, shown and drawn.
"""

from __future__ import annotations

from typing import Any, Final

from litestar import Response
from litestar.types import ControllerRouterHandler

from headgate.asl.graph.render import Form, draw
from headgate.asl.machines.executions import MachineExecutions
from headgate.asl.machines.registry import MachineRegistry, StoredMachine, parse
from headgate.auth.roles import Permission
from headgate.auth.rules import Rule
from headgate.bootstrap.store import AppService
from headgate.errors import DefinitionError
from headgate.serve.http.operations import (
    JSON,
    PREFIX,
    AccessPolicy,
    Answer,
    Call,
    NoQuery,
    Operation,
    Result,
    operation_routes,
)
from headgate.serve.http.preconditions import etag, matching
from headgate.serve.http.problem import Problem, response
from headgate.serve.rest.asl.checks import UNREADABLE, Checked, Finding, check_definition
from headgate.serve.rest.asl.events import event_view
from headgate.serve.rest.asl.executions import machine_execution_operations
from headgate.serve.rest.asl.models import (
    AnyDefinition,
    GivenDefinition,
    GraphQuery,
    MachinePage,
    MachineQuery,
    MachinesQuery,
    MachineView,
    machine_summary,
    machine_view,
)
from headgate.serve.rest.asl.state_visits import statuses
from headgate.serve.runtime.thread_pool import WorkPool

SVG: Final = "image/svg+xml"
_MEDIA: Final = {Form.SVG: SVG, Form.MERMAID: "text/vnd.mermaid", Form.TEXT: "text/plain"}


def machine_operations(executions: MachineExecutions) -> list[Operation]:
    """Return what can be asked of machines."""
    return _Machines(executions).operations()


class _Machines:
    def __init__(self, executions: MachineExecutions) -> None:
        self._executions = executions
        self._machines: MachineRegistry = executions.machines

    def operations(self) -> list[Operation]:
        one, shown, forms = "/machines/{name}", {200: MachineView}, {JSON: AnyDefinition}
        kept = {200: MachineView, 201: MachineView, 400: Problem, 412: Problem}
        return [
            Operation("GET", "/machines", "List machines", self.ls, {200: MachinePage}, query=MachinesQuery),
            Operation(
                "POST",
                "/machines/validate",
                "Say everything that is wrong with a definition",
                self.validate,
                {200: Checked},
                body_forms=forms,
                rule=Rule(Permission.EXECUTION_READ),
            ),
            Operation("PUT", one, "Keep a definition as the newest version", self.put, kept, body_forms=forms),
            Operation("GET", one, "Show a machine, or one of its versions", self.show, shown, query=MachineQuery),
            Operation(
                "GET", f"{one}/versions", "List its versions", self.versions, {200: MachinePage}, query=MachinesQuery
            ),
            Operation(
                "GET",
                f"{one}/graph",
                "Draw it, as far as an execution has come if one is named",
                self.graph,
                {200: str},
                query=GraphQuery,
                answer_media=SVG,
            ),
        ]

    def ls(self, call: Call[None, MachinesQuery]) -> Answer:
        page = self._machines.ls(limit=call.query.limit, cursor=call.query.cursor)
        return Answer(MachinePage([machine_summary(each) for each in page.machines], page.cursor))

    def show(self, call: Call[None, MachineQuery]) -> Answer:
        found = self._machines.get(call.path["name"], call.query.version)
        return Answer(machine_view(found), headers=etag(found.version))

    def versions(self, call: Call[None, MachinesQuery]) -> Answer:
        name = call.path["name"]
        self._machines.get(name)
        page = self._machines.versions(name, limit=call.query.limit, cursor=call.query.cursor)
        return Answer(MachinePage([machine_summary(each) for each in page.machines], page.cursor))

    def put(self, call: Call[None, NoQuery]) -> Result:
        name, given = call.path["name"], GivenDefinition.read(call.content)
        found = _checked(given)
        if found.problems:
            told = "; ".join(map(str, found.problems[:3]))
            rest = f"; and {len(found.problems) - 3} more" if len(found.problems) > 3 else ""
            detail = f"machine {name}: {told}{rest}"
            return response(Problem.of(400, DefinitionError.code, detail, errors=found.problems))
        newest = self._machines.find(name)

        def keep(expected_version: int | None) -> StoredMachine:
            return self._machines.put(
                name,
                given.text,
                variables=given.variables,
                created_by=call.principal.name,
                expected_version=expected_version,
            )

        kept = matching(call.headers, given.expected_version, keep)
        is_new = newest is None or newest.version != kept.version
        headers = {**etag(kept.version), "location": f"{PREFIX}/machines/{name}?version={kept.version}"}
        return Answer(machine_view(kept), 201 if is_new else 200, headers)

    def validate(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(_checked(GivenDefinition.read(call.content)))

    def graph(self, call: Call[None, GraphQuery]) -> Response[Any]:
        asked = call.query
        form = asked.format or _accepted(call.headers.get("accept", ""))
        version, how_far = asked.version, None
        if asked.execution is not None:
            # The version that it runs, unless its definition is not kept.
            version = version or self._executions.describe(asked.execution).version or None
            how_far = statuses(event_view(each) for each in self._executions.history(asked.execution))
        drawn = draw(parse(self._machines.get(call.path["name"], version).definition), form, how_far)
        headers = {"cache-control": "no-store", "vary": "accept"}
        return Response(drawn.encode(), status_code=200, media_type=_MEDIA[form], headers=headers)


def _checked(given: GivenDefinition) -> Checked:
    try:
        text = given.text
    except DefinitionError as exc:
        return Checked(valid=False, problems=[Finding("$", UNREADABLE, exc.message, "")], warnings=[])
    return check_definition(text, given.variables, strict_budget=given.strict_budget)


def _accepted(accept: str) -> Form:
    """Return the form that a caller names first; a picture for who takes anything."""
    for part in accept.split(","):
        media = part.partition(";")[0].strip().lower()
        for form, own in _MEDIA.items():
            if media == own:
                return form
    return Form.SVG


_PART: Final = AccessPolicy(Permission.EXECUTION_READ, Permission.EXECUTION_WRITE)


def machine_routes(service: AppService, pool: WorkPool) -> list[ControllerRouterHandler]:
    """Return the routes of machines."""
    executions = service.asl.executions
    operations = [*machine_operations(executions), *machine_execution_operations(executions, service.client)]
    return operation_routes(operations, pool, _PART, namespace="machines.")
