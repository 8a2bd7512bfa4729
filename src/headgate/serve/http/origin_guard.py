"""Origin guard: admits local programs and refuses cross-site requests from web pages.

A web page can make a visitor's browser call loopback addresses, but it cannot choose the `Host` and `Origin` headers,
so both are checked. The `Host` check stops DNS rebinding. Images, scripts and links send no `Origin`; `Sec-Fetch-Site`
identifies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from headgate.serve.http.problem import Problem, send_problem
from headgate.settings import is_loopback

# The largest accepted payload, with its envelope.
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
PAGES: Final = "/ui"


class OriginGuard:
    """ASGI middleware that refuses requests by host, origin and body size."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Iterable[str] = (),
        admits: Callable[[Scope, str], bool] = lambda _scope, _origin: False,
    ) -> None:
        self._app = app
        self._allowed = frozenset(host.lower() for host in allowed_hosts)
        # Origins that the user's app admits to its own routes.
        self._admits = admits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self.refusal(scope) if scope["type"] == ScopeType.HTTP else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            # The body is not read, so the connection cannot serve another request.
            await send_problem(send, problem, {"connection": "close"})

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
        if any(not self._is_origin_allowed(o, hosts[0]) and not self._admits(scope, o) for o in origins):
            return Problem.of(
                403,
                "origin_not_allowed",
                f"a page from {', '.join(origins)} may not call this server; add its host to allowed_hosts",
            )
        if not origins and "cross-site" in _header(scope, b"sec-fetch-site") and not _is_navigation(scope):
            return Problem.of(
                403,
                "origin_not_allowed",
                "a page from another site may not call this server; open the address directly",
            )
        if any(length.isdigit() and int(length) > BODY_BYTES_MAX for length in _header(scope, b"content-length")):
            return Problem.of(413, "content_too_large", f"the body is larger than {BODY_BYTES_MAX:,} bytes; send less")
        return None

    def _is_allowed(self, name: str) -> bool:
        return is_loopback(name) or name in self._allowed

    def _is_origin_allowed(self, origin: str, host: str) -> bool:
        scheme, _, authority = origin.partition("://")
        if scheme not in ("http", "https"):
            return False
        return authority.lower() == host.lower() or self._is_allowed(_host_name(authority))


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
