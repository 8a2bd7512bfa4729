"""State tests: run one state of a machine once, as the TestState API of Step Functions does, without an execution.

Its Tasks are really called, in this process. A Wait does not wait. Nothing is retried: the result says whether it would
be.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from headgate.asl.errors import StateError, runtime_error
from headgate.asl.expressions.formats import iso_timestamp
from headgate.asl.expressions.references import WHOLE
from headgate.asl.expressions.scope import Json
from headgate.asl.map.express import ExpressHost, FindRoute
from headgate.asl.model.definition import Language, Machine, MapSpec, ParallelSpec, State, StateType, TaskSpec
from headgate.asl.runtime.execution_request import ExecutionRequest
from headgate.asl.runtime.frame import Frame
from headgate.asl.runtime.history import EventCounter
from headgate.asl.runtime.interpreter import Limits, MachineRun, RetryCounter, catcher_for
from headgate.asl.runtime.state_visit import Branch, StateVisit
from headgate.asl.tasks.resources import TaskCall, WaitMode, target_of
from headgate.asl.tasks.task_routes import TaskRoute
from headgate.clock import Clock
from headgate.durable.sdk.activity_context import ActivityContext, enter, leave
from headgate.durable.sdk.app import App
from headgate.errors import NotFoundError
from headgate.ids import IdMaker

NAME: Final = "test-state"
TOKEN: Final = "test-token"
_WITH_RESULT: Final = frozenset({StateType.TASK, StateType.PARALLEL, StateType.MAP})


class StateTestStatus(enum.StrEnum):
    """How a tested state ends, in the terms of Step Functions."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    # A Retry of the state matches the error.
    RETRIABLE = "RETRIABLE"
    # A Catch of the state matches the error.
    CAUGHT_ERROR = "CAUGHT_ERROR"


class ErrorDetails(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Which Retry or Catch matches an error."""

    retry_index: int | None = None
    retry_backoff_interval_seconds: float | None = None
    catch_index: int | None = None


class InspectionData(Struct, omit_defaults=True, rename="camel"):
    """The data of a state after each of its fields; a field that was not reached is absent."""

    input: Json | UnsetType = UNSET
    after_input_path: Json | UnsetType = UNSET
    after_parameters: Json | UnsetType = UNSET
    after_arguments: Json | UnsetType = UNSET
    result: Json | UnsetType = UNSET
    after_result_selector: Json | UnsetType = UNSET
    after_result_path: Json | UnsetType = UNSET
    # Those that the state assigns.
    variables: Mapping[str, Json] | UnsetType = UNSET
    error_details: ErrorDetails | UnsetType = UNSET


class StateTestResult(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The outcome of a tested state."""

    status: StateTestStatus
    output: Json | UnsetType = UNSET
    next_state: str | None = None
    error: str | None = None
    cause: str | None = None
    inspection_data: InspectionData | UnsetType = UNSET


class StateTestRequest(Struct, frozen=True):
    """A state to test, and its input."""

    machine: Machine
    machine_name: str
    state: str
    input: Json = None
    variables: Mapping[str, Json] = {}
    # As in an execution request.
    is_routed: bool = False
    case: str = ""


class StateTester:
    """Tests states with the functions of an app."""

    def __init__(self, app: App, clock: Clock, ids: IdMaker, find_route: FindRoute) -> None:
        self._app = app
        self._clock = clock
        self._ids = ids
        self._find_route = find_route

    def run(self, request: StateTestRequest) -> StateTestResult:
        """Run a state once. Raises `NotFoundError` if the machine has no such state."""
        state = _state(request.machine, request.state)
        mark = enter(self._context())
        try:
            with ThreadPoolExecutor(1) as threads:
                return asyncio.run(self._run(request, state, threads))
        finally:
            leave(mark)

    async def _run(self, request: StateTestRequest, state: State, threads: Executor) -> StateTestResult:
        now_ms = int(self._clock.seconds() * 1000)
        execution = ExecutionRequest(
            request.machine_name,
            NAME,
            "{}",
            now_ms,
            request.input,
            is_routed=request.is_routed,
            case=request.case,
        )
        host = _TestHost(execution, self._app, self._clock, threads, self._find_route)
        frame = Frame(state.name, request.input, dict(request.variables))
        visit = StateVisit(
            state, frame, Branch(host.context), iso_timestamp(now_ms), random=host.random(), now_ms=host.now_ms
        )
        inspection = InspectionData(input=request.input)
        try:
            return await _tried(MachineRun(host, EventCounter(), Limits()), visit, inspection)
        except StateError as exc:
            return _failed(visit, exc, inspection)

    def _context(self) -> ActivityContext:
        # An id of its own: what a function stores under it belongs to this test alone.
        return ActivityContext(
            activity_id=self._ids.make("test"),
            name=NAME,
            attempt=1,
            sign=lambda: "",
            execution_id=NAME,
            details=None,
            clock_ms=lambda: int(self._clock.seconds() * 1000),
            beat=lambda _context, _details: None,
            put_event=lambda *_: None,
        )


class _TestHost(ExpressHost):
    """Host of a tested state: no time passes, and nothing is waited for."""

    async def sleep(self, seconds: float) -> None:
        del seconds

    def new_token(self) -> str:
        return TOKEN

    async def dispatch(self, call: TaskCall, route: TaskRoute | None = None) -> Json:
        # What replaces a job ends with its response; a token has to come from elsewhere.
        is_answered = route is not None and (route.is_recorded or call.target.wait is not WaitMode.TOKEN)
        if call.target.wait is not WaitMode.ANSWER and not is_answered:
            raise runtime_error(
                f"{call.resource}: a test does not wait ({call.target.wait.value}); give a recorded answer in the "
                "resource map, or run the machine"
            )
        return await super().dispatch(call, route)


async def _tried(run: MachineRun, visit: StateVisit, inspection: InspectionData) -> StateTestResult:
    """Run the state, noting the data after each field."""
    state = visit.state
    if state.kind is not StateType.FAIL:
        _note_input(visit, inspection)
    if state.kind not in _WITH_RESULT:
        outcome = await run.evaluate(visit)
    else:
        result = await run.attempt(visit)
        inspection.result = result
        outcome = visit.outcome(result)
        _note_result(visit, result, inspection)
    if outcome.assigned:
        inspection.variables = outcome.assigned
    return StateTestResult(StateTestStatus.SUCCEEDED, outcome.output, outcome.next, inspection_data=inspection)


def _note_input(visit: StateVisit, inspection: InspectionData) -> None:
    match visit.state.spec:
        case TaskSpec() as spec if target_of(spec.resource).wait is WaitMode.TOKEN:
            # Its Parameters may have the token.
            visit.set_token(TOKEN)
    if visit.state.language is Language.JSONATA:
        if visit.state.arguments is not None:
            inspection.after_arguments = visit.effective_input()
        return
    inspection.after_input_path = visit.selected_input()
    if visit.state.parameters is not None:
        inspection.after_parameters = visit.effective_input()


def _note_result(visit: StateVisit, result: Json, inspection: InspectionData) -> None:
    state = visit.state
    if state.language is Language.JSONATA:
        return
    if state.result_selector is not None:
        result = inspection.after_result_selector = state.result_selector(visit.scope(result))
    inspection.after_result_path = (
        visit.frame.input if state.discards_result else (state.result_path or WHOLE).write(visit.frame.input, result)
    )


def _failed(visit: StateVisit, error: StateError, inspection: InspectionData) -> StateTestResult:
    """Return the result of a state that failed: it would be retried, is caught, or fails the machine."""
    state = visit.state
    retries = RetryCounter(state.retry)
    delay_seconds = retries.next_delay(error.error, visit.random)
    catcher = catcher_for(state.catch, error.error)
    if delay_seconds is not None:
        index = next(index for index, count in enumerate(retries.counts) if count)
        inspection.error_details = ErrorDetails(retry_index=index, retry_backoff_interval_seconds=delay_seconds)
        return _result(StateTestStatus.RETRIABLE, error, inspection)
    if catcher is None:
        return _result(StateTestStatus.FAILED, error, inspection)
    inspection.error_details = ErrorDetails(catch_index=state.catch.index(catcher))
    try:
        outcome = visit.caught_outcome(error, catcher)
    except StateError as exc:
        return _result(StateTestStatus.FAILED, exc, inspection)
    return StateTestResult(
        StateTestStatus.CAUGHT_ERROR, outcome.output, outcome.next, error.error, error.cause, inspection
    )


def _result(status: StateTestStatus, error: StateError, inspection: InspectionData) -> StateTestResult:
    return StateTestResult(status, error=error.error, cause=error.cause, inspection_data=inspection)


def _state(machine: Machine, name: str) -> State:
    """Return a state of a machine, at any depth. Raises `NotFoundError`."""
    found = {state.name: state for state in _states(machine)}
    if name not in found:
        raise NotFoundError(f"state {name[:80]!r}: the machine has no such state; it has {', '.join(found)}")
    return found[name]


def _states(machine: Machine) -> Iterator[State]:
    for state in machine.states.values():
        yield state
        match state.spec:
            case ParallelSpec() as spec:
                for branch in spec.branches:
                    yield from _states(branch)
            case MapSpec() as spec:
                yield from _states(spec.processor)
            case _:
                continue
