"""HTTP containers: the applications of the HTTP functions, opened once per process."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from importlib.metadata import version

from msgspec.structs import replace

from headgate.aws.function_home import prepare_home
from headgate.aws.function_metrics import FunctionMetrics
from headgate.aws.function_settings import read_api_settings, read_settings
from headgate.aws.http.invoker import Invoker
from headgate.bootstrap.key_check import check_function_keys
from headgate.bootstrap.store import AppService, load_app, open_store
from headgate.bootstrap.tracing import open_tracing
from headgate.clock import Clock, SystemClock
from headgate.durable.sdk.app import App
from headgate.embedded_metrics import registry_source
from headgate.serve.components import Components, open_components
from headgate.serve.request_application import RequestApplication, durable_application, whole_application
from headgate.settings import Settings
from headgate.telemetry import configure_logs
from headgate.triggers.aws.clients import AwsClients

_NAME = "headgate"


class HttpContainer:
    """An application and what it was opened with."""

    def __init__(
        self,
        application: RequestApplication,
        metrics: FunctionMetrics,
        stack: ExitStack,
        components: Components | None = None,
    ) -> None:
        self.application = application
        self.metrics = metrics
        self.invoke = Invoker(application.app)
        # None in the durable API.
        self.components = components
        self._stack = stack

    def close(self) -> None:
        """End the threads and close all connections."""
        self.invoke.close()
        self.application.close()
        self._stack.close()


@functools.cache
def api_container() -> HttpContainer:
    """Return the whole application of this process. Raises `SettingsError`; the next invocation tries again."""
    return open_api_container(_environ(), SystemClock())


@functools.cache
def internal_api_container() -> HttpContainer:
    """Return the durable API of this process. Raises `SettingsError`; the next invocation tries again."""
    return open_internal_api_container(_environ(), SystemClock())


def open_api_container(environ: Mapping[str, str], clock: Clock) -> HttpContainer:
    """Open the store and all services. Raises `SettingsError`, and `TransientError` for an unreachable secret."""
    settings, apps = _prepare(environ)
    with ExitStack() as stack:
        tracing = stack.enter_context(closing(open_tracing(settings.telemetry)))
        opening = open_components(
            settings,
            version=version(_NAME),
            clock=clock,
            tracing=tracing,
            app=apps[0] if apps else App(_NAME),
            environ=environ,
        )
        components = stack.enter_context(opening)
        if read_api_settings(environ).keys_secret_arn:
            check_function_keys(components.store)
        application = whole_application(components, clock=clock, tracing=tracing, apps=apps)
        return HttpContainer(application, _metrics(environ, clock, application), stack.pop_all(), components)
    raise AssertionError("an exit stack suppresses nothing")


def open_internal_api_container(environ: Mapping[str, str], clock: Clock) -> HttpContainer:
    """Open the store and the durable service. Raises as `open_api_container`."""
    settings, apps = _prepare(environ)
    with ExitStack() as stack:
        tracing = stack.enter_context(closing(open_tracing(settings.telemetry)))
        opened = open_store(settings, clock)
        stack.enter_context(closing(opened.store))
        if read_api_settings(environ).keys_secret_arn:
            check_function_keys(opened)
        service = AppService(apps[0] if apps else App(_NAME), opened, clock, tracing=tracing)
        application = durable_application(opened, service, version=version(_NAME), clock=clock, tracing=tracing)
        return HttpContainer(application, _metrics(environ, clock, application), stack.pop_all())
    raise AssertionError("an exit stack suppresses nothing")


def _metrics(environ: Mapping[str, str], clock: Clock, application: RequestApplication) -> FunctionMetrics:
    is_wanted = bool(read_api_settings(environ).custom_metrics)
    return FunctionMetrics(environ, clock, [registry_source(application.registry)] if is_wanted else [])


def _environ() -> dict[str, str]:
    # The entry point of the process: only here the environment is read.
    environ = dict(os.environ)  # noqa: TID251
    log = read_settings(environ).log
    configure_logs(style=log.format, level=log.level)
    return environ


def _prepare(environ: Mapping[str, str]) -> tuple[Settings, list[App]]:
    """Return the settings, which require authentication, and the app; and write the home folder."""
    functions, settings = read_api_settings(environ), read_settings(environ)
    apps = [load_app(functions.headgate_app)] if functions.headgate_app else []
    clients = AwsClients(region=settings.store.aws_region, endpoint_url=settings.store.aws_endpoint_url)
    try:
        prepare_home(settings, clients, keys_secret_arn=functions.keys_secret_arn)
    finally:
        clients.close()
    return replace(settings, auth=replace(settings.auth, required=True), behind_proxy=False), apps
