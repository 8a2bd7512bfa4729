"""Task activities: implement the Tasks that call an AWS service, another machine or a fan-out.

All of them are idempotent: ids derive from the activity's id, so a retry finds the work of an earlier attempt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from headgate.asl.errors import StateError
from headgate.asl.expressions.formats import iso_timestamp
from headgate.asl.expressions.scope import Json
from headgate.asl.machines.executions import MachineExecutions
from headgate.asl.machines.registry import StoredMachine
from headgate.asl.tasks.activities import (
    FANOUT,
    LOAD,
    RESOURCE,
    SERVICE,
    START,
    FanoutOrder,
    MachineOrder,
    ResourceCall,
    ServiceCall,
)
from headgate.asl.tasks.fanout_tasks import start_fanout
from headgate.asl.tasks.service_calls import ServiceCalls
from headgate.asl.tasks.task_backends import TaskBackends
from headgate.asl.tasks.user_tables import UserTables
from headgate.durable.bus.bus import Bus
from headgate.durable.model.history import ActivityOptions
from headgate.durable.model.retry import Retry
from headgate.durable.sdk.activity_context import ActivityContext, activity
from headgate.durable.sdk.app import App
from headgate.durable.sdk.definitions import Activity
from headgate.errors import AlreadyStartedError, InvalidIdError, NotFoundError, PayloadTooLargeError
from headgate.fanout.service import FanoutService
from headgate.store.port import Store

# The machine's own Retry handles an error of the service; the engine retries everything else, such as a busy store.
_OPTIONS: Final = ActivityOptions(retry=Retry(attempts=10, never=(StateError,)))


def register(
    app: App,
    executions: MachineExecutions,
    bus: Bus,
    store: Store,
    fanouts: FanoutService,
    *,
    tables: UserTables | None = None,
    backends: TaskBackends | None = None,
) -> None:
    """Register the activities with an app. `tables` are those that DynamoDB Tasks may use; by default none.

    `backends` make calls outside of Headgate; by default none is allowed.
    """
    services = ServiceCalls(store, bus, tables or UserTables(store), backends or TaskBackends())

    def service(call: ServiceCall) -> Any:  # noqa: ANN401 - a document
        return services.call(call, activity())

    def resource(call: ResourceCall) -> Any:  # noqa: ANN401 - a document
        return services.call_mapped(call, activity())

    def start(order: MachineOrder) -> Any:  # noqa: ANN401 - a document
        return _start(executions, order, activity())

    def load(order: MachineOrder) -> Any:  # noqa: ANN401 - a document
        return _load(executions, order, activity())

    def fanout(order: FanoutOrder) -> Any:  # noqa: ANN401 - a document
        return start_fanout(fanouts.splitter, order, activity())

    functions: dict[str, Callable[..., Any]] = {
        SERVICE: service,
        RESOURCE: resource,
        START: start,
        LOAD: load,
        FANOUT: fanout,
    }
    for name, function in functions.items():
        app.activities[name] = Activity(function, name=name, options=_OPTIONS)


def _start(executions: MachineExecutions, order: MachineOrder, context: ActivityContext) -> Json:
    _machine(executions, order.machine, order.version)
    try:
        execution_id, is_new = executions.start(
            order.machine, order.input, name=_name(order, context), version=order.version
        )
    except AlreadyStartedError as exc:
        raise StateError("StepFunctions.ExecutionAlreadyExistsException", str(exc)) from exc
    except (InvalidIdError, PayloadTooLargeError, NotFoundError) as exc:
        raise _start_error(exc) from exc
    if is_new:
        return {"ExecutionArn": execution_id, "StartDate": iso_timestamp(context.clock_ms())}
    existing = executions.describe(execution_id)
    # A repeated start returns a running execution. An ended one is returned only to a retry of the attempt that
    # started it.
    if existing.ended_at and context.attempt == 1:
        fact = f"execution {execution_id}: it has ended, and its name is taken; choose another"
        raise StateError("StepFunctions.ExecutionAlreadyExistsException", fact)
    return {"ExecutionArn": execution_id, "StartDate": existing.started_at}


def _load(executions: MachineExecutions, order: MachineOrder, context: ActivityContext) -> Json:
    stored = _machine(executions, order.machine, order.version)
    try:
        request = executions.request(
            order.machine, stored.definition, order.input, name=_name(order, context), version=stored.version
        )
    except (InvalidIdError, PayloadTooLargeError, NotFoundError) as exc:
        raise _start_error(exc) from exc
    return msgspec.to_builtins(request)


def _machine(executions: MachineExecutions, name: str, version: int | None) -> StoredMachine:
    try:
        return executions.machines.get(name, version)
    except NotFoundError as exc:
        raise StateError("StepFunctions.StateMachineDoesNotExistException", str(exc)) from exc
    except InvalidIdError as exc:
        raise StateError("StepFunctions.InvalidArnException", str(exc)) from exc


def _start_error(error: InvalidIdError | PayloadTooLargeError | NotFoundError) -> StateError:
    """Return the error of StartExecution in Step Functions."""
    match error:
        case InvalidIdError():
            return StateError("StepFunctions.InvalidNameException", str(error))
        case PayloadTooLargeError():
            return StateError("StepFunctions.InvalidExecutionInputException", str(error))
        case _:
            return StateError("StepFunctions.ValidationException", str(error))


def _name(order: MachineOrder, context: ActivityContext) -> str:
    """Return the requested name of an execution, or one that every attempt derives from the activity's id."""
    return order.name or hashlib.sha256(context.activity_id.encode()).hexdigest()[:32]
