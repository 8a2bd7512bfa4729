"""Request application: the HTTP application of a process that only answers requests.

It binds no port, and starts no workers, sweepers or further processes: what such a process leaves to do is done by
others. A request is therefore answered as by a server, from the same routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from litestar.types import ASGIApp
from msgspec import Struct
from prometheus_client import CollectorRegistry

from headgate.bootstrap.store import AppService, OpenedStore
from headgate.clock import Clock
from headgate.durable.sdk.app import App
from headgate.health.audit.actions import ActionLog
from headgate.health.audit.log import Audit
from headgate.serve.application import build_http
from headgate.serve.components import Components
from headgate.serve.http.audited_operations import OperationAudit
from headgate.serve.http.limits.caller_limits import CallerLimits
from headgate.serve.http.session_cookies import SessionCookies
from headgate.serve.metrics_history import MetricsHistory
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.rest.audited_actions import AUDITED
from headgate.serve.rest.routes import api_routes
from headgate.serve.rest.user_routes import AppRoutes, admits_origin
from headgate.serve.routes import http_routes
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.serve.server_monitor import ServerMonitor
from headgate.settings import allowed_host_names
from headgate.telemetry import Metrics, Tracing

_NO_APPS: Final[Sequence[App]] = ()


class RequestApplication(Struct, frozen=True, kw_only=True):
    """An application and what it holds. `limits` are None where others authenticate the callers."""

    app: ASGIApp
    registry: CollectorRegistry
    pool: WorkPool
    limits: CallerLimits | None

    def flush(self) -> None:
        """Log the failed logins that were counted."""
        if self.limits is not None:
            self.limits.failed_logins.flush()

    def close(self) -> None:
        """Stop the threads. Waits for running work."""
        if self.limits is not None:
            self.limits.failed_logins.flush(is_final=True)
        self.pool.close()


def whole_application(
    components: Components, *, clock: Clock, tracing: Tracing, apps: Sequence[App] = _NO_APPS
) -> RequestApplication:
    """Return the application of `headgate up`: REST, GraphQL, pages and the routes of the users' apps.

    Callers reach it over HTTPS, at the address that the connection states.
    """
    settings = components.store.settings
    pool, routes = WorkPool(), AppRoutes(apps)
    probes = _probes(components.store, components.version, clock)
    cookies = SessionCookies(is_tls=True)
    limits = CallerLimits(settings.limits, clock, registry=components.registry)
    components.metrics.watch_store(components.store.store.stats.snapshot)
    monitor = ServerMonitor(probes, MetricsHistory(components.registry, clock), clock, home=None)
    handlers = http_routes(
        components,
        pool,
        clock,
        watches=WatchHub(components.service.store),
        cookies=cookies,
        monitor=monitor,
        apps=routes,
    )
    app = build_http(
        version=components.version,
        probes=probes,
        pool=pool,
        metrics=components.metrics,
        tracing=tracing,
        clock=clock,
        allowed_hosts=allowed_host_names(settings),
        allowed_origins=settings.allowed_origins,
        routes=handlers,
        admits=admits_origin(routes),
        authenticator=components.authenticator,
        is_tls=True,
        limits=limits,
        cookies=cookies,
    )
    return RequestApplication(app=app, registry=components.registry, pool=pool, limits=limits)


def durable_application(
    opened: OpenedStore, service: AppService, *, version: str, clock: Clock, tracing: Tracing
) -> RequestApplication:
    """Return the application of executions, activities, events, schedules and machines alone.

    It does not authenticate: the middleware around it sets the caller of each request.
    """
    pool, metrics = WorkPool(), Metrics(version=version, registry=CollectorRegistry())
    actions = ActionLog(opened.store, clock, service.ids, Audit(opened.store, clock, service.ids, opened.keyring))
    kept_seconds = 3600 * opened.settings.retention.idempotency_hours
    handlers = api_routes(service, pool, auditing=OperationAudit(actions, AUDITED), idempotency_seconds=kept_seconds)
    app = build_http(
        version=version,
        probes=_probes(opened, version, clock),
        pool=pool,
        metrics=metrics,
        tracing=tracing,
        clock=clock,
        allowed_hosts=allowed_host_names(opened.settings),
        routes=handlers,
    )
    return RequestApplication(app=app, registry=metrics.registry, pool=pool, limits=None)


def _probes(opened: OpenedStore, version: str, clock: Clock) -> ServerProbes:
    probes = ServerProbes(
        version=version, store=opened.store, sweepers=[], clock=clock, disk=None, faults=opened.store.stats.faults
    )
    probes.phase = Phase.SERVING
    return probes
