"""Forwarding: sends an event to another service, as a CloudEvent over HTTP.

Each event is one request of `OutboundHttp`, which checks the destination.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from collections.abc import Callable, Mapping
from typing import Final

import httpcore
import httpx

from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations, Resolve, system_resolve
from headgate.durable.bus.events import Event, Mode, to_http
from headgate.durable.bus.outbound_http import OutboundHttp, origin_of
from headgate.durable.model.failures import NonRetryable
from headgate.errors import ThrottledError, TransientError
from headgate.settings import Secret

TIMEOUT_SECONDS: Final = 30.0
_EXCERPT_BYTES: Final = 500
_EXCERPT_SECONDS: Final = 1.0
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
        self._http = OutboundHttp(clock, destinations, resolve=resolve, tls=tls)
        self._mode = mode
        self._secret_for = secret_for
        self._headers_for = headers_for
        self._timeout_seconds = timeout_seconds

    def send(self, url: str, event: Event, *, message_id: str, mode: Mode | None = None) -> None:
        """Send an event, and return once the receiver has accepted it. `message_id` is the same for every attempt.

        `mode` overrides that of the forwarder.
        Raises `NonRetryable` if the receiver refuses the event or is not allowed, and `TransientError` if it cannot be
        reached, is busy or fails.
        """
        target = self._http.target(url)
        headers, body = to_http(event, mode or self._mode)
        headers |= {"content-length": str(len(body))}
        headers |= self._signature(url, message_id, body)
        secret = {name: value.reveal() for name, value in self._headers_for(_receiver(target)).items()}
        try:
            status, excerpt = self._post(target, headers | secret, body)
        except httpcore.TimeoutException as exc:
            raise TransientError(f"{origin_of(target)}: no answer in time ({type(exc).__name__})") from exc
        except (httpcore.NetworkError, httpcore.ProtocolError) as exc:
            raise TransientError(f"{origin_of(target)}: {type(exc).__name__} {exc}") from exc
        _judge(origin_of(target), status, b"" if secret else excerpt)

    def _post(self, target: httpx.URL, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Return the status and the start of the response."""
        with self._http.stream("POST", target, headers, body, timeout_seconds=self._timeout_seconds) as (
            response,
            deadline,
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


def _receiver(target: httpx.URL) -> str:
    """Return the `host:port` of an address."""
    host = target.raw_host.decode("ascii").lower().rstrip(".")
    port = target.port or (443 if target.scheme == "https" else 80)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
