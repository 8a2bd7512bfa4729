"""Access log: adds a correlation id, a span, a log line with the caller, and metrics to every HTTP request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import structlog
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send
from prometheus_client import CollectorRegistry, Counter, Histogram

from headgate.auth.principals import Principal
from headgate.clock import Clock
from headgate.ids import IdMaker
from headgate.serve.http.limits.client_address import ClientAddresses
from headgate.serve.http.problem import Problem, send_problem
from headgate.serve.metrics import ApiMeters
from headgate.telemetry import Tracing, correlated, is_correlation_id

CORRELATION_HEADER: Final = b"x-correlation-id"
# Browsers must not sniff JSON as script or HTML.
_NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Polled every few seconds: logged at debug level.
_QUIET: Final = ("/health", "/metrics")
_CUT_OFF: Final = "the server stopped before the request completed; check its effect before you retry"
_log = structlog.get_logger(__name__)


class AccessLog:
    """ASGI middleware that records every request."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tracing: Tracing,
        registry: CollectorRegistry,
        meters: ApiMeters,
        clock: Clock,
        addresses: ClientAddresses | None = None,
    ) -> None:
        self._app = app
        self._addresses = ClientAddresses() if addresses is None else addresses
        self._meters = meters
        self._tracing = tracing
        self._clock = clock
        self._ids = IdMaker(clock)
        self._requests = Counter(
            "headgate_http_requests", "Requests answered.", ["method", "route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "headgate_http_request_seconds",
            "Time from a request to its answer.",
            ["method", "route"],
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        received = headers.get(CORRELATION_HEADER.decode(), "")
        identifier = received if is_correlation_id(received) else self._ids.make("req")
        with (
            correlated(identifier),
            self._tracing.span("http.request", parent=headers, method=scope["method"], path=scope["path"]) as span,
        ):
            status = await self._forward(scope, receive, send, identifier, headers)
            span.set_attribute("status", status)

    async def _forward(
        self, scope: HTTPScope, receive: Receive, send: Send, identifier: str, headers: Mapping[str, str]
    ) -> int:
        started_at = self._clock.monotonic()
        status: int | None = None

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                marks = [(CORRELATION_HEADER, identifier.encode("latin-1")), _NO_SNIFFING]
                message["headers"] = [*message["headers"], *marks]
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except asyncio.CancelledError:
            # Requests are cancelled only when the drain deadline passes; this response is the last action.
            if status is not None:
                raise
            await send_problem(send_marked, Problem.of(503, "draining", _CUT_OFF), {"connection": "close"})
        finally:
            self._record(scope, headers, status or 500, self._clock.monotonic() - started_at)
        return status or 500

    def _record(self, scope: HTTPScope, headers: Mapping[str, str], status: int, seconds: float) -> None:
        # The route pattern, not the path: ids in paths would each create a time series.
        route = scope.get("path_template") or "unmatched"
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)
        api = _api(route)
        if api is not None:
            self._meters.record(api, f"{method} {route}", str(scope.get("api_status", status)), seconds)
        is_quiet = route.startswith(_QUIET) and status < HTTPStatus.BAD_REQUEST
        write = _log.debug if is_quiet else _log.info
        # Set by the authentication; None for a caller without credentials, or with invalid ones.
        principal: Principal | None = scope.get("principal")  # type: ignore[assignment]
        client: Any = scope.get("client")
        write(
            "request",
            action="http.request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            milliseconds=round(seconds * 1000, 1),
            caller=None if principal is None else principal.name,
            client=self._addresses.of("" if client is None else f"{client[0]}:{client[1]}", headers),
        )


def _api(route: str) -> str | None:
    """Return the API of a route; pages, probes and user routes belong to none."""
    if route.startswith("/api/"):
        return "rest"
    return "graphql" if route == "/graphql" else None
