"""Services: the activities behind Tasks that call something other than a user's function.

All of them may be tried again: what an attempt has done, it has done under an id that is made of the activity's, and
the next one finds it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from headgate.asl.errors import StateError, runtime
from headgate.asl.expressions.formats import iso_moment
from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.actions import ACTIONS, CallParameters, call_of, known_actions
from headgate.asl.tasks.dynamodb import OPTIMISED, SDK, DynamodbCalls
from headgate.asl.tasks.fanout_tasks import FanoutOrder, start_fanout
from headgate.asl.tasks.messaging import BusCalls
from headgate.durable.bus.bus import Bus
from headgate.durable.model.history import ActivityOptions
from headgate.durable.model.retry import Retry
from headgate.durable.sdk.activity_context import ActivityContext, activity
from headgate.durable.sdk.app import App
from headgate.durable.sdk.definitions import Activity
from headgate.errors import AlreadyStartedError, InvalidIdError, NotFoundError, PayloadTooLargeError
from headgate.fanout.service import FanoutService
from headgate.store.port import Store
from headgate.store.table_names import TableNames

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.asl.executions import MachineExecutions
    from headgate.asl.machines import StoredMachine

__all__ = ["FANOUT", "LOAD", "SERVICE", "START", "known_actions", "register"]

# What the activities are called; a dot is for names that no user's function can have.
SERVICE: Final = "headgate.asl.service"
START: Final = "headgate.asl.start"
LOAD: Final = "headgate.asl.load"
FANOUT: Final = "headgate.asl.fanout"

# What a service refuses is for the machine to retry; what keeps a worker from asking it is not.
_OPTIONS: Final = ActivityOptions(retry=Retry(attempts=10, never=(StateError,)))


class ServiceCall(Struct, frozen=True):
    """The input of the activity that calls a service."""

    service: str
    action: str
    parameters: Json = None


class MachineOrder(Struct, frozen=True):
    """The input of the activities that start or load a machine."""

    machine: str
    input: Json = None
    name: str | None = None
    version: int | None = None


def register(
    app: App,
    executions: MachineExecutions,
    bus: Bus,
    store: Store,
    fanouts: FanoutService,
    *,
    names: TableNames | None = None,
) -> None:
    """Give an app the activities behind Tasks. `names` says what tables are called where that is configured."""
    dynamodb = DynamodbCalls(store, names)
    told = BusCalls(bus)

    def service(call: ServiceCall) -> Any:  # noqa: ANN401 - a document
        return _call_service(call, dynamodb, told, activity())

    def start(order: MachineOrder) -> Any:  # noqa: ANN401 - a document
        return _start(executions, order, activity())

    def load(order: MachineOrder) -> Any:  # noqa: ANN401 - a document
        return _load(executions, order, activity())

    def fanout(order: FanoutOrder) -> Any:  # noqa: ANN401 - a document
        return start_fanout(fanouts.splitter, order, activity())

    functions: dict[str, Callable[..., Any]] = {SERVICE: service, START: start, LOAD: load, FANOUT: fanout}
    for name, function in functions.items():
        app.activities[name] = Activity(function, name=name, options=_OPTIONS)


def _call_service(call: ServiceCall, dynamodb: DynamodbCalls, told: BusCalls, context: ActivityContext) -> Json:
    service, action, is_sdk = call_of(call.service, call.action)
    if action not in ACTIONS.get(service, ()):
        known = ", ".join(f"{name}:{each}" for name, actions in ACTIONS.items() for each in actions)
        raise runtime(f"{call.service}:{call.action}: no Task can call this here; it can call {known}")
    given = CallParameters(f"{service}:{action}", call.parameters)
    match service:
        case "sns":
            return told.publish(given, context)
        case "sqs":
            return told.send_message(given, context)
        case "events":
            return told.put_events(given, context, raises=not is_sdk)
        case _:
            return dynamodb.call(action, given, context, SDK if is_sdk else OPTIMISED)


def _start(executions: MachineExecutions, order: MachineOrder, context: ActivityContext) -> Json:
    _machine(executions, order.machine, order.version)
    try:
        execution_id, is_new = executions.start(
            order.machine, order.input, name=_name(order, context), version=order.version
        )
    except AlreadyStartedError as exc:
        raise StateError("StepFunctions.ExecutionAlreadyExistsException", str(exc)) from exc
    except (InvalidIdError, PayloadTooLargeError, NotFoundError) as exc:
        raise _refused(exc) from exc
    if is_new:
        return {"ExecutionArn": execution_id, "StartDate": iso_moment(context.clock_ms())}
    found = executions.describe(execution_id)
    # One that runs is given back to whoever starts the same again; one that has ended only to who started it.
    if found.ended_at and context.attempt == 1:
        fact = f"execution {execution_id}: it has ended, and its name is taken; choose another"
        raise StateError("StepFunctions.ExecutionAlreadyExistsException", fact)
    return {"ExecutionArn": execution_id, "StartDate": found.started_at}


def _load(executions: MachineExecutions, order: MachineOrder, context: ActivityContext) -> Json:
    stored = _machine(executions, order.machine, order.version)
    try:
        request = executions.request(
            order.machine, stored.definition, order.input, name=_name(order, context), version=stored.version
        )
    except (InvalidIdError, PayloadTooLargeError, NotFoundError) as exc:
        raise _refused(exc) from exc
    return msgspec.to_builtins(request)


def _machine(executions: MachineExecutions, name: str, version: int | None) -> StoredMachine:
    try:
        return executions.machines.get(name, version)
    except NotFoundError as exc:
        raise StateError("StepFunctions.StateMachineDoesNotExistException", str(exc)) from exc
    except InvalidIdError as exc:
        raise StateError("StepFunctions.InvalidArnException", str(exc)) from exc


def _refused(error: InvalidIdError | PayloadTooLargeError | NotFoundError) -> StateError:
    """Return how Step Functions says that an execution cannot be started so."""
    match error:
        case InvalidIdError():
            return StateError("StepFunctions.InvalidNameException", str(error))
        case PayloadTooLargeError():
            return StateError("StepFunctions.InvalidExecutionInputException", str(error))
        case _:
            return StateError("StepFunctions.ValidationException", str(error))


def _name(order: MachineOrder, context: ActivityContext) -> str:
    """Return the name of an execution: the one that is given, or one that another attempt makes again."""
    return order.name or hashlib.sha256(context.activity_id.encode()).hexdigest()[:32]
