"""The HTTP application: what Headgate serves on its HTTP port, and what surrounds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from litestar import Litestar, Response, get
from litestar.datastructures import ResponseHeader
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.types import ASGIApp, ControllerRouterHandler, Scope
from prometheus_client import CONTENT_TYPE_LATEST

from headgate.clock import Clock
from headgate.serve.access import Access
from headgate.serve.guard import BODY_BYTES_MAX, Guard
from headgate.serve.health import Health, Phase, Report, Status
from headgate.serve.pool import WorkPool
from headgate.serve.problem import EXCEPTION_HANDLERS, MEDIA_TYPE, Problem, response, retry_after
from headgate.telemetry import Metrics, Tracing

_RETRY_SECONDS: Final = 1.0
_REPORT: Final = ResponseSpec(Report, description="What was looked at, and what was seen")
_PROBLEM: Final = ResponseSpec(Problem, media_type=MEDIA_TYPE, description="Not now")
_RESPONSES: Final[Mapping[int, ResponseSpec]] = {200: _REPORT, 503: _PROBLEM}
_NOT_CACHED: Final = [ResponseHeader(name="cache-control", value="no-store")]


def build_http(
    *,
    version: str,
    health: Health,
    pool: WorkPool,
    metrics: Metrics,
    tracing: Tracing,
    clock: Clock,
    allowed_hosts: Sequence[str] = (),
    routes: Sequence[ControllerRouterHandler] = (),
    admits: Callable[[Scope, str], bool] = lambda _scope, _origin: False,
) -> ASGIApp:
    """Return the whole application: `routes` besides its own, behind the guard, each request watched over."""
    app = Litestar(
        [_index(version), *_health_routes(health, pool), _metrics_route(metrics), *routes],
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=OpenAPIConfig(
            title="Headgate", version=version, path="/api", render_plugins=[JsonRenderPlugin(path="/openapi.json")]
        ),
        request_max_body_size=BODY_BYTES_MAX,
        logging_config=None,
    )
    guarded = Guard(app, allowed_hosts=allowed_hosts, admits=admits)
    return Access(guarded, tracing=tracing, registry=metrics.registry, clock=clock)


def _index(version: str) -> ControllerRouterHandler:
    @get("/", summary="What is served here")
    async def index() -> dict[str, Any]:
        links = {"health": "/health", "metrics": "/metrics", "openapi": "/api/openapi.json"}
        return {"name": "headgate", "version": version, "links": links}

    return index


def _health_routes(health: Health, pool: WorkPool) -> list[ControllerRouterHandler]:
    def route(path: str, summary: str) -> Callable[[Callable[[], Awaitable[Response[Any]]]], HTTPRouteHandler]:
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
    async def deep() -> Response[Any]:
        return _answer(health.phase, await pool.run(health.probe))

    return [summary, live, ready, deep]


def _answer(phase: Phase, report: Report) -> Response[Any]:
    if report.status is not Status.FAILED:
        return Response(report)
    code = "unhealthy" if phase is Phase.SERVING else phase.value
    facts = "; ".join(f"{check.name}: {check.fact}" for check in report.checks if check.status is Status.FAILED)
    return response(Problem.of(503, code, facts, checks=report.checks), retry_after(_RETRY_SECONDS))


def _metrics_route(metrics: Metrics) -> ControllerRouterHandler:
    @get("/metrics", include_in_schema=False)
    async def render() -> Response[bytes]:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return render
