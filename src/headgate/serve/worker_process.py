"""Worker process: runs workflows and activities of one or several apps, with the same drain as the server.

Its only port is that of its metrics, if one is configured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import structlog

from headgate.bootstrap.key_check import check_keys
from headgate.bootstrap.store import AppService, OpenedStore, open_store
from headgate.bootstrap.task_backends import open_task_backends
from headgate.bootstrap.tracing import open_tracing
from headgate.clock import Clock
from headgate.durable.model.meters import ExecutionMeters
from headgate.durable.sdk.app import App
from headgate.serve.app_workers import app_services, check_apps, running
from headgate.serve.process import Stop, freeze_heap
from headgate.settings import Address, Settings

if TYPE_CHECKING:
    from headgate.serve.worker_metrics import MetricsEndpoint

_GRACE_SHARE = 0.7
_log = structlog.get_logger(__name__)


def run(
    settings: Settings,
    apps: Sequence[App],
    *,
    version: str,
    clock: Clock,
    queues: Sequence[str],
    announce: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
) -> int:
    """Work until a signal requests the stop, and return the exit code once all work is finished or released.

    The exit code is not 0 if the worker has stopped because of an error.
    """
    stop = Stop(deadline_seconds=settings.drain_seconds)
    stop.install()
    stopping = threading.Event()
    stop.on_request(stopping.set)
    opened = open_store(settings, clock)
    meters = ExecutionMeters()
    with ExitStack() as stack:
        stack.enter_context(closing(opened.store))
        opened.store.check_health()
        check_keys(opened)
        check_apps(apps)
        tracing = open_tracing(settings.telemetry)
        stack.callback(tracing.close)
        backends = open_task_backends(settings, clock, environ)
        services = app_services(apps, opened, clock, backends, meters, tracing)
        endpoint = None
        if settings.worker.metrics is not None:
            endpoint = _open_endpoint(settings, settings.worker.metrics, services[0], opened, version)
            stack.callback(endpoint.stop)
        with running(services, settings, queues, stop.fail, settings.drain_seconds * _GRACE_SHARE):
            freeze_heap()
            if endpoint is not None:
                endpoint.start()
            metrics = "" if endpoint is None else f"  metrics={endpoint.address}"
            names = ",".join(app.name for app in apps)
            announce(f"headgate worker ready  app={names}  home={settings.home}{metrics}")
            # With a timeout: on some platforms an unbounded wait blocks the signal handler.
            while not stopping.wait(1.0):
                continue
    _log.info("stopped", action="worker.stop", exit_code=int(stop.exit_code))
    return stop.exit_code


def _open_endpoint(
    settings: Settings, address: Address, service: AppService, opened: OpenedStore, version: str
) -> MetricsEndpoint:
    # Imported only with an address: a worker without metrics needs no HTTP server.
    from headgate.serve.execution_metrics import WorkerCollector
    from headgate.serve.worker_metrics import MetricsEndpoint
    from headgate.telemetry import Metrics

    assert service.meters is not None
    metrics = Metrics(version=version)
    metrics.watch_store(opened.store.stats.snapshot)
    metrics.registry.register(WorkerCollector(service.meters.reading, service.worker_status))
    return MetricsEndpoint(settings, address, metrics)
