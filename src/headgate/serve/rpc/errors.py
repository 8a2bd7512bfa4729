"""RPC failures: gRPC status, message and machine-readable details, the same on every protocol."""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2  # type: ignore[import-untyped]  # not marked as typed
from google.rpc.error_details_pb2 import (  # type: ignore[import-untyped]
    BadRequest,
    ErrorInfo,
    RequestInfo,
    RetryInfo,
)

from headgate.errors import HeadgateError, TransientError
from headgate.telemetry import correlation_id

DOMAIN: Final = "headgate"
MESSAGE_BYTES_MAX: Final = 1000
INTERNAL: Final = "internal error; the server log has the details under this correlation id"
_DETAILS: Final = {each.DESCRIPTOR.full_name: each for each in (BadRequest, ErrorInfo, RequestInfo, RetryInfo)}
# Error messages start with their subject; if that is a request field, the details name it.
_SUBJECT: Final = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*)(?:[ :=]|\Z)")


class RpcFailure(Exception):
    """A failed call. `status` is a gRPC status name, `code` our stable error code."""

    def __init__(self, status: str, code: str, message: str, details: list[Message]) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = shortened(message)
        self.details = details

    @property
    def retry_seconds(self) -> float | None:
        """Delay before a retry, or None if a retry is not advised."""
        found = [each.retry_delay.ToTimedelta().total_seconds() for each in self.details if isinstance(each, RetryInfo)]
        return found[0] if found else None

    @classmethod
    def from_rich_status(cls, code: str, content: bytes) -> RpcFailure:
        """Rebuild a failure from `rich_status`. `code` is our error code."""
        status = status_pb2.Status.FromString(content)
        details: list[Message] = []
        for each in status.details:
            detail = _DETAILS[each.TypeName()]()
            each.Unpack(detail)
            details.append(detail)
        return cls(code_pb2.Code.Name(status.code), code, status.message, details)

    def packed(self) -> list[AnyMessage]:
        """Return the details as `Any` messages."""
        found = []
        for detail in self.details:
            each = AnyMessage()
            each.Pack(detail)
            found.append(each)
        return found

    def rich_status(self) -> bytes:
        """Return the failure as an encoded `google.rpc.Status`."""
        number = code_pb2.Code.Value(self.status)
        content: bytes = status_pb2.Status(code=number, message=self.message, details=self.packed()).SerializeToString()
        return content


def shortened(message: str) -> str:
    """Truncate a message so that it fits, twice and escaped, into gRPC's 8 KB limit for all headers."""
    encoded = message.encode(errors="replace")
    return message if len(encoded) <= MESSAGE_BYTES_MAX else f"{encoded[:MESSAGE_BYTES_MAX].decode(errors='ignore')}…"


def failure(error: HeadgateError, request: type[Message]) -> RpcFailure:
    """Convert one of our errors."""
    details: list[Message] = [ErrorInfo(reason=error.code.upper(), domain=DOMAIN)]
    subject = _SUBJECT.match(error.message)
    if error.grpc_status == "INVALID_ARGUMENT" and subject and _is_field(subject.group(1), request.DESCRIPTOR):
        violation = BadRequest.FieldViolation(field=subject.group(1), description=shortened(error.message))
        details.append(BadRequest(field_violations=[violation]))
    if isinstance(error, TransientError):
        delay = Duration()
        delay.FromMilliseconds(round(error.retry_after_seconds * 1000))
        details.append(RetryInfo(retry_delay=delay))
    return RpcFailure(error.grpc_status, error.code, error.message, [*details, *_request_info()])


def internal_error() -> RpcFailure:
    """Return the failure for an unexpected error. The cause is in the log only."""
    details: list[Message] = [ErrorInfo(reason="INTERNAL", domain=DOMAIN), *_request_info()]
    return RpcFailure("INTERNAL", "internal", INTERNAL, details)


def _request_info() -> list[Message]:
    identifier = correlation_id()
    return [] if identifier is None else [RequestInfo(request_id=identifier)]


def _is_field(path: str, message: Any) -> bool:  # noqa: ANN401 - protobuf has two types of descriptors
    first, _, rest = path.partition(".")
    found = message.fields_by_name.get(first)
    return found is not None and (not rest or (found.message_type is not None and _is_field(rest, found.message_type)))
