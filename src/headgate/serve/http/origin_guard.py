"""Origin guard: admits programs and the server's own pages, and refuses requests of other web pages.

A web page can make a visitor's browser call loopback addresses, but it cannot choose the headers `Host`, `Origin` and
`Sec-Fetch-Site`. The `Host` check stops DNS rebinding. A request that changes something and has one of the other two
comes from a browser: its origin must be the server's own (scheme, host and port) or a configured one. Reads are refused
to other sites only; the browser keeps their answers from a page of another origin. A WebSocket has no such protection
and needs an admitted origin as a change does. Images, scripts and links send no
`Origin`; `Sec-Fetch-Site` identifies them. Programs send neither header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from headgate.serve.http.problem import Problem, send_problem
from headgate.serve.http.websocket import socket_of
from headgate.settings import is_loopback

# The largest accepted payload, with its envelope.
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
PAGES: Final = "/ui"
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Methods, headers and cache time of preflight answers to configured origins. Credentials are keys, not cookies.
_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_HEADERS: Final = (
    "accept, authorization, content-type, if-match, if-none-match, idempotency-key, x-correlation-id, "
    "connect-protocol-version, connect-timeout-ms, last-event-id"
)
_MAX_AGE_SECONDS: Final = "600"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
# A navigation that no page caused, such as a bookmark, and requests of the server's own pages.
_OWN_SITES: Final = frozenset({"same-origin", "none"})
_OPAQUE: Final = "null"
_FORWARDED_PROTO: Final = b"x-forwarded-proto"


class OriginGuard:
    """ASGI middleware that refuses requests by host, origin and body size."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        is_behind_proxy: bool = False,
        admits: Callable[[Scope, str], bool] = lambda _scope, _origin: False,
    ) -> None:
        self._app = app
        self._allowed = frozenset(host.lower() for host in allowed_hosts)
        self._origins = frozenset(_origin(each) for each in allowed_origins)
        self._is_behind_proxy = is_behind_proxy
        # Origins that the user's app admits to its own routes.
        self._admits = admits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        send = self.shared(scope, send)
        problem = self.refusal(scope)
        if problem is not None:
            # The body is not read, so the connection cannot serve another request.
            await send_problem(send, problem, {"connection": "close"})
        elif self._is_configured_preflight(scope):
            await send({"type": "http.response.start", "status": 204, "headers": _PREFLIGHT})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            self._mark_own_page(scope)
            await self._app(scope, receive, send)

    def _mark_own_page(self, scope: HTTPScope) -> None:
        """State on a WebSocket whether a page of this server opened it. Browsers always send its origin."""
        socket, origins = socket_of(scope), _header(scope, b"origin")
        if socket is not None and origins:
            [host], sites = _header(scope, b"host"), _header(scope, b"sec-fetch-site")
            socket.is_own_page = self._is_own_page(scope, host, origins, sites)

    def shared(self, scope: HTTPScope, send: Send) -> Send:
        """Return a `send` that lets a page of a configured origin read the response."""
        if not self._origins:
            return send
        origins = _header(scope, b"origin")
        if len(origins) != 1 or _origin(origins[0]) not in self._origins or self._admits(scope, origins[0]):
            return send
        marks = [(b"access-control-allow-origin", origins[0].encode("latin-1")), (b"vary", b"origin")]

        async def send_shared(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *marks]
            await send(message)

        return send_shared

    def _is_configured_preflight(self, scope: HTTPScope) -> bool:
        origins = _header(scope, b"origin") if self._origins and is_preflight(scope) else []
        return len(origins) == 1 and _origin(origins[0]) in self._origins and not self._admits(scope, origins[0])

    def refusal(self, scope: HTTPScope) -> Problem | None:
        """Return the problem of a refused request, or None if it is admitted."""
        hosts = _header(scope, b"host")
        origins = _header(scope, b"origin")
        if len(hosts) != 1 or not self._is_allowed(_host_name(hosts[0])):
            return Problem.of(
                421,
                "host_not_allowed",
                f"host {', '.join(hosts) or 'missing'} is not allowed; use a loopback name, or add it to allowed_hosts",
            )
        sites = _header(scope, b"sec-fetch-site")
        if (origins or sites) and not self._is_admitted(scope, hosts[0], origins, sites):
            source = f"a page from {', '.join(origins)}" if origins else "a page from another site"
            return Problem.of(
                403,
                "origin_not_allowed",
                f"{source} may not call this server; open the address directly, or add the origin to allowed_origins",
            )
        if any(length.isdigit() and int(length) > BODY_BYTES_MAX for length in _header(scope, b"content-length")):
            return Problem.of(413, "content_too_large", f"the body is larger than {BODY_BYTES_MAX:,} bytes; send less")
        return None

    def _is_allowed(self, name: str) -> bool:
        return is_loopback(name) or name in self._allowed

    def _is_admitted(self, scope: HTTPScope, host: str, origins: list[str], sites: list[str]) -> bool:
        """Whether a browser may make this request."""
        if origins and all(_origin(each) in self._origins or self._admits(scope, each) for each in origins):
            return True
        if scope["method"] not in READS or socket_of(scope) is not None:
            # A browser lets the page of any origin read from a WebSocket.
            return self._is_own_page(scope, host, origins, sites)
        if origins:
            return all(self._may_read(each, host) for each in origins)
        return "cross-site" not in sites or _is_navigation(scope)

    def _is_own_page(self, scope: HTTPScope, host: str, origins: list[str], sites: list[str]) -> bool:
        """Whether a page of this server makes the request. Both headers must say so, where they are sent."""
        if not set(sites) <= _OWN_SITES:
            return False
        # The referrer policy of our pages hides their origin; the browser states that it is the same.
        own = {_OPAQUE} if sites == ["same-origin"] else set()
        own |= {f"{scheme}://{_authority(scheme, host)}" for scheme in self._schemes(scope)}
        return {_origin(each) for each in origins} <= own

    def _schemes(self, scope: HTTPScope) -> list[str]:
        """Return the schemes that this server may be reached by; a proxy may encrypt without saying so."""
        if not self._is_behind_proxy:
            return [scope["scheme"]]
        forwarded = [each.strip().lower() for each in _header(scope, _FORWARDED_PROTO)]
        return forwarded[:1] if forwarded else list(_DEFAULT_PORTS)

    def _may_read(self, origin: str, host: str) -> bool:
        scheme, _, authority = origin.partition("://")
        if scheme not in _DEFAULT_PORTS:
            return False
        return authority.lower() == host.lower() or self._is_allowed(_host_name(authority))


_PREFLIGHT: Final = [
    (b"access-control-allow-methods", _METHODS.encode()),
    (b"access-control-allow-headers", _HEADERS.encode()),
    (b"access-control-max-age", _MAX_AGE_SECONDS.encode()),
]


def is_preflight(scope: HTTPScope) -> bool:
    """Whether a browser asks for permission to make a request."""
    return scope["method"] == "OPTIONS" and bool(_header(scope, b"access-control-request-method"))


def is_browser(scope: HTTPScope) -> bool:
    """Whether a browser sent the request on behalf of a page."""
    return any(name in (b"origin", b"sec-fetch-site") for name, _ in scope["headers"])


def _origin(text: str) -> str:
    """Return an origin in its usual form: in lower case, without the default port of its scheme."""
    scheme, separator, authority = text.strip().lower().partition("://")
    return f"{scheme}://{_authority(scheme, authority)}" if separator else scheme


def _authority(scheme: str, authority: str) -> str:
    authority = authority.strip().lower()
    return authority.removesuffix(f":{_DEFAULT_PORTS.get(scheme, '')}") if scheme in _DEFAULT_PORTS else authority


def _is_navigation(scope: HTTPScope) -> bool:
    """Whether a user navigates to a page. Pages are read-only and never framed."""
    return (
        scope["method"] == "GET"
        and (scope["path"] == PAGES or scope["path"].startswith(f"{PAGES}/"))
        and _header(scope, b"sec-fetch-mode") == ["navigate"]
        and _header(scope, b"sec-fetch-dest") == ["document"]
    )


def _header(scope: HTTPScope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _host_name(authority: str) -> str:
    """Return the host of `HOST[:PORT]` in lower case, with brackets; empty if malformed."""
    try:
        parts = urlsplit(f"//{authority}")
        name = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return ""
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return ""
    return f"[{name}]" if ":" in name else name
