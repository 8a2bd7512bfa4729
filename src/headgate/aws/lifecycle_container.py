"""Lifecycle container: the services of the lifecycle functions, opened once per process."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from headgate.aws.function_home import prepare_home
from headgate.aws.function_metrics import FunctionMetrics
from headgate.aws.function_settings import FunctionSettings, read_function_settings, read_settings
from headgate.aws.lifecycle_topic import LifecycleTopic
from headgate.aws.sla_schedules import ScheduledSlaMonitor
from headgate.aws.stream_batches import StreamBatches
from headgate.aws.worker_invocation import run_worker
from headgate.bootstrap.alerts import FUNCTIONS as DELIVERER
from headgate.bootstrap.alerts import NOTIFY_FILE
from headgate.bootstrap.health import open_health
from headgate.bootstrap.key_check import check_function_keys
from headgate.bootstrap.pipelines import (
    OpenPipelines,
    open_pipelines,
    open_step_functions,
)
from headgate.bootstrap.project_folder import apply_folder
from headgate.bootstrap.store import (
    AppService,
    OpenedStore,
    open_cache,
    open_store,
)
from headgate.clock import Clock, SystemClock
from headgate.durable.sdk.app import App
from headgate.embedded_metrics import registry_source
from headgate.health.error_alerts import ErrorAlerts
from headgate.health.incidents.listing import PAGE_MAX, IncidentFilter
from headgate.health.metrics import HealthMeters
from headgate.health.model.enums import IncidentStatus, Severity
from headgate.health.service import HealthService
from headgate.pipelines.background_threads import PipelineLoops
from headgate.pipelines.lifecycle.messages import Answer
from headgate.pipelines.lifecycle.starter import FUNCTIONS
from headgate.pipelines.watchdog.heartbeats import HeartbeatSource
from headgate.pipelines.watchdog.watchdog import TickReport
from headgate.settings import Settings
from headgate.store.cache.read_through import Cache
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Change
from headgate.telemetry import configure_logs
from headgate.triggers.aws.clients import AwsClients

# Three invocations of the scheduled watchdog.
SILENT_SECONDS: Final = 900.0
PIPELINES_FOLDER: Final = "pipelines"
ACTIVE: Final = (IncidentStatus.OPEN, IncidentStatus.ACKNOWLEDGED)
# With more than a thousand incidents their number is no longer what matters.
INCIDENT_PAGES_MAX: Final = 10
_TASK_ROOT: Final = "LAMBDA_TASK_ROOT"


class LifecycleContainer(Struct, frozen=True, kw_only=True):
    """The opened services, and one method per function. `package` is the folder of the unpacked code."""

    package: Path
    opened: OpenedStore
    service: AppService
    pipelines: OpenPipelines
    cache: Cache
    clients: AwsClients
    batches: StreamBatches
    sla_monitor: ScheduledSlaMonitor
    health: HealthService
    metrics: FunctionMetrics

    def call(self, variable: str, event: dict[str, Any]) -> Answer:
        """Call the lifecycle activity behind a variable of the state machine's definition."""
        if variable == "sla_monitor_arn":
            return self.sla_monitor(event)
        answer: Answer = self.service.app.activities[FUNCTIONS[variable]].function(event)
        return answer

    def watch(self) -> TickReport:
        """Run one tick of the watchdog."""
        return self.pipelines.watchdog.tick()

    def run_schedules(self, is_out_of_time: Callable[[], bool]) -> int:
        """Start due schedules, advance backfills, and deliver alerts. Returns the number of deliveries."""
        pipelines = self.pipelines
        delivers_alerts = False
        try:
            delivers_alerts = pipelines.alert_duty.take()
            # Constructed for each tick, so that it reads the current definitions.
            PipelineLoops(pipelines.service).tick()
            pipelines.backfilling.tick()
            if delivers_alerts:
                pipelines.notifier.tick()
            own = pipelines.heartbeats.beat(HeartbeatSource.SERVER)
            pipelines.heartbeats.watch(own, HeartbeatSource.WATCHDOG)
        finally:
            # Alerts are delivered even if starting failed.
            delivered = run_worker(self.service, is_out_of_time, delivers_alerts=delivers_alerts)
        if self.metrics.has_sources and not is_out_of_time():
            self.metrics.gauge("incident_active", "severity", self.active_incidents())
        return delivered

    def active_incidents(self) -> dict[str, float]:
        """Return the incidents that have not ended, by severity."""
        wanted, cursor = IncidentFilter(statuses=ACTIVE), None
        counts = dict.fromkeys((severity.value for severity in Severity), 0.0)
        for _ in range(INCIDENT_PAGES_MAX):
            page = self.health.incident_listing.ls(wanted, limit=PAGE_MAX, cursor=cursor)
            for incident in page.incidents:
                counts[incident.severity.value] += 1
            if (cursor := page.cursor) is None:
                break
        return counts

    def check(self) -> int:
        """Read the tables and change nothing. Returns the number of pipelines.

        Opening this container has checked the settings, the keys and the alert channels.
        """
        return len(self.pipelines.service.definitions.all().pipelines)

    def apply_definitions(self) -> int:
        """Apply the definitions of the package, and return the number of pipelines."""
        # Before the first event is published, so that it is delivered.
        self.service.bus.register(list(self.service.app.subscriptions.values()), self.service.app.name)
        folder = self.package / PIPELINES_FOLDER
        if folder.is_dir():
            apply_folder(self.pipelines, folder)
        return len(self.pipelines.service.definitions.all().pipelines)

    def close(self) -> None:
        """Close all connections."""
        self.cache.close()
        self.clients.close()
        self.opened.store.close()


@functools.cache
def lifecycle_container() -> LifecycleContainer:
    """Return the container of this process, opened from its environment.

    Raises `SettingsError`; the next invocation tries again.
    """
    # The entry point of the process: only here the environment is read.
    environ = dict(os.environ)  # noqa: TID251
    log = read_settings(environ).log
    configure_logs(style=log.format, level=log.level)
    return open_container(environ, SystemClock())


def open_container(environ: Mapping[str, str], clock: Clock) -> LifecycleContainer:
    """Open the store and the services. Raises `SettingsError`, and `TransientError` for an unreachable secret."""
    functions, settings = read_function_settings(environ), _with_invocations(read_settings(environ))
    package = Path(environ.get(_TASK_ROOT) or ".").absolute()
    clients = AwsClients(region=settings.store.aws_region, endpoint_url=settings.store.aws_endpoint_url)
    notify = package / NOTIFY_FILE
    files = [notify] if notify.is_file() else []
    prepare_home(settings, clients, keys_secret_arn=functions.keys_secret_arn, files=files)
    registry = CollectorRegistry()
    meters = HealthMeters(registry) if functions.custom_metrics else None
    alerts = ErrorAlerts(clock, meters)
    opened = open_store(settings, clock, observer=alerts)
    if functions.keys_secret_arn:
        check_function_keys(opened)
    service = AppService(App("headgate"), opened, clock)
    cache = open_cache(settings, clock, answered=None if meters is None else meters.cache_answered)
    if meters is not None:
        meters.watch_cache(cache.stats)
    health = open_health(opened, cache, clock, service, meters=meters, alerts=alerts)
    engine = open_step_functions(
        clients,
        clock,
        service.ids,
        machine_arn=functions.state_machine_arn,
        scheduler_role_arn=functions.scheduler_role_arn,
        scheduler_group=functions.scheduler_group_name,
        hand_over_events=settings.pipelines.hand_over_events,
        dead_letters_arn=functions.schedule_failures_arn,
    )
    pipelines = open_pipelines(
        service, opened, clock, environ=environ, health=health, engine=engine, alert_holder=DELIVERER
    )
    monitor = service.app.activities[FUNCTIONS["sla_monitor_arn"]].function
    return LifecycleContainer(
        package=package,
        opened=opened,
        service=service,
        pipelines=pipelines,
        cache=cache,
        clients=clients,
        batches=StreamBatches(PIPELINES, opened.spill.restore_change, _change_listener(pipelines, functions, clients)),
        sla_monitor=ScheduledSlaMonitor(monitor, engine.one_shots, own_arn=functions.sla_monitor_arn, clock=clock),
        health=health,
        metrics=FunctionMetrics(environ, clock, [] if meters is None else [registry_source(registry)]),
    )


def _with_invocations(settings: Settings) -> Settings:
    """Return the settings for a watchdog that is invoked every few minutes, and is not silent in between."""
    silent_seconds = max(SILENT_SECONDS, settings.pipelines.watchdog_silent_seconds)
    return replace(settings, pipelines=replace(settings.pipelines, watchdog_silent_seconds=silent_seconds))


def _change_listener(
    pipelines: OpenPipelines, functions: FunctionSettings, clients: AwsClients
) -> Callable[[Change], None]:
    service = pipelines.service

    def route(change: Change) -> None:
        service.quarantine.on_change(change)
        service.router.on_change(change)

    if not functions.lifecycle_topic_arn:
        return route
    topic = LifecycleTopic(clients.client("sns"), functions.lifecycle_topic_arn)

    def on_change(change: Change) -> None:
        route(change)
        topic.on_change(change)

    return on_change
