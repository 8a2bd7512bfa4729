"""EXPRESS iterations of a distributed Map: run in memory, many in one activity, each at least once.

Functions and timers run in this process instead of the durable engine; if the worker dies, another repeats its
iterations. As in an Express workflow of Step Functions, there are no task tokens and no `.sync` jobs, and an iteration
lasts at most five minutes.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from random import Random
from typing import Any, Final, TypeAlias

import msgspec

from headgate.asl.errors import TASK_FAILED, TIMEOUT, StateError, runtime_error
from headgate.asl.expressions.scope import Json
from headgate.asl.machines.executions import functions_of
from headgate.asl.map.ledger import ChunkOutcome, ClaimedChunk, MapLedger, inputs_of
from headgate.asl.map.messages import IterationOutcome, MapRunOrder, MapRunProgress, MapRunVerdict
from headgate.asl.model.definition import MapSpec
from headgate.asl.runtime.durable_host import task_error
from headgate.asl.runtime.execution_request import ExecutionRequest, compiled
from headgate.asl.runtime.frame import Frame
from headgate.asl.runtime.history import EventCounter
from headgate.asl.runtime.interpreter import MachineRun, execution_context
from headgate.asl.runtime.state_visit import Branch, StateVisit
from headgate.asl.runtime.task_router import TaskRouter
from headgate.asl.tasks.resources import TaskCall, WaitMode, to_state_error
from headgate.asl.tasks.task_routes import RoutedCall, TaskRoute
from headgate.clock import Clock
from headgate.durable.model import payload
from headgate.durable.model.failures import Cancelled
from headgate.durable.sdk.activity_context import ActivityContext, Deferred, activity, enter, leave
from headgate.durable.sdk.app import App
from headgate.durable.sdk.definitions import Activity
from headgate.durable.worker.subprocess_executor import perform_isolated
from headgate.errors import NotFoundError
from headgate.fanout.model.rows import Chunk

# The longest duration of an Express workflow in Step Functions.
SECONDS_MAX: Final = 300.0
# An activity claims chunks for this long, then returns, so that cancellation and pauses take effect soon.
WORK_SECONDS: Final = 5.0
# The target duration of a round. The outcomes of a round are stored together, and a crash repeats all of it.
ROUND_SECONDS: Final = 1.0
CHUNKS_MAX: Final = 200
THREADS_MAX: Final = 32

FindRoute: TypeAlias = Callable[[RoutedCall], TaskRoute | None]


class ExpressWorker:
    """Runs the iterations of EXPRESS map runs with the functions of an app."""

    def __init__(self, app: App, ledger: MapLedger, clock: Clock, find_route: FindRoute) -> None:
        self._app = app
        self._ledger = ledger
        self._clock = clock
        self._find_route = find_route

    def work(self, order: MapRunOrder) -> MapRunVerdict:
        """Run iterations for about `WORK_SECONDS`, and return the verdict on the map run.

        Raises `NotFoundError` if this process lacks a function; a retry in another process may have it.
        """
        missing = sorted(functions_of(compiled(order.definition)) - self._app.activities.keys())
        # With routes, a missing function may be replaced; if not, its Task fails.
        if missing and not order.is_routed:
            raise NotFoundError(f"map run {order.run_id}: app {self._app.name} has no function {', '.join(missing)}")
        context = activity()
        until = self._clock.monotonic() + WORK_SECONDS
        count = order.concurrency
        with ThreadPoolExecutor(min(order.concurrency, THREADS_MAX)) as threads, asyncio.Runner() as runner:
            while True:
                progress = self._ledger.progress(order.run_id, order.tolerance)
                if progress.verdict is not MapRunVerdict.GO_ON:
                    return progress.verdict
                started = self._clock.monotonic()
                claimed = self._ledger.claim(order.run_id, count, lambda chunk, _: f"{order.run_id}:{chunk.start}")
                if not claimed:
                    # Other workers hold the rest.
                    return MapRunVerdict.DONE
                outcomes = runner.run(self._round(order, progress, claimed, threads))
                if context.cancelled:
                    raise Cancelled
                self._ledger.record(outcomes)
                now = self._clock.monotonic()
                if now >= until:
                    return MapRunVerdict.GO_ON
                count = _next_count(count, now - started)

    async def _round(
        self, order: MapRunOrder, progress: MapRunProgress, claimed: Sequence[ClaimedChunk], threads: Executor
    ) -> list[ChunkOutcome]:
        """Run the iterations of claimed chunks with the Map's concurrency, and return their outcomes.

        No iteration starts after the tolerated failures are exceeded.
        """
        chunks = [_RunningChunk(each.chunk, inputs_of(order, each.chunk), each.outcomes) for each in claimed]
        pending = ((each, index) for each in chunks for index, outcome in enumerate(each.outcomes) if outcome is None)
        failed = progress.items_failed

        async def worker() -> None:
            nonlocal failed
            for running, index in pending:
                running.started_ms = running.started_ms or self._now_ms()
                name = f"{order.run_id}:{running.chunk.start + index}"
                outcome = await self._iterate(order, name, running.inputs[index], threads)
                running.outcomes[index], running.ended_ms = outcome, self._now_ms()
                if outcome.error is not None:
                    failed += running.chunk.items if order.is_batched else 1
                if order.tolerance.is_exceeded(failed, progress.items):
                    return

        await asyncio.gather(*(worker() for _ in range(order.concurrency)))
        return [ChunkOutcome(each.chunk, each.outcomes, each.started_ms, each.ended_ms) for each in chunks]

    async def _iterate(self, order: MapRunOrder, name: str, input: Json, threads: Executor) -> IterationOutcome:
        machine = compiled(order.definition)
        request = ExecutionRequest(
            order.machine,
            name,
            order.definition,
            self._now_ms(),
            input,
            limits=order.limits,
            is_routed=order.is_routed,
            case=order.case,
        )
        host = ExpressHost(request, self._app, self._clock, threads, self._find_route)
        run = MachineRun(host, EventCounter(), order.limits)
        try:
            async with asyncio.timeout(min(machine.timeout_seconds or SECONDS_MAX, SECONDS_MAX)):
                output = await run.machine(machine, Frame(machine.start_at, input), Branch(host.context))
        except TimeoutError:
            return IterationOutcome(error=TIMEOUT, cause=f"iteration {name} took too long")
        except StateError as exc:
            return IterationOutcome(error=exc.error, cause=exc.cause)
        return IterationOutcome(output)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


class _RunningChunk:
    """The iterations of a chunk while they run."""

    def __init__(self, chunk: Chunk, inputs: list[Json], outcomes: list[IterationOutcome | None]) -> None:
        self.chunk = chunk
        self.inputs = inputs
        self.outcomes = outcomes or [None] * len(inputs)
        self.started_ms: int | None = None
        self.ended_ms: int | None = None


class ExpressHost(TaskRouter):
    """Host of an EXPRESS iteration: calls functions in this process."""

    def __init__(
        self, request: ExecutionRequest, app: App, clock: Clock, threads: Executor, find_route: FindRoute
    ) -> None:
        super().__init__(request)
        self._app = app
        self._clock = clock
        self._threads = threads
        self._find_route = find_route
        self._random = Random()
        self._calls = 0
        self.context = execution_context(
            execution_id=request.name,
            name=request.name,
            machine=request.machine,
            input=request.input,
            started_at_ms=request.started_at_ms,
        )

    def now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)

    def random(self) -> Random:
        return self._random

    def new_token(self) -> str:
        raise runtime_error("An EXPRESS iteration cannot wait for a task token; use the ExecutionType STANDARD")

    def on_transition(self, frame: Frame) -> None:
        del frame

    def distribute(self, visit: StateVisit, spec: MapSpec, input: Json) -> Awaitable[Json]:
        del spec, input
        raise runtime_error(f"The distributed Map '{visit.state.name}' cannot be within an EXPRESS iteration")

    async def dispatch(self, call: TaskCall, route: TaskRoute | None = None) -> Json:
        if route is None and call.target.wait in (WaitMode.JOB, WaitMode.JOB_AS_JSON):
            raise runtime_error("An EXPRESS iteration cannot wait for a job (.sync); use the ExecutionType STANDARD")
        return await super().dispatch(call, route)

    def find_route(self, call: RoutedCall) -> TaskRoute | None:
        return self._find_route(call)

    async def fanout(self, call: TaskCall) -> Json:
        raise runtime_error(f"{call.resource}: an EXPRESS iteration cannot wait for a fan-out; use STANDARD")

    async def function(self, name: str, input: Json, call: TaskCall | None = None) -> Json:
        definition = self._app.activities.get(name)
        if definition is None:
            raise to_state_error(NotFoundError(f"function {name}: app {self._app.name} does not have it"))
        raw = payload.encode(input, what=f"input of {name}")
        timeout_seconds = None if call is None else call.timeout_seconds
        try:
            async with asyncio.timeout(timeout_seconds) as limit:
                return await self._run_function(definition, raw, timeout_seconds)
        except TimeoutError as exc:
            if limit.expired():
                raise StateError(TIMEOUT, f"{name} took longer than {timeout_seconds:g} s") from None
            raise task_error(exc) from None
        except Exception as exc:  # noqa: BLE001 - every error of the function becomes the error of the Task
            raise task_error(exc) from None

    async def _run_function(
        self, definition: Activity[..., Any], raw: msgspec.Raw, timeout_seconds: float | None
    ) -> Json:
        if definition.isolate:
            return await self._in_thread(_run_isolated, definition, raw, timeout_seconds)
        args, kwargs = definition.signature.unpack(raw, what=f"input of {definition.name}")
        mark = enter(self._task_context())
        try:
            if definition.is_async:
                result = await definition.function(*args, **kwargs)
            else:
                result = await self._in_thread(definition.function, *args, **kwargs)
        finally:
            leave(mark)
        if isinstance(result, Deferred):
            raise runtime_error(f"{definition.name} is completed later, which an EXPRESS iteration cannot wait for")
        return msgspec.json.decode(payload.encode(result, what=f"result of {definition.name}"))

    def _task_context(self) -> ActivityContext:
        """Return an activity context with an id of its own for each Task, for idempotency keys made from it."""
        self._calls += 1
        outer = activity()
        return msgspec.structs.replace(outer, activity_id=f"{outer.activity_id}#{self.request.name}#{self._calls}")

    def _in_thread(self, function: Any, *args: Any, **kwargs: Any) -> Awaitable[Any]:  # noqa: ANN401 - users' own
        # The function runs in the context of the activity.
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._threads, lambda: context.run(function, *args, **kwargs))


def _run_isolated(definition: Activity[..., Any], raw: msgspec.Raw, timeout_seconds: float | None) -> Json:
    ended = perform_isolated(definition, raw, activity(), timeout_seconds)
    if ended is None:
        raise StateError(TASK_FAILED, f"{definition.name}: nothing can complete it later in an EXPRESS execution")
    if ended.error is not None:
        raise StateError(TIMEOUT if ended.timeout is not None else ended.error.type, str(ended.error))
    return msgspec.json.decode(ended.result)


def _next_count(count: int, took_seconds: float) -> int:
    """Return the number of chunks to claim next, so that a round lasts about `ROUND_SECONDS`."""
    if took_seconds < ROUND_SECONDS / 2:
        return min(2 * count, CHUNKS_MAX)
    return max(1, count // 2) if took_seconds > 2 * ROUND_SECONDS else count
