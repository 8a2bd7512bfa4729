"""Express: iterations of a distributed Map that run in memory, many in one activity and each at least once.

Functions are called here and not by the engine; a pause of a Wait or a Retry passes in this process. A worker that dies
has its iterations done again by another. As in an Express workflow of Step Functions, there are no task tokens, no
waiting for jobs, and no iteration lasts longer than five minutes.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Final

import msgspec

from headgate.asl.errors import TASK_FAILED, TIMEOUT, StateError, runtime
from headgate.asl.executions import functions_of
from headgate.asl.expressions.scope import Json
from headgate.asl.map.ledger import Ended, MapBooks, Work, inputs_of
from headgate.asl.map.messages import Ending, MapOrder, Standing, Verdict
from headgate.asl.model.definition import MapSpec
from headgate.asl.requests import Request, compiled
from headgate.asl.runtime.durable_host import DurableHost
from headgate.asl.runtime.durable_host import failed_with as failure_of
from headgate.asl.runtime.history import Tally
from headgate.asl.runtime.interpreter import Call, Run, context_of
from headgate.asl.runtime.resume_point import Frame
from headgate.asl.runtime.state_visit import Lane, Visit
from headgate.asl.tasks.resources import Wait, as_error
from headgate.clock import Clock
from headgate.durable.model import payload
from headgate.durable.model.failures import Cancelled
from headgate.durable.sdk.activity_context import ActivityContext, Later, activity, enter, leave
from headgate.durable.sdk.app import App
from headgate.durable.sdk.definitions import Activity
from headgate.durable.worker.subprocess_executor import perform_isolated
from headgate.errors import NotFoundError
from headgate.fanout.model.rows import Chunk

# As long as Step Functions lets an Express workflow run.
SECONDS_MAX: Final = 300.0
# An activity takes chunks for so long, so that a change of the worker or of the map run is soon heeded.
WORK_SECONDS: Final = 5.0
# So long a round is to take: what is done in it is written down together, and done again together after a crash.
ROUND_SECONDS: Final = 1.0
CHUNKS_MAX: Final = 200
THREADS_MAX: Final = 32


class ExpressWorker:
    """Does the iterations of EXPRESS map runs with the functions of an app."""

    def __init__(self, app: App, books: MapBooks, clock: Clock) -> None:
        self._app = app
        self._books = books
        self._clock = clock

    def work(self, order: MapOrder) -> Verdict:
        """Do iterations for a while, and return whether there is more to do.

        Raises `NotFoundError` if this process lacks a function; another one may have it.
        """
        missing = sorted(functions_of(compiled(order.definition)) - self._app.activities.keys())
        if missing:
            raise NotFoundError(f"map run {order.run_id}: app {self._app.name} has no function {', '.join(missing)}")
        me = activity()
        until = self._clock.monotonic() + WORK_SECONDS
        count = order.concurrency
        with ThreadPoolExecutor(min(order.concurrency, THREADS_MAX)) as threads, asyncio.Runner() as runner:
            while True:
                standing = self._books.standing(order.run_id, order.tolerance)
                if standing.verdict is not Verdict.GO_ON:
                    return standing.verdict
                began = self._clock.monotonic()
                works = self._books.take(order.run_id, count, lambda chunk, _: f"{order.run_id}:{chunk.start}")
                if not works:
                    # Others have the rest.
                    return Verdict.DONE
                ended = runner.run(self._round(order, standing, works, threads))
                if me.cancelled:
                    raise Cancelled
                self._books.end(ended)
                now = self._clock.monotonic()
                if now >= until:
                    return Verdict.GO_ON
                count = _next_count(count, now - began)

    async def _round(
        self, order: MapOrder, standing: Standing, works: Sequence[Work], threads: Executor
    ) -> list[Ended]:
        """Do the iterations of some chunks, as many at a time as the Map allows, and return how each ended.

        None is begun any more once more have failed than are tolerated.
        """
        tables = [_Table(work.chunk, inputs_of(order, work.chunk), work.endings) for work in works]
        waiting = ((table, place) for table in tables for place, ending in enumerate(table.endings) if ending is None)
        failed = standing.items_failed

        async def lane() -> None:
            nonlocal failed
            for table, place in waiting:
                table.began_ms = table.began_ms or self._now_ms()
                name = f"{order.run_id}:{table.chunk.start + place}"
                ending = await self._iterate(order, name, table.inputs[place], threads)
                table.endings[place], table.ended_ms = ending, self._now_ms()
                if ending.error is not None:
                    failed += table.chunk.items if order.is_batched else 1
                if order.tolerance.is_exceeded(failed, standing.items):
                    return

        await asyncio.gather(*(lane() for _ in range(order.concurrency)))
        return [Ended(table.chunk, table.endings, table.began_ms, table.ended_ms) for table in tables]

    async def _iterate(self, order: MapOrder, name: str, input: Json, threads: Executor) -> Ending:
        machine = compiled(order.definition)
        request = Request(order.machine, name, order.definition, self._now_ms(), input, limits=order.limits)
        host = ExpressHost(request, self._app, self._clock, threads)
        run = Run(host, Tally(), order.limits)
        try:
            async with asyncio.timeout(min(machine.timeout_seconds or SECONDS_MAX, SECONDS_MAX)):
                output = await run.machine(machine, Frame(machine.start_at, input), Lane(host.context))
        except TimeoutError:
            return Ending(error=TIMEOUT, cause=f"iteration {name} took too long")
        except StateError as exc:
            return Ending(error=exc.error, cause=exc.cause)
        return Ending(output)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


class _Table:
    """The iterations of a chunk while they are done."""

    def __init__(self, chunk: Chunk, inputs: list[Json], endings: list[Ending | None]) -> None:
        self.chunk = chunk
        self.inputs = inputs
        self.endings = endings or [None] * len(inputs)
        self.began_ms: int | None = None
        self.ended_ms: int | None = None


class ExpressHost(DurableHost):
    """What a machine needs, by means of this process alone."""

    def __init__(self, request: Request, app: App, clock: Clock, threads: Executor) -> None:
        # In place of the execution that a durable host belongs to: there is none.
        self.request = request
        self._app = app
        self._clock = clock
        self._threads = threads
        self._random = random.Random()
        self._calls = 0
        self.context = context_of(
            execution_id=request.name,
            name=request.name,
            machine=request.machine,
            input=request.input,
            started_at_ms=request.started_at_ms,
        )

    def now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)

    def draw(self) -> random.Random:
        return self._random

    def new_token(self) -> str:
        raise runtime("An EXPRESS iteration cannot wait for a task token; use the ExecutionType STANDARD")

    def at_rest(self, frame: Frame) -> None:
        del frame

    def distribute(self, visit: Visit, spec: MapSpec, input: Json) -> Awaitable[Json]:
        del spec, input
        raise runtime(f"The distributed Map '{visit.state.name}' cannot be within an EXPRESS iteration")

    async def call(self, call: Call) -> Json:
        if call.target.wait in (Wait.JOB, Wait.JOB_AS_JSON):
            raise runtime("An EXPRESS iteration cannot wait for a job (.sync); use the ExecutionType STANDARD")
        return await super().call(call)

    async def function(self, name: str, input: Json, call: Call | None = None) -> Json:
        definition = self._app.activities.get(name)
        if definition is None:
            raise as_error(NotFoundError(f"function {name}: app {self._app.name} does not have it"))
        raw = payload.encode(input, what=f"input of {name}")
        timeout_seconds = None if call is None else call.timeout_seconds
        try:
            async with asyncio.timeout(timeout_seconds) as limit:
                answer = await self._answer(definition, raw, timeout_seconds)
        except TimeoutError as exc:
            if limit.expired():
                raise StateError(TIMEOUT, f"{name} took longer than {timeout_seconds:g} s") from None
            raise failure_of(exc) from None
        except Exception as exc:  # noqa: BLE001 - whatever the function raised is how the Task failed
            raise failure_of(exc) from None
        return answer

    async def _answer(self, definition: Activity[..., Any], raw: msgspec.Raw, timeout_seconds: float | None) -> Json:
        if definition.isolate:
            return await self._in_thread(_isolated, definition, raw, timeout_seconds)
        args, kwargs = definition.signature.unpack(raw, what=f"input of {definition.name}")
        mark = enter(self._own_context())
        try:
            if definition.is_async:
                answer = await definition.function(*args, **kwargs)
            else:
                answer = await self._in_thread(definition.function, *args, **kwargs)
        finally:
            leave(mark)
        if isinstance(answer, Later):
            raise runtime(f"{definition.name} is completed later, which an EXPRESS iteration cannot wait for")
        return msgspec.json.decode(payload.encode(answer, what=f"result of {definition.name}"))

    def _own_context(self) -> ActivityContext:
        """Return the activity as this Task sees it: whatever is made under its id is made once for each Task."""
        self._calls += 1
        around = activity()
        return msgspec.structs.replace(around, activity_id=f"{around.activity_id}#{self.request.name}#{self._calls}")

    def _in_thread(self, function: Any, *args: Any, **kwargs: Any) -> Awaitable[Any]:  # noqa: ANN401 - users' own
        # With the context of the activity, so that the function finds itself in one.
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._threads, lambda: context.run(function, *args, **kwargs))


def _isolated(definition: Activity[..., Any], raw: msgspec.Raw, timeout_seconds: float | None) -> Json:
    ended = perform_isolated(definition, raw, activity(), timeout_seconds)
    if ended is None:
        raise StateError(TASK_FAILED, f"{definition.name}: nothing can complete it later in an EXPRESS execution")
    if ended.error is not None:
        raise StateError(TIMEOUT if ended.timeout is not None else ended.error.type, str(ended.error))
    return msgspec.json.decode(ended.result)


def _next_count(count: int, took_seconds: float) -> int:
    """Return how many chunks to take next, so that a round takes about as long as it should."""
    if took_seconds < ROUND_SECONDS / 2:
        return min(2 * count, CHUNKS_MAX)
    return max(1, count // 2) if took_seconds > 2 * ROUND_SECONDS else count
