"""Task router: the part of a host that maps a Task to the call of a function, for hosts of every kind."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from random import Random
from typing import Final, cast

import msgspec
from msgspec.structs import replace

from headgate.asl.errors import StateError, runtime_error
from headgate.asl.expressions.scope import Json, Scope
from headgate.asl.runtime.execution_request import ExecutionRequest
from headgate.asl.tasks import activities
from headgate.asl.tasks.actions import INVOKE
from headgate.asl.tasks.resource_map import FanoutTarget
from headgate.asl.tasks.resources import Callee, TaskCall, TaskTarget, WaitMode, required_parameter
from headgate.asl.tasks.task_routes import LAMBDA, RoutedCall, RouteKind, TaskRoute, lambda_call
from headgate.durable.model.names import BUILT_IN, is_built_in

FUNCTION_NAME: Final = re.compile(r"(?:.*:function:)?(?:\$\{)?([A-Za-z_][A-Za-z0-9_.-]*)\}?(?::[A-Za-z0-9_$.-]+)?")


class TaskRouter(ABC):
    """Runs Tasks that end with their response. A subclass calls the functions."""

    def __init__(self, request: ExecutionRequest) -> None:
        self.request = request
        # How often each state was called, by which mocked answers are numbered.
        self._earlier_calls: dict[str, int] = {}

    @abstractmethod
    async def function(self, name: str, input: Json, call: TaskCall | None = None) -> Json:
        """Call a function and return its result. Raises `StateError`."""

    @abstractmethod
    def find_route(self, call: RoutedCall) -> TaskRoute | None:
        """Return the route of a call; called if the request says that calls have routes."""

    @abstractmethod
    async def fanout(self, call: TaskCall) -> Json:
        """Run a fan-out of the resource map to its end. Raises `StateError`."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        return asyncio.sleep(seconds)

    async def call(self, call: TaskCall) -> Json:
        """Run a Task and return its result. Raises `StateError`."""
        if not self.request.is_routed:
            return await self.dispatch(call)
        earlier = self._earlier_calls.get(call.state, 0)
        self._earlier_calls[call.state] = earlier + 1
        routed = RoutedCall(call.resource, call.target, call.input, call.state, self.request.case, earlier)
        return await self.dispatch(call, self.find_route(routed))

    async def dispatch(self, call: TaskCall, route: TaskRoute | None = None) -> Json:
        """Make a call on its route. Raises `StateError`."""
        return await (self._direct(call) if route is None else self._routed(call, route))

    async def _routed(self, call: TaskCall, route: TaskRoute) -> Json:
        is_invoke = (call.target.name, call.target.action) == INVOKE
        input = call.input.get("Payload") if is_invoke and isinstance(call.input, dict) else call.input
        match route.kind:
            case RouteKind.ANSWER:
                return route.result
            case RouteKind.ERROR:
                raise StateError(route.error, route.cause)
            case RouteKind.LAMBDA:
                return await self._invoke_lambda(call)
            case RouteKind.FANOUT:
                return await self.fanout(_fanout_call(call, cast("FanoutTarget", route.fanout)))
            case RouteKind.FUNCTION:
                self._check_callable(route.name)
                result = await self.function(route.name, input, call)
            case RouteKind.MAPPED:
                order = {"resource": call.resource, "parameters": call.input, "input": input}
                result = await self.function(activities.RESOURCE, order, call)
        return _invoked(result) if is_invoke else result

    async def _invoke_lambda(self, call: TaskCall) -> Json:
        """Invoke a Lambda function of the account. Named by its ARN alone, its result is that of the Task."""
        invoke = lambda_call(call.resource, call.target, call.input)
        assert invoke is not None, "the route is for Lambda functions"
        order = {"service": LAMBDA, "action": invoke[0].action, "parameters": invoke[1]}
        result = await self.function(activities.SERVICE, order, call)
        return result if call.target.callee is Callee.SERVICE else result["Payload"]

    async def _direct(self, call: TaskCall) -> Json:
        match call.target.callee:
            case Callee.FUNCTION | Callee.ACTIVITY:
                self._check_callable(call.target.name)
                return await self.function(call.target.name, call.input, call)
            case Callee.SERVICE if (call.target.name, call.target.action) == INVOKE:
                return await self._invoke(call)
            case Callee.MACHINE:
                return await self.function(activities.START, machine_order(call), call)
            case Callee.FANOUT:
                order = {"fanout": call.target.name, "parameters": call.input, "wait": call.target.wait.value}
                return await self.function(activities.FANOUT, order, call)
            case _:
                order = {"service": call.target.name, "action": call.target.action, "parameters": call.input}
                return await self.function(activities.SERVICE, order, call)

    def _check_callable(self, name: str) -> None:
        """Raise `StateError` if a Task may not call this function: only built-in machines call Headgate's own."""
        if is_built_in(name) and not self.request.is_built_in:
            raise runtime_error(reserved_function(name))

    async def _invoke(self, call: TaskCall) -> Json:
        match = FUNCTION_NAME.fullmatch(str(required_parameter(call.input, "FunctionName", resource="lambda:invoke")))
        if match is None:
            raise StateError("Lambda.ResourceNotFoundException", "FunctionName: use a name, name:alias or an ARN")
        self._check_callable(match[1])
        return _invoked(await self.function(match[1], call.input.get("Payload"), call))


def _invoked(result: Json) -> Json:
    """Return the result of a function as the result of `lambda:invoke`."""
    return {"ExecutedVersion": "$LATEST", "Payload": result, "StatusCode": 200}


def _fanout_call(call: TaskCall, target: FanoutTarget) -> TaskCall:
    """Return the call of a fan-out in the place of another one. Raises `StateError` if its items are not a list."""
    # Imported on use: the query languages are slow to import.
    from headgate.asl.expressions.jsonpath import compile_path

    items = compile_path(target.items, "items")(Scope(call.input, {}, {}, Random(0), call.input))
    parameters = {"items": items, "chunk_size": target.chunk_size, "each": target.each, "collect": target.collect}
    return replace(
        call, target=TaskTarget(Callee.FANOUT, target.handler, wait=WaitMode.JOB), input=parameters, token=""
    )


def reserved_function(name: str) -> str:
    """Return why a machine may not call a function of Headgate itself."""
    return f"function {name}: names that begin with {BUILT_IN!r} are reserved for Headgate itself; call one of an app"


def machine_order(call: TaskCall) -> dict[str, Json]:
    """Return the machine, input and name of the execution that a Task starts. Raises `StateError`."""
    if not call.target.action:
        return {"machine": call.target.name, "input": call.input, "name": None}
    arn = str(required_parameter(call.input, "StateMachineArn", resource="states:startExecution"))
    parameters = call.input if isinstance(call.input, dict) else {}
    # An ARN or a plain name, with a version or without.
    name, _, qualifier = arn.rpartition("stateMachine:")[2].partition(":")
    version = {"version": int(qualifier)} if qualifier.isdigit() else {}
    return {"machine": name, "input": _execution_input(parameters), "name": parameters.get("Name"), **version}


def _execution_input(parameters: dict[str, Json]) -> Json:
    """Return the Input of an execution, which may be JSON text. Raises `StateError`."""
    value = parameters.get("Input", {})
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as exc:
        raise StateError("StepFunctions.InvalidExecutionInputException", f"Input is not JSON: {exc}") from None
