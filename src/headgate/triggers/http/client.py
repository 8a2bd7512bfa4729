"""Outbound requests of triggers: checked destinations, bounded time, bounded answers, and tries that help.

Every connection goes to an address that was looked up once and checked, so that no name can be pointed at a cloud's own
services between the check and the call. Redirects are not followed, and proxies of the environment not used.
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
from headgate.durable.bus.forwarding import _CheckedNetwork, _Deadline
from headgate.durable.model.failures import NonRetryable
from headgate.errors import TransientError
from headgate.triggers.contract import FailureCategory, TriggerFailedError, shown

TIMEOUT_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 10.0
ANSWER_BYTES_MAX: Final = 1_048_576
TRIES: Final = 3
BACKOFF_SECONDS: Final = 0.2
BACKOFF_SECONDS_MAX: Final = 2.0
JITTER: Final = 0.3
# Statuses of the 400s that say nothing against the request itself.
PASSING: Final = frozenset({408, 425, 429})
# Answers to these may quote what proves who asks.
_SILENT: Final = frozenset({401, 403, 407})


class Request(Struct, frozen=True, kw_only=True):
    """A request. Its headers and body may hold secrets, so it is never shown."""

    method: str
    url: str
    headers: dict[str, str] = {}
    body: bytes = b""
    timeout_seconds: float = TIMEOUT_SECONDS
    # Whether it can be sent again though an earlier one may have been acted upon after all.
    is_idempotent: bool = True

    def __repr__(self) -> str:
        return f"<request {self.method}>"


class Answer(Struct, frozen=True):
    """A status, and as much of the body as was asked for."""

    status: int
    body: bytes
    where: str

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
                f"{self.where}: answered {self.status} with what is not a JSON object; is it the right address?",
                FailureCategory.TRANSIENT,
            ) from exc

    def refusal(self) -> TriggerFailedError:
        """Return the error that an answer other than good comes to."""
        category = FailureCategory.PERMANENT
        if self.status >= 500 or self.status in PASSING:
            category = FailureCategory.TRANSIENT
        if 300 <= self.status < 400:
            said = "; redirects are not followed, so name the address it leads to"
        else:
            text = "" if self.status in _SILENT else shown(self.body.decode(errors="replace"))
            said = f": {text}" if text else ""
        return TriggerFailedError(f"{self.where}: answered {self.status}{said}", category)


class Outbound:
    """Sends requests. Safe to use from many threads."""

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
        self._clock = clock
        self._destinations = destinations
        self._resolve = resolve
        # Loading the certificates takes longer than many a request, so it is done once, and late.
        self._tls = tls
        self._pause = pause if pause is not None else clock.sleep
        self._draw = draw

    def ask(self, request: Request, *, tries: int = TRIES) -> Answer:
        """Return the answer to a request, whatever its status; 5xx and passing 4xx have been tried again before.

        Raises `TriggerFailedError` if there is none: PERMANENT if the address must not be used, TIMEOUT if the time
        was up, TRANSIENT if it could not be reached.
        """
        target = self._target(request.url)
        for attempt in range(1, tries + 1):
            try:
                answer = self._once(target, request)
                if answer.status < 500 and answer.status not in PASSING:
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
            target = httpx.URL(url)
        except httpx.InvalidURL as exc:
            raise TriggerFailedError(f"url: it is not an address: {exc}", FailureCategory.PERMANENT) from exc
        if not target.host or target.userinfo:
            raise TriggerFailedError(
                "url: an address has a host, and neither user nor password", FailureCategory.PERMANENT
            )
        try:
            self._destinations.check_scheme(target.scheme)
        except NonRetryable as exc:
            raise TriggerFailedError(f"{_where(target)}: {exc}", FailureCategory.PERMANENT) from exc
        return target

    def _once(self, target: httpx.URL, request: Request) -> Answer:
        where = _where(target)
        try:
            return self._exchanged(target, request)
        except (NonRetryable, httpcore.UnsupportedProtocol) as exc:
            raise TriggerFailedError(f"{where}: {exc}", FailureCategory.PERMANENT) from exc
        except httpcore.LocalProtocolError:
            # Not chained: the error quotes the header that cannot be sent.
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

    def _exchanged(self, target: httpx.URL, request: Request) -> Answer:
        if self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=False)
        deadline = _Deadline(self._clock, request.timeout_seconds)
        network = _CheckedNetwork(self._destinations, self._resolve, deadline)
        url = httpcore.URL(
            scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path or b"/"
        )
        spans = {"connect": CONNECT_SECONDS, "read": request.timeout_seconds, "write": request.timeout_seconds}
        with (
            httpcore.ConnectionPool(ssl_context=self._tls, max_connections=1, network_backend=network) as pool,
            pool.stream(
                request.method,
                url,
                headers=_headers(target, request),
                content=request.body,
                extensions={"timeout": spans},
            ) as response,
        ):
            return Answer(response.status, _body(response), _where(target))


def json_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers of a request with a JSON body, with whatever else is to be said."""
    return {"content-type": "application/json", "accept": "application/json", **headers}


def _headers(target: httpx.URL, request: Request) -> list[tuple[str, str]]:
    given = {name.lower(): value for name, value in request.headers.items()}
    # Last, since where it goes and how long the body is are not for the user to say.
    ours = {"host": target.netloc.decode("ascii"), "content-length": str(len(request.body))}
    return list(({"user-agent": "headgate"} | given | ours).items())


def _body(response: httpcore.Response) -> bytes:
    body = b""
    for chunk in response.iter_stream():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            return body[:ANSWER_BYTES_MAX]
    return body


def _helps(error: TriggerFailedError, request: Request) -> bool:
    """Whether another try may help, and cannot do anything twice."""
    if error.category is FailureCategory.TRANSIENT:
        return True
    return error.category is FailureCategory.TIMEOUT and request.is_idempotent


def _where(target: httpx.URL) -> str:
    """Return an address without what may be secret in it."""
    return f"{target.scheme}://{target.netloc.decode('ascii')}"
