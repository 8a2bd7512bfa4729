"""HTTP poster: posts one JSON request to an external service, with an SSRF guard and a deadline.

As for forwarded events, the host is resolved once and checked, redirects are not followed, and proxies of the
environment are ignored.
"""

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
from headgate.durable.bus.forwarding import CONNECT_SECONDS, _CheckedNetwork, _Deadline
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
        self._clock = clock
        self._destinations = destinations
        self._timeout_seconds = timeout_seconds
        self._resolve = resolve
        self._tls = tls if tls is not None else httpx.create_ssl_context(trust_env=False)

    def post(self, url: str, body: object, *, headers: Mapping[str, str]) -> HttpAnswer:
        """Post a JSON value, and return the response.

        Raises `TransientError` if the service is unreachable, fails or throttles (`retry_after_seconds`), and
        `NonRetryable` if the destination is not allowed or redirects. Errors never contain the request.
        """
        target = self._target(url)
        shown = f"{target.scheme}://{target.netloc.decode('ascii')}"
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

    def _target(self, url: str) -> httpx.URL:
        try:
            target = httpx.URL(url)
        except httpx.InvalidURL as exc:
            raise NonRetryable(f"{url[:80]!r} is not a URL: {exc}") from exc
        self._destinations.check_scheme(target.scheme)
        if not target.host or target.userinfo:
            raise NonRetryable(f"{target.scheme}://{target.host}: a URL needs a host, and neither user nor password")
        return target

    def _exchange(self, target: httpx.URL, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        deadline = _Deadline(self._clock, self._timeout_seconds)
        network = _CheckedNetwork(self._destinations, self._resolve, deadline)
        url = httpcore.URL(
            scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path or b"/"
        )
        sent = {
            "host": target.netloc.decode("ascii"),
            "user-agent": "headgate",
            "content-type": "application/json; charset=utf-8",
            "content-length": str(len(body)),
            **headers,
        }
        spans = {"connect": CONNECT_SECONDS, "read": self._timeout_seconds, "write": self._timeout_seconds}
        with (
            httpcore.ConnectionPool(ssl_context=self._tls, max_connections=1, network_backend=network) as pool,
            pool.stream(
                "POST", url, headers=list(sent.items()), content=body, extensions={"timeout": spans}
            ) as response,
        ):
            return HttpAnswer(response.status, _object(_read(response)), _retry_after(response.headers))


def _read(response: httpcore.Response) -> bytes:
    """Return the body, or nothing if it exceeds the limit."""
    body = b""
    for chunk in response.iter_stream():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            return b""
    return body


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
