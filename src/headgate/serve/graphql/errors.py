"""GraphQL errors: adds a stable code and retryability to every error of a response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import structlog
from graphql import GraphQLError

from headgate.errors import FatalError, HeadgateError, TransientError
from headgate.telemetry import correlation_id

# Invalid GraphQL, not of this schema, or with variables that do not fit.
BAD_QUERY: Final = "bad_query"
_INTERNAL: Final = "internal"
_INTERNAL_MESSAGE: Final = "internal error; the server log has the details under this correlation id"
_log = structlog.get_logger(__name__)


def fault_of(errors: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the gRPC status of the first error that is not the caller's fault, or None."""
    codes = [error["extensions"]["code"] for error in errors]
    return next((_FAULTS[code] for code in codes if code in _FAULTS), None)


def shaped(error: GraphQLError | HeadgateError) -> dict[str, Any]:
    """Return an error as it is sent. Unexpected errors are logged and sent without details."""
    if isinstance(error, HeadgateError):
        return {"message": error.message, "extensions": _extensions(error)}
    shape: dict[str, Any] = {"message": error.message}
    if error.locations:
        shape["locations"] = [{"line": each.line, "column": each.column} for each in error.locations]
    if error.path is not None:
        shape["path"] = error.path
    cause = _cause(error)
    if isinstance(cause, HeadgateError):
        shape["message"], shape["extensions"] = cause.message, _extensions(cause)
    elif cause is None:
        shape["extensions"] = {"code": BAD_QUERY, "retryable": False}
    else:
        _log.error("query failed", action="graphql.query", path=error.path, exc_info=cause)
        shape["message"] = _INTERNAL_MESSAGE
        shape["extensions"] = {"code": _INTERNAL, "retryable": False, "correlation_id": correlation_id()}
    return shape


def _extensions(error: HeadgateError) -> dict[str, Any]:
    if error.http_status >= 500 and not isinstance(error, TransientError):
        _log.error("query failed", action="graphql.query", code=error.code, exc_info=error)
    return {"code": error.code, "retryable": isinstance(error, TransientError)}


def _cause(error: GraphQLError) -> BaseException | None:
    """Return the root cause, or None if GraphQL itself refused."""
    cause: BaseException | None = error
    while isinstance(cause, GraphQLError):
        cause = cause.original_error
    return cause


def _family(kind: type[HeadgateError]) -> Iterator[type[HeadgateError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _family(each)


_FAULTS: Final = {_INTERNAL: "INTERNAL"} | {
    each.code: each.grpc_status for family in (TransientError, FatalError) for each in _family(family)
}
