"""Outbound HTTP: the one guarded way by which Headgate sends requests to other services.

Each request has its own connection, to an address that was resolved once and checked by the egress policy, so that DNS
cannot redirect it to an internal network between the check and the call. The certificate is verified against the host
name. Redirects are not followed, proxies of the environment are not used, and a deadline covers the whole exchange.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpcore
import httpx

from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations, Resolve, system_resolve
from headgate.durable.model.failures import NonRetryable
from headgate.telemetry import traceparent

CONNECT_SECONDS: Final = 10.0
_ADDRESSES_MAX: Final = 3
_CHUNK_BYTES: Final = 16_384


class OutboundHttp:
    """Sends single requests to allowed destinations. Safe to use from many threads."""

    def __init__(
        self,
        clock: Clock,
        destinations: Destinations,
        *,
        resolve: Resolve = system_resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._destinations = destinations
        self._resolve = resolve
        self._tls = tls

    def target(self, url: str) -> httpx.URL:
        """Parse a URL and check its scheme. Raises `NonRetryable`, without quoting the URL's path or query."""
        try:
            target = httpx.URL(url)
        except httpx.InvalidURL as exc:
            raise NonRetryable(f"it is not an address: {exc}") from exc
        self._destinations.check_scheme(target.scheme)
        if target.port is not None and not 1 <= target.port <= 65_535:
            raise NonRetryable(f"{origin_of(target)} is not an address: a port is from 1 to 65535")
        if not target.host or target.userinfo:
            raise NonRetryable(f"{target.scheme}://{target.host}: an address has a host, and neither user nor password")
        return target

    @contextmanager
    def stream(
        self,
        method: str,
        target: httpx.URL,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout_seconds: float,
    ) -> Iterator[tuple[httpcore.Response, ExchangeDeadline]]:
        """Send a request, and yield the response with the deadline of the exchange.

        Raises `NonRetryable` if an address is not allowed, `TransientError` if the host has none, and httpcore errors.
        """
        if self._tls is None:
            # Loaded on first use, and once: loading the certificates takes longer than many requests.
            self._tls = httpx.create_ssl_context(trust_env=False)
        deadline = ExchangeDeadline(self._clock, timeout_seconds)
        network = _CheckedNetwork(self._destinations, self._resolve, deadline)
        url = httpcore.URL(
            scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path or b"/"
        )
        trace = traceparent()
        context = {"traceparent": trace} if trace else {}
        sent = {"host": target.netloc.decode("ascii"), "user-agent": "headgate", **context, **headers}
        timeouts = {"connect": CONNECT_SECONDS, "read": timeout_seconds, "write": timeout_seconds}
        with (
            httpcore.ConnectionPool(ssl_context=self._tls, max_connections=1, network_backend=network) as pool,
            pool.stream(
                method, url, headers=list(sent.items()), content=body, extensions={"timeout": timeouts}
            ) as response,
        ):
            yield response, deadline


def read_body(response: httpcore.Response, bytes_max: int) -> bytes:
    """Return the body of a response; one that exceeds the limit is cut off at one byte beyond it."""
    body = b""
    for chunk in response.iter_stream():
        body += chunk
        if len(body) > bytes_max:
            return body[: bytes_max + 1]
    return body


def origin_of(target: httpx.URL) -> str:
    """Return a URL without its path and query, which may contain secrets."""
    return f"{target.scheme}://{target.netloc.decode('ascii')}"


class ExchangeDeadline:
    """The deadline of an exchange, however slowly the receiver sends."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._at = clock.monotonic() + seconds

    def shorten(self, seconds: float) -> None:
        """Allow no more than `seconds` from now on."""
        self._at = min(self._at, self._clock.monotonic() + seconds)

    def left(self, timeout: float | None) -> float:
        """Return how long the next step may take. Raises `httpcore.ReadTimeout` if there is no time left."""
        left = self._at - self._clock.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the time for the whole exchange has passed")
        return left if timeout is None else min(left, timeout)


class _CheckedNetwork(httpcore.NetworkBackend):
    """Connects to checked addresses only."""

    def __init__(self, destinations: Destinations, resolve: Resolve, deadline: ExchangeDeadline) -> None:
        self._destinations = destinations
        self._resolve = resolve
        self._deadline = deadline
        self._network = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = self._destinations.addresses(host, port, self._resolve)
        failure: httpcore.NetworkError | httpcore.TimeoutException | None = None
        for address in addresses[:_ADDRESSES_MAX]:
            left = self._deadline.left(timeout)
            try:
                stream = self._network.connect_tcp(address, port, left, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as exc:
                failure = exc
            else:
                return _TimedStream(stream, self._deadline)
        assert failure is not None, "there was an address to try"
        raise failure


class _TimedStream(httpcore.NetworkStream):
    """A connection that ends at the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: ExchangeDeadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _CHUNK_BYTES):
            self._stream.write(buffer[start : start + _CHUNK_BYTES], self._deadline.left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        secured = self._stream.start_tls(ssl_context, server_hostname, self._deadline.left(timeout))
        return _TimedStream(secured, self._deadline)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as in httpcore
        return self._stream.get_extra_info(info)
