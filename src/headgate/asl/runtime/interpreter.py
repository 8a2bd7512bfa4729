"""Interpreter: runs a compiled machine from state to state, with its retries and catches.

It has no side effects of its own: timers, Task calls and random numbers come from a `Host`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from random import Random
from typing import Final, Protocol, cast

from msgspec import Struct

from headgate.asl.errors import HEARTBEAT_TIMEOUT, NO_CHOICE_MATCHED, TIMEOUT, StateError, matches, runtime_error
from headgate.asl.expressions.formats import iso_timestamp, parse_timestamp
from headgate.asl.expressions.scope import Evaluator, Json
from headgate.asl.model.definition import (
    Catcher,
    ChoiceSpec,
    FailSpec,
    Jitter,
    Machine,
    MapMode,
    MapSpec,
    ParallelSpec,
    PassSpec,
    Retrier,
    State,
    StateType,
    TaskSpec,
    WaitSpec,
)
from headgate.asl.runtime.frame import Frame
from headgate.asl.runtime.history import Journal
from headgate.asl.runtime.parallel import run_inline_map, run_parallel
from headgate.asl.runtime.state_visit import Branch, StateOutcome, StateVisit
from headgate.asl.tasks.resources import TaskCall, WaitMode, target_of

# The largest MaxDelaySeconds of Step Functions, and the cap of an exponential backoff without one.
DELAY_SECONDS_MAX: Final = 31_622_400.0


class RetryCounter:
    """Counts the uses of each Retry entry during one visit of a state."""

    __slots__ = ("counts", "retriers")

    def __init__(self, retriers: Sequence[Retrier], counts: Sequence[int] = ()) -> None:
        """Start from `counts`, in the order of the retriers; missing counts are 0."""
        self.retriers = retriers
        self.counts = [*counts, *(0 for _ in retriers[len(counts) :])]

    def next_delay(self, error: str, random: Random, *, task: bool = True) -> float | None:
        """Count a retry and return its delay in seconds; None if there is no retry.

        The first retrier that matches the error decides, even if it is exhausted and a later one is not. Each retrier
        counts and backs off on its own: errors that other retriers match do not lengthen its delays.
        """
        for index, retrier in enumerate(self.retriers):
            if matches(retrier.errors, error, task=task):
                used = self.counts[index]
                if used >= retrier.attempts_max:
                    return None
                self.counts[index] += 1
                return _delay_seconds(retrier, used, random)
        return None


def catcher_for(catchers: Sequence[Catcher], error: str, *, task: bool = True) -> Catcher | None:
    """Return the first catcher that matches the error; None if the error propagates."""
    return next((catcher for catcher in catchers if matches(catcher.errors, error, task=task)), None)


def _delay_seconds(retrier: Retrier, used: int, random: Random) -> float:
    longest = DELAY_SECONDS_MAX if retrier.delay_seconds_max is None else retrier.delay_seconds_max
    try:
        delay = min(retrier.interval_seconds * retrier.backoff_rate**used, longest)
    except OverflowError:
        delay = longest
    return random.uniform(0.0, delay) if retrier.jitter is Jitter.FULL else delay


DATA_BYTES_MAX: Final = 262_144
EVENTS_MAX: Final = 25_000
# After this many events a run continues as new, which bounds the cost of a replay.
EVENTS_A_RUN: Final = 1_000
_SECONDS_MAX: Final = 99_999_999
_ENTERED: Final = {kind: f"{kind}StateEntered" for kind in StateType}
_EXITED: Final = {kind: f"{kind}StateExited" for kind in StateType}
_START_EVENTS: Final = ("Entered", "Scheduled", "Started")
# States that a branch or an iteration may enter in a row without a Wait, a Task, a Parallel or a Map.
IDLE_STATES_MAX: Final = 25_000
_IDLE: Final = frozenset({StateType.PASS, StateType.CHOICE})
_RETRYABLE: Final = frozenset({StateType.TASK, StateType.PARALLEL, StateType.MAP})


class Limits(Struct, frozen=True):
    """Limits of an execution. None is unlimited."""

    data_bytes_max: int = DATA_BYTES_MAX
    events_max: int | None = None
    # Events before the run continues as new. Part of the workflow's input, so an execution keeps its value when a later
    # release has another default.
    events_a_run: int = EVENTS_A_RUN


class Host(Protocol):
    """The environment of a machine: time, random numbers, timers, Tasks and distributed Maps."""

    def now_ms(self) -> int:
        """Return the current time."""

    def random(self) -> Random:
        """Return the source of random numbers."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait for a timer."""

    def call(self, call: TaskCall) -> Awaitable[Json]:
        """Run a Task and return its result. Raises `StateError`."""

    def new_token(self) -> str:
        """Return a new task token."""

    def distribute(self, visit: StateVisit, spec: MapSpec, input: Json) -> Awaitable[Json]:
        """Run a distributed Map and return its result. Raises `StateError`."""

    def on_transition(self, frame: Frame) -> None:
        """Handle a transition of the outermost machine; nothing is in progress at that point."""


class MachineRun:
    """One execution of a machine."""

    def __init__(self, host: Host, journal: Journal, limits: Limits) -> None:
        self.host = host
        self.journal = journal
        self.limits = limits
        self._is_exhausted = False

    def record(self, type: str, previous_id: int, details: Mapping[str, Json] | None = None) -> int:
        """Add an event to the journal and return its number. Raises `StateError` beyond the event limit."""
        event_id = self.journal.add(type, previous_id, details)
        events_max = self.limits.events_max
        # Beyond the limit nothing new starts; the ends that this causes are still recorded.
        if (
            events_max is not None
            and event_id >= events_max
            and (not self._is_exhausted or type.endswith(_START_EVENTS))
        ):
            self._is_exhausted = True
            raise runtime_error(f"The execution reached the maximum number of history events ({events_max}).")
        return event_id

    async def machine(self, machine: Machine, frame: Frame, branch: Branch, *, is_top: bool = False) -> Json:
        """Run the machine from `frame` to its end and return its output. Raises `StateError`."""
        states = machine.states
        idle_states = 0
        while True:
            state = states[frame.state]
            outcome = await self._state(state, frame, branch)
            if outcome.next is None:
                return outcome.output
            frame.move_to(outcome.next, outcome.output)
            if is_top:
                self.host.on_transition(frame)
                continue
            # A branch cannot continue as new: a loop that neither waits nor calls anything would never end its turn.
            idle_states = idle_states + 1 if state.kind in _IDLE else 0
            if idle_states >= IDLE_STATES_MAX:
                raise runtime_error(f"The branch entered {IDLE_STATES_MAX} states in a row without a Wait or a Task.")

    async def _state(self, state: State, frame: Frame, branch: Branch) -> StateOutcome:
        entered_at = iso_timestamp(self.host.now_ms())
        details: dict[str, Json] = {"name": state.name, "input": frame.input}
        branch.event_id = self.record(_ENTERED[state.kind], branch.event_id, details)
        visit = StateVisit(state, frame, branch, entered_at, random=self.host.random(), now_ms=self.host.now_ms)
        try:
            outcome = await self._with_retries(visit) if state.kind in _RETRYABLE else await self.evaluate(visit)
            self._check_output(visit, outcome)
        except StateError as exc:
            self._record_evaluation_error(visit, exc)
            outcome = self._catch(visit, exc)
        except (ValueError, OverflowError, RecursionError) as exc:
            # An expression made a value that JSON cannot hold, such as a lone surrogate.
            raise runtime_error(f"The state '{state.name}' made something that is not JSON: {exc}") from exc
        except asyncio.CancelledError:
            branch.event_id = self.record(f"{state.kind}StateAborted", branch.event_id)
            raise
        details = {"name": state.name, "output": outcome.output}
        if outcome.assigned:
            frame.variables = {**frame.variables, **outcome.assigned}
            details["assignedVariables"] = outcome.assigned
        branch.event_id = self.record(_EXITED[state.kind], branch.event_id, details)
        return outcome

    def _check_output(self, visit: StateVisit, outcome: StateOutcome) -> None:
        # An unchanged input was checked as the output of the state before.
        if outcome.output is not visit.frame.input:
            visit.check_size(outcome.output, "a result", self.limits.data_bytes_max)
        if outcome.assigned:
            visit.check_size(outcome.assigned, "variables", self.limits.data_bytes_max)

    def _catch(self, visit: StateVisit, error: StateError) -> StateOutcome:
        catcher = catcher_for(visit.state.catch, error.error)
        if catcher is None:
            raise error
        try:
            outcome = visit.caught_outcome(error, catcher)
        except StateError as exc:
            self._record_evaluation_error(visit, exc)
            raise
        self._check_output(visit, outcome)
        return outcome

    def _record_evaluation_error(self, visit: StateVisit, error: StateError) -> None:
        """Record a failed expression once, however many states the error propagates through."""
        if error.location is None:
            return
        details = {
            "error": error.error,
            "cause": error.cause,
            "location": error.location,
            "state": visit.state.name,
        }
        error.location = None
        visit.branch.event_id = self.record("EvaluationFailed", visit.branch.event_id, details)

    # States that can be retried: Task, Parallel and Map.

    async def _with_retries(self, visit: StateVisit) -> StateOutcome:
        retries = RetryCounter(visit.state.retry)
        while True:
            try:
                return visit.outcome(await self.attempt(visit))
            except StateError as exc:
                self._record_evaluation_error(visit, exc)
                delay_seconds = retries.next_delay(exc.error, visit.random)
                if delay_seconds is None:
                    raise
            await self.host.sleep(delay_seconds)
            visit.start_attempt()

    async def attempt(self, visit: StateVisit) -> Json:
        """Run a Task, Parallel or Map once and return its result. Raises `StateError`."""
        match visit.state.spec:
            case TaskSpec() as spec:
                return await self._task(visit, spec)
            case ParallelSpec() as spec:
                return await run_parallel(self, visit, spec, visit.effective_input())
            case MapSpec() as spec if spec.mode is MapMode.DISTRIBUTED:
                return await self.host.distribute(visit, spec, visit.effective_input())
            case spec:
                return await run_inline_map(self, visit, cast("MapSpec", spec), visit.effective_input())

    async def _task(self, visit: StateVisit, spec: TaskSpec) -> Json:
        target = target_of(spec.resource)
        if target.wait is WaitMode.TOKEN:
            visit.set_token(self.host.new_token())
        input = visit.effective_input()
        visit.check_size(input, "an input", self.limits.data_bytes_max)
        call = TaskCall(
            target,
            input,
            _seconds(spec.timeout_seconds, visit, "TimeoutSeconds"),
            _seconds(spec.heartbeat_seconds, visit, "HeartbeatSeconds"),
            visit.token,
            spec.resource,
            visit.state.name,
        )
        prefix, branch = target.event_prefix, visit.branch
        service_details = target.event_details if prefix == "Task" else {}
        scheduled: dict[str, Json] = {**target.event_details, "parameters" if prefix == "Task" else "input": input}
        if call.timeout_seconds is not None:
            scheduled["timeoutInSeconds"] = call.timeout_seconds
        if call.heartbeat_seconds is not None:
            scheduled["heartbeatInSeconds"] = call.heartbeat_seconds
        branch.event_id = self.record(f"{prefix}Scheduled", branch.event_id, scheduled)
        branch.event_id = self.record(f"{prefix}Started", branch.event_id, service_details)
        if target.wait is not WaitMode.ANSWER and prefix == "Task":
            branch.event_id = self.record("TaskSubmitted", branch.event_id, service_details)
        try:
            result = await self.host.call(call)
            visit.check_size(result, "a result", self.limits.data_bytes_max)
        except StateError as exc:
            end = "TimedOut" if exc.error in (TIMEOUT, HEARTBEAT_TIMEOUT) else "Failed"
            details = {**service_details, "error": exc.error, "cause": exc.cause}
            branch.event_id = self.record(f"{prefix}{end}", branch.event_id, details)
            raise
        branch.event_id = self.record(f"{prefix}Succeeded", branch.event_id, {**service_details, "output": result})
        return result

    # States without retries: they transform their input, choose or wait.

    async def evaluate(self, visit: StateVisit) -> StateOutcome:
        """Run a state without retries. Raises `StateError`."""
        match visit.state.spec:
            case PassSpec() as spec:
                effective = visit.effective_input()
                return visit.outcome(effective if spec.result is None else spec.result(visit.scope(effective)))
            case ChoiceSpec() as spec:
                return self._choice(visit, spec)
            case WaitSpec() as spec:
                return await self._wait(visit, spec)
            case FailSpec() as spec:
                raise self._fail(visit, spec)
            case _:
                return self._succeed(visit)

    def _succeed(self, visit: StateVisit) -> StateOutcome:
        state = visit.state
        return visit.outcome_without_result(
            visit.effective_input(), next=None, assign=state.assign, output=state.output
        )

    def _choice(self, visit: StateVisit, spec: ChoiceSpec) -> StateOutcome:
        effective = visit.effective_input()
        scope = visit.scope(effective)
        for rule in spec.rules:
            if self._holds(visit, rule.condition(scope)):
                return visit.outcome_without_result(effective, next=rule.next, assign=rule.assign, output=rule.output)
        if spec.default is None:
            raise StateError(NO_CHOICE_MATCHED, f"No choice rule of the state '{visit.state.name}' matches its input")
        state = visit.state
        return visit.outcome_without_result(effective, next=spec.default, assign=state.assign, output=state.output)

    @staticmethod
    def _holds(visit: StateVisit, answer: Json) -> bool:
        if not isinstance(answer, bool):
            cause = f"A Condition of the state '{visit.state.name}' must be true or false, not {type(answer).__name__}"
            raise visit.field_error("Condition", cause)
        return answer

    async def _wait(self, visit: StateVisit, spec: WaitSpec) -> StateOutcome:
        effective = visit.effective_input()
        scope = visit.scope(effective)
        if spec.seconds is not None:
            seconds = _seconds(spec.seconds, visit, "Seconds") or 0.0
        else:
            assert spec.timestamp is not None, "a Wait has Seconds or a Timestamp"
            until_ms = parse_timestamp(spec.timestamp(scope))
            if until_ms is None:
                cause = f"The Timestamp of the state '{visit.state.name}' is not a moment such as 2026-01-31T12:00:00Z"
                raise visit.field_error("Timestamp", cause)
            seconds = (until_ms - self.host.now_ms()) / 1000
        if seconds > 0:
            await self.host.sleep(seconds)
        state = visit.state
        return visit.outcome_without_result(effective, next=state.next, assign=state.assign, output=state.output)

    def _fail(self, visit: StateVisit, spec: FailSpec) -> StateError:
        scope = visit.scope(visit.effective_input())
        error = "" if spec.error is None else spec.error(scope)
        cause = "" if spec.cause is None else spec.cause(scope)
        for name, value in (("Error", error), ("Cause", cause)):
            if not isinstance(value, str):
                return visit.field_error(name, f"The {name} of the state '{visit.state.name}' must be a text")
        return StateError(error, cause)


def execution_context(
    *, execution_id: str, name: str, machine: str, input: Json, started_at_ms: int, redrive_count: int = 0
) -> Mapping[str, Json]:
    """Return the part of the context object that all states of an execution share."""
    execution: dict[str, Json] = {
        "Id": execution_id,
        "Input": input,
        "Name": name,
        "RoleArn": "",
        "StartTime": iso_timestamp(started_at_ms),
        "RedriveCount": redrive_count,
    }
    return {"Execution": execution, "StateMachine": {"Id": machine, "Name": machine}}


def _seconds(field: Evaluator | None, visit: StateVisit, name: str) -> float | None:
    if field is None:
        return None
    value = field(visit.scope(visit.selected_input()))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _SECONDS_MAX or (name != "Seconds" and value == 0):
        cause = f"The {name} of the state '{visit.state.name}' must be a number of seconds up to {_SECONDS_MAX}"
        raise visit.field_error(name, cause)
    return float(value)
