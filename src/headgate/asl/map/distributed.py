"""Distributed Map: runs its iterations as executions of their own, or in memory, and tracks them in a fan-out.

The state itself only coordinates. Activities split the items into chunks, assign them, store their outcomes and collect
the result.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from headgate.asl.errors import StateError
from headgate.asl.expressions.scope import Json
from headgate.asl.machines.executions import MachineExecutions
from headgate.asl.map import coordinator
from headgate.asl.map.express import ExpressWorker, FindRoute
from headgate.asl.map.fields import items_of, order_of, split_order_of, writing_of
from headgate.asl.map.item_readers import read_all
from headgate.asl.map.items import MapSource, selector_of
from headgate.asl.map.ledger import ChunkOutcome, MapLedger, inputs_of
from headgate.asl.map.messages import (
    Iteration,
    IterationReport,
    MapRunOrder,
    MapRunProgress,
    MapRunVerdict,
    NextIteration,
    SplitCounts,
    SplitOrder,
)
from headgate.asl.map.results import MapResults, ResultWriting
from headgate.asl.model.definition import MapSpec
from headgate.asl.runtime.execution_request import ExecutionRequest
from headgate.asl.runtime.state_visit import StateVisit
from headgate.durable.sdk import workflow as hg
from headgate.durable.sdk.app import App
from headgate.errors import InvalidPayloadError, NotFoundError
from headgate.fanout.core.splitter import ID_CHARS_MAX, Order
from headgate.fanout.model.rows import Chunk, Policy
from headgate.fanout.service import FanoutService
from headgate.store.blobs.folder import Blobs

if TYPE_CHECKING:
    from headgate.asl.runtime.durable_host import DurableHost

# The target number of chunks of an EXPRESS map run; with fewer items, each has a chunk of its own.
CHUNKS_TARGET: Final = 1_000
# The items of a batch that only MaxInputBytesPerBatch limits.
_BATCH_ITEMS_MAX: Final = 1_000_000
_IN_STATE: Final = "STATE_DATA"


class Distributor:
    """Runs distributed Maps, and registers their activities with an app."""

    def __init__(self, fanouts: FanoutService, blobs: Blobs, find_route: FindRoute = lambda _call: None) -> None:
        """`find_route` decides the routes of the Tasks of EXPRESS iterations."""
        self._fanouts = fanouts
        self._find_route = find_route
        self._blobs = blobs
        self._ledger = MapLedger(fanouts)
        self._results = MapResults(fanouts.queries, blobs)

    def register(self, app: App, executions: MachineExecutions) -> None:
        """Register the activities and the worker workflow of distributed Maps with an app."""
        express = ExpressWorker(app, self._ledger, self._fanouts.clock, self._find_route)

        def next_iteration(order: MapRunOrder, report: IterationReport | None = None) -> NextIteration:
            return self._next(order, report, lambda execution_id: _resume_request(app, executions, execution_id))

        declared: dict[str, Callable[..., Any]] = {
            coordinator.SPLIT: self._split,
            coordinator.NEXT: next_iteration,
            coordinator.WORK: express.work,
            coordinator.SETTLE: self._settle,
            coordinator.CANCEL: self._ledger.cancel,
            coordinator.COLLECT: self._collect,
        }
        for name, function in declared.items():
            app.activities[name] = coordinator.activity(name, function)
        app.workflows[coordinator.WORKER] = coordinator.worker_workflow

    # Workflow code.

    async def run(self, host: DurableHost, visit: StateVisit, spec: MapSpec, input: Json) -> Json:
        """Run a Map and return its result. Raises `StateError`. A cancellation of the execution cancels the map run."""
        is_redriven = bool(visit.frame.map_run)
        run_id = visit.frame.map_run = visit.frame.map_run or f"map-{hg.uuid()}"
        items = items_of(visit, spec, input)
        order = order_of(host.request, visit, spec, input)
        split = split_order_of(host.definition(host.request), visit, spec, input, order, items)
        writing = writing_of(visit, spec, input)
        journal, branch = host.journal, visit.branch
        branch.event_id = journal.add("MapStateStarted", branch.event_id, {"length": len(items or ())})
        started: dict[str, Json] = {"mapRunArn": run_id}
        if is_redriven:
            started["redriveCount"] = host.request.redrive_count
        branch.event_id = journal.add("MapRunRedriven" if is_redriven else "MapRunStarted", branch.event_id, started)
        try:
            result = await _run_map(visit, order, replace(split, is_redriven=is_redriven), writing)
        except asyncio.CancelledError:
            branch.event_id = journal.add("MapRunAborted", branch.event_id)
            # The text is part of recorded histories.
            await coordinator.cancel(run_id, "its execution was cancelled")
            raise
        except StateError as exc:
            details = {"error": exc.error, "cause": exc.cause}
            branch.event_id = journal.add("MapRunFailed", branch.event_id, details)
            branch.event_id = journal.add("MapStateFailed", branch.event_id, details)
            await coordinator.cancel(run_id, str(exc))
            raise
        branch.event_id = journal.add("MapRunSucceeded", branch.event_id)
        branch.event_id = journal.add("MapStateSucceeded", branch.event_id)
        return result

    # Activities.

    def _split(self, order: SplitOrder) -> SplitCounts:
        """Create the fan-out of a map run, or resume its split."""
        if order.is_redriven:
            self._ledger.reopen(order.run_id)
        source = order.reading.source if order.reading is not None else _IN_STATE
        items = MapSource(
            lambda: self._read(order),
            selector_of(order.selection, source, order.run_id, is_of_object=order.is_of_object),
            name=f"map run {order.run_id}",
            item_bytes_max=order.item_bytes_max,
            bytes_max=order.bytes_max,
        )
        fanout_order = Order(
            group=order.group[:ID_CHARS_MAX],
            chunk_size=self._chunk_size(order),
            policy=Policy(max_attempts=1, lost_attempts_max=1),
            submitted_by=f"execution {order.execution_id}",
        )
        try:
            fanout = self._fanouts.splitter.split(fanout_order, items, run_id=order.run_id)
        except InvalidPayloadError as exc:
            # The fan-out records the wrapped error; the execution gets the original one.
            raise exc.__cause__ if isinstance(exc.__cause__, StateError) else exc from None
        return SplitCounts(fanout.items_total, fanout.chunks_total)

    def _read(self, order: SplitOrder) -> Iterable[Json]:
        return order.items or () if order.reading is None else read_all(self._blobs, order.reading)

    def _chunk_size(self, order: SplitOrder) -> int:
        if order.is_batched:
            return order.items_max or _BATCH_ITEMS_MAX
        if not order.is_express:
            return 1
        existing = self._fanouts.queries.find(order.run_id)
        if existing is not None:
            return existing.chunk_size
        try:
            count = sum(1 for _ in self._read(order))
        except StateError:
            # The split raises it again, and records it on the fan-out.
            count = 0
        return max(1, math.ceil(count / CHUNKS_TARGET))

    def _next(
        self,
        order: MapRunOrder,
        report: IterationReport | None,
        resume_request: Callable[[str], ExecutionRequest | None],
    ) -> NextIteration:
        """Store the outcome of an iteration, and claim the next one."""
        if report is not None:
            chunk = self._ledger.claimed(order.run_id, report.chunk_id, report.token)
            if chunk is not None:
                self._ledger.record([ChunkOutcome(chunk, [report.outcome])])
        verdict = self._ledger.progress(order.run_id, order.tolerance).verdict
        if verdict is not MapRunVerdict.GO_ON:
            return NextIteration(verdict)
        claimed = self._ledger.claim(
            order.run_id,
            1,
            lambda chunk, token: f"{order.run_id}:{chunk.start}:{token}",
            claimants=order.concurrency,
        )
        if not claimed:
            return NextIteration(MapRunVerdict.DONE)
        chunk, before = claimed[0].chunk, claimed[0].before
        earlier = resume_request(before.log_ref) if before.redrives and before.log_ref is not None else None
        return NextIteration(verdict, _iteration(order, chunk, earlier))

    def _settle(self, order: MapRunOrder) -> MapRunProgress:
        return self._ledger.settle(order.run_id, order.tolerance)

    def _collect(self, order: MapRunOrder, writing: ResultWriting) -> Json:
        is_written = writing.resource is not None
        return self._results.written(order, writing) if is_written else self._results.collected(order, writing)


async def _run_map(visit: StateVisit, order: MapRunOrder, split_order: SplitOrder, writing: ResultWriting) -> Json:
    try:
        split = await coordinator.split(split_order)
    except (StateError, asyncio.CancelledError):
        # No iteration has run: a retry starts a new map run.
        visit.frame.map_run = ""
        raise
    try:
        await coordinator.iterate(order, split.chunks)
    except coordinator.MapRunStoppedError as exc:
        failed = exc.as_error()
        await coordinator.cancel(order.run_id, failed.cause)
        if writing.resource is not None:
            await coordinator.collect(order, writing)
        raise failed from None
    return await coordinator.collect(order, writing)


def _iteration(order: MapRunOrder, chunk: Chunk, earlier: ExecutionRequest | None) -> Iteration:
    iteration = Iteration(chunk.chunk_id, chunk.token, chunk.worker or "", inputs_of(order, chunk)[0])
    if earlier is None:
        return iteration
    count = earlier.redrive_count + 1
    return replace(iteration, resume=earlier.resume, events=earlier.events, redrive_count=count)


def _resume_request(app: App, executions: MachineExecutions, execution_id: str) -> ExecutionRequest | None:
    """Return the request that resumes a failed iteration; None to start it from the beginning."""
    try:
        row = app.client().get(execution_id)
    except NotFoundError:
        return None
    replayed = executions.replay(row)
    if not row.status.is_closed or replayed.request is None or replayed.frame is None or not replayed.events:
        return None
    return replace(replayed.request, resume=replayed.frame, events=replayed.events[-1].id)
