"""Health sweep: the background work of health, for deployments whose API is a function.

An EventBridge rule invokes it each minute: OpenLineage events that were accepted are processed, incidents escalate and
resolve, freshness is judged, and evidence is archived. Only a server deletes expired archives and audit entries.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final

from headgate.aws.function_home import prepare_home
from headgate.aws.function_settings import read_api_settings, read_settings
from headgate.aws.invocation import Context, Event, handle, is_out_of_time
from headgate.bootstrap.health import open_health
from headgate.bootstrap.key_check import check_function_keys
from headgate.bootstrap.store import AppService, OpenedStore, open_cache, open_store
from headgate.clock import Clock, SystemClock
from headgate.durable.sdk.app import App
from headgate.health.service import HealthService
from headgate.store.cache.read_through import Cache
from headgate.telemetry import configure_logs
from headgate.triggers.aws.clients import AwsClients

_LIMIT: Final = 200


class HealthContainer:
    """The opened store and health."""

    def __init__(self, opened: OpenedStore, cache: Cache, health: HealthService) -> None:
        self.health = health
        self._opened = opened
        self._cache = cache

    def sweep(self, is_out_of_time: Callable[[], bool]) -> int:
        """Do the work that is due, until none is left or time is up. Returns how much was done."""
        done = 0
        while not is_out_of_time():
            count = self.health.drain(limit=_LIMIT) + self.health.sweep(limit=_LIMIT)
            done += count
            if not count:
                break
        if not is_out_of_time():
            done += self.health.archive()
        return done

    def close(self) -> None:
        """Close all connections."""
        self.health.close()
        self._cache.close()
        self._opened.store.close()


def health_sweep(event: Event, context: Context) -> Event:
    """Do the background work of health that is due."""
    del event
    return handle("health-sweep", context, lambda: {"done": health_container().sweep(lambda: is_out_of_time(context))})


@functools.cache
def health_container() -> HealthContainer:
    """Return the container of this process, opened from its environment.

    Raises `SettingsError`; the next invocation tries again.
    """
    # The entry point of the process: only here the environment is read.
    environ = dict(os.environ)  # noqa: TID251
    log = read_settings(environ).log
    configure_logs(style=log.format, level=log.level)
    return open_health_container(environ, SystemClock())


def open_health_container(environ: Mapping[str, str], clock: Clock) -> HealthContainer:
    """Open the store and health. Raises `SettingsError`, and `TransientError` for an unreachable secret."""
    functions, settings = read_api_settings(environ), read_settings(environ)
    with closing(AwsClients(region=settings.store.aws_region, endpoint_url=settings.store.aws_endpoint_url)) as clients:
        prepare_home(settings, clients, keys_secret_arn=functions.keys_secret_arn)
    opened = open_store(settings, clock)
    if functions.keys_secret_arn:
        check_function_keys(opened)
    # Only its bus is used; it runs no workflow.
    service = AppService(App("headgate"), opened, clock)
    cache = open_cache(settings, clock)
    return HealthContainer(opened, cache, open_health(opened, cache, clock, service))
