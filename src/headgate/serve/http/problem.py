"""Problem responses: errors as `application/problem+json` with a stable code (RFC 9457), on every HTTP route."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.types import ExceptionHandlersMap, Send

from headgate.errors import ConflictError, CorruptionError, HeadgateError, TransientError, UnauthenticatedError
from headgate.telemetry import correlation_id

MEDIA_TYPE: Final = "application/problem+json"
# Sent with 401 responses.
CHALLENGE: Final[Mapping[str, str]] = {"www-authenticate": 'Bearer realm="headgate"'}
_log = structlog.get_logger(__name__)


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem document. Clients may match on `code`; fields with defaults occur in some problems only."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    correlation_id: str | None
    errors: Sequence[Any] = ()
    checks: Sequence[Any] = ()
    # Of a version conflict: the current resource.
    current_version: int | None = None
    current: Any = None

    @classmethod
    def of(cls, status: int, code: str, detail: str, **more: Any) -> Problem:  # noqa: ANN401 - fields of the struct
        """Return a problem with the correlation id of the current request."""
        title = HTTPStatus(status).phrase
        return cls(f"urn:headgate:error:{code}", title, status, code, detail, correlation_id(), **more)

    def content(self) -> bytes:
        return msgspec.json.encode(self)


async def send_problem(send: Send, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
    """Send `problem` over ASGI, outside the web framework."""
    content = problem.content()
    fields = {"content-type": MEDIA_TYPE, "content-length": str(len(content)), **(headers or {})}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": raw})
    await send({"type": "http.response.body", "body": content, "more_body": False})


def response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    return Response(problem.content(), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def retry_after(seconds: float) -> dict[str, str]:
    """Return the Retry-After header, in whole seconds."""
    return {"retry-after": str(max(1, math.ceil(seconds)))}


def _from_headgate(_request: Request[Any, Any, Any], error: HeadgateError) -> Response[bytes]:
    if error.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, TransientError):
        # The store logs corruption once, where it is met.
        cause = None if isinstance(error, CorruptionError) else error
        _log.error("request failed", action="http.request", code=error.code, error=error.message, exc_info=cause)
    version = error.current_version if isinstance(error, ConflictError) else None
    return response(Problem.of(error.http_status, error.code, error.message, current_version=version), _headers(error))


def _headers(error: HeadgateError) -> dict[str, str] | None:
    if isinstance(error, TransientError):
        return retry_after(error.retry_after_seconds)
    return dict(CHALLENGE) if isinstance(error, UnauthenticatedError) else None


def _from_framework(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Convert errors of the web framework: no such route, wrong method, invalid body."""
    status = error.status_code
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return _from_unexpected(request, error)
    code = HTTPStatus(status).phrase.lower().replace(" ", "_").replace("-", "_")
    path = request.scope["path"]
    detail, headers = error.detail, error.headers
    if status == HTTPStatus.NOT_FOUND:
        detail = f"{path}: not found; / lists the API"
    elif status == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = ", ".join(_methods(request))
        detail = f"{path}: {request.method} is not supported; use {methods}"
        headers = {**(headers or {}), "allow": methods}
    errors = tuple(error.extra) if isinstance(error.extra, list) else ()
    return response(Problem.of(status, code, detail, errors=errors), headers)


def _methods(request: Request[Any, Any, Any]) -> list[str]:
    """Return the methods of a path by trying each: the framework does not expose them."""
    found = []
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
        try:
            request.app.asgi_router.handle_routing(path=request.scope["path"], method=method)
        except HTTPException:
            continue
        found.append(method)
    return found


def _from_unexpected(_request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Answer an unexpected error without details; the log has them under the correlation id."""
    _log.error("request failed", action="http.request", exc_info=error)
    detail = "internal error; the server log has the details under this correlation id"
    return response(Problem.of(500, "internal", detail))


EXCEPTION_HANDLERS: Final[ExceptionHandlersMap] = {
    HeadgateError: _from_headgate,
    HTTPException: _from_framework,
    Exception: _from_unexpected,
}
