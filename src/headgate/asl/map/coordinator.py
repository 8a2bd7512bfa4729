"""Map lanes: what an execution does while its distributed Map runs. It asks for iterations, and waits for their ends.

As many lanes go beside each other as the Map allows at once. A lane of a STANDARD map run takes an iteration, runs it
as a child execution, and reports it with the request for the next. In a large map run the lanes are executions
themselves, so that no history grows with the number of items.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from msgspec.structs import replace

from headgate.asl.errors import EXCEED_TOLERATED_FAILURE_THRESHOLD, TASK_FAILED, TIMEOUT, StateError
from headgate.asl.executions import MACHINE_TAG
from headgate.asl.expressions.scope import Json
from headgate.asl.map.messages import Ending, Given, Iteration, MapOrder, Report, Split, SplitOrder, Standing, Verdict
from headgate.asl.map.results import Writing
from headgate.asl.requests import Request, compiled
from headgate.asl.runtime.durable_host import child_workflow
from headgate.asl.runtime.durable_host import failed_with as failure_of
from headgate.asl.runtime.parallel import all_done
from headgate.durable.model.failures import ChildFailure
from headgate.durable.model.history import ActivityOptions, Status
from headgate.durable.model.retry import Retry
from headgate.durable.replay.interpreter import current
from headgate.durable.sdk import workflow as hg
from headgate.durable.sdk.definitions import Activity, Workflow
from headgate.errors import DefinitionError, HeadgateError, UserError

# What the activities are called; a dot is for names that no user's function can have.
SPLIT: Final = "headgate.asl.map.split"
NEXT: Final = "headgate.asl.map.next"
WORK: Final = "headgate.asl.map.work"
SETTLE: Final = "headgate.asl.map.settle"
CANCEL: Final = "headgate.asl.map.cancel"
COLLECT: Final = "headgate.asl.map.collect"
LANE: Final = "headgate.map_lane"
EXPRESS_LANES_MAX: Final = 4
# Up to so many iterations the lanes are part of the execution that has the Map.
ITERATIONS_INSIDE_MAX: Final = 100
# A lane that is an execution begins anew after so many.
ITERATIONS_A_RUN_MAX: Final = 100
PAUSE_SECONDS: Final = 5.0


class StoppedError(Exception):
    """No further iteration is to be begun."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict

    def as_error(self) -> StateError:
        """Return what the state fails with."""
        if self.verdict is Verdict.EXCEEDED:
            cause = "The specified tolerated failure threshold was exceeded"
            return StateError(EXCEED_TOLERATED_FAILURE_THRESHOLD, cause)
        return StateError(TASK_FAILED, "The map run was cancelled")


async def split(order: SplitOrder) -> Split:
    """Have the items split. Raises `StateError`."""
    made: Split = await _called(_split(order))
    return made


async def iterate(order: MapOrder, chunks: int) -> None:
    """Have all iterations done. Raises `StoppedError` if some are not to be, and `StateError`."""
    lanes = min(order.concurrency, chunks)
    lane: Callable[[MapOrder], Coroutine[Any, Any, None]] = _inside if chunks <= ITERATIONS_INSIDE_MAX else _outside
    if order.is_express:
        lanes = min(lanes, EXPRESS_LANES_MAX)
        order = replace(order, concurrency=max(1, order.concurrency // max(1, lanes)))
        lane = _in_memory
    while chunks:
        await all_done(lane(order) for _ in range(lanes))
        standing: Standing = await _called(_settle(order))
        _heed(standing.verdict)
        if not standing.open:
            return
        # Taken by someone who has died, or not to be seen yet.
        await asyncio.sleep(1)


async def collect(order: MapOrder, writing: Writing) -> Json:
    """Return what the Map ends with. Raises `StateError`."""
    return await _called(_collect(order, writing))


async def cancel(run_id: str, reason: str) -> None:
    """End a map run before its time. Nothing happens to one that has ended."""
    await _called(_cancel(run_id, reason))


# The lanes.


async def _in_memory(order: MapOrder) -> None:
    while True:
        verdict: Verdict = await _called(_work(order))
        _heed(verdict)
        if verdict is Verdict.DONE:
            return
        if verdict is Verdict.WAIT:
            await asyncio.sleep(PAUSE_SECONDS)


async def _inside(order: MapOrder) -> None:
    verdict, _ = await _go(order, None, sys.maxsize)
    _heed(verdict)


async def _outside(order: MapOrder) -> None:
    try:
        verdict: Verdict = await lane_workflow.options(tags={MACHINE_TAG: order.machine})(order)
    except Exception as exc:  # noqa: BLE001 - however the lane failed, the Map did
        raise failure_of(exc) from None
    _heed(verdict)


async def _lane(order: MapOrder, report: Report | None = None) -> Verdict:
    verdict, report = await _go(order, report, ITERATIONS_A_RUN_MAX)
    if verdict is Verdict.GO_ON:
        hg.continue_as_new(order, report)
    return verdict


async def _go(order: MapOrder, report: Report | None, iterations_max: int) -> tuple[Verdict, Report | None]:
    """Do iterations one after the other, and return why no more, with the report that is still to be made."""
    for _ in range(iterations_max):
        given: Given = await _called(_next(order, report))
        report = None
        if given.verdict is Verdict.WAIT:
            await asyncio.sleep(PAUSE_SECONDS)
        elif given.iteration is None:
            return given.verdict, None
        else:
            report = await _child(order, given.iteration)
    return Verdict.GO_ON, report


def _heed(verdict: Verdict) -> None:
    if verdict in (Verdict.EXCEEDED, Verdict.CANCELLED):
        raise StoppedError(verdict)


async def _child(order: MapOrder, iteration: Iteration) -> Report:
    """Return how an iteration ended that is an execution of its own."""
    request = Request(
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
    )
    timeout_seconds = compiled(order.definition).timeout_seconds
    tags = {MACHINE_TAG: order.machine}
    child = child_workflow().options(id=iteration.execution_id, timeout=timeout_seconds, tags=tags)
    try:
        ending = Ending(await child(request))
    except Exception as exc:  # noqa: BLE001 - however the child failed is how the iteration did
        failed = failure_of(exc)
        is_late = isinstance(exc, ChildFailure) and exc.status == Status.TIMED_OUT
        ending = Ending(error=TIMEOUT if is_late else failed.error, cause=failed.cause)
    return Report(iteration.chunk_id, iteration.token, ending)


async def _called(call: Awaitable[Any]) -> Any:  # noqa: ANN401 - what the activity returns
    """Return what an activity returns. Raises `StateError`."""
    try:
        return await call
    except Exception as exc:  # noqa: BLE001 - whatever the activity raised is how the Map failed
        raise failure_of(exc) from None


# The activities, as workflow code calls them: what is run for them is registered with the worker's app.


def activity(name: str, function: Callable[..., Any]) -> Activity[..., Any]:
    """Return an activity behind distributed Maps."""
    # Each can be done again at no cost; what is wrong with the items or the definition stays wrong.
    retry = Retry(attempts=20, never=(StateError, DefinitionError))
    return Activity(function, name=name, options=ActivityOptions(retry=retry))


def _declared_split(order: SplitOrder) -> Split:
    raise _misplaced(order.run_id)


def _declared_next(order: MapOrder, report: Report | None = None) -> Given:
    del report
    raise _misplaced(order.run_id)


def _declared_work(order: MapOrder) -> Verdict:
    raise _misplaced(order.run_id)


def _declared_settle(order: MapOrder) -> Standing:
    raise _misplaced(order.run_id)


def _declared_cancel(run_id: str, reason: str) -> None:
    del reason
    raise _misplaced(run_id)


def _declared_collect(order: MapOrder, writing: Writing) -> Json:
    del writing
    raise _misplaced(order.run_id)


def _misplaced(run_id: str) -> HeadgateError:
    return UserError(f"map run {run_id}: it belongs into an execution of a machine")


_split: Final = activity(SPLIT, _declared_split)
_next: Final = activity(NEXT, _declared_next)
_work: Final = activity(WORK, _declared_work)
_settle: Final = activity(SETTLE, _declared_settle)
_cancel: Final = activity(CANCEL, _declared_cancel)
_collect: Final = activity(COLLECT, _declared_collect)
lane_workflow: Final[Workflow[..., Verdict]] = Workflow(
    _lane, name=LANE, timeout_seconds=None, retention_seconds=None, client=lambda: None
)
