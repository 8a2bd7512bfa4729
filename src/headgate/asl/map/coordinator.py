"""Coordinator of a distributed Map: the workflow code that runs its iterations with several workers.

The Map's concurrency is the number of workers. A worker of a STANDARD map run claims an iteration, runs it as a child
execution, and reports its outcome with the next claim. In a large map run each worker is an execution of its own, so
that no history grows with the number of items. A worker of an EXPRESS map run calls an activity that runs iterations in
memory.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from msgspec.structs import replace

from headgate.asl.errors import EXCEED_TOLERATED_FAILURE_THRESHOLD, TASK_FAILED, TIMEOUT, StateError
from headgate.asl.expressions.scope import Json
from headgate.asl.machines.executions import MACHINE_TAG
from headgate.asl.map.messages import (
    Iteration,
    IterationOutcome,
    IterationReport,
    MapRunOrder,
    MapRunProgress,
    MapRunVerdict,
    NextIteration,
    SplitCounts,
    SplitOrder,
)
from headgate.asl.map.results import ResultWriting
from headgate.asl.runtime.durable_host import child_workflow, task_error
from headgate.asl.runtime.execution_request import ExecutionRequest, compiled
from headgate.asl.runtime.parallel import run_all
from headgate.durable.model.failures import ChildFailure
from headgate.durable.model.history import ActivityOptions, Status
from headgate.durable.model.retry import Retry
from headgate.durable.replay.interpreter import current
from headgate.durable.sdk import workflow as hg
from headgate.durable.sdk.definitions import Activity, Workflow
from headgate.errors import DefinitionError, HeadgateError, UserError

# The names contain a dot, which no user function can have.
SPLIT: Final = "headgate.asl.map.split"
NEXT: Final = "headgate.asl.map.next"
WORK: Final = "headgate.asl.map.work"
SETTLE: Final = "headgate.asl.map.settle"
CANCEL: Final = "headgate.asl.map.cancel"
COLLECT: Final = "headgate.asl.map.collect"
WORKER: Final = "headgate.map_lane"
EXPRESS_WORKERS_MAX: Final = 4
# Up to this many iterations the workers are part of the Map's own execution.
ITERATIONS_INSIDE_MAX: Final = 100
# A worker execution continues as new after this many.
ITERATIONS_A_RUN_MAX: Final = 100
# How long a worker of a paused map run waits.
PAUSE_SECONDS: Final = 5.0


class MapRunStoppedError(Exception):
    """The map run stops: no further iteration starts."""

    def __init__(self, verdict: MapRunVerdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict

    def as_error(self) -> StateError:
        """Return the error of the state."""
        if self.verdict is MapRunVerdict.EXCEEDED:
            cause = "The specified tolerated failure threshold was exceeded"
            return StateError(EXCEED_TOLERATED_FAILURE_THRESHOLD, cause)
        return StateError(TASK_FAILED, "The map run was cancelled")


async def split(order: SplitOrder) -> SplitCounts:
    """Split the items into chunks. Raises `StateError`."""
    counts: SplitCounts = await _result(_split(order))
    return counts


async def iterate(order: MapRunOrder, chunks: int) -> None:
    """Run all iterations. Raises `MapRunStoppedError` if the map run stops early, and `StateError`."""
    workers = min(order.concurrency, chunks)
    worker: Callable[[MapRunOrder], Coroutine[Any, Any, None]] = (
        _inside_worker if chunks <= ITERATIONS_INSIDE_MAX else _outside_worker
    )
    if order.is_express:
        workers = min(workers, EXPRESS_WORKERS_MAX)
        order = replace(order, concurrency=max(1, order.concurrency // max(1, workers)))
        worker = _express_worker
    while chunks:
        await run_all(worker(order) for _ in range(workers))
        progress: MapRunProgress = await _result(_settle(order))
        _raise_if_stopped(progress.verdict)
        if not progress.open:
            return
        # A claim was released, or the index does not show every chunk yet.
        await asyncio.sleep(1)


async def collect(order: MapRunOrder, writing: ResultWriting) -> Json:
    """Return the result of the Map. Raises `StateError`."""
    return await _result(_collect(order, writing))


async def cancel(run_id: str, reason: str) -> None:
    """Cancel a map run; no effect if it has ended."""
    await _result(_cancel(run_id, reason))


# The workers.


async def _express_worker(order: MapRunOrder) -> None:
    while True:
        verdict: MapRunVerdict = await _result(_work(order))
        _raise_if_stopped(verdict)
        if verdict is MapRunVerdict.DONE:
            return
        if verdict is MapRunVerdict.WAIT:
            await asyncio.sleep(PAUSE_SECONDS)


async def _inside_worker(order: MapRunOrder) -> None:
    verdict, _ = await _run_iterations(order, None, sys.maxsize)
    _raise_if_stopped(verdict)


async def _outside_worker(order: MapRunOrder) -> None:
    try:
        verdict: MapRunVerdict = await worker_workflow.options(tags={MACHINE_TAG: order.machine})(order)
    except Exception as exc:  # noqa: BLE001 - every failure of the worker becomes the error of the Map
        raise task_error(exc) from None
    _raise_if_stopped(verdict)


async def _run_worker(order: MapRunOrder, report: IterationReport | None = None) -> MapRunVerdict:
    verdict, report = await _run_iterations(order, report, ITERATIONS_A_RUN_MAX)
    if verdict is MapRunVerdict.GO_ON:
        hg.continue_as_new(order, report)
    return verdict


async def _run_iterations(
    order: MapRunOrder, report: IterationReport | None, iterations_max: int
) -> tuple[MapRunVerdict, IterationReport | None]:
    """Run iterations one after another. Return the last verdict, and the report that was not sent yet."""
    for _ in range(iterations_max):
        following: NextIteration = await _result(_next(order, report))
        report = None
        if following.verdict is MapRunVerdict.WAIT:
            await asyncio.sleep(PAUSE_SECONDS)
        elif following.iteration is None:
            return following.verdict, None
        else:
            report = await _run_child(order, following.iteration)
    return MapRunVerdict.GO_ON, report


def _raise_if_stopped(verdict: MapRunVerdict) -> None:
    if verdict in (MapRunVerdict.EXCEEDED, MapRunVerdict.CANCELLED):
        raise MapRunStoppedError(verdict)


async def _run_child(order: MapRunOrder, iteration: Iteration) -> IterationReport:
    """Run an iteration as a child execution."""
    request = ExecutionRequest(
        machine=order.machine,
        name=iteration.execution_id,
        definition=order.definition,
        started_at_ms=current("an iteration").at_ms,
        input=iteration.input,
        limits=order.limits,
        resume=iteration.resume,
        events=iteration.events,
        redrive_count=iteration.redrive_count,
        is_redriven=iteration.resume is not None,
        is_routed=order.is_routed,
        case=order.case,
    )
    timeout_seconds = compiled(order.definition).timeout_seconds
    tags = {MACHINE_TAG: order.machine}
    child = child_workflow().options(id=iteration.execution_id, timeout=timeout_seconds, tags=tags)
    try:
        outcome = IterationOutcome(await child(request))
    except Exception as exc:  # noqa: BLE001 - every failure of the child becomes the outcome of the iteration
        failed = task_error(exc)
        is_timeout = isinstance(exc, ChildFailure) and exc.status == Status.TIMED_OUT
        outcome = IterationOutcome(error=TIMEOUT if is_timeout else failed.error, cause=failed.cause)
    return IterationReport(iteration.chunk_id, iteration.token, outcome)


async def _result(call: Awaitable[Any]) -> Any:  # noqa: ANN401 - the activity's own result
    """Return the result of an activity. Raises `StateError`."""
    try:
        return await call
    except Exception as exc:  # noqa: BLE001 - every failure of the activity becomes the error of the Map
        raise task_error(exc) from None


# Declarations of the activities for workflow code; `distributed` registers the implementations. The parameter names are
# part of recorded histories.


def activity(name: str, function: Callable[..., Any]) -> Activity[..., Any]:
    """Return an activity of distributed Maps."""
    # All are idempotent; an error in the items or the definition is permanent.
    retry = Retry(attempts=20, never=(StateError, DefinitionError))
    return Activity(function, name=name, options=ActivityOptions(retry=retry))


def _declared_split(order: SplitOrder) -> SplitCounts:
    raise _misplaced(order.run_id)


def _declared_next(order: MapRunOrder, report: IterationReport | None = None) -> NextIteration:
    del report
    raise _misplaced(order.run_id)


def _declared_work(order: MapRunOrder) -> MapRunVerdict:
    raise _misplaced(order.run_id)


def _declared_settle(order: MapRunOrder) -> MapRunProgress:
    raise _misplaced(order.run_id)


def _declared_cancel(run_id: str, reason: str) -> None:
    del reason
    raise _misplaced(run_id)


def _declared_collect(order: MapRunOrder, writing: ResultWriting) -> Json:
    del writing
    raise _misplaced(order.run_id)


def _misplaced(run_id: str) -> HeadgateError:
    return UserError(f"map run {run_id}: distributed Maps run only in an execution of a machine")


_split: Final = activity(SPLIT, _declared_split)
_next: Final = activity(NEXT, _declared_next)
_work: Final = activity(WORK, _declared_work)
_settle: Final = activity(SETTLE, _declared_settle)
_cancel: Final = activity(CANCEL, _declared_cancel)
_collect: Final = activity(COLLECT, _declared_collect)
worker_workflow: Final[Workflow[..., MapRunVerdict]] = Workflow(
    _run_worker, name=WORKER, timeout_seconds=None, retention_seconds=None, client=lambda: None
)
