"""HTTP poster: posts one JSON request to an external service, with an SSRF guard and a deadline."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

import httpcore
import httpx
import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations, Resolve, system_resolve
from headgate.durable.bus.outbound_http import OutboundHttp, origin_of, read_body
from headgate.durable.model.failures import NonRetryable
from headgate.errors import ThrottledError, TransientError

TIMEOUT_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 65_536
RETRY_AFTER_SECONDS_MAX: Final = 3_600.0


class HttpAnswer(Struct, frozen=True):
    """The response of a service. `body` is empty if it is not a JSON object."""

    status: int
    body: dict[str, Any]
    retry_after_seconds: float | None = None


class HttpPoster:
    """Posts JSON. Safe to use from many threads."""

    def __init__(
        self,
        clock: Clock,
        *,
        destinations: Destinations = Destinations(),  # noqa: B008 - frozen
        timeout_seconds: float = TIMEOUT_SECONDS,
        resolve: Resolve = system_resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._http = OutboundHttp(clock, destinations, resolve=resolve, tls=tls)
        self._timeout_seconds = timeout_seconds

    def post(self, url: str, body: object, *, headers: Mapping[str, str]) -> HttpAnswer:
        """Post a JSON value, and return the response.

        Raises `TransientError` if the service is unreachable, fails or throttles (`retry_after_seconds`), and
        `NonRetryable` if the destination is not allowed or redirects. Errors never contain the request.
        """
        target = self._http.target(url)
        shown = origin_of(target)
        try:
            answer = self._exchange(target, msgspec.json.encode(body), headers)
        except httpcore.TimeoutException as exc:
            raise TransientError(f"{shown}: no answer in time ({type(exc).__name__})") from exc
        except (httpcore.NetworkError, httpcore.ProtocolError) as exc:
            raise TransientError(f"{shown}: {type(exc).__name__} {exc}") from exc
        if answer.status == 429:
            error = ThrottledError(f"{shown}: answered 429; it throttles requests")
            error.retry_after_seconds = answer.retry_after_seconds or 1.0
            raise error
        if answer.status >= 500 or answer.status in (408, 425):
            raise TransientError(f"{shown}: answered {answer.status}")
        if 300 <= answer.status < 400:
            raise NonRetryable(f"{shown}: answered {answer.status}; redirects are not followed; use the final URL")
        return answer

    def _exchange(self, target: httpx.URL, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        sent = {"content-type": "application/json; charset=utf-8", "content-length": str(len(body)), **headers}
        with self._http.stream("POST", target, sent, body, timeout_seconds=self._timeout_seconds) as (response, _):
            content = read_body(response, ANSWER_BYTES_MAX)
            # A response beyond the limit is not one of these services'.
            found = _object(content) if len(content) <= ANSWER_BYTES_MAX else {}
            return HttpAnswer(response.status, found, _retry_after(response.headers))


def _object(body: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = typed_decode.from_json(body, dict[str, Any])
    except msgspec.DecodeError:
        return {}
    return found


def _retry_after(headers: list[tuple[bytes, bytes]]) -> float | None:
    for name, value in headers:
        if name.lower() == b"retry-after" and value.isdigit():
            return min(float(value), RETRY_AFTER_SECONDS_MAX)
    return None
