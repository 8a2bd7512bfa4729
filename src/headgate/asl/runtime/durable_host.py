"""Durable host: the workflow that runs a machine. Its Tasks, timers and tokens become workflow commands."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final, Protocol

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from headgate import typed_decode
from headgate.asl.errors import HEARTBEAT_TIMEOUT, TASK_FAILED, TIMEOUT, StateError
from headgate.asl.expressions.formats import iso_timestamp
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import MapSpec
from headgate.asl.runtime.execution_request import ExecutionRequest, MachineFailed, StopReason, compiled
from headgate.asl.runtime.frame import Frame
from headgate.asl.runtime.history import EventCounter, Journal
from headgate.asl.runtime.interpreter import MachineRun, execution_context
from headgate.asl.runtime.state_visit import Branch, StateVisit
from headgate.asl.runtime.task_router import TaskRouter, machine_order
from headgate.asl.runtime.task_tokens import SIGNAL, CallbackKind, TaskCallback
from headgate.asl.tasks import activities
from headgate.asl.tasks.activities import JobStep
from headgate.asl.tasks.fanout_tasks import run_fanout
from headgate.asl.tasks.resources import Callee, TaskCall, WaitMode
from headgate.asl.tasks.task_routes import RoutedCall, TaskRoute
from headgate.durable.model import payload
from headgate.durable.model.failures import ActivityTimeout, ChildFailure, ErrorInfo, Failure, describe
from headgate.durable.model.history import ActivityOptions, Status
from headgate.durable.model.names import is_built_in
from headgate.durable.model.retry import Retry
from headgate.durable.replay import sandbox
from headgate.durable.replay.interpreter import Interpreter, current
from headgate.durable.sdk import workflow as hg
from headgate.durable.sdk.definitions import Workflow
from headgate.errors import HeadgateError

WORKFLOW: Final = "headgate.machine"
# The machine's own Retry decides after a failure; the engine only repeats attempts lost with their worker.
_ONCE: Final = Retry(attempts=1, deaths=20)
_HEARTBEAT: Final = "heartbeat"
# The recorded answers that one turn uses, and the timer after them.
RECORDED_A_TURN: Final = 100
RECORDED_PAUSE_SECONDS: Final = 0.01
# How often the job of a `.sync` Task is polled: soon at first, and less often the longer it runs.
JOB_POLL_SECONDS: Final = 1.0
JOB_POLL_BACKOFF: Final = 1.5
JOB_POLL_SECONDS_MAX: Final = 30.0
# The prefix of the actions of built-in activities that may be answered by a read alone.
READ_ACTION_PREFIX: Final = "check"


class DistributedMapRunner(Protocol):
    """Runs a distributed Map inside the workflow."""

    def __call__(self, host: DurableHost, visit: StateVisit, spec: MapSpec, input: Json) -> Awaitable[Json]: ...


class HostDependencies(msgspec.Struct, frozen=True):
    """The functions of the current process that the workflow calls."""

    # Signs a token for a signal of an execution.
    sign: Callable[[str, str], str]
    # The options of a call of an activity; None if this process has not registered it.
    options_of: Callable[[str, Raw], ActivityOptions | None]
    distribute: DistributedMapRunner
    # The stored definition of a machine at a version.
    definition_of: Callable[[str, int], str]
    # The route of a call; None: it calls what its resource names.
    find_route: Callable[[RoutedCall], TaskRoute | None] = lambda _call: None
    # The response to a read-only call of a built-in activity; None if the activity has to run.
    read_inline: Callable[[str, Json], Json] = lambda _name, _input: None
    journal: Callable[[ExecutionRequest], Journal] = lambda request: EventCounter(request.events)


def machine_workflow(
    dependencies: HostDependencies,
    *,
    on_started: Callable[[Frame], None] = lambda _: None,
    on_entered: Callable[[Frame], None] | None = None,
) -> Callable[[ExecutionRequest], Awaitable[Json]]:
    """Return the workflow function that runs machines.

    `on_started` receives the frame that it updates, and `on_entered` the same frame at each state of the outermost
    level.
    """

    async def run_machine(request: ExecutionRequest) -> Json:
        host = DurableHost(request, dependencies, on_entered)
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
        branch = Branch(host.context, event_id=started_id)
        on_started(frame)
        if on_entered is not None:
            on_entered(frame)
        try:
            output = await MachineRun(host, journal, request.limits).machine(machine, frame, branch, is_top=True)
        except StateError as exc:
            journal.add("ExecutionFailed", branch.event_id, {"error": exc.error, "cause": exc.cause})
            raise MachineFailed(exc.error, exc.cause) from None
        journal.add("ExecutionSucceeded", branch.event_id, {"output": output})
        return output

    return run_machine


class DurableHost(TaskRouter):
    """Host of a machine inside a durable execution."""

    def __init__(
        self,
        request: ExecutionRequest,
        dependencies: HostDependencies,
        on_entered: Callable[[Frame], None] | None = None,
    ) -> None:
        super().__init__(request)
        self._on_entered = on_entered
        self._recorded_count = 0
        self._dependencies = dependencies
        self.journal = dependencies.journal(request)
        self._interpreter: Interpreter = current("a state machine")
        # The signal that completes a Task, by its token.
        self._signal_of_token: dict[str, str] = {}
        self._events_before = self.journal.count
        self.context = execution_context(
            execution_id=self._interpreter.execution_id,
            name=request.name,
            machine=request.machine,
            input=request.input,
            started_at_ms=request.started_at_ms,
            redrive_count=request.redrive_count,
        )

    def definition(self, request: ExecutionRequest) -> str:
        """Return the definition of a request. If the store cannot be read, the turn is retried."""
        if request.definition:
            return request.definition
        try:
            # Not recorded in the history: a stored version never changes.
            return sandbox.lifted(lambda: self._dependencies.definition_of(request.machine, request.version))
        except HeadgateError as exc:
            self._interpreter.break_off(exc)
            raise

    def now_ms(self) -> int:
        return self._interpreter.at_ms

    def random(self) -> Random:
        return self._interpreter.random()

    def new_token(self) -> str:
        signal = f"{SIGNAL}{hg.info().run}.{len(self._signal_of_token) + 1}"
        sign, execution_id = self._dependencies.sign, self._interpreter.execution_id
        token: str = hg.side_effect(lambda: sign(execution_id, signal), str)
        self._signal_of_token[token] = signal
        return token

    def on_transition(self, frame: Frame) -> None:
        if self._on_entered is not None:
            self._on_entered(frame)
        if self.journal.count - self._events_before >= self.request.limits.events_a_run:
            hg.continue_as_new(replace(self.request, resume=frame, events=self.journal.count, is_redriven=False))

    def distribute(self, visit: StateVisit, spec: MapSpec, input: Json) -> Awaitable[Json]:
        return self._dependencies.distribute(self, visit, spec, input)

    # Tasks.

    async def dispatch(self, call: TaskCall, route: TaskRoute | None = None) -> Json:
        if route is not None and route.is_recorded:
            await self._pause_between_recorded()
        elif call.token:
            return await self._call_and_wait(call, route)
        if route is None and call.target.wait in (WaitMode.JOB, WaitMode.JOB_AS_JSON):
            match call.target.callee:
                case Callee.MACHINE:
                    return await self._run_machine(call)
                case Callee.FANOUT:
                    return await run_fanout(call)
                case Callee.SERVICE:
                    return await self._run_job(call)
        return await super().dispatch(call, route)

    async def _pause_between_recorded(self) -> None:
        """End the turn now and then: a loop of states with recorded answers never waits for anything else."""
        self._recorded_count += 1
        if self._recorded_count % RECORDED_A_TURN == 0:
            await self.sleep(RECORDED_PAUSE_SECONDS)

    def find_route(self, call: RoutedCall) -> TaskRoute | None:
        # Recorded: the map of the process that replays this may be another one.
        found: TaskRoute | None = hg.side_effect(lambda: self._dependencies.find_route(call), TaskRoute | None)
        return found

    async def fanout(self, call: TaskCall) -> Json:
        return await run_fanout(call)

    async def _run_job(self, call: TaskCall) -> Json:
        """Start a job of AWS, poll it under durable timers, and return its description when it has succeeded.

        A timeout or cancellation of the Task stops the job.
        """
        order = {"service": call.target.name, "action": call.target.action, "parameters": call.input}
        job = await self.function(activities.SERVICE, {**order, "step": JobStep.START})
        poll = {**order, "parameters": None, "step": JobStep.POLL, "job": job}
        delay_seconds = JOB_POLL_SECONDS
        try:
            async with asyncio.timeout(call.timeout_seconds):
                while True:
                    await self.sleep(delay_seconds)
                    delay_seconds = min(delay_seconds * JOB_POLL_BACKOFF, JOB_POLL_SECONDS_MAX)
                    polled = await self.function(activities.SERVICE, poll)
                    if polled["is_ended"]:
                        return polled["result"]
        except (TimeoutError, asyncio.CancelledError) as exc:
            with suppress(StateError):
                await self.function(activities.SERVICE, {**poll, "step": JobStep.STOP})
            if isinstance(exc, asyncio.CancelledError):
                raise
            name = f"{call.target.name}:{call.target.action}"
            raise StateError(TIMEOUT, f"{name}: the job took longer than {call.timeout_seconds:g} s") from None

    async def function(self, name: str, input: Json, call: TaskCall | None = None) -> Json:
        if _may_read_inline(name, input):
            response: Json = hg.side_effect(lambda: self._read_inline(name, input))
            if response is not None:
                return response
        timeout_seconds = None if call is None else call.timeout_seconds
        heartbeat_seconds = None if call is None else call.heartbeat_seconds
        raw = payload.encode(input, what=f"input of {name}")
        declared = self._dependencies.options_of(name, raw)
        # A built-in activity keeps its own retries: a busy store is not a failure of the Task.
        retry = declared.retry if declared is not None and is_built_in(name) else _ONCE
        options = _options(declared or ActivityOptions(), retry, timeout_seconds, heartbeat_seconds)
        try:
            return await self._interpreter.start_activity(name, raw, options, msgspec.json.decode)
        except ActivityTimeout as exc:
            error = HEARTBEAT_TIMEOUT if exc.kind == _HEARTBEAT else TIMEOUT
            raise StateError(error, str(exc)) from None
        except Exception as exc:  # noqa: BLE001 - every error of the function becomes the error of the Task
            raise task_error(exc) from None

    def _read_inline(self, name: str, input: Json) -> Json:
        try:
            return self._dependencies.read_inline(name, input)
        except HeadgateError:
            # The activity runs into the same error, and can retry it or fail the Task.
            return None

    async def _call_and_wait(self, call: TaskCall, route: TaskRoute | None) -> Json:
        """Start the work, and wait for a callback with the task token."""
        signal = self._signal_of_token[call.token]
        start = replace(call, token="", timeout_seconds=None, heartbeat_seconds=None)
        # The wait starts before the call: a callback may arrive at once, and is accepted only while it is awaited.
        waiting = asyncio.ensure_future(self._callback(signal, call.heartbeat_seconds))
        starting = asyncio.ensure_future(self.dispatch(start, route))
        try:
            async with asyncio.timeout(call.timeout_seconds):
                await asyncio.wait((waiting, starting), return_when=asyncio.FIRST_COMPLETED)
                if starting.done() and starting.exception() is not None:
                    await starting
                return await waiting
        except TimeoutError:
            # The text is part of recorded histories; changing it would break the replay of executions in progress.
            raise StateError(TIMEOUT, "nobody answered in time") from None
        finally:
            waiting.cancel()
            starting.cancel()
            await asyncio.gather(waiting, starting, return_exceptions=True)

    async def _callback(self, signal: str, heartbeat_seconds: float | None) -> Json:
        while True:
            try:
                callback: TaskCallback = await hg.wait_signal(signal, timeout=heartbeat_seconds, type=TaskCallback)
            except TimeoutError:
                raise StateError(HEARTBEAT_TIMEOUT, f"no heartbeat for {heartbeat_seconds:g} s") from None
            match callback.callback:
                case CallbackKind.SUCCESS:
                    return callback.output
                case CallbackKind.FAILURE:
                    raise StateError(callback.error, callback.cause)
                case _:
                    continue

    # Child executions.

    async def _run_machine(self, call: TaskCall) -> Json:
        """Run another machine as a child, and return its description when it has ended."""
        loaded = await self.function(activities.LOAD, machine_order(call))
        request = replace(typed_decode.convert(loaded, ExecutionRequest), started_at_ms=self.now_ms())
        machine = compiled(self.definition(request))
        child = child_workflow().options(timeout=machine.timeout_seconds, tags={"machine": request.machine})(request)
        description: dict[str, Json] = {
            "ExecutionArn": child.id,
            "Name": request.name,
            "StateMachineArn": request.machine,
            "StartDate": iso_timestamp(request.started_at_ms),
            "Input": _text(request.input),
        }
        try:
            async with asyncio.timeout(call.timeout_seconds):
                output = await child
        except TimeoutError:
            raise StateError(TIMEOUT, f"the execution {child.id} took too long") from None
        except Exception as exc:  # noqa: BLE001 - every failure of the child becomes the error of the Task
            description |= _child_failure(exc)
            raise StateError(TASK_FAILED, _text({**description, "StopDate": iso_timestamp(self.now_ms())})) from None
        description |= {"Status": "SUCCEEDED", "StopDate": iso_timestamp(self.now_ms())}
        return {**description, "Output": output if call.target.wait is WaitMode.JOB_AS_JSON else _text(output)}


def _may_read_inline(name: str, input: Json) -> bool:
    """Whether a call may be answered inline. Decided by the call alone, so that every process replays it alike."""
    if not is_built_in(name) or not isinstance(input, dict):
        return False
    return str(input.get("action", "")).startswith(READ_ACTION_PREFIX)


@functools.cache
def child_workflow() -> Workflow[[ExecutionRequest], Json]:
    """Return the declaration by which a parent starts the workflow that runs machines."""

    async def run_machine(request: ExecutionRequest) -> Json:
        raise AssertionError(f"{request.machine}: this is only a declaration; the registered workflow runs the child")

    return Workflow(run_machine, name=WORKFLOW, timeout_seconds=None, retention_seconds=None, client=lambda: None)


@functools.lru_cache(maxsize=1024)
def _options(
    declared: ActivityOptions, retry: Retry, timeout_seconds: float | None, heartbeat_seconds: float | None
) -> ActivityOptions:
    """Return the options of one call: retries and timeouts from the machine, the rest from the activity."""
    return replace(
        declared,
        retry=retry,
        schedule_to_close=timeout_seconds if timeout_seconds is not None else declared.schedule_to_close,
        heartbeat=heartbeat_seconds if heartbeat_seconds is not None else declared.heartbeat,
    )


def task_error(error: Exception) -> StateError:
    """Return the error of a Task: the name of the exception's class, with the cause in the form of AWS Lambda."""
    if isinstance(error, (StateError, MachineFailed)):
        return StateError(error.error, error.cause)
    info: ErrorInfo = error.info if isinstance(error, Failure) else describe(error)
    cause: dict[str, Json] = {"errorMessage": info.message, "errorType": info.type}
    # A revived exception has the trace of this process; only a `Failure` has the original one.
    if isinstance(error, Failure) and info.trace:
        cause["stackTrace"] = info.trace.splitlines()
    return StateError(info.type, _text(cause))


def _child_failure(error: Exception) -> dict[str, Json]:
    """Return the status, error and cause of a child that did not succeed, in Step Functions' terms."""
    if isinstance(error, ChildFailure) and error.status == Status.TIMED_OUT:
        return {"Status": "TIMED_OUT"}
    if isinstance(error, ChildFailure) and error.status in (Status.CANCELLED, Status.TERMINATED):
        reason = StopReason.read(error.message)
        return {"Status": "ABORTED", "Error": reason.error, "Cause": reason.cause}
    failed = task_error(error)
    return {"Status": "FAILED", "Error": failed.error, "Cause": failed.cause}


def _text(value: Json) -> str:
    return msgspec.json.encode(value).decode()
