"""HTTP payloads: events of API Gateway in format 2.0 as ASGI scopes, and ASGI messages as its responses."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
from litestar.types import HTTPScope

from headgate.errors import InvalidPayloadError

Headers = list[tuple[bytes, bytes]]

# A response of a function may have 6 MB as JSON.
RESPONSE_BYTES_MAX: Final = 6_000_000
DEFAULT_STAGE: Final = "$default"
# Every character that a path may have unencoded. API Gateway decodes some of them.
_PATH_SAFE: Final = "/%:@!$&'()*+,;=~-._"
_TEXT: Final = ("text/", "application/json", "application/problem+json", "application/javascript", "image/svg+xml")
# API Gateway sets these itself.
_DROPPED: Final = frozenset({"content-length", "connection", "transfer-encoding"})


def scope_of(event: Mapping[str, Any]) -> HTTPScope:
    """Return the scope of a request. Raises `InvalidPayloadError` for an event that is not of API Gateway."""
    try:
        context = event["requestContext"]
        request = context["http"]
        path, method = event["rawPath"], request["method"]
        headers = _request_headers(event)
    except (KeyError, TypeError, AttributeError) as exc:
        raise InvalidPayloadError(
            f"event: {exc!r} is missing; call this function through API Gateway with payload format 2.0"
        ) from exc
    stage = context.get("stage", DEFAULT_STAGE)
    if stage != DEFAULT_STAGE:
        path = path.removeprefix(f"/{stage}") or "/"
    raw_path = quote(path, safe=_PATH_SAFE)
    return {  # type: ignore[typeddict-item]  # the framework adds the rest
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "https",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": event.get("rawQueryString", "").encode(),
        "root_path": "",
        "headers": headers,
        "client": (str(request.get("sourceIp") or "unknown"), 0),
        "server": (str(context.get("domainName") or ""), 443),
        "extensions": {},
        "state": {},
    }


def body_of(event: Mapping[str, Any]) -> bytes:
    """Return the body of a request. Raises `InvalidPayloadError`."""
    body = event.get("body") or ""
    if not event.get("isBase64Encoded"):
        return bytes(body.encode())
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidPayloadError(f"event: its body is not base64: {exc}") from exc


def response_of(status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> dict[str, Any]:
    """Return the response. Headers of the same name are joined, and each cookie stays on its own."""
    joined: dict[str, str] = {}
    cookies: list[str] = []
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name == "set-cookie":
            cookies.append(value)
        elif name not in _DROPPED:
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
    text = None if "content-encoding" in joined else _text(joined.get("content-type", ""), body)
    return {
        "statusCode": status,
        "headers": joined,
        "cookies": cookies,
        "body": base64.b64encode(body).decode() if text is None else text,
        "isBase64Encoded": text is None,
    }


def is_too_large(response: Mapping[str, Any]) -> bool:
    """Whether Lambda refuses a response because of its size."""
    body = response["body"]
    return len(body) > RESPONSE_BYTES_MAX // 2 and len(msgspec.json.encode(response)) > RESPONSE_BYTES_MAX


def _request_headers(event: Mapping[str, Any]) -> Headers:
    """Return the headers. API Gateway passes cookies apart from them, and joins headers of the same name."""
    given = {name.lower(): value for name, value in event["headers"].items()}
    if event.get("cookies"):
        given["cookie"] = "; ".join(event["cookies"])
    # The length of the decoded body, which API Gateway may have encoded.
    if "content-length" in given or event.get("body"):
        given["content-length"] = str(len(body_of(event)))
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in given.items()]


def _text(content_type: str, body: bytes) -> str | None:
    if not content_type.lower().startswith(_TEXT):
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
