"""Hosting: the workflow that runs machines on the durable engine. What a machine asks for becomes commands of it."""

from __future__ import annotations

import asyncio
import functools
import random
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from headgate import typed_decode
from headgate.asl.errors import HEARTBEAT_TIMEOUT, TASK_FAILED, TIMEOUT, StateError
from headgate.asl.expressions.formats import iso_moment
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import MapSpec
from headgate.asl.requests import MachineFailed, Request, Stopped, compiled
from headgate.asl.runtime.history import Journal, Tally
from headgate.asl.runtime.interpreter import Call, Run, context_of
from headgate.asl.runtime.resume_point import Frame
from headgate.asl.runtime.state_visit import Lane, Visit
from headgate.asl.runtime.task_tokens import SIGNAL, Callback, Told
from headgate.asl.tasks import service_tasks as services
from headgate.asl.tasks.fanout_tasks import run_fanout
from headgate.asl.tasks.resources import Callee, Wait, field
from headgate.durable.model import payload
from headgate.durable.model.failures import ActivityTimeout, ChildFailure, ErrorInfo, Failure, describe
from headgate.durable.model.history import ActivityOptions, Status
from headgate.durable.model.retry import Retry
from headgate.durable.replay import sandbox as guard
from headgate.durable.replay.interpreter import Interpreter, current
from headgate.durable.sdk import workflow as hg
from headgate.durable.sdk.definitions import Workflow
from headgate.errors import HeadgateError

WORKFLOW: Final = "headgate.machine"
# What fails is the machine's to retry; an attempt that was lost with its worker has not failed.
_ONCE: Final = Retry(attempts=1, deaths=20)
_HEARTBEAT: Final = "heartbeat"
FUNCTION_NAME: Final = re.compile(r"(?:.*:function:)?(?:\$\{)?([A-Za-z_][A-Za-z0-9_.-]*)\}?(?::[A-Za-z0-9_$.-]+)?")
# How the names of our own activities begin.
OURS: Final = "headgate."
# How the actions of our own functions begin that may come to nothing but a look.
LOOKS: Final = "check"


class Distributes(Protocol):
    """Runs a distributed Map from inside of the workflow."""

    def __call__(self, host: DurableHost, visit: Visit, spec: MapSpec, input: Json) -> Awaitable[Json]: ...


class Surroundings(msgspec.Struct, frozen=True):
    """What the workflow needs to know of the process it runs in."""

    # Signs a token for a wait of an execution.
    sign: Callable[[str, str], str]
    # The options of a call of a function, if it is registered here; None for one that another process has.
    options_of: Callable[[str, Raw], ActivityOptions | None]
    distribute: Distributes
    # The definition of a version of a machine.
    definition_of: Callable[[str, int], str]
    # The answer to a call that only looks, where it can be had at once and changes nothing; None: an activity has to.
    look: Callable[[str, Json], Json] = lambda _name, _input: None
    journal: Callable[[Request], Journal] = lambda request: Tally(request.events)


def machine_workflow(
    surroundings: Surroundings, *, seen: Callable[[Frame], None] = lambda _: None
) -> Callable[[Request], Awaitable[Json]]:
    """Return the function of the workflow that runs machines. `seen` is told the frame that it goes by."""

    async def run_machine(request: Request) -> Json:
        host = DurableHost(request, surroundings)
        machine = compiled(host.definition(request))
        journal = host.journal
        if request.resume is None:
            started_id = journal.add("ExecutionStarted", 0, {"input": request.input})
            frame = Frame(machine.start_at, request.input)
        else:
            frame, started_id = request.resume, journal.count
            if request.is_redriven and request.ended_as:
                started_id = journal.add(request.ended_as, started_id)
            if request.is_redriven:
                started_id = journal.add("ExecutionRedriven", started_id, {"redriveCount": request.redrive_count})
        lane = Lane(host.context, event_id=started_id)
        seen(frame)
        try:
            output = await Run(host, journal, request.limits).machine(machine, frame, lane, is_top=True)
        except StateError as exc:
            journal.add("ExecutionFailed", lane.event_id, {"error": exc.error, "cause": exc.cause})
            raise MachineFailed(exc.error, exc.cause) from None
        journal.add("ExecutionSucceeded", lane.event_id, {"output": output})
        return output

    return run_machine


class DurableHost:
    """What a machine needs, by means of the execution it runs in."""

    def __init__(self, request: Request, surroundings: Surroundings) -> None:
        self.request = request
        self.surroundings = surroundings
        self.journal = surroundings.journal(request)
        self._interpreter: Interpreter = current("a state machine")
        # The signals by which tasks that were given a token are ended.
        self._awaited: dict[str, str] = {}
        self._events_before = self.journal.count
        self.context = context_of(
            execution_id=self._interpreter.execution_id,
            name=request.name,
            machine=request.machine,
            input=request.input,
            started_at_ms=request.started_at_ms,
            redrive_count=request.redrive_count,
        )

    def definition(self, request: Request) -> str:
        """Return the definition that a request names. If it cannot be read now, the turn is tried again."""
        if request.definition:
            return request.definition
        try:
            # Not recorded, for it is the same whenever it is read.
            return guard.lifted(lambda: self.surroundings.definition_of(request.machine, request.version))
        except HeadgateError as exc:
            self._interpreter.break_off(exc)
            raise

    def now_ms(self) -> int:
        return self._interpreter.at_ms

    def draw(self) -> random.Random:
        return self._interpreter.random()

    def sleep(self, seconds: float) -> Awaitable[None]:
        return asyncio.sleep(seconds)

    def new_token(self) -> str:
        signal = f"{SIGNAL}{hg.info().run}.{len(self._awaited) + 1}"
        sign, execution_id = self.surroundings.sign, self._interpreter.execution_id
        token: str = hg.side_effect(lambda: sign(execution_id, signal), str)
        self._awaited[token] = signal
        return token

    def at_rest(self, frame: Frame) -> None:
        if self.journal.count - self._events_before >= self.request.limits.events_a_run:
            hg.continue_as_new(replace(self.request, resume=frame, events=self.journal.count, is_redriven=False))

    def distribute(self, visit: Visit, spec: MapSpec, input: Json) -> Awaitable[Json]:
        return self.surroundings.distribute(self, visit, spec, input)

    # Tasks.

    async def call(self, call: Call) -> Json:
        if call.token:
            return await self._call_and_wait(call)
        match call.target.callee:
            case Callee.FUNCTION | Callee.ACTIVITY:
                return await self.function(call.target.name, call.input, call)
            case Callee.SERVICE if (call.target.name, call.target.action) == ("lambda", "invoke"):
                return await self._invoke(call)
            case Callee.MACHINE:
                return await self._machine(call)
            case Callee.FANOUT if call.target.wait in (Wait.JOB, Wait.JOB_AS_JSON):
                return await run_fanout(call)
            case Callee.FANOUT:
                given = {"fanout": call.target.name, "parameters": call.input, "wait": call.target.wait.value}
                return await self.function(services.FANOUT, given, call)
            case _:
                given = {"service": call.target.name, "action": call.target.action, "parameters": call.input}
                return await self.function(services.SERVICE, given, call)

    async def function(self, name: str, input: Json, call: Call | None = None) -> Json:
        """Return what a registered function returns. Raises `StateError`."""
        if _may_look(name, input):
            seen: Json = hg.side_effect(lambda: self._look(name, input))
            if seen is not None:
                return seen
        timeout_seconds = None if call is None else call.timeout_seconds
        heartbeat_seconds = None if call is None else call.heartbeat_seconds
        raw = payload.encode(input, what=f"input of {name}")
        declared = self.surroundings.options_of(name, raw)
        # What we do ourselves is tried again when a store is busy; that is no failure of the Task.
        retry = declared.retry if declared is not None and name.startswith(OURS) else _ONCE
        options = _options(declared or ActivityOptions(), retry, timeout_seconds, heartbeat_seconds)
        try:
            return await self._interpreter.start_activity(name, raw, options, _decode)
        except ActivityTimeout as exc:
            error = HEARTBEAT_TIMEOUT if exc.kind == _HEARTBEAT else TIMEOUT
            raise StateError(error, str(exc)) from None
        except Exception as exc:  # noqa: BLE001 - whatever the function raised is how the Task failed
            raise failed_with(exc) from None

    def _look(self, name: str, input: Json) -> Json:
        try:
            return self.surroundings.look(name, input)
        except HeadgateError:
            # An activity meets it as well, and there it can be tried again, or fail the Task.
            return None

    async def _invoke(self, call: Call) -> Json:
        named = FUNCTION_NAME.fullmatch(str(field(call.input, "FunctionName", resource="lambda:invoke")))
        if named is None:
            raise StateError("Lambda.ResourceNotFoundException", "FunctionName: use a name, name:alias or an ARN")
        result = await self.function(named[1], call.input.get("Payload"), call)
        return {"ExecutedVersion": "$LATEST", "Payload": result, "StatusCode": 200}

    async def _call_and_wait(self, call: Call) -> Json:
        """Have the work begun, and wait for whoever has the token."""
        signal = self._awaited[call.token]
        begun = replace(call, token="", timeout_seconds=None, heartbeat_seconds=None)
        # Waited for from before the work begins: an answer may come at once, and a token is good while it is awaited.
        waiting = asyncio.ensure_future(self._told(signal, call.heartbeat_seconds))
        starting = asyncio.ensure_future(self.call(begun))
        try:
            async with asyncio.timeout(call.timeout_seconds):
                await asyncio.wait((waiting, starting), return_when=asyncio.FIRST_COMPLETED)
                if starting.done() and starting.exception() is not None:
                    await starting
                return await waiting
        except TimeoutError:
            raise StateError(TIMEOUT, "nobody answered in time") from None
        finally:
            waiting.cancel()
            starting.cancel()
            await asyncio.gather(waiting, starting, return_exceptions=True)

    async def _told(self, signal: str, heartbeat_seconds: float | None) -> Json:
        while True:
            try:
                told: Told = await hg.wait_signal(signal, timeout=heartbeat_seconds, type=Told)
            except TimeoutError:
                raise StateError(HEARTBEAT_TIMEOUT, f"no heartbeat for {heartbeat_seconds:g} s") from None
            match told.callback:
                case Callback.SUCCESS:
                    return told.output
                case Callback.FAILURE:
                    raise StateError(told.error, told.cause)
                case _:
                    continue

    # Machines in machines.

    async def _machine(self, call: Call) -> Json:
        target = call.target
        given = call.input if isinstance(call.input, dict) else {}
        if target.action:
            arn = str(field(call.input, "StateMachineArn", resource="states:startExecution"))
            named, version = _machine_named(arn)
            order = {"machine": named, "input": _input_of(given), "name": given.get("Name")}
            if version is not None:
                order["version"] = version
        else:
            order = {"machine": target.name, "input": call.input, "name": None}
        # With a token the execution is only started; who has the token ends the Task.
        if target.wait in (Wait.ANSWER, Wait.TOKEN):
            return await self.function(services.START, order, call)
        loaded = await self.function(services.LOAD, order)
        return await self._await_child(call, typed_decode.convert(loaded, Request))

    async def _await_child(self, call: Call, request: Request) -> Json:
        request = replace(request, started_at_ms=self.now_ms())
        machine = compiled(self.definition(request))
        child = child_workflow().options(timeout=machine.timeout_seconds, tags={"machine": request.machine})(request)
        facts: dict[str, Json] = {
            "ExecutionArn": child.id,
            "Name": request.name,
            "StateMachineArn": request.machine,
            "StartDate": iso_moment(request.started_at_ms),
            "Input": _text(request.input),
        }
        try:
            async with asyncio.timeout(call.timeout_seconds):
                output = await child
        except TimeoutError:
            raise StateError(TIMEOUT, f"the execution {child.id} took too long") from None
        except Exception as exc:  # noqa: BLE001 - however the child failed is how the Task failed
            facts |= _how(exc)
            raise StateError(TASK_FAILED, _text({**facts, "StopDate": iso_moment(self.now_ms())})) from None
        facts |= {"Status": "SUCCEEDED", "StopDate": iso_moment(self.now_ms())}
        return {**facts, "Output": output if call.target.wait is Wait.JOB_AS_JSON else _text(output)}


def _may_look(name: str, input: Json) -> bool:
    """Whether a call may come to a look. By the call alone: whichever process replays it has to come to the same."""
    return name.startswith(OURS) and isinstance(input, dict) and str(input.get("action", "")).startswith(LOOKS)


@functools.cache
def child_workflow() -> Workflow[[Request], Json]:
    """Return the workflow of machines as a parent calls it; whichever process has it runs it."""

    async def run_machine(request: Request) -> Json:
        raise AssertionError(f"{request.machine}: a child is run by the workflow of this name, not by its stand-in")

    return Workflow(run_machine, name=WORKFLOW, timeout_seconds=None, retention_seconds=None, client=lambda: None)


@functools.lru_cache(maxsize=1024)
def _options(
    declared: ActivityOptions, retry: Retry, timeout_seconds: float | None, heartbeat_seconds: float | None
) -> ActivityOptions:
    """Return the options of one call: the machine decides on retries and times, the function on where it runs."""
    return replace(
        declared,
        retry=retry,
        schedule_to_close=timeout_seconds if timeout_seconds is not None else declared.schedule_to_close,
        heartbeat=heartbeat_seconds if heartbeat_seconds is not None else declared.heartbeat,
    )


def _decode(raw: Raw) -> Any:  # noqa: ANN401 - a document of the user's
    return msgspec.json.decode(raw)


def failed_with(error: Exception) -> StateError:
    """Return what a Task failed with: the name of the error's class, and as the cause what Lambda would say."""
    if isinstance(error, (StateError, MachineFailed)):
        return StateError(error.error, error.cause)
    info: ErrorInfo = error.info if isinstance(error, Failure) else describe(error)
    cause: dict[str, Json] = {"errorMessage": info.message, "errorType": info.type}
    # Raised here anew, an error has a trace of ours and not of where it happened.
    if isinstance(error, Failure) and info.trace:
        cause["stackTrace"] = info.trace.splitlines()
    return StateError(info.type, _text(cause))


def _machine_named(arn: str) -> tuple[str, int | None]:
    """Return the machine, and the version if there is one, that an ARN or a plain name stands for."""
    name, _, qualifier = arn.rpartition("stateMachine:")[2].partition(":")
    return name, int(qualifier) if qualifier.isdigit() else None


def _input_of(given: dict[str, Json]) -> Json:
    """Return the Input of an execution: a document, or its text. Raises `StateError`."""
    value = given.get("Input", {})
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as exc:
        raise StateError("StepFunctions.InvalidExecutionInputException", f"Input is not JSON: {exc}") from None


def _how(error: Exception) -> dict[str, Json]:
    """Return how an execution that was waited for ended, in Step Functions' words."""
    if isinstance(error, ChildFailure) and error.status == Status.TIMED_OUT:
        return {"Status": "TIMED_OUT"}
    if isinstance(error, ChildFailure) and error.status in (Status.CANCELLED, Status.TERMINATED):
        stopped = Stopped.read(error.message)
        return {"Status": "ABORTED", "Error": stopped.error, "Cause": stopped.cause}
    failed = failed_with(error)
    return {"Status": "FAILED", "Error": failed.error, "Cause": failed.cause}


def _text(value: Json) -> str:
    return msgspec.json.encode(value).decode()
