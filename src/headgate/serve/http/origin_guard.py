"""The guard before every route: open to programs on this machine, closed to web pages from elsewhere.

A page that a user happens to visit can make the browser call loopback addresses. It cannot choose the
`Host` and `Origin` that the browser sends, so both are checked; without the former check, a name that the
page's owner points at 127.0.0.1 would pass for us. Images, scripts and links send no `Origin`; they are told
by `Sec-Fetch-Site`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from headgate.serve.http.problem import Problem, send_problem
from headgate.settings import is_loopback

# Room for the largest payload that is accepted, and what is around it.
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
PAGES: Final = "/ui"


class OriginGuard:
    """An ASGI application that lets acceptable requests through to the one behind it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Iterable[str] = (),
        admits: Callable[[Scope, str], bool] = lambda _scope, _origin: False,
    ) -> None:
        self._app = app
        self._allowed = frozenset(host.lower() for host in allowed_hosts)
        # Pages of these origins may call what the app declares for them, and nothing else.
        self._admits = admits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self.refusal(scope) if scope["type"] == ScopeType.HTTP else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            # The body of a refused request is not read, so the connection cannot serve another one.
            await send_problem(send, problem, {"connection": "close"})

    def refusal(self, scope: HTTPScope) -> Problem | None:
        """Return why a request is not let through, or None if it is."""
        hosts = _header(scope, b"host")
        origins = _header(scope, b"origin")
        if len(hosts) != 1 or not self._is_allowed(_host_name(hosts[0])):
            return Problem.of(
                421,
                "host_not_allowed",
                f"host {', '.join(hosts) or 'missing'} is not served here; "
                "use a loopback name, or add it to allowed_hosts",
            )
        if any(not self._is_origin_allowed(o, hosts[0]) and not self._admits(scope, o) for o in origins):
            return Problem.of(
                403,
                "origin_not_allowed",
                f"a page from {', '.join(origins)} may not call this server; add its host to allowed_hosts",
            )
        if not origins and "cross-site" in _header(scope, b"sec-fetch-site") and not _is_visit(scope):
            return Problem.of(
                403,
                "origin_not_allowed",
                "a page from another site may not call this server; open the address by itself",
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


def _is_visit(scope: HTTPScope) -> bool:
    """Whether someone follows a link to one of our pages, which only show, and are never shown in a frame."""
    return (
        scope["method"] == "GET"
        and (scope["path"] == PAGES or scope["path"].startswith(f"{PAGES}/"))
        and _header(scope, b"sec-fetch-mode") == ["navigate"]
        and _header(scope, b"sec-fetch-dest") == ["document"]
    )


def _header(scope: HTTPScope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _host_name(authority: str) -> str:
    """Return the host of `HOST[:PORT]` in lower case, brackets kept as they are written; empty if it has none."""
    try:
        parts = urlsplit(f"//{authority}")
        name = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return ""
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return ""
    return f"[{name}]" if ":" in name else name
