"""The container: everything that the functions work with, opened once for all invocations of one process."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from headgate.aws.deliveries import work_off
from headgate.aws.function_settings import FunctionSettings, read_function_settings, read_settings
from headgate.aws.home import furnish
from headgate.aws.lifecycle_topic import LifecycleTopic
from headgate.aws.sla_schedules import ScheduledSlaMonitor
from headgate.aws.stream_batches import StreamBatches
from headgate.bootstrap.health import open_health
from headgate.bootstrap.pipelines import NOTIFY_FILE, OpenPipelines, apply_folder, open_pipelines, open_step_functions
from headgate.bootstrap.store import (
    AppService,
    OpenedStore,
    join_fanouts,
    open_cache,
    open_service,
    open_store,
)
from headgate.clock import Clock, SystemClock
from headgate.durable.sdk.app import App
from headgate.pipelines.background_threads import PipelineLoops
from headgate.pipelines.lifecycle.messages import Answer
from headgate.pipelines.lifecycle.starter import FUNCTIONS
from headgate.pipelines.watchdog.heartbeats import HeartbeatSource
from headgate.pipelines.watchdog.watchdog import TickReport
from headgate.store.cache.read_through import Cache
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Change
from headgate.telemetry import configure_logs
from headgate.triggers.aws.clients import AwsClients

PIPELINES_FOLDER: Final = "pipelines"
_TASK_ROOT: Final = "LAMBDA_TASK_ROOT"


class Container(Struct, frozen=True, kw_only=True):
    """What is open, and the functions on it. `package` is the folder that the code was unpacked to."""

    package: Path
    opened: OpenedStore
    service: AppService
    pipelines: OpenPipelines
    cache: Cache
    clients: AwsClients
    batches: StreamBatches
    sla_monitor: ScheduledSlaMonitor

    def call(self, variable: str, event: dict[str, Any]) -> Answer:
        """Call the function that the machine knows by a variable of its definition: the very one of the engine."""
        if variable == "sla_monitor_arn":
            return self.sla_monitor(event)
        answer: Answer = self.service.app.activities[FUNCTIONS[variable]].function(event)
        return answer

    def watch(self) -> TickReport:
        """Make one tick of the watchdog."""
        return self.pipelines.watchdog.tick()

    def keep_time(self, is_over: Callable[[], bool]) -> int:
        """Begin what is due by the clock, go on with backfills, and deliver alerts. Returns how many were delivered."""
        pipelines = self.pipelines
        try:
            # Made anew, so that it learns the definitions as they are now.
            PipelineLoops(pipelines.service).tick()
            pipelines.backfilling.tick()
            pipelines.notifier.tick()
            own = pipelines.heartbeats.beat(HeartbeatSource.SERVER)
            pipelines.heartbeats.watch(own, HeartbeatSource.WATCHDOG)
        finally:
            # Whatever could not be begun, people are told of what has happened.
            delivered = work_off(self.service, is_over)
        return delivered

    def define(self) -> int:
        """Make the definitions in the package the current ones, and return how many pipelines there are."""
        # Before the first event, lest nobody is told of it.
        self.service.bus.register(list(self.service.app.subscriptions.values()), self.service.app.name)
        folder = self.package / PIPELINES_FOLDER
        if folder.is_dir():
            apply_folder(self.pipelines, folder)
        return len(self.pipelines.service.definitions.all().pipelines)

    def close(self) -> None:
        """Let go of all connections."""
        self.cache.close()
        self.clients.close()
        self.opened.store.close()


@functools.cache
def container() -> Container:
    """Return the container of this process, opened by its environment.

    Raises `SettingsError`; the next invocation tries again.
    """
    # The edge of the process, as the main function of the program is: everything else is given what it needs.
    environ = dict(os.environ)  # noqa: TID251
    log = read_settings(environ).log
    configure_logs(style=log.format, level=log.level)
    return open_container(environ, SystemClock())


def open_container(environ: Mapping[str, str], clock: Clock) -> Container:
    """Open everything. Raises `SettingsError`, and what an unreachable secret raises."""
    functions, settings = read_function_settings(environ), read_settings(environ)
    package = Path(environ.get(_TASK_ROOT) or ".").absolute()
    clients = AwsClients(region=settings.store.aws_region, endpoint_url=settings.store.aws_endpoint_url)
    notify = package / NOTIFY_FILE
    files = [notify] if notify.is_file() else []
    furnish(settings, clients, keys_secret_arn=functions.keys_secret_arn, files=files)
    opened = open_store(settings, clock)
    service = open_service(App("headgate"), opened, clock)
    fanouts = join_fanouts(service, opened, clock)
    cache = open_cache(settings, clock)
    health = open_health(opened, cache, clock, service)
    engine = open_step_functions(
        clients,
        clock,
        service.ids,
        machine_arn=functions.state_machine_arn,
        scheduler_role_arn=functions.scheduler_role_arn,
        scheduler_group=functions.scheduler_group_name,
    )
    pipelines = open_pipelines(service, opened, fanouts, clock, environ=environ, health=health, engine=engine)
    monitor = service.app.activities[FUNCTIONS["sla_monitor_arn"]].function
    return Container(
        package=package,
        opened=opened,
        service=service,
        pipelines=pipelines,
        cache=cache,
        clients=clients,
        batches=StreamBatches(PIPELINES, opened.spill.restore_change, _hearers(pipelines, functions, clients)),
        sla_monitor=ScheduledSlaMonitor(monitor, engine.one_shots, own_arn=functions.sla_monitor_arn, clock=clock),
    )


def _hearers(pipelines: OpenPipelines, functions: FunctionSettings, clients: AwsClients) -> Callable[[Change], None]:
    route = pipelines.service.router.on_change
    if not functions.lifecycle_topic_arn:
        return route
    topic = LifecycleTopic(clients.client("sns"), functions.lifecycle_topic_arn)

    def hear(change: Change) -> None:
        route(change)
        topic.hear(change)

    return hear
