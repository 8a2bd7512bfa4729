"""Distributed Map: iterations that are executions of their own, or run in memory, with a fan-out as their books.

The state itself only waits, and what it waits for is done by activities: the items are split into chunks, handed out,
written down as they end, and put together as the result.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from headgate.asl.errors import StateError
from headgate.asl.executions import MachineExecutions
from headgate.asl.expressions.scope import Json
from headgate.asl.map import coordinator as map_lanes
from headgate.asl.map.express import ExpressWorker
from headgate.asl.map.fields import items_of, order_of, split_order_of, writing_of
from headgate.asl.map.item_readers import read_all
from headgate.asl.map.items import MapSource, selector_of
from headgate.asl.map.ledger import Ended, MapBooks, inputs_of
from headgate.asl.map.messages import Given, Iteration, MapOrder, Report, Split, SplitOrder, Standing, Verdict
from headgate.asl.map.results import MapResults, Writing
from headgate.asl.model.definition import MapSpec
from headgate.asl.requests import Request
from headgate.asl.runtime.state_visit import Visit
from headgate.durable.sdk import workflow as hg
from headgate.durable.sdk.app import App
from headgate.errors import InvalidPayloadError, NotFoundError
from headgate.fanout.core.splitter import ID_CHARS_MAX, Order
from headgate.fanout.model.rows import Chunk, Policy
from headgate.fanout.service import FanoutService
from headgate.store.blobs.folder import Blobs

if TYPE_CHECKING:
    from headgate.asl.runtime.durable_host import DurableHost

# Up to so many chunks an EXPRESS map run has one for each iteration, and beyond that about as many.
CHUNKS_USUAL: Final = 1_000
# A batch that only its size limits.
_BATCH_ITEMS_MAX: Final = 1_000_000
_IN_STATE: Final = "STATE_DATA"


class Distributor:
    """Runs the distributed Maps of machines."""

    def __init__(self, fanouts: FanoutService, blobs: Blobs) -> None:
        self._fanouts = fanouts
        self._blobs = blobs
        self._books = MapBooks(fanouts)
        self._results = MapResults(fanouts.queries, blobs)

    def register(self, app: App, executions: MachineExecutions) -> None:
        """Give an app the activities and the workflow behind distributed Maps."""
        express = ExpressWorker(app, self._books, self._fanouts.clock)

        def hand_out(order: MapOrder, report: Report | None = None) -> Given:
            return self._next(order, report, lambda execution_id: _left_off(app, executions, execution_id))

        declared: dict[str, Callable[..., Any]] = {
            map_lanes.SPLIT: self._split,
            map_lanes.NEXT: hand_out,
            map_lanes.WORK: express.work,
            map_lanes.SETTLE: self._settle,
            map_lanes.CANCEL: self._books.cancel,
            map_lanes.COLLECT: self._collect,
        }
        for name, function in declared.items():
            app.activities[name] = map_lanes.activity(name, function)
        app.workflows[map_lanes.LANE] = map_lanes.lane_workflow

    # In the execution.

    async def run(self, host: DurableHost, visit: Visit, spec: MapSpec, input: Json) -> Json:
        """Return what the Map ends with. Raises `StateError`; if the execution is cancelled, so is the map run."""
        is_redriven = bool(visit.frame.map_run)
        run_id = visit.frame.map_run = visit.frame.map_run or f"map-{hg.uuid()}"
        items = items_of(visit, spec, input)
        order = order_of(host.request, visit, spec, input)
        split = split_order_of(host.definition(host.request), visit, spec, input, order, items)
        writing = writing_of(visit, spec, input)
        journal, lane = host.journal, visit.lane
        lane.event_id = journal.add("MapStateStarted", lane.event_id, {"length": len(items or ())})
        begun: dict[str, Json] = {"mapRunArn": run_id}
        if is_redriven:
            begun["redriveCount"] = host.request.redrive_count
        lane.event_id = journal.add("MapRunRedriven" if is_redriven else "MapRunStarted", lane.event_id, begun)
        try:
            result = await _mapped(visit, order, replace(split, is_redriven=is_redriven), writing)
        except asyncio.CancelledError:
            lane.event_id = journal.add("MapRunAborted", lane.event_id)
            await map_lanes.cancel(run_id, "its execution was cancelled")
            raise
        except StateError as exc:
            details = {"error": exc.error, "cause": exc.cause}
            lane.event_id = journal.add("MapRunFailed", lane.event_id, details)
            lane.event_id = journal.add("MapStateFailed", lane.event_id, details)
            await map_lanes.cancel(run_id, str(exc))
            raise
        lane.event_id = journal.add("MapRunSucceeded", lane.event_id)
        lane.event_id = journal.add("MapStateSucceeded", lane.event_id)
        return result

    # The activities.

    def _split(self, order: SplitOrder) -> Split:
        """Make the fan-out of a map run, or go on with it."""
        if order.is_redriven:
            self._books.reopen(order.run_id)
        source = order.reading.source if order.reading is not None else _IN_STATE
        items = MapSource(
            lambda: self._read(order),
            selector_of(order.selection, source, order.run_id, is_of_object=order.is_of_object),
            name=f"map run {order.run_id}",
            item_bytes_max=order.item_bytes_max,
            bytes_max=order.bytes_max,
        )
        asked = Order(
            group=order.group[:ID_CHARS_MAX],
            chunk_size=self._chunk_size(order),
            policy=Policy(max_attempts=1),
            submitted_by=f"execution {order.execution_id}",
        )
        try:
            fanout = self._fanouts.splitter.split(asked, items, run_id=order.run_id)
        except InvalidPayloadError as exc:
            # The fan-out has word of it; the execution is to hear it as what it was.
            raise exc.__cause__ if isinstance(exc.__cause__, StateError) else exc from None
        return Split(fanout.items_total, fanout.chunks_total)

    def _read(self, order: SplitOrder) -> Iterable[Json]:
        return order.items or () if order.reading is None else read_all(self._blobs, order.reading)

    def _chunk_size(self, order: SplitOrder) -> int:
        if order.is_batched:
            return order.items_max or _BATCH_ITEMS_MAX
        if not order.is_express:
            return 1
        found = self._fanouts.queries.find(order.run_id)
        if found is not None:
            return found.chunk_size
        try:
            count = sum(1 for _ in self._read(order))
        except StateError:
            # Told by the split, with which there is a fan-out that has word of it.
            count = 0
        return max(1, math.ceil(count / CHUNKS_USUAL))

    def _next(self, order: MapOrder, report: Report | None, left_off: Callable[[str], Request | None]) -> Given:
        """Write down how an iteration ended, and give another one."""
        if report is not None:
            chunk = self._books.taken(order.run_id, report.chunk_id, report.token)
            if chunk is not None:
                self._books.end([Ended(chunk, [report.ending])])
        verdict = self._books.standing(order.run_id, order.tolerance).verdict
        if verdict is not Verdict.GO_ON:
            return Given(verdict)
        taken = self._books.take(
            order.run_id,
            1,
            lambda chunk, token: f"{order.run_id}:{chunk.start}:{token}",
            takers=order.concurrency,
        )
        if not taken:
            return Given(Verdict.DONE)
        chunk, before = taken[0].chunk, taken[0].before
        earlier = left_off(before.log_ref) if before.redrives and before.log_ref is not None else None
        return Given(verdict, _iteration(order, chunk, earlier))

    def _settle(self, order: MapOrder) -> Standing:
        return self._books.settle(order.run_id, order.tolerance)

    def _collect(self, order: MapOrder, writing: Writing) -> Json:
        is_written = writing.resource is not None
        return self._results.written(order, writing) if is_written else self._results.collected(order, writing)


async def _mapped(visit: Visit, order: MapOrder, split_order: SplitOrder, writing: Writing) -> Json:
    try:
        split = await map_lanes.split(split_order)
    except (StateError, asyncio.CancelledError):
        # Nothing has been done for it: another try begins with the items.
        visit.frame.map_run = ""
        raise
    try:
        await map_lanes.iterate(order, split.chunks)
    except map_lanes.StoppedError as exc:
        failed = exc.as_error()
        await map_lanes.cancel(order.run_id, failed.cause)
        if writing.resource is not None:
            await map_lanes.collect(order, writing)
        raise failed from None
    return await map_lanes.collect(order, writing)


def _iteration(order: MapOrder, chunk: Chunk, earlier: Request | None) -> Iteration:
    iteration = Iteration(chunk.chunk_id, chunk.token, chunk.worker or "", inputs_of(order, chunk)[0])
    if earlier is None:
        return iteration
    count = earlier.redrive_count + 1
    return replace(iteration, resume=earlier.resume, events=earlier.events, redrive_count=count)


def _left_off(app: App, executions: MachineExecutions, execution_id: str) -> Request | None:
    """Return how to go on with an iteration that has ended before its time, or None to begin anew."""
    try:
        row = app.client().get(execution_id)
    except NotFoundError:
        return None
    found = executions.inspect(row)
    if not row.status.is_closed or found.request is None or found.frame is None or not found.events:
        return None
    return replace(found.request, resume=found.frame, events=found.events[-1].id)
