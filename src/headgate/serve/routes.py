"""Routes: everything that the HTTP port serves beside probes, metrics and RPCs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from litestar.types import ControllerRouterHandler

from headgate.clock import Clock
from headgate.serve.components import Components
from headgate.serve.graphql.routes import graphql_routes
from headgate.serve.http.audited_operations import OperationAudit
from headgate.serve.http.session_cookies import SessionCookies
from headgate.serve.pages.routes import page_routes
from headgate.serve.pages.sign_in import SignIn
from headgate.serve.rest.audited_actions import AUDITED
from headgate.serve.rest.health.routes import health_routes
from headgate.serve.rest.pipelines.alerts import alert_routes
from headgate.serve.rest.routes import api_routes
from headgate.serve.rest.server.sessions import session_routes
from headgate.serve.rest.server.settings import settings_routes
from headgate.serve.rest.user_routes import AppRoutes, user_routes
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.serve.server_monitor import ServerMonitor


def http_routes(
    components: Components,
    pool: WorkPool,
    clock: Clock,
    *,
    watches: WatchHub,
    cookies: SessionCookies,
    monitor: ServerMonitor,
    apps: AppRoutes,
    unusable_handlers: Callable[[], Mapping[str, str]] = dict,
) -> list[ControllerRouterHandler]:
    """Return the routes of REST, GraphQL, the pages and the users' apps.

    `unusable_handlers` returns the chunk handlers that this process could not load, with the reason.
    """
    api = rest_routes(
        components, pool, clock, unusable_handlers=unusable_handlers, stopping=lambda: watches.is_stopping
    )
    sign_in = SignIn(
        components.authenticator,
        components.sessions,
        cookies,
        oidc=components.oidc,
        public_url=components.store.settings.public_url,
    )
    return [
        *api,
        *graphql_routes(components.health, pool, watches),
        *page_routes(components.health, pool, watches, api, components.pipelines.service, sign_in, monitor),
        *user_routes(apps, pool),
    ]


def rest_routes(
    components: Components,
    pool: WorkPool,
    clock: Clock,
    *,
    unusable_handlers: Callable[[], Mapping[str, str]] = dict,
    stopping: Callable[[], bool] = lambda: False,
) -> list[ControllerRouterHandler]:
    """Return the routes of every API operation, audited. The options are those of `api_routes`."""
    pipelines, health = components.pipelines, components.health
    auditing = OperationAudit(health.actions, AUDITED)
    kept_seconds = 3600 * components.store.settings.retention.idempotency_hours
    return [
        *api_routes(
            components.service,
            pool,
            fanouts=components.fanouts,
            pipelines=pipelines.service,
            calendars=pipelines.calendars,
            check_trait=pipelines.evaluators.check,
            folder=components.folder,
            probes=pipelines.probes,
            unusable_handlers=unusable_handlers,
            stopping=stopping,
            auditing=auditing,
            idempotency_seconds=kept_seconds,
        ),
        *alert_routes(
            pipelines.alerts,
            pipelines.mutes,
            pipelines.deliverer,
            clock,
            pool,
            channels=pipelines.channels,
            inbound=pipelines.inbound_acks,
            auditing=auditing,
        ),
        *health_routes(
            health,
            components.keys,
            pool,
            checks=None if pipelines.checks is None else pipelines.checks.service,
            auditing=auditing,
            idempotency_seconds=kept_seconds,
        ),
        *settings_routes(components.store.settings, pool, version=components.version),
        *session_routes(components.sessions, pool, auditing=auditing),
    ]
