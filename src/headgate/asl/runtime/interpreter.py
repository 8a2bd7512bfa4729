"""Running: takes a machine from state to state. It decides; whatever has an effect is asked of its host.

Retries: what the Retry and the Catch of a state do about an error.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, Protocol, cast

from msgspec import Struct

from headgate.asl.errors import HEARTBEAT_TIMEOUT, NO_CHOICE_MATCHED, TIMEOUT, StateError, matches, runtime
from headgate.asl.expressions.formats import iso_moment, parse_moment
from headgate.asl.expressions.scope import Evaluator, Json
from headgate.asl.model.definition import (
    Catcher,
    ChoiceSpec,
    FailSpec,
    Jitter,
    Kind,
    Machine,
    MapMode,
    MapSpec,
    ParallelSpec,
    PassSpec,
    Retrier,
    State,
    TaskSpec,
    WaitSpec,
)
from headgate.asl.runtime.history import Journal
from headgate.asl.runtime.parallel import run_inline_map, run_parallel
from headgate.asl.runtime.resume_point import Frame
from headgate.asl.runtime.state_visit import Done, Lane, Visit
from headgate.asl.tasks.resources import Callee, Target, Wait, target_of

# The longest pause that Step Functions lets MaxDelaySeconds ask for. Backing off goes on for ever; numbers do not.
PAUSE_SECONDS_MAX: Final = 31_622_400.0


class Attempts:
    """How often each retrier of a state has been used in one visit to it. Every visit starts with none."""

    __slots__ = ("counts", "retriers")

    def __init__(self, retriers: Sequence[Retrier], counts: Sequence[int] = ()) -> None:
        """Take up at `counts`, in the order of the retriers; those that it leaves out have not been used."""
        self.retriers = retriers
        self.counts = [*counts, *(0 for _ in retriers[len(counts) :])]

    def pause(self, error: str, draw: random.Random, *, task: bool = True) -> float | None:
        """Return after how many seconds the state is tried again, and count it; None for giving up.

        The first retrier that names the error decides, even if it has no attempts left and a later one has. Every
        retrier counts and backs off by itself: other errors in between do not make its pauses longer.
        """
        for place, retrier in enumerate(self.retriers):
            if matches(retrier.errors, error, task=task):
                used = self.counts[place]
                if used >= retrier.attempts_max:
                    return None
                self.counts[place] += 1
                return _pause_seconds(retrier, used, draw)
        return None


def catcher_for(catchers: Sequence[Catcher], error: str, *, task: bool = True) -> Catcher | None:
    """Return the first catcher that names the error, or None if the error goes on to whatever the state is in."""
    return next((catcher for catcher in catchers if matches(catcher.errors, error, task=task)), None)


def _pause_seconds(retrier: Retrier, used: int, draw: random.Random) -> float:
    longest = PAUSE_SECONDS_MAX if retrier.delay_seconds_max is None else retrier.delay_seconds_max
    try:
        pause = min(retrier.interval_seconds * retrier.backoff_rate**used, longest)
    except OverflowError:
        pause = longest
    # Full jitter is anywhere from no pause at all to what the pause would have been.
    return draw.uniform(0.0, pause) if retrier.jitter is Jitter.FULL else pause


DATA_BYTES_MAX: Final = 262_144
EVENTS_MAX: Final = 25_000
# No history that has to be replayed grows without end.
EVENTS_A_RUN: Final = 1_000
_SECONDS_MAX: Final = 99_999_999
_ENTERED: Final = {kind: f"{kind}StateEntered" for kind in Kind}
_EXITED: Final = {kind: f"{kind}StateExited" for kind in Kind}
_BEGINNINGS: Final = ("Entered", "Scheduled", "Started")
_WORK: Final = frozenset({Kind.TASK, Kind.PARALLEL, Kind.MAP})


class Limits(Struct, frozen=True):
    """How much a machine may do. None is without limit."""

    data_bytes_max: int = DATA_BYTES_MAX
    events_max: int | None = None
    # After how many events the next run begins. Part of the input and so of the history: a later release with another
    # default goes on as this one would.
    events_a_run: int = EVENTS_A_RUN


class Call(Struct, frozen=True):
    """What a Task wants done."""

    target: Target
    input: Json
    timeout_seconds: float | None
    heartbeat_seconds: float | None
    # With a token the call only begins the work; whoever has the token ends it.
    token: str


class Host(Protocol):
    """What a machine needs of the world."""

    def now_ms(self) -> int:
        """Return the time."""

    def draw(self) -> random.Random:
        """Return where random numbers come from."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait."""

    def call(self, call: Call) -> Awaitable[Json]:
        """Do what a Task wants, and return its result. Raises `StateError`."""

    def new_token(self) -> str:
        """Return a token by which a Task is ended from outside."""

    def distribute(self, visit: Visit, spec: MapSpec, input: Json) -> Awaitable[Json]:
        """Run a distributed Map, and return its result. Raises `StateError`."""

    def at_rest(self, frame: Frame) -> None:
        """Hear that the machine is between two states, and nothing of it is under way."""


class Run:
    """One execution of a machine."""

    def __init__(self, host: Host, journal: Journal, limits: Limits) -> None:
        self.host = host
        self.journal = journal
        self.limits = limits
        self._is_over = False

    def note(self, type: str, previous_id: int, details: Mapping[str, Json] | None = None) -> int:
        """Note an event, and return its number. Raises `StateError` when there are more than may be."""
        event_id = self.journal.add(type, previous_id, details)
        events_max = self.limits.events_max
        # Beyond the limit nothing begins any more; what ends because of it may still be noted.
        if events_max is not None and event_id >= events_max and (not self._is_over or type.endswith(_BEGINNINGS)):
            self._is_over = True
            raise runtime(f"The execution reached the maximum number of history events ({events_max}).")
        return event_id

    async def machine(self, machine: Machine, frame: Frame, lane: Lane, *, is_top: bool = False) -> Json:
        """Return what the machine ends with, going on from `frame`. Raises `StateError`."""
        states = machine.states
        while True:
            done = await self._state(states[frame.state], frame, lane)
            if done.next is None:
                return done.output
            frame.move_to(done.next, done.output)
            if is_top:
                self.host.at_rest(frame)

    async def _state(self, state: State, frame: Frame, lane: Lane) -> Done:
        entered_at = iso_moment(self.host.now_ms())
        lane.event_id = self.note(_ENTERED[state.kind], lane.event_id, {"name": state.name, "input": frame.input})
        visit = Visit(state, frame, lane, entered_at, draw=self.host.draw(), now_ms=self.host.now_ms)
        try:
            done = await self._with_retries(visit) if state.kind in _WORK else await self._simple(visit)
            self._check_output(visit, done)
        except StateError as exc:
            self._note_evaluation(visit, exc)
            done = self._catch(visit, exc)
        except (ValueError, OverflowError, RecursionError) as exc:
            # A document that is none after all, such as half a character made by an expression.
            raise runtime(f"The state '{state.name}' made something that is not JSON: {exc}") from exc
        except asyncio.CancelledError:
            lane.event_id = self.note(f"{state.kind}StateAborted", lane.event_id)
            raise
        details: dict[str, Json] = {"name": state.name, "output": done.output}
        if done.assigned:
            frame.variables = {**frame.variables, **done.assigned}
            details["assignedVariables"] = done.assigned
        lane.event_id = self.note(_EXITED[state.kind], lane.event_id, details)
        return done

    def _check_output(self, visit: Visit, done: Done) -> None:
        # What goes through unchanged was measured where it came from.
        if done.output is not visit.frame.input:
            visit.check_size(done.output, "a result", self.limits.data_bytes_max)
        if done.assigned:
            visit.check_size(done.assigned, "variables", self.limits.data_bytes_max)

    def _catch(self, visit: Visit, error: StateError) -> Done:
        catcher = catcher_for(visit.state.catch, error.error)
        if catcher is None:
            raise error
        try:
            done = visit.caught(error, catcher)
        except StateError as exc:
            self._note_evaluation(visit, exc)
            raise
        self._check_output(visit, done)
        return done

    def _note_evaluation(self, visit: Visit, error: StateError) -> None:
        """Note that an expression failed; once, however many states the error goes through."""
        if error.location is None:
            return
        details = {
            "error": error.error,
            "cause": error.cause,
            "location": error.location,
            "state": visit.state.name,
        }
        error.location = None
        visit.lane.event_id = self.note("EvaluationFailed", visit.lane.event_id, details)

    # States that work, and may be tried again.

    async def _with_retries(self, visit: Visit) -> Done:
        attempts = Attempts(visit.state.retry)
        while True:
            try:
                return visit.done(await self._work(visit))
            except StateError as exc:
                self._note_evaluation(visit, exc)
                pause_seconds = attempts.pause(exc.error, visit.draw)
                if pause_seconds is None:
                    raise
            await self.host.sleep(pause_seconds)
            visit.again()

    async def _work(self, visit: Visit) -> Json:
        match visit.state.spec:
            case TaskSpec() as spec:
                return await self._task(visit, spec)
            case ParallelSpec() as spec:
                return await run_parallel(self, visit, spec, visit.effective_input())
            case MapSpec() as spec if spec.mode is MapMode.DISTRIBUTED:
                return await self._distributed(visit, spec)
            case spec:
                return await run_inline_map(self, visit, cast("MapSpec", spec), visit.effective_input())

    async def _distributed(self, visit: Visit, spec: MapSpec) -> Json:
        return await self.host.distribute(visit, spec, visit.effective_input())

    async def _task(self, visit: Visit, spec: TaskSpec) -> Json:
        target = target_of(spec.resource)
        if target.wait is Wait.TOKEN:
            visit.take_token(self.host.new_token())
        input = visit.effective_input()
        visit.check_size(input, "an input", self.limits.data_bytes_max)
        call = Call(
            target,
            input,
            _seconds(spec.timeout_seconds, visit, "TimeoutSeconds"),
            _seconds(spec.heartbeat_seconds, visit, "HeartbeatSeconds"),
            visit.token,
        )
        words, lane = target.event_words, visit.lane
        scheduled: dict[str, Json] = {**target.facts, "parameters" if words == "Task" else "input": input}
        if call.timeout_seconds is not None:
            scheduled["timeoutInSeconds"] = call.timeout_seconds
        if call.heartbeat_seconds is not None:
            scheduled["heartbeatInSeconds"] = call.heartbeat_seconds
        lane.event_id = self.note(f"{words}Scheduled", lane.event_id, scheduled)
        lane.event_id = self.note(f"{words}Started", lane.event_id, _named(target))
        if target.wait is not Wait.ANSWER and words == "Task":
            lane.event_id = self.note("TaskSubmitted", lane.event_id, _named(target))
        try:
            result = await self.host.call(call)
            visit.check_size(result, "a result", self.limits.data_bytes_max)
        except StateError as exc:
            ended = "TimedOut" if exc.error in (TIMEOUT, HEARTBEAT_TIMEOUT) else "Failed"
            details = {**_named(target), "error": exc.error, "cause": exc.cause}
            lane.event_id = self.note(f"{words}{ended}", lane.event_id, details)
            raise
        lane.event_id = self.note(f"{words}Succeeded", lane.event_id, {**_named(target), "output": result})
        return result

    # States that only look at their input, or wait.

    async def _simple(self, visit: Visit) -> Done:
        match visit.state.spec:
            case PassSpec() as spec:
                return self._pass(visit, spec)
            case ChoiceSpec() as spec:
                return self._choice(visit, spec)
            case WaitSpec() as spec:
                return await self._wait(visit, spec)
            case FailSpec() as spec:
                raise self._fail(visit, spec)
            case _:
                return self._succeed(visit)

    def _pass(self, visit: Visit, spec: PassSpec) -> Done:
        effective = visit.effective_input()
        return visit.done(effective if spec.result is None else spec.result(visit.scope(effective)))

    def _succeed(self, visit: Visit) -> Done:
        state = visit.state
        return visit.passed(visit.effective_input(), next=None, assign=state.assign, output=state.output)

    def _choice(self, visit: Visit, spec: ChoiceSpec) -> Done:
        effective = visit.effective_input()
        scope = visit.scope(effective)
        for rule in spec.rules:
            if self._holds(visit, rule.condition(scope)):
                return visit.passed(effective, next=rule.next, assign=rule.assign, output=rule.output)
        if spec.default is None:
            raise StateError(NO_CHOICE_MATCHED, f"No choice rule of the state '{visit.state.name}' matches its input")
        state = visit.state
        return visit.passed(effective, next=spec.default, assign=state.assign, output=state.output)

    @staticmethod
    def _holds(visit: Visit, answer: Json) -> bool:
        if not isinstance(answer, bool):
            cause = f"A Condition of the state '{visit.state.name}' must be true or false, not {type(answer).__name__}"
            raise visit.wrong("Condition", cause)
        return answer

    async def _wait(self, visit: Visit, spec: WaitSpec) -> Done:
        effective = visit.effective_input()
        scope = visit.scope(effective)
        if spec.seconds is not None:
            seconds = _seconds(spec.seconds, visit, "Seconds") or 0.0
        else:
            assert spec.timestamp is not None, "a Wait has seconds or a moment"
            until_ms = parse_moment(spec.timestamp(scope))
            if until_ms is None:
                cause = f"The Timestamp of the state '{visit.state.name}' is not a moment such as 2026-01-31T12:00:00Z"
                raise visit.wrong("Timestamp", cause)
            seconds = (until_ms - self.host.now_ms()) / 1000
        if seconds > 0:
            await self.host.sleep(seconds)
        state = visit.state
        return visit.passed(effective, next=state.next, assign=state.assign, output=state.output)

    def _fail(self, visit: Visit, spec: FailSpec) -> StateError:
        scope = visit.scope(visit.effective_input())
        error = "" if spec.error is None else spec.error(scope)
        cause = "" if spec.cause is None else spec.cause(scope)
        for name, value in (("Error", error), ("Cause", cause)):
            if not isinstance(value, str):
                return visit.wrong(name, f"The {name} of the state '{visit.state.name}' must be a text")
        return StateError(error, cause)


def context_of(
    *, execution_id: str, name: str, machine: str, input: Json, started_at_ms: int, redrive_count: int = 0
) -> Mapping[str, Json]:
    """Return the context object as far as it is the same for all states of an execution."""
    execution: dict[str, Json] = {
        "Id": execution_id,
        "Input": input,
        "Name": name,
        "RoleArn": "",
        "StartTime": iso_moment(started_at_ms),
        "RedriveCount": redrive_count,
    }
    return {"Execution": execution, "StateMachine": {"Id": machine, "Name": machine}}


def _named(target: Target) -> dict[str, Json]:
    return target.facts if target.callee not in (Callee.FUNCTION, Callee.ACTIVITY) else {}


def _seconds(field: Evaluator | None, visit: Visit, name: str) -> float | None:
    if field is None:
        return None
    value = field(visit.scope(visit.selected_input()))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _SECONDS_MAX or (name != "Seconds" and value == 0):
        cause = f"The {name} of the state '{visit.state.name}' must be a number of seconds up to {_SECONDS_MAX}"
        raise visit.wrong(name, cause)
    return float(value)
