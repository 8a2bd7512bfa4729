"""Readiness gate: answers 503 on every route but the probes while the server is starting or stopping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from headgate.errors import NotReadyError
from headgate.serve.http.problem import Problem, retry_after, send_problem

# They report the state themselves.
_PROBES: Final = frozenset({"/health", "/health/live", "/health/ready", "/health/deep"})


class ReadinessGate:
    """ASGI middleware that refuses requests which `check_ready` refuses."""

    def __init__(self, app: ASGIApp, check_ready: Callable[[], None]) -> None:
        self._app = app
        self._check_ready = check_ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and scope["path"] not in _PROBES:
            try:
                self._check_ready()
            except NotReadyError as exc:
                problem = Problem.of(exc.http_status, exc.code, exc.message)
                await send_problem(send, problem, retry_after(exc.retry_after_seconds))
                return
        await self._app(scope, receive, send)
