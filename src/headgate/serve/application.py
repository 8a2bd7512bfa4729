"""The HTTP application: what Headgate serves on its HTTP port, and what surrounds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from litestar import Litestar, Request, Response, get
from litestar.datastructures import ResponseHeader
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.response import Redirect
from litestar.types import ASGIApp, ControllerRouterHandler, Scope
from prometheus_client import CONTENT_TYPE_LATEST

from headgate.auth.authenticator import Authenticator
from headgate.auth.principals import require
from headgate.auth.roles import Permission
from headgate.clock import Clock
from headgate.serve.http.access_log import Access
from headgate.serve.http.authentication import Identity
from headgate.serve.http.openapi import PATH as DOCUMENT_PATH
from headgate.serve.http.openapi import document_route
from headgate.serve.http.operations import principal_of
from headgate.serve.http.origin_guard import BODY_BYTES_MAX, Guard
from headgate.serve.http.problem import EXCEPTION_HANDLERS, MEDIA_TYPE, Problem, response, retry_after
from headgate.serve.metrics import ApiMeters
from headgate.serve.probes import Health, Phase, Report, Status
from headgate.serve.rpc.connect import Connect
from headgate.serve.rpc.dispatcher import Dispatcher
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.telemetry import Metrics, Tracing

_RETRY_SECONDS: Final = 1.0
_REPORT: Final = ResponseSpec(Report, description="What was looked at, and what was seen")
_PROBLEM: Final = ResponseSpec(Problem, media_type=MEDIA_TYPE, description="Not now")
_RESPONSES: Final[Mapping[int, ResponseSpec]] = {200: _REPORT, 503: _PROBLEM}
# Where people look, if pages are among the routes.
_PAGES: Final = "/ui"
_NOT_CACHED: Final = [ResponseHeader(name="cache-control", value="no-store")]


class _Application(Litestar):
    """Litestar without its plugins for models of other libraries than ours.

    Where such a library happens to be installed they load all of it, which takes longer than to make our routes known.
    """

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def build_http(  # noqa: PLR0913 - one argument for each part of the server
    *,
    version: str,
    health: Health,
    pool: WorkPool,
    metrics: Metrics,
    tracing: Tracing,
    clock: Clock,
    counted: Callable[[], Awaitable[None]] | None = None,
    allowed_hosts: Sequence[str] = (),
    routes: Sequence[ControllerRouterHandler] = (),
    admits: Callable[[Scope, str], bool] = lambda _scope, _origin: False,
    rpcs: Dispatcher | None = None,
    authenticator: Authenticator | None = None,
    is_tls: bool = False,
) -> ASGIApp:
    """Return the whole application: `routes` and `rpcs` besides its own, behind the guard, all watched over.

    `counted` is awaited before metrics are shown, so that they have what is counted elsewhere.
    """
    own = [
        _index(version, has_pages=_has_pages(routes)),
        *_health_routes(health, pool),
        _metrics_route(metrics, counted),
    ]
    app = _Application(
        [*own, *routes, document_route([*own, *routes], pool, version=version)],
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=None,
        request_max_body_size=BODY_BYTES_MAX,
        logging_config=None,
    )
    identified = app if authenticator is None else Identity(app, authenticator, pool, is_tls=is_tls)
    guarded = Guard(identified, allowed_hosts=allowed_hosts, admits=admits)
    meters = ApiMeters(metrics.registry) if rpcs is None else rpcs.meters
    watched = Access(guarded, tracing=tracing, registry=metrics.registry, meters=meters, clock=clock)
    return watched if rpcs is None else Connect(watched, rpcs, refusal=guarded.refusal)


def _index(version: str, *, has_pages: bool) -> ControllerRouterHandler:
    links = {"health": "/health", "metrics": "/metrics", "openapi": DOCUMENT_PATH}
    if has_pages:
        links["pages"] = _PAGES
    content = {"name": "headgate", "version": version, "links": links}

    @get("/", summary="What is served here")
    async def index(request: Request[Any, Any, Any]) -> Response[Any]:
        # Programs name no HTML, and browsers always do.
        if has_pages and "text/html" in request.headers.get("accept", ""):
            return Redirect(_PAGES, status_code=303, headers={"vary": "accept"})
        return Response(content, headers={"vary": "accept"})

    return index


def _has_pages(routes: Sequence[ControllerRouterHandler]) -> bool:
    return any(_PAGES in each.paths for each in routes if isinstance(each, HTTPRouteHandler))


def _health_routes(health: Health, pool: WorkPool) -> list[ControllerRouterHandler]:
    def route(path: str, summary: str) -> Callable[[Callable[..., Awaitable[Response[Any]]]], HTTPRouteHandler]:
        return get(path, summary=summary, responses=_RESPONSES, response_headers=_NOT_CACHED)

    @route("/health", "How the server is")
    async def summary() -> Response[Any]:
        return _answer(health.phase, health.summary())

    @route("/health/live", "Whether the process answers")
    async def live() -> Response[Any]:
        return Response(health.alive())

    @route("/health/ready", "Whether requests should be sent here")
    async def ready() -> Response[Any]:
        return _answer(health.phase, health.ready())

    @route("/health/deep", "Whether the store can be read and written")
    async def deep(request: Request[Any, Any, Any]) -> Response[Any]:
        require(principal_of(request.scope), Permission.SERVER_READ)
        return _answer(health.phase, await pool.run(health.probe))

    return [summary, live, ready, deep]


def _answer(phase: Phase, report: Report) -> Response[Any]:
    if report.status is not Status.FAILED:
        return Response(report)
    code = "unhealthy" if phase is Phase.SERVING else phase.value
    facts = "; ".join(f"{check.name}: {check.fact}" for check in report.checks if check.status is Status.FAILED)
    return response(Problem.of(503, code, facts, checks=report.checks), retry_after(_RETRY_SECONDS))


def _metrics_route(metrics: Metrics, counted: Callable[[], Awaitable[None]] | None) -> ControllerRouterHandler:
    @get("/metrics", include_in_schema=False)
    async def render(request: Request[Any, Any, Any]) -> Response[bytes]:
        require(principal_of(request.scope), Permission.SERVER_READ)
        if counted is not None:
            await counted()
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return render
