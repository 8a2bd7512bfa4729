"""Pipeline service: builds the components of the pipelines layer around one store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback
from headgate.asl.service import AslService
from headgate.clock import Clock
from headgate.durable.bus.bus import Bus
from headgate.durable.model.history import ActivityOptions
from headgate.durable.model.retry import Retry
from headgate.durable.sdk.definitions import Activity
from headgate.errors import AlreadyStartedError, InvalidPayloadError, UserError
from headgate.ids import IdMaker
from headgate.pipelines.authoring.dataset_checks import Unregistered
from headgate.pipelines.catalog.cache import KnownPipelines
from headgate.pipelines.catalog.project import Project
from headgate.pipelines.catalog.provenance import DefinitionSeals
from headgate.pipelines.catalog.store import PipelineChange, PipelineStore
from headgate.pipelines.change_router import ChangeRouter
from headgate.pipelines.definition.model import Json
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.event_schedules import EventSchedules
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import PipelineEvents
from headgate.pipelines.fanout_alerts import FanoutAlerts
from headgate.pipelines.lifecycle.admission_actions import AdmissionActions
from headgate.pipelines.lifecycle.callback_reports import CallbackReports
from headgate.pipelines.lifecycle.callback_tokens import CallbackTokens
from headgate.pipelines.lifecycle.completion import RunCompletion
from headgate.pipelines.lifecycle.downstream import DownstreamNotifier
from headgate.pipelines.lifecycle.drift import DryRunEvents, RunBaselines
from headgate.pipelines.lifecycle.hand_over import HandOver
from headgate.pipelines.lifecycle.job_control import JobControl
from headgate.pipelines.lifecycle.job_events import JobEndListener
from headgate.pipelines.lifecycle.job_recovery import JobRecovery
from headgate.pipelines.lifecycle.messages import Answer
from headgate.pipelines.lifecycle.monitoring_actions import MonitoringActions
from headgate.pipelines.lifecycle.orchestrator import Orchestrator
from headgate.pipelines.lifecycle.outcome_actions import OutcomeActions
from headgate.pipelines.lifecycle.pool_admission import PoolAdmission
from headgate.pipelines.lifecycle.push_periods import PushPeriods
from headgate.pipelines.lifecycle.readiness_actions import ReadinessActions
from headgate.pipelines.lifecycle.rerun_judge import RerunJudge
from headgate.pipelines.lifecycle.scheduler import CronScheduler
from headgate.pipelines.lifecycle.sensor_arrivals import SensorArrivals
from headgate.pipelines.lifecycle.starter import FUNCTIONS, MACHINE, LifecycleStarter, lifecycle_definition
from headgate.pipelines.operations.manual import ManualActions
from headgate.pipelines.operations.sensor_pushes import SensorPushes
from headgate.pipelines.readiness.evaluation_log import Evaluations
from headgate.pipelines.readiness.evaluator import ReadinessEvaluator
from headgate.pipelines.readiness.poller import ReadinessPoller
from headgate.pipelines.readiness.quarantine import QuarantineRecords
from headgate.pipelines.readiness.simulation import Simulator
from headgate.pipelines.readiness.waiters import Waiters
from headgate.pipelines.rules.facts import FactReader, Gate
from headgate.pipelines.run_meters import RunMeters
from headgate.pipelines.run_spans import RunSpans
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.runs.stores import run_stores
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.related_periods import RelatedPeriods
from headgate.pipelines.sensors import Sensors
from headgate.pipelines.stuck_executions import StuckExecutions
from headgate.pipelines.traits.traits import Traits
from headgate.pipelines.watchdog.cursors import Cursors
from headgate.pipelines.watchdog.followups import Followups
from headgate.pipelines.watchdog.period_facts import PeriodFactReader
from headgate.pipelines.watchdog.sla_monitor import SlaMonitor
from headgate.pipelines.watchdog.verdicts import Verdicts
from headgate.settings import RetentionSettings
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Change, Write
from headgate.store.port import Store
from headgate.telemetry import Tracing
from headgate.triggers.contract import Trigger, TriggerFailedError

_DAY_SECONDS: Final = 86_400
_RETENTION: Final = RetentionSettings()


def _none_unregistered(_datasets: Sequence[str]) -> Sequence[str]:
    return ()


class Engine(Protocol):
    """Runs executions of the lifecycle in place of the durable engine: Step Functions on AWS."""

    def start(self, name: str, machine_input: Json, delay_seconds: float) -> bool:
        """Start an execution. False: an execution of this name exists or existed."""

    @property
    def hand_over_events(self) -> int:
        """History events after which an execution hands over to a new one."""

    def answer(self, token: str, output: dict[str, str]) -> None:
        """Complete the task of a token. Raises `StaleClaimError` or `NotFoundError` if it has ended."""

    def is_open(self, name: str) -> bool:
        """Whether an execution of this name is running. Raises `TransientError` if the check fails."""


class PipelineService:
    """The pipelines of one store. It starts no threads: `background_threads` does."""

    def __init__(  # noqa: PLR0913 - every component of the package is built here
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
        unregistered: Unregistered | None = None,
        engine: Engine | None = None,
        keyring: Keyring | None = None,
        retention: RetentionSettings = _RETENTION,
        pools: Mapping[str, int] | None = None,
        tracing: Tracing | None = None,
        public_url: str | None = None,
    ) -> None:
        """Build all components. Without an `engine`, the lifecycle runs on the durable engine.

        The `keyring` seals definitions of the project folder and signs callback tokens; without it, no definition may
        run a program, and no job calls back. `public_url` is the base of callback URLs. `pools` are the declared pools
        with their sizes. `gate` answers dataset rules, `unregistered` finds datasets that the registry does not have;
        without it, none is reported. `tracing` records the spans of runs.
        """
        self.store = store
        self.clock = clock
        self.ids = ids
        self.trigger = trigger
        self.project = Project()
        self.definitions = PipelineStore(store, clock, DefinitionSeals(keyring))
        self.callback_tokens = CallbackTokens(keyring, clock, public_url)
        self.known = KnownPipelines(self.definitions)
        self.events = PipelineEvents(store, clock, ids, bus, retention_days=retention.pipeline_events_days)
        self.event_writer = EventWriter(store, clock, self.events)
        self.stores = run_stores(store, clock, ids, retention)
        self.reader = DefinitionReader(self.known, calendars)
        self.sensors = Sensors(
            store,
            clock,
            retention_seconds=_DAY_SECONDS * retention.sensors_days,
            arrival_period=PushPeriods(self.stores.runs, self.reader),
        )
        self.unregistered_datasets: Unregistered = unregistered or _none_unregistered
        self.sensor_pushes = SensorPushes(self.definitions, self.sensors)
        self.traits = Traits(store, clock, kept_seconds=_DAY_SECONDS * retention.trait_results_days)
        self.evaluations = Evaluations(store, clock, ids, retention_seconds=_DAY_SECONDS * retention.evaluations_days)
        periods = RelatedPeriods(self.known.find)
        self.facts = FactReader(
            store, self.sensors, periods, traits=self.traits.facts, **({"gate": gate} if gate else {})
        )
        self._asl = asl
        self._bus = bus
        self._engine = engine
        answer = self._answer if engine is None else engine.answer
        self.waiters = Waiters(store, clock, answer)
        self.meters = RunMeters()
        self._spans = RunSpans(tracing or Tracing())
        self.pools = PoolAdmission(self.stores, self.reader, self.waiters, clock, pools or {})
        self.quarantine = QuarantineRecords(store, clock, kept_seconds=_DAY_SECONDS * retention.quarantine_days)
        self._build_lifecycle(
            periods,
            baselines_seconds=_DAY_SECONDS * retention.run_baselines_days,
            expectations_days=retention.expectations_days,
        )

    def _build_lifecycle(self, periods: RelatedPeriods, *, baselines_seconds: int, expectations_days: int) -> None:
        store, clock = self.store, self.clock
        stores, reader, events = self.stores, self.reader, self.event_writer
        baselines = RunBaselines(store, self.facts, events, clock, kept_seconds=baselines_seconds)
        self.completion = RunCompletion(stores, events, clock, baselines)
        self.downstream = DownstreamNotifier(
            stores, reader, self.facts, events, clock, self.waiters, periods, self.known.dependents
        )
        self.jobs = JobControl(
            stores, reader, self.trigger, events, clock, self.waiters, self.completion, self.callback_tokens
        )
        self.callback_reports = CallbackReports(stores.runs, self.jobs)
        self.recovery = JobRecovery(stores, reader, self.trigger, events, self.completion)
        self.job_ends = JobEndListener(stores.runs, self.waiters, self.recovery)
        start = self._start if self._engine is None else self._start_on_step_functions
        self.starter = LifecycleStarter(reader, events, start)
        self.readiness_evaluator = ReadinessEvaluator(
            store, clock, stores.runs, reader, self.evaluations, self.facts, events
        )
        self.readiness_poller = ReadinessPoller(
            store,
            clock,
            stores.runs,
            reader,
            self.waiters,
            self.readiness_evaluator,
            on_committed=lambda: self._bus.on_committed(),
        )
        verdicts = Verdicts(store, clock, events, retention_days=expectations_days)
        followups = Followups(store)
        period_facts = PeriodFactReader(stores, self.sensors, self.evaluations, followups)
        self.sla_monitor = SlaMonitor(clock, stores.runs, reader, verdicts, followups, Cursors(store), period_facts)
        judge = RerunJudge(stores.reruns, reader, self.sensors, events)
        self.orchestrator = Orchestrator(
            stores,
            reader,
            admission=AdmissionActions(
                stores,
                reader,
                events,
                clock,
                judge,
                start_rerun=self.starter.start_rerun,
                hand_over_events=None if self._engine is None else self._engine.hand_over_events,
            ),
            readiness=ReadinessActions(
                store,
                stores.runs,
                reader,
                self.evaluations,
                clock,
                self.waiters,
                self.completion,
                self.readiness_evaluator,
                self.pools,
                is_polled=self.readiness_poller.polls,
            ),
            jobs=self.jobs,
            outcomes=OutcomeActions(stores, reader, events, clock, self.downstream, self.completion, baselines),
            monitoring=MonitoringActions(stores, reader, self.facts, events, clock),
            slas=self.sla_monitor,
            hand_over=HandOver(stores, self.starter.continue_run),
        )
        self.event_schedules = EventSchedules(self._asl.app, self._bus, self.starter, self.known.dependents)
        dry_runs = DryRunEvents(store, stores.runs, events)
        arrivals = SensorArrivals(
            stores, reader, self.sensors, self.facts, events, clock, self.starter, baselines, dry_runs
        )
        self.router = ChangeRouter(
            stores.reruns,
            events,
            clock,
            self.starter,
            self.waiters,
            self.downstream,
            arrivals,
            dry_runs,
            self.pools,
            follow=self.event_schedules.follow,
            readers=self.known.dependents,
        )
        self.cron_scheduler = CronScheduler(store, clock, self.starter)
        self.stuck = StuckExecutions(store, clock, self.events)
        self.fanout_alerts = FanoutAlerts(store, self.events)
        self.simulator = Simulator(clock, self.sensors, self.evaluations, self.facts)
        self.manual = ManualActions(
            stores, reader, self.sensors, events, clock, self.ids, self.starter, self.waiters, self.jobs, judge
        )

    def register(
        self, functions: Mapping[str, Callable[[dict[str, Any]], Answer]], *, reads_are_local: bool = False
    ) -> None:
        """Register the functions of the lifecycle as activities of the app that runs the state machines.

        `functions` are the evaluator and the SLA monitor, by the variables of the state machine. If reads are local, a
        workflow turn answers read-only calls in place, without an activity.
        """
        own: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "orchestrator_arn": self.orchestrator,
            "TriggerFunctionArn": self.orchestrator,
            "RunCheckerFunctionArn": self.orchestrator,
            **functions,
        }
        app = self._asl.app
        self.event_schedules.subscribe()
        self.job_ends.subscribe(app)
        self.stuck.subscribe(app)
        self.fanout_alerts.subscribe(app)
        for variable, function in own.items():
            name = FUNCTIONS[variable]
            peek = self.orchestrator.peek if reads_are_local and function is self.orchestrator else None
            app.activities[name] = _activity(name, function, self._bus, peek)

    # Called by the background threads.

    def on_change(self, change: Change) -> None:
        """Act on a change of the pipelines table."""
        self.meters.on_change(change)
        self._spans.on_change(change)
        self.quarantine.on_change(change)
        self.readiness_poller.on_change(change)
        self.router.on_change(change)

    def tick(self) -> None:
        """Run everything that is due."""
        self.cron_scheduler.tick()
        self.readiness_poller.tick()
        self.pools.tick()
        self.stuck.tick()

    def seconds_left(self) -> float:
        """Return the seconds until something may be due."""
        return min(self.cron_scheduler.seconds_left(), self.readiness_poller.seconds_left())

    def definition_events(self, change: PipelineChange) -> list[Write]:
        """Return the writes that publish a definition, for the transaction that stores it."""
        detail = {"version": change.stored.version, "by": change.stored.by, "changes": list(change.lines)}
        return self.event_writer.writes(EventName.PIPELINE_DEFINED, Slot(change.stored.pipeline.id, "", ""), detail)

    def put_machine(self) -> None:
        """Store the shipped state machine; new executions use it."""
        self._asl.machines.put(
            MACHINE, lifecycle_definition(), variables=dict(FUNCTIONS), created_by="headgate", is_internal=True
        )

    def _start(self, name: str, machine_input: Json, delay_seconds: float, also: Sequence[Write]) -> bool:
        start = self._asl.executions.start
        try:
            _, is_new = start(
                MACHINE, machine_input, name=name, delay_seconds=delay_seconds or None, also=also, is_internal=True
            )
        except AlreadyStartedError:
            # The same start request under a changed definition: its execution exists already.
            return False
        self._bus.on_committed()
        return is_new

    def _start_on_step_functions(
        self, name: str, machine_input: Json, delay_seconds: float, also: Sequence[Write]
    ) -> bool:
        """Start an execution outside our store: `also` is written after it, and lost if the process dies between."""
        assert self._engine is not None, "only used with an engine"
        is_new = self._engine.start(name, machine_input, delay_seconds)
        if is_new and also:
            self.store.transact(also)
        return is_new

    def _answer(self, token: str, output: dict[str, str]) -> None:
        self._asl.executions.send_callback(token, TaskCallback(CallbackKind.SUCCESS, output=output), is_internal=True)


def _activity(
    name: str,
    function: Callable[[dict[str, Any]], Answer],
    bus: Bus,
    peek: Callable[[dict[str, Any]], Answer | None] | None,
) -> Activity[..., Any]:
    def call(event: dict[str, Any]) -> dict[str, Any]:
        answer = function(event)
        # Deliver the published events now instead of at the next poll of the outbox.
        bus.on_committed()
        return answer

    # The activity retries a busy store; other failures are retried by the state machine.
    retry = Retry(attempts=10, deaths=20, first=0.2, never=(UserError, InvalidPayloadError, TriggerFailedError))
    return Activity(call, name=name, options=ActivityOptions(retry=retry), look=peek)
