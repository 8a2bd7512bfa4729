"""App container: the services of the workflow functions, opened once per process."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from headgate.aws.function_home import prepare_home
from headgate.aws.function_metrics import FunctionMetrics
from headgate.aws.function_settings import read_app_settings, read_settings
from headgate.aws.stream_records import stream_change
from headgate.bootstrap.key_check import check_function_keys
from headgate.bootstrap.store import (
    AppService,
    OpenedStore,
    load_app,
    open_store,
)
from headgate.bootstrap.task_backends import open_task_backends
from headgate.clock import Clock, SystemClock
from headgate.durable.engine.function_apps import FunctionApps
from headgate.durable.serverless.activity_functions import ActivityFunctions
from headgate.durable.serverless.activity_handler import InvokedActivities
from headgate.durable.serverless.lost_invocations import LostInvocations
from headgate.durable.serverless.sqs import QueueUrls, WakeQueues
from headgate.durable.serverless.turn_handler import InvokedTurns
from headgate.durable.serverless.wake_sweep import WakeSweep
from headgate.durable.serverless.wakeups import ActivityWake, Due, WorkerWake, load_due, wake_for
from headgate.embedded_metrics import store_source
from headgate.pipelines.lifecycle.eventbridge_timers import OneShotSchedules
from headgate.store.catalogue.tables import ALL_TABLES
from headgate.store.table_names import TableNames
from headgate.telemetry import configure_logs
from headgate.triggers.aws.clients import AwsClients

QUEUE: Final = "aws:sqs"


class AppContainer:
    """The opened store and service. Each function uses one part, created on first use."""

    def __init__(
        self,
        opened: OpenedStore,
        service: AppService,
        queues: WakeQueues,
        clients: AwsClients,
        metrics: FunctionMetrics,
        activity_functions: Mapping[str, str],
    ) -> None:
        """`activity_functions` are ARNs by activity."""
        self.metrics = metrics
        self._activity_functions = activity_functions
        self.opened = opened
        self.service = service
        self.queues = queues
        self.clients = clients
        store = opened.settings.store
        names = TableNames(store.table_prefix, store.table_names)
        self._tables_by_name = {names.physical(table): table for table in ALL_TABLES if table.wakes}

    @cached_property
    def turns(self) -> InvokedTurns:
        """Advances executions."""
        return InvokedTurns(self.service, turn_seconds=self.opened.settings.worker.turn_seconds)

    @cached_property
    def activities(self) -> InvokedActivities:
        """Performs activities."""
        return InvokedActivities(self.service, self.queues.task_queues)

    @cached_property
    def invoker(self) -> ActivityFunctions:
        """Invokes activities that have functions of their own."""
        return ActivityFunctions(self.clients.client("lambda"), self._activity_functions)

    @cached_property
    def lost_invocations(self) -> LostInvocations:
        """Counts attempts whose invocation Lambda gave up on."""
        return LostInvocations(self.service)

    @cached_property
    def sweeper(self) -> WakeSweep:
        """Finds work whose wakeup was lost."""
        service = self.service
        # Before the first event is published, so that it is delivered.
        service.bus.register(list(service.app.subscriptions.values()), service.app.name)
        return WakeSweep(service, self.queues.task_queues)

    def wake(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Send the wakeups of changed rows, or of delayed messages that are due. Returns the number sent.

        Raises `TransientError` and `StoreIOError`; the whole batch is then repeated.
        """
        is_queue = records[0]["eventSource"] == QUEUE
        dues = [self._from_queue(record) if is_queue else self._from_stream(record) for record in records]
        return self._dispatch(due for due in dues if due is not None)

    def _dispatch(self, dues: Iterable[Due]) -> int:
        """Invoke the functions of activities that are due, and send the rest. Returns the number of both."""
        now_ms = int(1000 * self.service.clock.seconds())
        invoked, rest = 0, list[Due]()
        for due in dues:
            wake = due.wake
            if (
                isinstance(wake, ActivityWake)
                and wake.name in self._activity_functions
                and not due.seconds_left(now_ms)
            ):
                invoked += self.invoker.invoke(wake)
            else:
                rest.append(due)
        return invoked + self.queues.send(rest)

    def check(self) -> int:
        """Read the tables and change nothing. Returns the number of workflows of the app, which is loaded."""
        FunctionApps(self.opened.store).all()
        return len(self.service.app.workflows)

    def sweep(self, is_out_of_time: Callable[[], bool]) -> int:
        """Send overdue wakeups again, and run timed maintenance. Returns the number sent."""
        # First: an invocation that runs out of time must not leave a new package unknown to others.
        self.sweeper.register()
        sent = self.queues.send(self.sweeper.overdue())
        self.sweeper.run_maintenance(is_out_of_time)
        return sent

    def _from_queue(self, record: Mapping[str, Any]) -> Due | None:
        due = load_due(record["body"])
        return self.sweeper.workers.check(due.wake) if isinstance(due.wake, WorkerWake) else due

    def _from_stream(self, record: Mapping[str, Any]) -> Due | None:
        # arn:aws:dynamodb:region:account:table/NAME/stream/since
        table = self._tables_by_name[str(record["eventSourceARN"]).split("/")[1]]
        change = stream_change(table, record)
        if change.new is not None:
            return wake_for(table, change.new)
        gone = None if change.old is None else wake_for(table, change.old)
        if gone is not None:
            self.queues.drop(gone)
        return None

    def close(self) -> None:
        """Close all connections."""
        self.clients.close()
        self.opened.store.close()


@functools.cache
def app_container() -> AppContainer:
    """Return the container of this process, opened from its environment.

    Raises `SettingsError`, and any error of the app's module; the next invocation tries again.
    """
    # The entry point of the process: only here the environment is read.
    environ = dict(os.environ)  # noqa: TID251
    log = read_settings(environ).log
    configure_logs(style=log.format, level=log.level)
    return open_app_container(environ, SystemClock())


def open_app_container(environ: Mapping[str, str], clock: Clock) -> AppContainer:
    """Open the store and the services. Raises `SettingsError`, and `TransientError` for an unreachable secret."""
    functions, settings = read_app_settings(environ), read_settings(environ)
    urls = QueueUrls(
        turns=functions.turns_queue_url,
        later=functions.later_queue_url,
        later_arn=functions.later_queue_arn,
        activities=functions.activity_queues(),
    )
    app = load_app(functions.headgate_app)
    clients = AwsClients(region=settings.store.aws_region, endpoint_url=settings.store.aws_endpoint_url)
    prepare_home(settings, clients, keys_secret_arn=functions.keys_secret_arn)
    opened = open_store(settings, clock)
    if functions.keys_secret_arn:
        check_function_keys(opened)
    own = [urls.turns, urls.later, *urls.activities.values()]
    service = AppService(app, opened, clock, open_task_backends(settings, clock, environ, own=own))
    schedules = OneShotSchedules(
        clients.client("scheduler"),
        role_arn=functions.scheduler_role_arn,
        group=functions.scheduler_group_name,
        dead_letters_arn=functions.schedule_failures_arn,
    )
    activity_functions = functions.activity_functions()
    wake_queues = WakeQueues(clients.client("sqs"), schedules, urls, clock, activity_functions)
    metrics = FunctionMetrics(environ, clock, [store_source(opened.store.stats)] if functions.custom_metrics else [])
    return AppContainer(opened, service, wake_queues, clients, metrics, activity_functions)
