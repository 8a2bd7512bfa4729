"""Forwarding: sends an event to another service, as a CloudEvent over HTTP.

Each event has a connection of its own, to an address that was resolved once and checked; the certificate is verified
against the host name. Redirects are not followed, and proxies of the environment are not used.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import httpcore
import httpx

from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations, Resolve, system_resolve
from headgate.durable.bus.events import Event, Mode, to_http
from headgate.durable.model.failures import NonRetryable
from headgate.errors import ThrottledError, TransientError
from headgate.settings import Secret

TIMEOUT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 10.0
_ADDRESSES_MAX: Final = 3
_EXCERPT_BYTES: Final = 500
_EXCERPT_SECONDS: Final = 1.0
_CHUNK_BYTES: Final = 16_384
# 4xx statuses that are temporary.
_PASSING: Final = frozenset({408, 425, 429})


class Forwarder:
    """Sends events to other services. Safe to use from many threads.

    With `secret_for`, which returns the current secret of a receiver, messages are signed according to Standard
    Webhooks. The signature covers the body: in structured mode that is the whole event.

    With `headers_for`, which returns the current headers of a receiver given as `host:port`, those are sent too. They
    are secret: errors then do not repeat the receiver's response, which may quote them.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        destinations: Destinations = Destinations(),  # noqa: B008 - frozen
        mode: Mode = Mode.STRUCTURED,
        secret_for: Callable[[str], bytes | None] | None = None,
        headers_for: Callable[[str], Mapping[str, Secret]] = lambda _receiver: {},
        timeout_seconds: float = TIMEOUT_SECONDS,
        resolve: Resolve = system_resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._destinations = destinations
        self._mode = mode
        self._secret_for = secret_for
        self._headers_for = headers_for
        self._timeout_seconds = timeout_seconds
        self._resolve = resolve
        # Loaded once: loading the certificates takes longer than many requests.
        self._tls = tls if tls is not None else httpx.create_ssl_context(trust_env=False)

    def send(self, url: str, event: Event, *, message_id: str, mode: Mode | None = None) -> None:
        """Send an event, and return once the receiver has accepted it. `message_id` is the same for every attempt.

        `mode` overrides that of the forwarder.
        Raises `NonRetryable` if the receiver refuses the event or is not allowed, and `TransientError` if it cannot be
        reached, is busy or fails.
        """
        target = self._target(url)
        headers, body = to_http(event, mode or self._mode)
        headers |= {"host": _host(target), "user-agent": "headgate", "content-length": str(len(body))}
        headers |= self._signature(url, message_id, body)
        secret = {name: value.reveal() for name, value in self._headers_for(_receiver(target)).items()}
        try:
            status, excerpt = self._post(target, headers | secret, body)
        except httpcore.TimeoutException as exc:
            raise TransientError(f"{_shown(target)}: no answer in time ({type(exc).__name__})") from exc
        except (httpcore.NetworkError, httpcore.ProtocolError) as exc:
            raise TransientError(f"{_shown(target)}: {type(exc).__name__} {exc}") from exc
        _judge(_shown(target), status, b"" if secret else excerpt)

    def _target(self, url: str) -> httpx.URL:
        try:
            target = httpx.URL(url)
        except httpx.InvalidURL as exc:
            raise NonRetryable(f"{url[:80]!r} is not an address: {exc}") from exc
        self._destinations.check_scheme(target.scheme)
        if target.port is not None and not 1 <= target.port <= 65_535:
            raise NonRetryable(f"{_shown(target)} is not an address: a port is from 1 to 65535")
        if not target.host or target.userinfo:
            raise NonRetryable(f"{_shown(target)}: an address has a host, and neither user nor password")
        return target

    def _post(self, target: httpx.URL, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Return the status and the start of the response."""
        deadline = _Deadline(self._clock, self._timeout_seconds)
        network = _CheckedNetwork(self._destinations, self._resolve, deadline)
        url = httpcore.URL(
            scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path or b"/"
        )
        spans = {"connect": CONNECT_SECONDS, "read": self._timeout_seconds, "write": self._timeout_seconds}
        with (
            httpcore.ConnectionPool(ssl_context=self._tls, max_connections=1, network_backend=network) as pool,
            pool.stream(
                "POST", url, headers=list(headers.items()), content=body, extensions={"timeout": spans}
            ) as response,
        ):
            if response.status < 400:
                return response.status, b""
            deadline.shorten(_EXCERPT_SECONDS)
            return response.status, _excerpt(response)

    def _signature(self, url: str, message_id: str, body: bytes) -> dict[str, str]:
        secret = None if self._secret_for is None else self._secret_for(url)
        if secret is None:
            return {}
        moment = str(int(self._clock.seconds()))
        signed = hmac.new(secret, f"{message_id}.{moment}.".encode() + body, hashlib.sha256).digest()
        return {
            "webhook-id": message_id,
            "webhook-timestamp": moment,
            "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
        }


class _Deadline:
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

    def __init__(self, destinations: Destinations, resolve: Resolve, deadline: _Deadline) -> None:
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

    def __init__(self, stream: httpcore.NetworkStream, deadline: _Deadline) -> None:
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


def _excerpt(response: httpcore.Response) -> bytes:
    """Return the start of the response body. Errors are ignored: the status is known already."""
    excerpt = b""
    try:
        for chunk in response.iter_stream():
            excerpt += chunk
            if len(excerpt) >= _EXCERPT_BYTES:
                break
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
        pass
    return excerpt[:_EXCERPT_BYTES]


def _judge(shown: str, status: int, excerpt: bytes) -> None:
    if 200 <= status < 300:
        return
    detail = f": {excerpt.decode(errors='replace').strip()}" if excerpt.strip() else ""
    if status == 429:
        raise ThrottledError(f"{shown}: answered 429{detail}")
    if status >= 500 or status in _PASSING:
        raise TransientError(f"{shown}: answered {status}{detail}")
    if 300 <= status < 400:
        raise NonRetryable(f"{shown}: answered {status}; redirects are not followed, so subscribe to where it leads")
    raise NonRetryable(f"{shown}: answered {status}{detail}")


def _host(target: httpx.URL) -> str:
    return target.netloc.decode("ascii")


def _receiver(target: httpx.URL) -> str:
    """Return the `host:port` of an address."""
    host = target.raw_host.decode("ascii").lower().rstrip(".")
    port = target.port or (443 if target.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _shown(target: httpx.URL) -> str:
    """Return an address without its path and query, which may contain secrets."""
    return f"{target.scheme}://{_host(target)}"
