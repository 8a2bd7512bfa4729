"""HTTP application: the routes of the HTTP port, behind authentication, origin guard, access log and Connect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from litestar import Litestar, Request, Response, get
from litestar.datastructures import ResponseHeader
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.response import Redirect
from litestar.types import ASGIApp, ControllerRouterHandler, Scope
from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST

from headgate.auth.authenticator import Authenticator
from headgate.auth.principals import require
from headgate.auth.roles import Permission
from headgate.clock import Clock
from headgate.serve.http.access_log import AccessLog
from headgate.serve.http.authentication import Authentication
from headgate.serve.http.framework import DescribedHandler
from headgate.serve.http.limits.caller_limits import CallerLimits
from headgate.serve.http.limits.readiness_gate import ReadinessGate
from headgate.serve.http.openapi import PATH as DOCUMENT_PATH
from headgate.serve.http.openapi import document_route
from headgate.serve.http.openapi_operations import describe_get
from headgate.serve.http.operations import principal_of
from headgate.serve.http.origin_guard import BODY_BYTES_MAX, OriginGuard
from headgate.serve.http.problem import EXCEPTION_HANDLERS, Problem, response, retry_after
from headgate.serve.http.session_cookies import SessionCookies
from headgate.serve.metrics import ApiMeters
from headgate.serve.probes import Phase, Report, ServerProbes, Status
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.telemetry import Metrics, Tracing

if TYPE_CHECKING:
    from headgate.serve.rpc.dispatcher import Dispatcher

_RETRY_SECONDS: Final = 1.0
_REPORTS: Final[Mapping[int, Any]] = {200: Report, 503: Problem}
# Prefix of schema names in the OpenAPI document: an execution has a Status too.
_NAMESPACE: Final = "server."
_PAGES: Final = "/ui"
_NOT_CACHED: Final = [ResponseHeader(name="cache-control", value="no-store")]


class _Application(Litestar):
    """Litestar without its model plugins, whose libraries take longer to import than the routes to build."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def build_http(  # noqa: PLR0913 - one argument for each part of the server
    *,
    version: str,
    probes: ServerProbes,
    pool: WorkPool,
    metrics: Metrics,
    tracing: Tracing,
    clock: Clock,
    before_metrics: Callable[[], Awaitable[None]] | None = None,
    allowed_hosts: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
    is_behind_proxy: bool = False,
    routes: Sequence[ControllerRouterHandler] = (),
    admits: Callable[[Scope, str], bool] = lambda _scope, _origin: False,
    rpcs: Dispatcher | None = None,
    authenticator: Authenticator | None = None,
    is_tls: bool = False,
    limits: CallerLimits | None = None,
    cookies: SessionCookies | None = None,
) -> ASGIApp:
    """Return the application: probes, metrics, `routes` and `rpcs`, behind the middleware.

    `before_metrics` is awaited before metrics are rendered, to collect those of other processes.
    """
    own = [
        _index(version, has_pages=_has_pages(routes)),
        *_probe_routes(probes, pool),
        _metrics_route(metrics, before_metrics),
    ]
    app = _Application(
        [*own, *routes, document_route([*own, *routes], pool, version=version)],
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=None,
        request_max_body_size=BODY_BYTES_MAX,
        logging_config=None,
    )
    authenticated = (
        app
        if authenticator is None
        else Authentication(app, authenticator, pool, is_tls=is_tls, limits=limits, cookies=cookies)
    )
    guarded = OriginGuard(
        ReadinessGate(authenticated, probes.check_ready),
        allowed_hosts=allowed_hosts,
        allowed_origins=allowed_origins,
        is_behind_proxy=is_behind_proxy,
        admits=admits,
    )
    logged = AccessLog(
        guarded,
        tracing=tracing,
        registry=metrics.registry,
        meters=ApiMeters(metrics.registry) if rpcs is None else rpcs.meters,
        clock=clock,
        addresses=None if limits is None else limits.addresses,
    )
    if rpcs is None:
        return logged
    # An extra.
    from headgate.serve.rpc.connect import Connect

    return Connect(logged, rpcs, refusal=guarded.refusal, shared=guarded.shared)


class Index(Struct, frozen=True):
    """The server and its links."""

    name: str
    version: str
    links: dict[str, str]


def _route(path: str, summary: str, answers: Mapping[int, Any], **more: Any) -> DescribedHandler:  # noqa: ANN401 - the framework's
    describe = partial(describe_get, path, summary, answers, _NAMESPACE)
    return DescribedHandler(path, describe=describe, http_method=[HttpMethod.GET], status_code=HTTPStatus.OK, **more)


def _index(version: str, *, has_pages: bool) -> ControllerRouterHandler:
    links = {"health": "/health", "metrics": "/metrics", "openapi": DOCUMENT_PATH}
    if has_pages:
        links["pages"] = _PAGES
    content = Index("headgate", version, links)

    @_route("/", "Name, version and links of the server", {200: Index, 303: None})
    async def index(request: Request[Any, Any, Any]) -> Response[Any]:
        # Browsers accept HTML; API clients do not ask for it.
        if has_pages and "text/html" in request.headers.get("accept", ""):
            return Redirect(_PAGES, status_code=303, headers={"vary": "accept"})
        return Response(content, headers={"vary": "accept"})

    return index


def _has_pages(routes: Sequence[ControllerRouterHandler]) -> bool:
    return any(_PAGES in each.paths for each in routes if isinstance(each, HTTPRouteHandler))


def _probe_routes(probes: ServerProbes, pool: WorkPool) -> list[ControllerRouterHandler]:
    @_route("/health", "Server health", _REPORTS, response_headers=_NOT_CACHED)
    async def summary() -> Response[Any]:
        return _answer(probes.phase, probes.summary())

    @_route("/health/live", "Liveness", _REPORTS, response_headers=_NOT_CACHED)
    async def live() -> Response[Any]:
        return Response(probes.alive())

    @_route("/health/ready", "Readiness", _REPORTS, response_headers=_NOT_CACHED)
    async def ready() -> Response[Any]:
        return _answer(probes.phase, probes.ready())

    @_route(
        "/health/deep",
        "Deep health check: reads and writes the store",
        {**_REPORTS, 401: Problem, 403: Problem},
        response_headers=_NOT_CACHED,
    )
    async def deep(request: Request[Any, Any, Any]) -> Response[Any]:
        require(principal_of(request.scope), Permission.SERVER_READ)
        return _answer(probes.phase, await pool.run(probes.probe))

    return [summary, live, ready, deep]


def _answer(phase: Phase, report: Report) -> Response[Any]:
    if report.status is not Status.FAILED:
        return Response(report)
    code = "unhealthy" if phase is Phase.SERVING else phase.value
    facts = "; ".join(f"{check.name}: {check.fact}" for check in report.checks if check.status is Status.FAILED)
    return response(Problem.of(503, code, facts, checks=report.checks), retry_after(_RETRY_SECONDS))


def _metrics_route(metrics: Metrics, before_metrics: Callable[[], Awaitable[None]] | None) -> ControllerRouterHandler:
    @get("/metrics", include_in_schema=False)
    async def render(request: Request[Any, Any, Any]) -> Response[bytes]:
        require(principal_of(request.scope), Permission.SERVER_READ)
        if before_metrics is not None:
            await before_metrics()
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return render
