"""HTTP client of triggers: bounded time, bounded responses, retries, and an SSRF guard.

Every connection goes to an address that was resolved once and checked, so that DNS cannot redirect it to internal
services between the check and the call. Redirects are not followed, and proxies of the environment are ignored.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Mapping
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
from headgate.errors import TransientError
from headgate.triggers.contract import FailureCategory, TriggerFailedError, shown

TIMEOUT_SECONDS: Final = 30.0
ANSWER_BYTES_MAX: Final = 1_048_576
TRIES: Final = 3
BACKOFF_SECONDS: Final = 0.2
BACKOFF_SECONDS_MAX: Final = 2.0
JITTER: Final = 0.3
# 4xx statuses for which a retry may succeed.
RETRYABLE_STATUSES: Final = frozenset({408, 425, 429})
# Responses to these may quote credentials.
_SILENT: Final = frozenset({401, 403, 407})


class HttpRequest(Struct, frozen=True, kw_only=True):
    """A request. Its headers and body may hold secrets, so that it is never shown."""

    method: str
    url: str
    headers: dict[str, str] = {}
    body: bytes = b""
    timeout_seconds: float = TIMEOUT_SECONDS
    # Whether it may be repeated although an earlier attempt may have had an effect.
    is_idempotent: bool = True

    def __repr__(self) -> str:
        return f"<request {self.method}>"


class HttpResponse(Struct, frozen=True):
    """A status, the body up to a limit, and the headers by their names in lower case."""

    status: int
    body: bytes
    where: str
    headers: dict[str, str] = {}

    @property
    def is_good(self) -> bool:
        """Whether the request was accepted."""
        return 200 <= self.status < 300

    def object(self) -> dict[str, Any]:
        """Return the body as a JSON object. Raises `TriggerFailedError` for anything else."""
        try:
            return typed_decode.from_json(self.body, dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise TriggerFailedError(
                f"{self.where}: answered {self.status} without a JSON object; check the URL",
                FailureCategory.TRANSIENT,
            ) from exc

    def refusal(self) -> TriggerFailedError:
        """Return the error for an unsuccessful response."""
        category = FailureCategory.PERMANENT
        if self.status >= 500 or self.status in RETRYABLE_STATUSES:
            category = FailureCategory.TRANSIENT
        if 300 <= self.status < 400:
            detail = "; redirects are not followed; use the final URL"
        else:
            text = "" if self.status in _SILENT else shown(self.body.decode(errors="replace"))
            detail = f": {text}" if text else ""
        return TriggerFailedError(f"{self.where}: answered {self.status}{detail}", category)


class TriggerHttpClient:
    """Sends requests with retries. Safe to use from many threads."""

    def __init__(
        self,
        clock: Clock,
        destinations: Destinations,
        *,
        resolve: Resolve = system_resolve,
        tls: ssl.SSLContext | None = None,
        pause: Callable[[float], None] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._http = OutboundHttp(clock, destinations, resolve=resolve, tls=tls)
        self._pause = pause if pause is not None else clock.sleep
        self._draw = draw

    def ask(self, request: HttpRequest, *, tries: int = TRIES) -> HttpResponse:
        """Return the response to a request, whatever its status, after retrying 5xx and temporary 4xx.

        Raises `TriggerFailedError` without a response: PERMANENT if the destination is not allowed, TIMEOUT, or
        TRANSIENT if it cannot be reached.
        """
        target = self._target(request.url)
        for attempt in range(1, tries + 1):
            try:
                answer = self._once(target, request)
                if answer.status < 500 and answer.status not in RETRYABLE_STATUSES:
                    return answer
            except TriggerFailedError as exc:
                if attempt == tries or not _helps(exc, request):
                    raise
            else:
                if attempt == tries:
                    return answer
            self._pause(self._backoff_seconds(attempt))
        raise AssertionError("the last try returns or raises")

    def _backoff_seconds(self, attempt: int) -> float:
        plain = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2.0 ** (attempt - 1))
        return float(plain * (1 + JITTER * (2 * self._draw() - 1)))

    def _target(self, url: str) -> httpx.URL:
        try:
            return self._http.target(url)
        except NonRetryable as exc:
            raise TriggerFailedError(f"url: {exc}", FailureCategory.PERMANENT) from exc

    def _once(self, target: httpx.URL, request: HttpRequest) -> HttpResponse:
        where = origin_of(target)
        try:
            return self._exchanged(target, request)
        except (NonRetryable, httpcore.UnsupportedProtocol) as exc:
            raise TriggerFailedError(f"{where}: {exc}", FailureCategory.PERMANENT) from exc
        except httpcore.LocalProtocolError:
            # Not chained: the error quotes the header.
            raise TriggerFailedError(
                f"{where}: a header cannot be sent; use ASCII without controls", FailureCategory.PERMANENT
            ) from None
        except (httpcore.ConnectTimeout, httpcore.ConnectError, TransientError) as exc:
            raise TriggerFailedError(
                f"{where}: it cannot be reached: {shown(str(exc))}", FailureCategory.TRANSIENT
            ) from exc
        except httpcore.TimeoutException as exc:
            raise TriggerFailedError(
                f"{where}: no answer within {request.timeout_seconds:g} s", FailureCategory.TIMEOUT
            ) from exc
        except (httpcore.NetworkError, httpcore.ProtocolError) as exc:
            raise TriggerFailedError(
                f"{where}: {type(exc).__name__} {shown(str(exc))}", FailureCategory.TRANSIENT
            ) from exc

    def _exchanged(self, target: httpx.URL, request: HttpRequest) -> HttpResponse:
        with self._http.stream(
            request.method, target, _headers(request), request.body, timeout_seconds=request.timeout_seconds
        ) as (response, _):
            body = read_body(response, ANSWER_BYTES_MAX)[:ANSWER_BYTES_MAX]
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            return HttpResponse(response.status, body, origin_of(target), headers)


def json_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a request with a JSON body, with further ones."""
    return {"content-type": "application/json", "accept": "application/json", **headers}


def _headers(request: HttpRequest) -> dict[str, str]:
    given = {name.lower(): value for name, value in request.headers.items() if name.lower() != "host"}
    # Last: the length is not configurable, and neither is the host.
    return {**given, "content-length": str(len(request.body))}


def _helps(error: TriggerFailedError, request: HttpRequest) -> bool:
    """Whether a retry may help and cannot repeat an effect."""
    if error.category is FailureCategory.TRANSIENT:
        return True
    return error.category is FailureCategory.TIMEOUT and request.is_idempotent
