"""The service: pipelines around one store: their functions, what begins them, and what listens to their changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback
from headgate.asl.service import AslService
from headgate.clock import Clock
from headgate.durable.bus.bus import Bus
from headgate.durable.model.history import ActivityOptions
from headgate.durable.model.retry import Retry
from headgate.durable.sdk.app import App
from headgate.durable.sdk.definitions import Activity
from headgate.errors import AlreadyStartedError, InvalidPayloadError, UserError
from headgate.ids import IdMaker
from headgate.pipelines.authoring.archetypes import Archetype
from headgate.pipelines.catalog.cache import KnownPipelines
from headgate.pipelines.catalog.store import Change as DefinitionChange
from headgate.pipelines.catalog.store import PipelineStore
from headgate.pipelines.change_router import Router
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Json
from headgate.pipelines.event_schedules import EventSchedules
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import PipelineEvent, PipelineEvents
from headgate.pipelines.lifecycle.completion import RunEndings
from headgate.pipelines.lifecycle.downstream import Downstream
from headgate.pipelines.lifecycle.job_control import Triggering
from headgate.pipelines.lifecycle.job_events import JobNews
from headgate.pipelines.lifecycle.messages import Answer
from headgate.pipelines.lifecycle.orchestrator import Orchestrator
from headgate.pipelines.lifecycle.readiness_actions import ReadinessActions
from headgate.pipelines.lifecycle.scheduler import Clockwork
from headgate.pipelines.lifecycle.starter import FUNCTIONS, MACHINE, Starter, lifecycle_definition
from headgate.pipelines.readiness.evaluation_log import Evaluations
from headgate.pipelines.readiness.evaluator import Looking
from headgate.pipelines.readiness.poller import Lookout
from headgate.pipelines.readiness.waiters import Waiters
from headgate.pipelines.rules.facts import FactReader, Gate
from headgate.pipelines.runs.controls import Controls
from headgate.pipelines.runs.directives import Directives
from headgate.pipelines.runs.job_log import JobLog
from headgate.pipelines.runs.late_data import LateData
from headgate.pipelines.runs.locks import Locks
from headgate.pipelines.runs.markers import Markers
from headgate.pipelines.runs.reruns import Reruns
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.related_periods import RelatedPeriods
from headgate.pipelines.sensors import Sensors
from headgate.pipelines.stuck_executions import StuckExecutions
from headgate.pipelines.traits.traits import Traits
from headgate.store.model.requests import Change, Write
from headgate.store.port import Store
from headgate.triggers.contract import Trigger, TriggerFailedError


class Engine(Protocol):
    """What runs executions of the lifecycle in the place of the durable engine: Step Functions, on AWS."""

    def start(self, name: str, given: Json, delay_seconds: float) -> bool:
        """Start an execution. False: there is, or was, one of this name."""

    def answer(self, token: str, output: dict[str, str]) -> None:
        """End the task of a token. Raises `StaleClaimError` or `NotFoundError` for one that is over."""

    def is_open(self, name: str) -> bool:
        """Whether an execution of this name is under way. Raises `TransientError` if that cannot be told."""


class PipelineService:
    """Everything about the pipelines of one store. It begins nothing by itself: `loops` do."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        bus: Bus,
        asl: AslService,
        trigger: Trigger,
        *,
        calendars: Callable[[], Calendars] = dict,
        gate: Gate | None = None,
        engine: Engine | None = None,
    ) -> None:
        """Take what pipelines work with. Without an `engine`, the lifecycle runs on the durable one."""
        self.definitions = PipelineStore(store, clock)
        # Those of the project, for whoever defines pipelines; None: only those that come with Headgate.
        self.archetypes: Mapping[str, Archetype] | None = None
        self.known = KnownPipelines(self.definitions)
        self.events = PipelineEvents(store, clock, ids, bus)
        self.sensors = Sensors(store, clock)
        self.traits = Traits(store, clock)
        self.evaluations = Evaluations(store, clock, ids)
        periods = RelatedPeriods(self.known.find)
        reader = FactReader(store, self.sensors, periods, traits=self.traits.facts, **({"gate": gate} if gate else {}))
        self.parts = Parts(
            store=store,
            clock=clock,
            ids=ids,
            definitions=self.known,
            calendars=calendars,
            runs=Runs(store, clock, ids),
            locks=Locks(store, clock, ids),
            reruns=Reruns(store, clock, ids),
            markers=Markers(store, clock),
            controls=Controls(store, clock),
            directives=Directives(store, clock),
            job_log=JobLog(store),
            late_data=LateData(store),
            sensors=self.sensors,
            evaluations=self.evaluations,
            facts=reader,
            trigger=trigger,
            tells=self._told,
        )
        self._asl = asl
        self._bus = bus
        self._engine = engine
        answer = self._answer if engine is None else engine.answer
        self.waiters = Waiters(store, self.parts.now_ms, answer)
        self.downstream = Downstream(self.parts, self.waiters, periods, self.known.dependents)
        endings = RunEndings(self.parts)
        self.triggering = Triggering(self.parts, self.waiters, endings)
        self.starter = Starter(self.parts, self._start if engine is None else self._start_elsewhere)
        looking = Looking(self.parts)
        self.lookout = Lookout(self.parts, self.waiters, looking, lambda: bus.on_committed())
        readiness = ReadinessActions(self.parts, self.waiters, endings, looking, self.lookout.watches)
        self.orchestrator = Orchestrator(
            self.parts, self.downstream, self.triggering, endings, readiness, self.starter.pursue_rerun
        )
        self.event_schedules = EventSchedules(bus, self.starter, self.known.dependents)
        self.router = Router(
            self.parts, self.starter, self.waiters, self.downstream, follow=self.event_schedules.follow
        )
        self.clockwork = Clockwork(self.parts, self.starter)
        self.stuck = StuckExecutions(store, clock, self.events)

    def register(
        self,
        app: App,
        functions: Mapping[str, Callable[[dict[str, Any]], Answer]],
        *,
        reads_are_local: bool = False,
    ) -> None:
        """Give an app the functions of the lifecycle, and the store its machine.

        `functions` are the evaluator and the SLA monitor, by the variables of the definition. If the store is near,
        reading is so quick that a turn of the lifecycle does it by itself.
        """
        own: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "orchestrator_arn": self.orchestrator,
            "TriggerFunctionArn": self.orchestrator,
            "RunCheckerFunctionArn": self.orchestrator,
            **functions,
        }
        self.event_schedules.join(app)
        JobNews(self.parts.runs, self.waiters).join(app)
        self.stuck.join(app)
        for variable, function in own.items():
            name = FUNCTIONS[variable]
            look = self.orchestrator.look if reads_are_local and function is self.orchestrator else None
            app.activities[name] = _activity(name, function, self._bus, look)

    # What `loops` do.

    def hear(self, change: Change) -> None:
        """Act on a change of the table of pipelines."""
        self.lookout.hear(change)
        self.router.hear(change)

    def tick(self) -> None:
        """Do what is due by the clock."""
        self.clockwork.tick()
        self.lookout.tick()
        self.stuck.tick()

    def seconds_left(self) -> float:
        """Return in how many seconds something may be due by the clock."""
        return min(self.clockwork.seconds_left(), self.lookout.seconds_left())

    def defined(self, change: DefinitionChange) -> list[Write]:
        """Return the writes that tell of a definition, for the transaction that puts it into force."""
        detail = {"version": change.stored.version, "by": change.stored.by, "changes": list(change.lines)}
        return self._told(EventName.PIPELINE_DEFINED, Slot(change.stored.pipeline.id, "", ""), detail)

    def put_machine(self) -> None:
        """Keep the lifecycle as it is shipped, for executions that begin from now on."""
        self._asl.machines.put(MACHINE, lifecycle_definition(), variables=dict(FUNCTIONS), created_by="headgate")

    def _start(self, name: str, given: Json, delay_seconds: float, also: Sequence[Write]) -> bool:
        start = self._asl.executions.start
        try:
            _, is_new = start(MACHINE, given, name=name, delay_seconds=delay_seconds or None, also=also)
        except AlreadyStartedError:
            # The same wish, told again after the definition has changed: it was heard.
            return False
        self._bus.on_committed()
        return is_new

    def _start_elsewhere(self, name: str, given: Json, delay_seconds: float, also: Sequence[Write]) -> bool:
        """Start it where our store is not known: what goes with it is written after it, or lost with this process."""
        assert self._engine is not None, "only where there is another engine"
        is_new = self._engine.start(name, given, delay_seconds)
        if is_new:
            self.parts.store.transact(also)
        return is_new

    def _answer(self, token: str, output: dict[str, str]) -> None:
        self._asl.executions.send_callback(token, TaskCallback(CallbackKind.SUCCESS, output=output))

    def _told(self, name: EventName, slot: Slot, detail: Mapping[str, Json], *, once: str = "") -> list[Write]:
        event = PipelineEvent(
            name=name,
            pipeline_id=slot.pipeline_id,
            schedule_id=slot.schedule_id,
            date=slot.date,
            run_id=str(detail.get("run_id", "")),
            detail=dict(detail),
            once=once,
        )
        return self.events.event_writes(event, self.parts.now_ms())


def _activity(
    name: str,
    function: Callable[[dict[str, Any]], Answer],
    bus: Bus,
    look: Callable[[dict[str, Any]], Answer | None] | None,
) -> Activity[..., Any]:
    def call(event: dict[str, Any]) -> dict[str, Any]:
        answer = function(event)
        # What it told is delivered now and not with the next look at what waits.
        bus.on_committed()
        return answer

    # A busy store is tried again here; what the lifecycle retries is what it was told of.
    retry = Retry(attempts=10, deaths=20, first=0.2, never=(UserError, InvalidPayloadError, TriggerFailedError))
    return Activity(call, name=name, options=ActivityOptions(retry=retry), look=look)
