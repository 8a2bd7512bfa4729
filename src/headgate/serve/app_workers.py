"""App workers: runs the workflows and activities of several apps in one process, each with a worker of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from headgate.asl.tasks.task_backends import TaskBackends
from headgate.bootstrap.store import AppService, OpenedStore, worker_limits
from headgate.clock import Clock
from headgate.durable.http.routes import RouteTable
from headgate.durable.model.meters import ExecutionMeters
from headgate.durable.sdk.app import App
from headgate.errors import DefinitionError, SettingsError
from headgate.settings import Settings
from headgate.telemetry import Tracing


def check_apps(apps: Sequence[App]) -> None:
    """Raise `SettingsError` if two apps have the same name, or declare something of the same kind and name.

    Two routes are the same if they have the same method and path.
    """
    owners: dict[tuple[str, str], str] = {}
    for app in apps:
        names = [("app", app.name)]
        names += [("workflow", each) for each in app.workflows]
        names += [("activity", each) for each in app.activities]
        names += [("subscription", each) for each in app.subscriptions]
        for kind, name in names:
            other = owners.setdefault((kind, name), app.name)
            if other != app.name or (kind == "app" and sum(each.name == name for each in apps) > 1):
                raise SettingsError(f"--app: {kind} {name} is in two apps, {other} and {app.name}; rename one of them")
    for place, app in enumerate(apps):
        for other_app in apps[:place]:
            _check_routes(other_app, app)


def _check_routes(one: App, other: App) -> None:
    table = RouteTable()
    for route in one.table:
        table.add(route)
    for route in other.table:
        try:
            table.check(route.method, route.template)
        except DefinitionError as exc:
            raise SettingsError(
                f"--app: route {route.method} {route.path} is in two apps, {one.name} and {other.name} ({exc}); "
                "change one of them"
            ) from exc


def app_services(
    apps: Sequence[App],
    opened: OpenedStore,
    clock: Clock,
    backends: TaskBackends,
    meters: ExecutionMeters | None,
    tracing: Tracing,
) -> list[AppService]:
    """Return a service for each app. All have the same `backends`: any of their workers may run a Task."""
    return [AppService(app, opened, clock, backends, meters=meters, tracing=tracing) for app in apps]


@contextmanager
def running(
    services: Sequence[AppService],
    settings: Settings,
    queues: Sequence[str],
    on_fatal: Callable[[], None],
    grace_seconds: float,
) -> Iterator[None]:
    """Run a worker for each service. At the end all of them drain at once, in the grace period."""
    started: list[AppService] = []
    try:
        for service in services:
            service.start(
                queues=queues,
                limits=worker_limits(settings.worker),
                lease_seconds=settings.worker.lease_seconds,
                turn_seconds=settings.worker.turn_seconds,
                on_fatal=lambda _error: on_fatal(),
            )
            started.append(service)
        yield
    finally:
        stops = [threading.Thread(target=service.stop, args=(grace_seconds,)) for service in started]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()
