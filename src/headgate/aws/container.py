"""The container: everything that the functions work with, opened once for all invocations of one process."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from headgate.aws.deliveries import work_off
from headgate.aws.function_settings import FunctionSettings, read_function_settings, read_settings
from headgate.aws.lifecycle_topic import LifecycleTopic
from headgate.aws.sla_schedules import ScheduledSlaMonitor
from headgate.aws.stream_batches import StreamBatches
from headgate.clock import Clock, SystemClock
from headgate.durable.app import App
from headgate.errors import StoreIOError
from headgate.health_wiring import open_health
from headgate.ids import IdMaker
from headgate.pipeline_wiring import NOTIFY_FILE, OpenPipelines, apply_folder, open_pipelines
from headgate.pipelines.aws_refusals import asking
from headgate.pipelines.calls import Answer
from headgate.pipelines.heartbeats import Who
from headgate.pipelines.loops import PipelineLoops
from headgate.pipelines.one_shots import OneShots
from headgate.pipelines.starting import FUNCTIONS
from headgate.pipelines.step_functions import StepFunctions
from headgate.pipelines.watchdog import TickReport
from headgate.settings import Settings
from headgate.store.cache import Cache
from headgate.store.tables import PIPELINES
from headgate.store.writes import Change
from headgate.telemetry import configure_logs
from headgate.triggers.aws_clients import AwsClients
from headgate.wiring import (
    AppService,
    OpenedStore,
    join_fanouts,
    keys_path,
    open_cache,
    open_fanouts,
    open_service,
    open_store,
)

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
            own = pipelines.heartbeats.beat(Who.SERVER)
            pipelines.heartbeats.watch(own, Who.WATCHDOG)
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
    _furnish(settings, functions, clients, package)
    opened = open_store(settings, clock)
    service = open_service(App("headgate"), opened, clock)
    fanouts = open_fanouts(opened, clock, service.ids)
    join_fanouts(service, opened, fanouts)
    cache = open_cache(settings, clock)
    health = open_health(opened, cache, clock, service)
    one_shots = OneShots(
        clients.client("scheduler"), role_arn=functions.scheduler_role_arn, group=functions.scheduler_group_name
    )
    engine = StepFunctions(
        clients.client("stepfunctions"),
        one_shots,
        machine_arn=functions.state_machine_arn,
        clock=clock,
        ids=IdMaker(clock),
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
        sla_monitor=ScheduledSlaMonitor(monitor, one_shots, own_arn=functions.sla_monitor_arn, clock=clock),
    )


def _hearers(pipelines: OpenPipelines, functions: FunctionSettings, clients: AwsClients) -> Callable[[Change], None]:
    route = pipelines.service.router.hear
    if not functions.lifecycle_topic_arn:
        return route
    topic = LifecycleTopic(clients.client("sns"), functions.lifecycle_topic_arn)

    def hear(change: Change) -> None:
        route(change)
        topic.hear(change)

    return hear


def _furnish(settings: Settings, functions: FunctionSettings, clients: AwsClients, package: Path) -> None:
    """Put into the home what a machine would have there: the keyring, and how alerts go out.

    Raises `TransientError` and `StoreIOError`.
    """
    keys = _keys(functions.keys_secret_arn, clients) if functions.keys_secret_arn else ""
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (package / NOTIFY_FILE).is_file():
            shutil.copyfile(package / NOTIFY_FILE, settings.home / NOTIFY_FILE)
        if keys:
            _write_private(keys_path(settings), keys)
    except OSError as exc:
        raise StoreIOError(f"home {settings.home}: cannot be written: {exc.strerror}; set HEADGATE_HOME") from exc


def _keys(secret_arn: str, clients: AwsClients) -> str:
    with asking(f"secret {secret_arn}"):
        answer = clients.client("secretsmanager").get_secret_value(SecretId=secret_arn)
    return str(answer.get("SecretString", ""))


def _write_private(path: Path, text: str) -> None:
    """Write a file that nobody else may read, unless an earlier container of the same machine has left it."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
