"""Task router: the part of a host that maps a Task to the call of a function, for hosts of every kind."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Final

import msgspec

from headgate.asl.errors import StateError, runtime_error
from headgate.asl.expressions.scope import Json
from headgate.asl.runtime.execution_request import ExecutionRequest
from headgate.asl.tasks import activities
from headgate.asl.tasks.resources import Callee, TaskCall, required_parameter
from headgate.durable.model.names import BUILT_IN, is_built_in

FUNCTION_NAME: Final = re.compile(r"(?:.*:function:)?(?:\$\{)?([A-Za-z_][A-Za-z0-9_.-]*)\}?(?::[A-Za-z0-9_$.-]+)?")


class TaskRouter(ABC):
    """Runs Tasks that end with their response. A subclass calls the functions."""

    request: ExecutionRequest

    @abstractmethod
    async def function(self, name: str, input: Json, call: TaskCall | None = None) -> Json:
        """Call a function and return its result. Raises `StateError`."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        return asyncio.sleep(seconds)

    async def call(self, call: TaskCall) -> Json:
        match call.target.callee:
            case Callee.FUNCTION | Callee.ACTIVITY:
                self._check_callable(call.target.name)
                return await self.function(call.target.name, call.input, call)
            case Callee.SERVICE if (call.target.name, call.target.action) == ("lambda", "invoke"):
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
        result = await self.function(match[1], call.input.get("Payload"), call)
        return {"ExecutedVersion": "$LATEST", "Payload": result, "StatusCode": 200}


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
