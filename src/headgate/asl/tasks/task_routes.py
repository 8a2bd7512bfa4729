"""Task routes: where a resource map, a mocked test case or the allow-list sends the call of a Task.

The route of a call is recorded in the history, so that a replay takes it again although the map has changed since.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from headgate.asl.errors import StateError
from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.actions import INVOKE
from headgate.asl.tasks.integrations import Integration, find_integration
from headgate.asl.tasks.resource_map import FanoutTarget, MappedResource, ResourceMap
from headgate.asl.tasks.resources import Callee, TaskTarget, target_of
from headgate.asl.tasks.task_access import TaskAccess

LAMBDA: Final = "lambda"
_LAMBDA_ARN: Final = ":lambda:"
_CASE_SEPARATOR: Final = "#"


class RouteKind(enum.StrEnum):
    """What a call is replaced by."""

    FUNCTION = "function"
    FANOUT = "fanout"
    # An HTTP call or a command of the resource map, which the activity reads there.
    MAPPED = "mapped"
    # A Lambda function of the account.
    LAMBDA = "lambda"
    ANSWER = "answer"
    ERROR = "error"


class TaskRoute(Struct, frozen=True, omit_defaults=True):
    """What one call is replaced by."""

    kind: RouteKind
    # Of a function.
    name: str = ""
    # Of a recorded answer.
    result: Json = None
    error: str = ""
    cause: str = ""
    fanout: FanoutTarget | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether the outcome is recorded: nothing is called, and nothing is waited for."""
        return self.kind in (RouteKind.ANSWER, RouteKind.ERROR)


class RoutedCall(Struct, frozen=True):
    """A call of a Task before its route is known."""

    resource: str
    target: TaskTarget
    input: Json
    state: str
    # The machine and its test case, as `case_of` joins them; empty: none.
    case: str = ""
    # How often the execution has called the state before.
    earlier_calls: int = 0


def case_of(machine: str, case: str) -> str:
    """Join a machine and a test case; the iterations of its Maps run under the same."""
    return f"{machine}{_CASE_SEPARATOR}{case}" if case else ""


class TaskRoutes:
    """Decides the routes of calls by the resource map and the allow-list of this process."""

    def __init__(self, resources: ResourceMap, access: TaskAccess) -> None:
        self.resources = resources
        self._access = access

    @property
    def is_active(self) -> bool:
        """Whether any call may have a route. Without one, histories record none."""
        return not self.resources.is_empty or self._access.names_service(LAMBDA)

    def may_replace(self, resource: str, function: str, constants: Mapping[str, Json]) -> bool:
        """Whether the call of a function may have a route, as far as is known before it runs."""
        if self.resources.may_have(resource, constants):
            return True
        invoke = lambda_call(resource, target_of(resource), {"FunctionName": function})
        return invoke is not None and self._access.allows(*invoke)

    def find(self, call: RoutedCall) -> TaskRoute | None:
        """Return the route of a call; None: it calls what its resource names."""
        try:
            mocked = self._mocked(call)
        except StateError as exc:
            return TaskRoute(RouteKind.ERROR, error=exc.error, cause=exc.cause)
        if mocked is not None:
            return mocked
        entry = self.resources.find(call.resource, call.input)
        if entry is not None:
            return _route(entry)
        invoke = lambda_call(call.resource, call.target, call.input)
        if invoke is not None and self._access.allows(*invoke):
            return TaskRoute(RouteKind.LAMBDA)
        return None

    def _mocked(self, call: RoutedCall) -> TaskRoute | None:
        if not call.case:
            return None
        machine, _, case = call.case.partition(_CASE_SEPARATOR)
        answer = self.resources.mocks.answer(machine, case, call.state, call.earlier_calls)
        if answer is None:
            return None
        if answer.error is not None:
            return TaskRoute(RouteKind.ERROR, error=answer.error, cause=answer.cause)
        return TaskRoute(RouteKind.ANSWER, result=answer.result)


def lambda_call(resource: str, target: TaskTarget, input: Json) -> tuple[Integration, Json] | None:
    """Return the `lambda:invoke` that a Task means, by either form of its resource; None: it calls something else."""
    integration = find_integration(*INVOKE)
    assert integration is not None, "lambda:invoke is in the catalogue"
    if (target.name, target.action) == INVOKE:
        return integration, input
    if target.callee is Callee.FUNCTION and _LAMBDA_ARN in resource:
        return integration, {"FunctionName": resource, "Payload": input}
    return None


def _route(entry: MappedResource) -> TaskRoute:
    if entry.function is not None:
        return TaskRoute(RouteKind.FUNCTION, entry.function)
    if entry.fanout_target is not None:
        return TaskRoute(RouteKind.FANOUT, fanout=entry.fanout_target)
    if entry.error is not None:
        return TaskRoute(RouteKind.ERROR, error=entry.error, cause=entry.cause)
    if entry.is_recorded:
        return TaskRoute(RouteKind.ANSWER, result=entry.recorded())
    return TaskRoute(RouteKind.MAPPED)
