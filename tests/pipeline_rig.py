"""Pipelines in virtual time: the whole lifecycle on a real store; jobs, clock and stream are in the test's hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Self

from headgate.asl.machines.executions import ExecutionStatus
from headgate.asl.runtime.durable_host import WORKFLOW
from headgate.clock import epoch_ms
from headgate.durable.model.duration import Duration, Seconds, seconds
from headgate.durable.sdk.app import App
from headgate.pipelines.definition.model import (
    Budgets,
    Json,
    Pipeline,
    Readiness,
    RetryPolicy,
    Rule,
    Schedule,
    SensorTrigger,
    TriggerSpec,
)
from headgate.pipelines.enums import FailureCategory, JobState, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import StoredPipelineEvent
from headgate.pipelines.lifecycle.messages import Answer
from headgate.pipelines.lifecycle.scheduler import ScheduledPipeline
from headgate.pipelines.lifecycle.starter import MACHINE
from headgate.pipelines.runs.locks import Lock, evaluation_key
from headgate.pipelines.runs.rows import Run, RunLog, Slot
from headgate.pipelines.schedule.timetables import timetables
from headgate.pipelines.service import PipelineService
from headgate.pipelines.traits.traits import TraitPush
from headgate.settings import Settings
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Change
from headgate.testing import Environment
from headgate.triggers.contract import (
    PollResult,
    Started,
    TriggerFailedError,
    TriggerOrder,
    completed,
    failed,
    running,
)
from tests.asl_rig import entered

START: Final = "2026-03-03T08:00:00+00:00"
DATE: Final = "2026-03-03"
CONSUMER: Final = "router"
_ROUNDS_MAX: Final = 200
_EVENTS_MAX: Final = 1_000

Function = Callable[[dict[str, Any]], Answer]


class Jobs:
    """A place where jobs run. A start is idempotent by the key of its order, as the contract of triggers asks for."""

    def __init__(self) -> None:
        # Every order that came, and each job that was begun, by key.
        self.orders: list[TriggerOrder] = []
        self.polls: list[str] = []
        self.cancelled: list[str] = []
        self.states: dict[str, PollResult] = {}
        # What a new job is from the start on, and whether it is over before its start is answered.
        self.outcome = PollResult(JobState.RUNNING)
        self.is_sync = False
        # What the next starts and polls come to instead.
        self.start_errors: deque[TriggerFailedError] = deque()
        self.poll_errors: deque[TriggerFailedError] = deque()
        # Done once, after a job was begun and before that is answered.
        self.meanwhile: Callable[[TriggerOrder], object] | None = None

    @property
    def begun(self) -> list[str]:
        """The keys of the jobs, in the order in which they were begun."""
        return list(self.states)

    def start(self, order: TriggerOrder) -> Started:
        self.orders.append(order)
        if self.start_errors:
            raise self.start_errors.popleft()
        self.states.setdefault(order.key, self.outcome)
        if self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            act(order)
        # Ids of the other side are unlike our own: metadata has to carry them.
        external_id = f"job-{order.key}"
        return completed(external_id) if self.is_sync else running(external_id, cluster="c1")

    def poll(self, order: TriggerOrder, metadata: Mapping[str, str]) -> PollResult:
        assert metadata["external_id"] == f"job-{order.key}", "asked after with what the start answered"
        self.polls.append(order.key)
        if self.poll_errors:
            raise self.poll_errors.popleft()
        return self.states[order.key]

    def cancel(self, order: TriggerOrder, metadata: Mapping[str, str]) -> None:
        del metadata
        self.cancelled.append(order.key)

    def keep_running(self) -> None:
        """Have jobs that will be begun run on, until something is said of them."""
        self.outcome = PollResult(JobState.RUNNING)

    def succeed(self, *keys: str) -> None:
        """Have jobs end well: those named, or all that run and will be begun."""
        self._end(keys, PollResult(JobState.SUCCEEDED))

    def fail(self, *keys: str, category: FailureCategory = FailureCategory.TRANSIENT, reason: str = "exit 1") -> None:
        self._end(keys, failed(category, reason))

    def _end(self, keys: Sequence[str], outcome: PollResult) -> None:
        if not keys:
            self.outcome = outcome
        for key in keys or [key for key, state in self.states.items() if state.state is JobState.RUNNING]:
            self.states[key] = outcome


class Rig:
    """One server: engine, pipelines, router and clockwork, driven a step at a time."""

    def __init__(
        self,
        start: str = START,
        *,
        replay_always: bool = False,
        functions: Mapping[str, Function] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.settings = Settings() if settings is None else settings
        self.app = App("pipelines")
        self.jobs = Jobs()
        self.env = Environment(
            self.app,
            replay_always=replay_always,
            start_seconds=datetime.fromisoformat(start).timestamp(),
            settings=self.settings,
        )
        # What the evaluator of traits and the SLA monitor were asked, in order.
        self.evaluator_calls: list[dict[str, Any]] = []
        self.sla_calls: list[dict[str, Any]] = []
        self._functions = dict(functions or {})
        self._defined: dict[str, ScheduledPipeline] = {}

    def __enter__(self) -> Self:
        self.env.__enter__()
        service = self.env.service
        self.store = service.store
        self.pipelines = PipelineService(
            service.store,
            service.clock,
            service.ids,
            service.bus,
            service.asl,
            self.jobs,
            retention=self.settings.retention,
            pools=self.settings.pipelines.pools,
            keyring=Keyring.generate(service.clock),
            public_url="https://headgate.example",
        )
        self.stores = self.pipelines.stores
        self.clock = self.pipelines.clock
        self.ids = self.pipelines.ids
        self.reader = self.pipelines.reader
        self.known = self.pipelines.known
        self.evaluations = self.pipelines.evaluations
        self.event_writer = self.pipelines.event_writer
        self.pipelines.register(
            {"EvaluatorFunctionArn": self._evaluate, "sla_monitor_arn": self._sla, **self._functions},
            reads_are_local=True,
        )
        self.pipelines.put_machine()
        # The lookout is at work from the start.
        self.pipelines.tick()
        return self

    def __exit__(self, *_: object) -> None:
        self.env.__exit__()

    def _evaluate(self, event: dict[str, Any]) -> Answer:
        self.evaluator_calls.append(event)
        return {}

    def _sla(self, event: dict[str, Any]) -> Answer:
        self.sla_calls.append(event)
        return {"warningAt": "2026-03-03T09:00:00Z", "breachAt": "2026-03-03T10:00:00Z"}

    # Saying.

    @property
    def now(self) -> datetime:
        return self.clock.now()

    @property
    def now_ms(self) -> int:
        return epoch_ms(self.clock)

    def define(self, *pipelines: Pipeline) -> None:
        """Put definitions, and have the clockwork know of all."""
        for pipeline in pipelines:
            change = self.pipelines.definitions.put(pipeline, "text", "ana")
            self._defined[pipeline.id] = ScheduledPipeline(pipeline, change.stored.version, self.now)
        self.pipelines.cron_scheduler.load(
            self._defined.values(), lambda pipeline: timetables(pipeline, self.reader.calendars())
        )

    def forget(self, pipeline_id: str) -> None:
        self.pipelines.definitions.delete(pipeline_id, "ana")
        del self._defined[pipeline_id]
        self.define()

    def push(self, pipeline_id: str, key: str, period: str | None = None, /, **data: Json) -> None:
        """Say something of a sensor, and let follow from it what can follow at once."""
        self.pipelines.sensors.push(pipeline_id, key, data, period=period)
        self.pump()

    def push_trait(self, pipeline_id: str, trait: str, status: str) -> None:
        self.pipelines.traits.push(pipeline_id, trait, TraitPush(status=status, ttl_seconds=0))
        self.pump()

    def mark(self, slot: Slot, source: str = "api") -> None:
        self.stores.markers.put_again(slot, source=source, by="ana")
        self.pump()

    # Making things happen.

    def pump(self) -> None:
        """Let everything happen that can happen without time passing: the stream is routed until it is dry."""
        for _ in range(_ROUNDS_MAX):
            self.env.run()
            changes = self.read_stream()
            for change in changes:
                self.pipelines.on_change(change)
            self.env.run()
            if not changes:
                return
        raise AssertionError("no rest: something asks for itself again and again")

    def read_stream(self) -> list[Change]:
        """Return what the stream delivers next, and mark it as received."""
        batch = self.store.changes(PIPELINES, CONSUMER, limit=500)
        self.store.checkpoint(PIPELINES, CONSUMER, batch.position)
        return batch.changes

    def receive_again(self, changes: Iterable[Change]) -> None:
        """Deliver changes to the router again."""
        for change in changes:
            self.pipelines.on_change(change)
        self.pump()

    def all_changes(self) -> list[Change]:
        """Return every change there ever was, in order."""
        found: list[Change] = []
        consumer = f"reader {self.ids.ulid()}"
        while True:
            batch = self.store.changes(PIPELINES, consumer, limit=1_000)
            if not batch.changes:
                return found
            found += batch.changes
            self.store.checkpoint(PIPELINES, consumer, batch.position)

    def advance(self, duration: Duration) -> None:
        """Let time pass, and have everything happen at its time: timers, what is due, what the stream delivers."""
        until = self.env.clock.seconds() + seconds(duration, name="advance")
        self.pump()
        while True:
            due = min(self.env.worker.schedule.next_due_ms / 1000, self._next_tick())
            moment = min(max(due, self.env.clock.seconds()), until)
            self.env.advance(moment - self.env.clock.seconds())
            self.pipelines.tick()
            self.pump()
            if moment >= until:
                return

    def advance_to(self, text: str) -> None:
        self.advance(datetime.fromisoformat(text).timestamp() - self.env.clock.seconds())

    def _next_tick(self) -> float:
        return self.env.clock.seconds() + self.pipelines.seconds_left()

    def call(self, slot: Slot, **fields: Json) -> Answer:
        """Call the orchestrator, as a state of the lifecycle does."""
        return self.pipelines.orchestrator({**named(slot), **fields})

    # Looking.

    def log(self, slot: Slot) -> RunLog:
        log = self.stores.runs.log(slot)
        assert log is not None, f"{slot}: nothing was begun"
        return log

    def status(self, slot: Slot) -> RunStatus | None:
        log = self.stores.runs.log(slot)
        return None if log is None else log.status

    def run(self, slot: Slot) -> Run:
        """Return the last run of a period."""
        return self.stores.runs.get(self.log(slot).run_id)

    def runs(self, slot: Slot) -> list[Run]:
        """Return the runs of a period, the first first."""
        found = [run for run in self.stores.runs.ls(slot.pipeline_id, limit=500).runs if run.slot == slot]
        return sorted(found, key=lambda run: run.attempt)

    def lock(self, slot: Slot) -> Lock | None:
        return self.stores.locks.find(evaluation_key(slot))

    def events(self, pipeline_id: str, *names: EventName) -> list[StoredPipelineEvent]:
        """Return what was reported of a pipeline, in order: all of it, or what has one of these names."""
        page = self.pipelines.events.ls(pipeline_id, names=names, limit=_EVENTS_MAX, descending=False)
        assert page.cursor is None, "more than are looked at"
        return page.events

    def event_names(self, pipeline_id: str, *names: EventName) -> list[str]:
        return [event.name for event in self.events(pipeline_id, *names)]

    def executions(self) -> list[str]:
        """Return the ids of all executions of the lifecycle, in the order of their start."""
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = self.env.service.client.list(workflow=WORKFLOW, cursor=cursor, ascending=True)
            found += [each.execution_id for each in page.executions if each.execution_id.startswith(f"{MACHINE}:")]
            cursor = page.cursor
            if cursor is None:
                return found

    def visited(self, execution_id: str) -> list[str]:
        return entered(self.env.service.asl.executions.history(execution_id))

    def ended(self, execution_id: str) -> ExecutionStatus:
        return self.env.service.asl.executions.describe(execution_id).status


# Pipelines.


def named(slot: Slot) -> dict[str, Json]:
    return {"pipelineId": slot.pipeline_id, "scheduleId": slot.schedule_id, "date": slot.date}


COMMAND: Final = TriggerSpec(type="command", config={"command": ["true"]})
ORDERS_THERE: Final = Rule(key="orders", check="gte", field="count", value=10)
LANDED: Final = Schedule(sensor=SensorTrigger(key="landed"))


def pipeline(pipeline_id: str = "silver", **fields: Any) -> Pipeline:
    """Return a pipeline that a sensor `landed` begins, ready at once, with attempts that follow each other quickly."""
    given: dict[str, Any] = {
        "schedules": (LANDED,),
        "trigger": COMMAND,
        "retry": RetryPolicy(attempts=3, backoff=Seconds(60)),
        "budgets": Budgets(),
        **fields,
    }
    return Pipeline(id=pipeline_id, **given)


def waiting_pipeline(pipeline_id: str = "silver", **fields: Any) -> Pipeline:
    """Return one that waits for ten orders."""
    return pipeline(pipeline_id, **{"readiness": Readiness(rules=(ORDERS_THERE,)), **fields})


def slot_of(pipeline_id: str = "silver", date: str = DATE, schedule_id: str = "stream") -> Slot:
    return Slot(pipeline_id, schedule_id, date)
