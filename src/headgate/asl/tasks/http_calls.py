"""HTTP calls: requests of Tasks to HTTP endpoints, by `http:invoke` and by a resource map.

Every address is checked by the egress policy of the settings. The headers of a connection are those that
forward.headers has for the host: a secret is sent to the host it is configured for and to no other.
"""

from __future__ import annotations

import http
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpcore
import httpx
import msgspec
from msgspec import Struct

from headgate.asl.errors import TASK_FAILED, TIMEOUT, StateError, runtime_error
from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.actions import CallParameters
from headgate.asl.tasks.aws_calls import call_token
from headgate.asl.tasks.resource_map import HttpTarget
from headgate.durable.bus.outbound_http import OutboundHttp, origin_of, read_body
from headgate.durable.model.failures import NonRetryable
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.errors import TransientError
from headgate.settings import Secret

# The limit of Step Functions.
INVOKE_SECONDS: Final = 60.0
BODY_BYTES_MAX: Final = 262_144
_FIELDS: Final = (
    "ApiEndpoint", "Method", "Authentication", "InvocationConfig", "Headers", "QueryParameters", "RequestBody",
    "Transform",
)  # fmt: skip
_METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")
# Headers that describe the message, or the connection.
_RESERVED: Final = frozenset(
    {"connection", "content-length", "expect", "host", "proxy-authorization", "te", "trailer", "transfer-encoding",
     "upgrade"}
)  # fmt: skip
_FORM: Final = "application/x-www-form-urlencoded"
_SOCKET: Final = "States.Http.Socket"


class _Answer(Struct, frozen=True):
    """A response of an endpoint."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def document(self) -> Json:
        """The body as JSON, or as text if it is not JSON."""
        text = self.body.decode(errors="replace")
        try:
            return msgspec.json.decode(text) if text else ""
        except msgspec.DecodeError:
            return text


class HttpCalls:
    """Sends the HTTP requests of Tasks. Safe to use from many threads."""

    def __init__(self, outbound: OutboundHttp, headers_for: Callable[[str], Mapping[str, Secret]]) -> None:
        """`headers_for` returns the secret headers for a receiver, given as `host:port`."""
        self._outbound = outbound
        self._headers_for = headers_for

    def invoke(self, parameters: CallParameters) -> Json:
        """Run an `http:invoke`. Raises `StateError`."""
        parameters.allow(_FIELDS)
        method = parameters.get("Method", str)
        if method not in _METHODS:
            raise runtime_error(f"The value for the field 'Method' of http:invoke must be one of {', '.join(_METHODS)}")
        _check_connection(parameters)
        headers, body = _request_body(parameters)
        url = parameters.get("ApiEndpoint", str) + _query(parameters)
        answer = self._send(method, url, headers, body, INVOKE_SECONDS)
        if not 200 <= answer.status < 300:
            raise StateError(f"States.Http.StatusCode.{answer.status}", answer.body.decode(errors="replace"))
        listed: dict[str, list[str]] = {}
        for name, value in answer.headers:
            listed.setdefault(name, []).append(value)
        return {
            "Headers": listed,
            "ResponseBody": answer.document,
            "StatusCode": answer.status,
            "StatusText": _reason(answer.status),
        }

    def send(self, target: HttpTarget, input: Json, context: ActivityContext) -> Json:
        """Send the input of a Task to the target of a resource map, and return the response. Raises `StateError`."""
        headers = {"content-type": "application/json", "accept": "application/json"}
        headers["idempotency-key"] = call_token(context)
        headers |= {name.lower(): value for name, value in target.headers.items()}
        body = b"" if target.method in ("GET", "HEAD") else msgspec.json.encode(input)
        answer = self._send(target.method, target.url, headers, body, float(target.timeout))
        if not 200 <= answer.status < 300:
            raise StateError(f"States.Http.StatusCode.{answer.status}", answer.body.decode(errors="replace"))
        return answer.document

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: bytes, seconds: float) -> _Answer:
        for name, value in headers.items():
            if not f"{name}{value}".isascii():
                raise runtime_error(f"The header {name[:80]!r} has a character that is not ASCII; encode it")
        try:
            target = self._outbound.target(url)
            secret = {name: value.reveal() for name, value in self._headers_for(_receiver(target)).items()}
            sent = {name: value for name, value in headers.items() if name not in _RESERVED} | secret
            sent["content-length"] = str(len(body))
            with self._outbound.stream(method, target, sent, body, timeout_seconds=seconds) as (response, _):
                content = read_body(response, BODY_BYTES_MAX)
                received = [
                    (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers
                ]
        except NonRetryable as exc:
            raise StateError(TASK_FAILED, f"http: {exc}") from exc
        except httpcore.TimeoutException as exc:
            raise StateError(TIMEOUT, f"{origin_of(target)}: no answer within {seconds:g} s") from exc
        except (httpcore.NetworkError, httpcore.ProtocolError, TransientError) as exc:
            raise StateError(_SOCKET, f"{origin_of(target)}: {exc}") from exc
        if len(content) > BODY_BYTES_MAX:
            raise StateError(
                "States.DataLimitExceeded", f"{origin_of(target)}: the response exceeds {BODY_BYTES_MAX} bytes"
            )
        return _Answer(response.status, received, content)


def _receiver(target: httpx.URL) -> str:
    return f"{target.host}:{target.port or (443 if target.scheme == 'https' else 80)}"


def _reason(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return ""


def _check_connection(parameters: CallParameters) -> None:
    """Raise `StateError` unless the call names a connection, as AWS requires."""
    for field in ("Authentication", "InvocationConfig"):
        given = parameters.find(field, dict)
        if given is not None and isinstance(given.get("ConnectionArn"), str):
            return
    raise runtime_error("The field 'Authentication.ConnectionArn' of http:invoke is required but was missing")


def _request_body(parameters: CallParameters) -> tuple[dict[str, str], bytes]:
    headers = {str(name).lower(): str(value) for name, value in (parameters.find("Headers", dict) or {}).items()}
    body = parameters.optional("RequestBody")
    transform = parameters.find("Transform", dict) or {}
    if transform.get("RequestBodyEncoding") == "URL_ENCODED":
        headers["content-type"] = _FORM
        return headers, _form(body, transform.get("RequestEncodingOptions") or {}).encode()
    if body is None:
        return headers, b""
    headers.setdefault("content-type", "application/json")
    return headers, body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def _form(body: Json, options: Mapping[str, Any]) -> str:
    """Return an object as a form; how lists are written is an option of the call."""
    if not isinstance(body, dict):
        raise runtime_error("The field 'RequestBody' of http:invoke must be an OBJECT to be sent URL_ENCODED")
    pairs: list[tuple[str, str]] = []
    style = options.get("ArrayFormat", "INDICES")
    for name, value in body.items():
        if not isinstance(value, list):
            pairs.append((name, _plain(value)))
        elif style == "COMMAS":
            pairs.append((name, ",".join(map(_plain, value))))
        else:
            pairs += [(_list_name(name, str(style), index), _plain(each)) for index, each in enumerate(value)]
    return urlencode(pairs)


def _list_name(name: str, style: str, index: int) -> str:
    match style:
        case "INDICES":
            return f"{name}[{index}]"
        case "BRACKETS":
            return f"{name}[]"
        case _:
            return name


def _plain(value: Json) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _query(parameters: CallParameters) -> str:
    given = parameters.find("QueryParameters", dict)
    if not given:
        return ""
    pairs = [
        (name, _plain(each))
        for name, value in given.items()
        for each in (value if isinstance(value, list) else [value])
    ]
    separator = "&" if "?" in parameters.get("ApiEndpoint", str) else "?"
    return separator + urlencode(pairs, quote_via=quote)
