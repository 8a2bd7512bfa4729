"""Pipelines bootstrap: builds the pipeline service with its triggers, evaluators, alerts, feedback and watchdog."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import structlog
from msgspec import Struct
from prometheus_client import CollectorRegistry

from headgate.bootstrap.alerts import SERVERS, AlertDuty, open_alerts, subscribe_incidents
from headgate.bootstrap.checks import OpenChecks, open_check_basis, open_checks
from headgate.bootstrap.store import AppService, OpenedStore, all_items, allowed_files
from headgate.bootstrap.watchdog import build_sla_monitor, build_watchdog
from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations
from headgate.durable.model.retry import Retry
from headgate.durable.sdk.app import App
from headgate.errors import NotFoundError
from headgate.feedback import definition_lineage, health_listener, outcomes, subscriber_filter
from headgate.feedback.dataset_gate import DatasetGate
from headgate.file_roots import usable_project
from headgate.health.service import HealthService
from headgate.ids import IdMaker
from headgate.notify.acknowledgements import InboundAcks
from headgate.notify.alerts import Alerts
from headgate.notify.deliverer import Deliverer
from headgate.notify.metrics import AlertMeters
from headgate.notify.mutes import Commit, Mutes
from headgate.notify.notifier import Notifier
from headgate.pipelines import alarms
from headgate.pipelines.catalog.calendar_store import CalendarStore
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import PipelineEvent
from headgate.pipelines.lifecycle.eventbridge_timers import OneShotSchedules
from headgate.pipelines.lifecycle.messages import Answer
from headgate.pipelines.lifecycle.starter import MACHINE
from headgate.pipelines.lifecycle.step_functions import StepFunctions
from headgate.pipelines.operations.backfill_runner import BackfillRunner
from headgate.pipelines.operations.backfills import Backfills
from headgate.pipelines.operations.deleted_pipelines import DeletedPipelines
from headgate.pipelines.operations.run_indexing import RunIndexing
from headgate.pipelines.operations.run_retention import RunRetention
from headgate.pipelines.probes.catalog import ProbeCatalog
from headgate.pipelines.probes.endpoints import DatabaseHosts
from headgate.pipelines.probes.files import FileLooks
from headgate.pipelines.probes.http import HttpLooks
from headgate.pipelines.probes.metrics import ProbeMetrics
from headgate.pipelines.probes.poller import ProbePoller
from headgate.pipelines.probes.results import ProbeResults
from headgate.pipelines.probes.runner import ProbeRunner
from headgate.pipelines.probes.sql import SqlLooks
from headgate.pipelines.probes.tables import TableLooks
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.service import Engine, PipelineService
from headgate.pipelines.traits.breaker import EvaluatorBreakers
from headgate.pipelines.traits.builtin import BuiltinEvaluator
from headgate.pipelines.traits.evaluators import Evaluators, TraitOrder
from headgate.pipelines.traits.http import HttpEvaluator
from headgate.pipelines.traits.probe_reference import ProbeEvaluator
from headgate.pipelines.traits.probes import probes
from headgate.pipelines.traits.rows import TraitResult
from headgate.pipelines.traits.subprocess import ProcessEvaluator
from headgate.pipelines.watchdog.heartbeats import Heartbeats
from headgate.pipelines.watchdog.liveness_check import Lifecycle
from headgate.pipelines.watchdog.thresholds import Thresholds
from headgate.pipelines.watchdog.verdicts import Verdicts
from headgate.pipelines.watchdog.watchdog import Watchdog
from headgate.settings import Settings
from headgate.store.catalogue.tables import DEFINITIONS
from headgate.store.model.requests import Write
from headgate.store.resilience.circuit_breaker import BreakerChange, BreakerState
from headgate.telemetry import Tracing
from headgate.triggers.aws.clients import AwsClients
from headgate.triggers.http.client import TriggerHttpClient
from headgate.triggers.registry import TriggerKinds, trigger_kinds
from headgate.triggers.secret_sources import SecretSources

NOTIFY_FILE: Final = "notify.toml"
# Below the home: the records and output of commands.
COMMANDS_FOLDER: Final = "commands"
# Feedback to health is retried for about twelve hours, which covers an outage of one night.
_FEEDBACK_RETRY: Final = Retry(attempts=60, first=1.0, factor=3.0, most=900.0)
_log = structlog.get_logger(__name__)


class OpenProbes(Struct, frozen=True, kw_only=True):
    """The probes of the project, and what runs them."""

    catalog: ProbeCatalog
    runner: ProbeRunner
    results: ProbeResults
    poller: ProbePoller
    metrics: ProbeMetrics


class OpenPipelines(Struct, frozen=True, kw_only=True):
    """The pipeline service on an open store, with the components around it."""

    service: PipelineService
    triggers: TriggerKinds
    evaluators: Evaluators
    verdicts: Verdicts
    backfills: Backfills
    backfilling: BackfillRunner
    calendars: CalendarStore
    alerts: Alerts
    mutes: Mutes
    notifier: Notifier
    deliverer: Deliverer
    alert_duty: AlertDuty
    # Whether this process routes and delivers alerts.
    delivers_alerts: bool
    channels: tuple[str, ...]
    inbound_acks: InboundAcks
    watchdog: Watchdog
    heartbeats: Heartbeats
    retention: RunRetention
    probes: OpenProbes
    # None: the process has no health.
    checks: OpenChecks | None


def open_pipelines(  # noqa: PLR0913 - what surrounds the pipelines is joined here
    service: AppService,
    opened: OpenedStore,
    clock: Clock,
    *,
    environ: Mapping[str, str],
    health: HealthService | None = None,
    commit: Commit | None = None,
    engine: Engine | None = None,
    tracing: Tracing | None = None,
    alert_holder: str = SERVERS,
    alert_meters: AlertMeters | None = None,
    registry: CollectorRegistry | None = None,
) -> OpenPipelines:
    """Return the pipelines of an open store, and register their functions with the app. Raises `SettingsError`.

    Call it before the worker of the service starts. `alert_holder` names the deployment that delivers alerts. `commit`
    audits changes of alerts and mutes. `engine` runs the
    lifecycle instead of the durable service. `tracing` records the spans of runs. `registry` gets the metrics of
    probes.
    """
    settings, store = opened.settings, opened.store
    calendars = CalendarStore(store, clock)
    triggers = _open_triggers(settings, service, clock, environ)
    basis = None if health is None else open_check_basis(health, store, clock)
    gate = None
    if health is not None and basis is not None:
        # With a lifecycle on Step Functions nothing runs checks, and so none is owed.
        gate = DatasetGate(health.gatekeeper, basis.owed) if engine is None else DatasetGate(health.gatekeeper)
    pipelines = PipelineService(
        store,
        clock,
        service.ids,
        service.bus,
        service.asl,
        triggers,
        calendars=calendars.all,
        gate=gate,
        unregistered=None if gate is None else gate.unregistered,
        engine=engine,
        keyring=opened.keyring,
        retention=settings.retention,
        pools=settings.pipelines.pools,
        tracing=tracing,
        public_url=_public_url(settings) if engine is None else settings.public_url,
    )
    verdicts = Verdicts(store, clock, pipelines.event_writer, retention_days=settings.retention.expectations_days)
    probes = _open_probes(opened, service, pipelines, clock, environ, registry)
    evaluators = _open_evaluators(settings, pipelines, clock, environ, probes)
    functions = {
        "EvaluatorFunctionArn": _evaluator(evaluators, pipelines),
        "sla_monitor_arn": build_sla_monitor(pipelines, verdicts),
    }
    pipelines.register(functions, reads_are_local=settings.store.backend == "sqlite")
    service.app.on_event(alarms.TYPE, name=alarms.SUBSCRIPTION)(alarms.Alarms(pipelines.events).handle)
    if health is not None:
        close_loop(service.app, pipelines, health)
    alerting = open_alerts(opened, service, pipelines, clock, holder=alert_holder, commit=commit, meters=alert_meters)
    if health is not None:
        subscribe_incidents(service.app, alerting, health, clock)
    checks = None
    if health is not None and basis is not None:
        checks = open_checks(
            basis,
            service.app,
            pipelines,
            health,
            probes.runner,
            calendars,
            clock,
            name=service.ids.make("chk"),
            registry=registry,
        )
    backfills = Backfills(store, clock, service.ids)
    heartbeats = Heartbeats(
        store,
        clock,
        pipelines.event_writer,
        silent_seconds=settings.pipelines.watchdog_silent_seconds,
    )
    lifecycle = Lifecycle(
        is_open=(lambda name: is_open(service, name)) if engine is None else engine.is_open,
        orchestrate=pipelines.orchestrator,
        end_job=pipelines.jobs.end_job,
    )
    return OpenPipelines(
        service=pipelines,
        triggers=triggers,
        evaluators=evaluators,
        verdicts=verdicts,
        backfills=backfills,
        backfilling=BackfillRunner(pipelines.stores.runs, pipelines.event_writer, pipelines.starter, backfills),
        calendars=calendars,
        alerts=alerting.alerts,
        mutes=alerting.mutes,
        notifier=alerting.notifier,
        deliverer=alerting.deliverer,
        alert_duty=alerting.duty,
        delivers_alerts=alerting.is_delivering,
        channels=tuple(alerting.config.channels),
        inbound_acks=alerting.inbound,
        watchdog=build_watchdog(
            pipelines,
            lifecycle,
            heartbeats=heartbeats,
            tick_seconds=settings.pipelines.watchdog_tick_seconds,
            thresholds=_thresholds(settings),
            limit_seconds=settings.pipelines.watchdog_check_seconds,
        ),
        retention=RunRetention(
            store,
            clock,
            backfills,
            lifecycle.is_open,
            runs_days=settings.retention.runs_days,
            run_logs_days=settings.retention.run_logs_days,
            deleted=DeletedPipelines(store, lambda: all_items(opened, DEFINITIONS, clock)),
            indexing=RunIndexing(store),
        ),
        heartbeats=heartbeats,
        probes=probes,
        checks=checks,
    )


def _thresholds(settings: Settings) -> Thresholds:
    given = settings.pipelines
    return Thresholds(
        stuck_seconds=given.watchdog_stuck_seconds,
        schedule_grace_seconds=given.watchdog_schedule_grace_seconds,
        recovery_grace_seconds=given.watchdog_recovery_grace_seconds,
        lost_seconds=given.watchdog_lost_seconds,
        patience_seconds=given.watchdog_patience_seconds,
    )


def open_engine(settings: Settings, clock: Clock, ids: IdMaker) -> Engine | None:
    """Return the Step Functions engine of the lifecycle if the settings name a state machine."""
    named = settings.pipelines
    if named.state_machine_arn is None or named.scheduler_role_arn is None:
        return None
    return open_step_functions(
        _aws(settings),
        clock,
        ids,
        machine_arn=named.state_machine_arn,
        scheduler_role_arn=named.scheduler_role_arn,
        scheduler_group=named.scheduler_group_name,
        hand_over_events=named.hand_over_events,
    )


def open_step_functions(
    clients: AwsClients,
    clock: Clock,
    ids: IdMaker,
    *,
    machine_arn: str,
    scheduler_role_arn: str,
    scheduler_group: str,
    hand_over_events: int,
    dead_letters_arn: str = "",
) -> StepFunctions:
    """Return the lifecycle engine on Step Functions, with EventBridge one-shot schedules for delayed starts."""
    one_shots = OneShotSchedules(
        clients.client("scheduler"),
        role_arn=scheduler_role_arn,
        group=scheduler_group,
        dead_letters_arn=dead_letters_arn,
    )
    return StepFunctions(
        clients.client("stepfunctions"),
        one_shots,
        machine_arn=machine_arn,
        clock=clock,
        ids=ids,
        hand_over_events=hand_over_events,
    )


def _aws(settings: Settings) -> AwsClients:
    return AwsClients(region=settings.store.aws_region, endpoint_url=settings.store.aws_endpoint_url)


def _public_url(settings: Settings) -> str | None:
    """Return the URL by which jobs reach this server; None if it is not set and the listen address does not say it."""
    if settings.public_url is not None:
        return settings.public_url
    address = settings.http
    if address.port == 0 or address.host in ("0.0.0.0", "::"):
        return None
    return f"{'http' if settings.tls.cert is None else 'https'}://{address}"


def _open_triggers(settings: Settings, service: AppService, clock: Clock, environ: Mapping[str, str]) -> TriggerKinds:
    return trigger_kinds(
        clock=clock,
        environ=environ,
        secrets=SecretSources(environ, folder=settings.home / "secrets"),
        commands_folder=settings.home / COMMANDS_FOLDER,
        destinations=_destinations(settings),
        aws=_aws(settings),
        client=service.client,
        fanouts=service.fanouts,
        project=usable_project(settings.project),
    )


def probe_runner(settings: Settings, clock: Clock, environ: Mapping[str, str]) -> ProbeRunner:
    """Return what runs the probes of a project. It needs no store."""
    files, destinations = allowed_files(settings), _destinations(settings)
    return ProbeRunner(
        clock,
        SecretSources(environ, folder=settings.home / "secrets"),
        sql=SqlLooks(clock, files, DatabaseHosts(destinations)),
        files=FileLooks(files, lambda: _aws(settings), _own_objects(settings)),
        tables=TableLooks(files),
        http=HttpLooks(TriggerHttpClient(clock, destinations)),
    )


def _open_probes(
    opened: OpenedStore,
    service: AppService,
    pipelines: PipelineService,
    clock: Clock,
    environ: Mapping[str, str],
    registry: CollectorRegistry | None,
) -> OpenProbes:
    catalog = ProbeCatalog()
    runner = probe_runner(opened.settings, clock, environ)
    results = ProbeResults(opened.store, clock, pipelines.sensors)
    metrics = ProbeMetrics(registry if registry is not None else CollectorRegistry())
    poller = ProbePoller(clock, catalog, runner, results, name=service.ids.make("prb"), observe=metrics.observe)
    return OpenProbes(catalog=catalog, runner=runner, results=results, poller=poller, metrics=metrics)


def _own_objects(settings: Settings) -> tuple[str, str] | None:
    bucket = settings.store.blob_bucket
    return None if bucket is None else (bucket, settings.store.blob_prefix)


def _open_evaluators(
    settings: Settings, pipelines: PipelineService, clock: Clock, environ: Mapping[str, str], probed: OpenProbes
) -> Evaluators:
    looks = probes(files=allowed_files(settings), aws=lambda: _aws(settings), own_objects=_own_objects(settings))
    builtin = BuiltinEvaluator(pipelines.sensors, pipelines.stores.runs, looks)

    def changed(change: BreakerChange) -> None:
        if change.after is BreakerState.OPEN:
            event = PipelineEvent(name=EventName.EVALUATOR_BREAKER_OPENED, detail={"evaluator": change.name})
            pipelines.events.publish(event)

    def also(result: TraitResult, before: TraitResult | None) -> list[Write]:
        # Only a change of status is an event; unchanged results stay in the trait's own history.
        if before is not None and before.status is result.status:
            return []
        slot = Slot(result.pipeline_id, result.schedule_id, result.date)
        detail = {"trait": result.trait_type, "status": result.status.value}
        return pipelines.event_writer.writes(EventName.TRAIT_EVALUATED, slot, detail)

    return Evaluators(
        clock,
        pipelines.traits,
        breakers=EvaluatorBreakers(clock, changed=changed),
        also=also,
        builtin=builtin,
        http=HttpEvaluator(clock, _destinations(settings)),
        process=ProcessEvaluator(environ),
        probe=ProbeEvaluator(probed.catalog, probed.results, probed.runner),
    )


def _destinations(settings: Settings) -> Destinations:
    forward = settings.forward
    return Destinations(forward.private_hosts, forward.private_networks, forward.plain_http)


def _evaluator(evaluators: Evaluators, pipelines: PipelineService) -> Any:  # noqa: ANN401 - a function of JSON
    """Return the function behind EvaluateSingleTrait."""

    def evaluate(event: dict[str, Any]) -> Answer:
        run = pipelines.stores.runs.get(str(event["runId"]))
        pipeline, is_from_folder = pipelines.reader.with_origin(run)
        name = str(event["trait"]["type"])
        order = TraitOrder(
            pipeline_id=run.pipeline_id,
            trait_type=name,
            trait=pipeline.readiness.traits[name],
            schedule_id=run.schedule_id,
            date=run.date,
            run_id=run.run_id,
            is_from_folder=is_from_folder,
        )
        result = evaluators.evaluate_trait(order, pipelines.clock.now())
        return _trait_answer(result, pipelines.clock.now())

    return evaluate


def _trait_answer(result: TraitResult, now: datetime) -> Answer:
    at_ms = round(now.timestamp() * 1000)
    return {"type": result.trait_type, "status": result.status_at(at_ms).value, "reason": result.reason_at(at_ms)}


def is_open(service: AppService, name: str) -> bool:
    """Whether an execution of the lifecycle is running in the durable service."""
    try:
        return not service.client.get(f"{MACHINE}:{name}").status.is_closed
    except NotFoundError:
        return False


# Health.


def close_loop(app: App, pipelines: PipelineService, health: HealthService) -> None:
    """Subscribe the feedback between pipelines and health.

    Run outcomes change the health of datasets, health changes wake waiting runs, and definitions update the lineage.
    """
    lineage = definition_lineage.DefinitionLineage(pipelines, health)
    run_outcomes = outcomes.Outcomes(pipelines, health, lineage)
    listener = health_listener.HealthChangeListener(pipelines, health.held_datasets.by)
    # Subscription names are stored: they keep the package's former name.
    app.on_event(*outcomes.TYPES, name="headgate.loop.outcomes", retry=_FEEDBACK_RETRY)(run_outcomes.handle)
    app.on_event(*definition_lineage.TYPES, name="headgate.loop.lineage", retry=_FEEDBACK_RETRY)(lineage.handle)
    app.on_event(*subscriber_filter.TYPES, name=subscriber_filter.SUBSCRIPTION, retry=_FEEDBACK_RETRY)(listener.handle)
