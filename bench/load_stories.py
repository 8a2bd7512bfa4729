"""Stories whose store calls the load model counts: pipelines, executions, chunks and health, each on an empty store.

The product's own code runs on SQLite behind a meter. A story does the same thing many times for units that differ, so
that a partition key that all units share stands out from those that each unit has for itself.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any, NamedTuple

from msgspec.structs import replace

import headgate as hg
from bench.dynamodb_meter import Counts, MeteredStore
from bench.fanout_runs import ACCESS, NOTHING, claim_all
from bench.health_rows import TYPES, evidence_like, fill, signal_at, sizes, urn
from bench.health_signals import value_at
from bench.pipelines_service import Jobs, define, pipeline
from headgate.bootstrap.health import open_health
from headgate.bootstrap.store import AppService, OpenedStore, open_cache, open_store
from headgate.clock import Clock, SystemClock
from headgate.durable.model.history import Status
from headgate.durable.serverless.activity_handler import InvokedActivities
from headgate.durable.serverless.turn_handler import InvokedTurns
from headgate.durable.serverless.wakeups import ActivityWake, TurnWake, Wake, wake_for
from headgate.fanout.core.attempts import AttemptResult
from headgate.fanout.core.splitter import Order
from headgate.fanout.core.tracking import Tracker
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.service import FanoutService
from headgate.health.evidence.rows import Evidence, Fingerprints, Otel
from headgate.health.evidence.writes import Decision
from headgate.health.model.enums import SignalState
from headgate.health.model.signals import ANY_VERSION, SignalUpdate
from headgate.ids import IdMaker
from headgate.pipelines.background_threads import PipelineLoops
from headgate.pipelines.definition.model import Pipeline, Readiness, Rule, Schedule
from headgate.pipelines.service import PipelineService
from headgate.settings import Settings
from headgate.store.catalogue.tables import ACTIVITIES, EXECUTIONS, INBOXES, TURNS, WORKERS
from headgate.store.model.cursors import Cursors
from headgate.store.model.schema import Table
from headgate.store.model.shards import plain_item
from headgate.store.model.values import Item
from headgate.store.resilience.guarded_store import AnyStore
from headgate.store.sharded_store import ShardedStore

WITHIN_SECONDS = 120.0
COUNTER_SHARDS = 16
CONCURRENT_FUNCTIONS = 200
# Evidence in batches, as producers of 50,000 a second send it: a spool row is written for up to 90 pieces of a batch,
# and enough of them to see how they spread over the shards.
EVIDENCE, EVIDENCE_BATCH = 6_000, 200
# A message is sent, received and deleted.
_MESSAGE_REQUESTS = 3
app = hg.App("load")


@app.activity
def charge(order: dict[str, Any]) -> dict[str, Any]:
    return {"receipt": order["id"]}


@app.workflow
async def fulfil(order: dict[str, Any]) -> dict[str, Any]:
    receipt: dict[str, Any] = await charge(order)
    for _ in range(order.get("further_steps", 0)):
        await charge(order)
    return receipt


class Layout(NamedTuple):
    """How rows are laid out on DynamoDB. `before` is the layout without shards, projections and single writes."""

    name: str
    is_sharded: bool
    has_lone_transactions: bool
    has_whole_projections: bool


BEFORE = Layout("before", is_sharded=False, has_lone_transactions=True, has_whole_projections=True)
AFTER = Layout("after", is_sharded=True, has_lone_transactions=False, has_whole_projections=False)


class Story(NamedTuple):
    """What was counted for so many units: calls of the store, and requests to other services by their price."""

    units: int
    counts: Counts
    requests: Mapping[str, int] = {}


@contextmanager
def metered(
    layout: Layout,
    clock: Clock,
    fill: Callable[[Path], None] = lambda _home: None,
    left_out: Collection[str] = (),
) -> Iterator[tuple[OpenedStore, MeteredStore]]:
    """Give a store behind a meter, in a folder of its own; `fill` writes to it before."""
    with TemporaryDirectory(prefix="headgate-bench-") as home:
        fill(Path(home))
        opened = open_store(Settings.load({}, None, {"home": home}), clock)
        meter = MeteredStore(
            opened.store,
            lone_transactions=layout.has_lone_transactions,
            whole_projections=layout.has_whole_projections,
            left_out=left_out,
        )
        store: AnyStore = ShardedStore(meter, Cursors(opened.keyring)) if layout.is_sharded else meter
        with closing(opened.store):
            yield opened._replace(store=store), meter


def executions_of_functions(
    layout: Layout, units: int = 200, *, steps: int = 1, concurrent: int = CONCURRENT_FUNCTIONS
) -> Story:
    """Workflows of so many activities, advanced by Lambda functions: each wake-up comes from a written row.

    A wake-up is an invocation of the waker, a message that is sent, received and deleted, and the invocation that the
    message causes. Under load both take several of them at once.
    """
    clock = SystemClock()
    with metered(layout, clock) as (opened, meter):
        service = AppService(app, opened, clock)
        app.bind(service.client, service.bus)
        turns, activities = InvokedTurns(service), InvokedActivities(service, ["default"])
        # As many functions run at any time at 2,000 activities a second of 100 ms each.
        for number in range(concurrent):
            other = service.worker(queues=["default"], host=f"host-{number}", lease_seconds=600.0)
            other.fleet.join(app.name, app.workflows, app.activity_names(), other.queues)
        wakes: deque[Wake] = deque()

        def on_written(table: Table, item: Item) -> None:
            due = wake_for(table, plain_item(table, item))
            if due is not None:
                wakes.append(due.wake)

        requests: Counter[str] = Counter()
        meter.counts, meter.on_written = Counts(), on_written
        for number in range(units):
            handle = fulfil.start(_order(number, steps), id=f"order-{number:06d}")
            while wakes:
                wake = wakes.popleft()
                is_turn = isinstance(wake, TurnWake)
                requests.update({"invocations": 2, "sqs_fifo" if is_turn else "sqs_standard": _MESSAGE_REQUESTS})
                if isinstance(wake, TurnWake):
                    turns([wake], lambda: False)
                elif isinstance(wake, ActivityWake):
                    activities(wake, lambda: False)
            assert handle.result(0) == {"receipt": number}
        story = Story(units, meter.counts, requests)
        meter.counts = meter.on_written = None
        app.bind(None, None)
    return story


def executions_of_workers(layout: Layout, units: int = 200, *, steps: int = 1) -> Story:
    """Workflows of so many activities, advanced by a worker process."""
    clock = SystemClock()
    with metered(layout, clock) as (opened, meter):
        service = AppService(app, opened, clock)
        service.start()
        try:
            meter.counts = Counts()
            handles = [fulfil.start(_order(number, steps), id=f"order-{number:06d}") for number in range(units)]
            for handle in handles:
                handle.result(WITHIN_SECONDS)
            story = Story(units, meter.counts)
            meter.counts = None
        finally:
            service.stop()
            app.bind(None, None)
    return story


class _HourClock(SystemClock):
    """The machine's clock, moved so that an hour begins in a few seconds."""

    def __init__(self, seconds_left: float) -> None:
        now = time.time()
        self._offset = 3600 - now % 3600 - seconds_left
        self.seconds = lambda: time.time() + self._offset

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds(), UTC)

    @property
    def hour(self) -> int:
        """The hour that is about to begin."""
        return (self.now() + timedelta(minutes=30)).hour


def pipelines_on_the_hour(layout: Layout, units: int = 64, *, is_on_step_functions: bool = False) -> Story:
    """Pipelines that are due on the hour: from the schedule through readiness and the job to the run log.

    With `is_on_step_functions` the rows of the lifecycle's execution are not counted, because Step Functions holds
    it. Its state transitions and the functions that it calls are counted in any case.
    """
    clock = _HourClock(seconds_left=8.0)
    jobs = Jobs()
    left_out = (
        [table.name for table in (EXECUTIONS, TURNS, INBOXES, ACTIVITIES, WORKERS)] if is_on_step_functions else []
    )
    # An app of its own: functions of the lifecycle are registered with it.
    with metered(layout, clock, left_out=left_out) as (opened, meter):
        service = AppService(hg.App("load-pipelines"), opened, clock)
        pipelines = PipelineService(opened.store, clock, service.ids, service.bus, service.asl, jobs)
        pipelines.register({"EvaluatorFunctionArn": _nothing, "sla_monitor_arn": _no_sla}, reads_are_local=True)
        names = [f"due-{number:05d}" for number in range(units)]
        define(opened.store, [_due(name, clock.hour) for name in names])
        for name in names:
            pipelines.sensors.push(name, "orders", {"count": 12})
        loops = PipelineLoops(pipelines)
        service.start()
        loops.start()
        try:
            meter.counts = Counts()
            jobs.wait_for(units, WITHIN_SECONDS)
            _at_rest(opened)
            counts, meter.counts = meter.counts, None
            story = Story(units, counts, _transitions(service))
        finally:
            loops.stop()
            service.stop()
    return story


def _transitions(service: AppService) -> dict[str, int]:
    """Return the state transitions of all executions of the lifecycle, and the functions that their tasks called."""
    requests: Counter[str] = Counter()
    for row in service.client.list(status=Status.SUCCEEDED, limit=1000).executions:
        events = [event.type for event in service.asl.executions.history(row.execution_id)]
        requests["transitions"] += sum(name.endswith("StateEntered") for name in events)
        requests["invocations"] += sum(name.endswith("Scheduled") for name in events)
    return dict(requests)


def _due(name: str, hour: int) -> Pipeline:
    rules = (Rule(key="orders", check="gte", field="count", value=10),)
    return pipeline(name, schedules=(Schedule(cron=f"0 {hour} * * *"),), readiness=Readiness(rules=rules))


def chunks_of_functions(layout: Layout, units: int = 400) -> Story:
    """Chunks of one fan-out, each started and completed by a function of its own."""
    with _fanouts(layout) as (service, meter):
        counts = meter.counts = Counts()
        fanout = service.splitter.split(Order(group="load", chunk_size=1, handler=NOTHING), RangeSource(0, units))
        tracker = Tracker(service.store, service.clock, service.ids)
        for chunk in service.queries.queued(fanout.run_id, "main", limit=units):
            start = tracker.start(fanout.run_id, chunk.chunk_id, worker="load|1")
            assert start.claim is not None
            tracker.complete(start.claim, AttemptResult(duration_ms=5, memory_mb=40))
        meter.counts = None
    return Story(units, counts)


def chunks_of_workers(layout: Layout, units: int = 384) -> Story:
    """Chunks of one fan-out, claimed and completed 96 at a time by a worker process."""
    with _fanouts(layout) as (service, meter):
        counts = meter.counts = Counts()
        fanout = service.splitter.split(Order(group="load", chunk_size=1, handler=NOTHING), RangeSource(0, units))
        assert claim_all(service, fanout.run_id, 96) == units
        meter.counts = None
    return Story(units, counts)


@contextmanager
def _fanouts(layout: Layout) -> Iterator[tuple[FanoutService, MeteredStore]]:
    clock = SystemClock()
    with metered(layout, clock) as (opened, meter):
        yield FanoutService(opened.store, clock, IdMaker(clock), shards=COUNTER_SHARDS, access=ACCESS), meter


class HealthStories(NamedTuple):
    """The operations of the state store, each counted by itself."""

    refreshes: Story
    breaches: Story
    recoveries: Story
    evidence: Story


def health_operations(layout: Layout, units: int = 200, *, evidence: int = EVIDENCE) -> HealthStories:
    """Signals of many datasets: reported first, refreshed, breached, recovered; and `evidence` pieces in batches."""
    clock = SystemClock()
    with (
        metered(layout, clock, lambda home: fill(home, sizes(0))) as (opened, meter),
        closing(open_cache(opened.settings, clock)) as cache,
    ):
        service = AppService(hg.App("load-health"), opened, clock)
        with closing(open_health(opened, cache, clock, service)) as health:
            started_ms = int(1000 * clock.seconds()) - 60_000

            def report(state: SignalState, number: int) -> Story:
                meter.counts = counts = Counts()
                for place in range(units):
                    dataset_urn, signal_type = signal_at(len(TYPES) * place)
                    update = SignalUpdate(
                        dataset_urn=dataset_urn,
                        signal_type=signal_type,
                        value=value_at(place, state, started_ms + 1000 * number),
                        expected_version=ANY_VERSION,
                    )
                    [result] = health.signals.update_many([update])
                    assert result.is_success, result
                meter.counts = None
                return Story(units, counts)

            report(SignalState.OK, 0)
            refreshes = report(SignalState.OK, 1)
            breaches = report(SignalState.CRITICAL, 2)
            recoveries = report(SignalState.OK, 3)
            meter.counts = counts = Counts()
            for first in range(0, evidence, EVIDENCE_BATCH):
                batch = [_evidence(first + place) for place in range(EVIDENCE_BATCH)]
                assert all(put.decision is Decision.STORED for put in health.evidence.put_many(batch))
            meter.counts = None
    return HealthStories(refreshes, breaches, recoveries, Story(evidence, counts))


def _evidence(number: int) -> Evidence:
    """Return evidence of a failure, which is not sampled, with ids that do not compress: real ones are random too."""
    return replace(
        evidence_like(number, urn(number), fails=True),
        evidence_id="",
        fingerprints=Fingerprints(schema_fingerprint="b2:7c9e6a3d10f4", payload_hash=token_hex(8)),
        otel=Otel(trace_id=token_hex(16), span_id=token_hex(8)),
    )


def _order(number: int, steps: int = 1) -> dict[str, Any]:
    order: dict[str, Any] = {"id": number, "customer": "customer-000042", "lines": [{"sku": "A-100", "count": 2}] * 3}
    return order if steps == 1 else {**order, "further_steps": steps - 1}


def _at_rest(opened: OpenedStore) -> None:
    """Return once nothing was committed for two seconds."""
    until = perf_counter() + WITHIN_SECONDS
    while perf_counter() < until:
        commits = opened.store.stats.commits
        sleep(2.0)
        if opened.store.stats.commits == commits:
            return
    raise TimeoutError(f"there is no rest within {WITHIN_SECONDS:g} s")


def _nothing(_: dict[str, Any]) -> dict[str, Any]:
    return {}


def _no_sla(_: dict[str, Any]) -> dict[str, Any]:
    return {"warningAt": "", "breachAt": ""}


__all__ = ["AFTER", "BEFORE", "Layout", "Story"]
